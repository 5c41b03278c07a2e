"""Who leads a table and where the paper's own method stands, here and in the paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from bfno.lab.paper.numbers import PaperTable
from bfno.lab.runs.metrics import find_metric
from bfno.lab.runs.record import Record as RunResult
from bfno.lab.views.layout import Estimate
from bfno.lab.views.tasks import is_transductive

__all__ = ["Standing", "standing_here", "standing_in_paper"]

# The paper's own method, in whichever table.
_OURS = ("/latent-bfno-node", "/ffjord-bfno-rnode", "/bfno-node", "/bfno-node-small")


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
        missing: Number of methods of the table that have none yet.
    """

    leader: str
    best: Estimate
    ours: str
    score: Estimate
    place: int
    methods: int
    missing: int = 0

    def __str__(self) -> str:
        of = f"of {self.methods}" + (f" ({self.missing} not trained yet)" if self.missing else "")
        if self.place == 1:
            return f"{self.leader} {self.best}, first {of}"
        return f"{self.leader} {self.best}; {self.ours} {self.score}, place {self.place} {of}"


def standing_here(paper: PaperTable, data: str, runs: Sequence[RunResult]) -> Standing | None:
    """The standing among runs; none without a run of the paper's method and of another.

    Args:
        paper: The table.
        data: Name of the data set.
        runs: Runs of the table, all of one scale.
    """
    metric = find_metric(paper.metrics[0])
    seeds = {run.seed for run in runs}
    scores, possible = {}, [row for row in paper.rows if row.experiment(data)]
    for row in possible:
        members = [run for run in runs if run.experiment == row.experiment(data)]
        score = Estimate.of((run.result.get(metric.key) for run in members), metric.digits)
        if score is not None:
            few = len(members) < len(seeds)
            score = replace(score, remark=f"({len(members)} of {len(seeds)} seeds)" * few)
            label = f"{row.label} †" if any(map(is_transductive, members)) else row.label
            scores[row.label] = (label, score)
    found = _standing(paper, data, scores)
    return found and replace(found, missing=len(possible) - len(scores))


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
            scores[row.label] = (row.label, Estimate(cell.mean, cell.std, paper.digits))
    return _standing(paper, data, scores)


def _standing(
    paper: PaperTable, data: str, scores: Mapping[str, tuple[str, Estimate]]
) -> Standing | None:
    """The standing among rows of the table, each with a name to show and a score."""
    own = [row.label for row in paper.rows if (row.experiment(data) or "").endswith(_OURS)]
    ours = next((label for label in own if label in scores), None)
    if ours is None or len(scores) < 2:
        return None
    metric = find_metric(paper.metrics[0])
    ranks = {label: metric.rank(score.mean) for label, (_, score) in scores.items()}
    # Of equals, all have the place of the first.
    better = [label for label in ranks if ranks[label] < ranks[ours]]
    leader = min(better, key=ranks.__getitem__) if better else ours
    return Standing(*scores[leader], *scores[ours], len(better) + 1, len(scores))
