"""Who leads a table and where the paper's own method stands, here and in the paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bfno.results.layout import Estimate
from bfno.results.paper.numbers import PaperTable
from bfno.results.record import RunResult, find_metric

__all__ = ["Standing", "standing_here", "standing_in_paper"]

# The paper's own method, in whichever table.
_OURS = ("latent-bfno-node", "ffjord-bfno-rnode", "bfno-node", "bfno-node-small")


@dataclass(frozen=True)
class Standing:
    """The best of a table, and the place of the paper's method.

    Attributes:
        leader: Name of the best method.
        best: Its score.
        ours: Name of the paper's method.
        score: Its score.
        place: Its place, from 1.
        methods: Number of methods that have a score.
    """

    leader: str
    best: Estimate
    ours: str
    score: Estimate
    place: int
    methods: int

    def __str__(self) -> str:
        if self.place == 1:
            return f"{self.leader} {self.best}, first of {self.methods}"
        return (
            f"{self.leader} {self.best}; {self.ours} {self.score}, place {self.place} of "
            f"{self.methods}"
        )


def standing_here(paper: PaperTable, data: str, runs: Sequence[RunResult]) -> Standing | None:
    """The standing among runs; none without a run of the paper's method and of another.

    Args:
        paper: The table.
        data: Name of the data set.
        runs: Runs of the table, all of one scale.
    """
    metric = find_metric(paper.metrics[0])
    scores = {}
    for row in paper.rows:
        members = [run for run in runs if run.experiment == row.experiment(data)]
        scores[row.label] = Estimate.of(
            (run.result.get(metric.key) for run in members), metric.digits
        )
    return _standing(paper, data, scores)


def standing_in_paper(paper: PaperTable, data: str) -> Standing | None:
    """The standing that the paper prints; none where it prints no scores.

    Args:
        paper: The table.
        data: Name of the data set.
    """
    scores = {}
    for row in paper.rows:
        cell = row.cells.get(data)
        if cell is not None and cell.mean is not None:
            scores[row.label] = Estimate(cell.mean, cell.std, paper.digits)
    return _standing(paper, data, scores)


def _standing(
    paper: PaperTable, data: str, scores: Mapping[str, Estimate | None]
) -> Standing | None:
    known = {label: score for label, score in scores.items() if score is not None}
    names = {row.label: (row.experiment(data) or "").partition("/")[2] for row in paper.rows}
    ours = next((label for label in known if names[label] in _OURS), None)
    if ours is None or len(known) < 2:
        return None
    metric = find_metric(paper.metrics[0])
    order = sorted(known, key=lambda label: metric.rank(known[label].mean))
    # Of equals, all have the place of the first.
    rank = metric.rank(known[ours].mean)
    better = [label for label in order if metric.rank(known[label].mean) < rank]
    leader = ours if not better else order[0]
    return Standing(leader, known[leader], ours, known[ours], len(better) + 1, len(known))
