"""A line for each table with runs: the leading method, and the rank of the paper's own."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from bfno.lab.errors import ConfigError
from bfno.lab.files import read_plain, write_atomically
from bfno.lab.paper.comparison import is_slice_of_activity, shown_metrics
from bfno.lab.paper.numbers import PaperRow, PaperTable, paper_table
from bfno.lab.paper.sections import Section
from bfno.lab.runs.record import Record, flat_config
from bfno.lab.views.layout import Column, Table, as_markdown
from bfno.lab.views.methods import is_transductive
from bfno.lab.views.metrics import (
    Estimate,
    Metric,
    counted,
    find_metric,
    odds,
    rank_correlation,
)

__all__ = ["Agreement", "Standing", "agreement_text", "around_overview", "order_agreement"]
__all__ += ["overview", "put_overview", "standing_here", "standing_in_paper"]

# Only the text between these two lines of a document is ours.
_BEGIN = "<!-- overview of results: made by `bfno results` -->"
_END = "<!-- end of the overview -->"
# The paper's own method, in whichever table.
_OURS = ("/latent-bfno-node", "/ffjord-bfno-rnode", "/bfno-node", "/bfno-node-small")

_LEAST_ORDERED = 5


def overview(sections: Sequence[Section], page: str = "") -> str:
    """A line of a Markdown table for each section: who leads here, and who leads in the paper.

    Args:
        sections: The sections.
        page: Where they are, for links to them; empty if they follow on the same page.
    """
    lines = ["| table | best here | best in the paper |", "| --- | --- | --- |"]
    for section in sections:
        paper = paper_table(section.table)
        metric = shown_metrics(paper, section.variant)[0]
        here = standing_here(paper, section.data, [run for _, run in section.runs], metric)
        found = f"{metric.title}: {here}" if here and section.variant.measures else here
        published = None if section.variant.measures else standing_in_paper(paper, section.data)
        link = f"[{section.title}]({page}#{_anchor(section.title)}){_reservation(section)}"
        lines.append(f"| {link} | {found or '–'} | {published or '–'} |")
    return "".join(f"{line}\n" for line in lines)


def agreement_text(sections: Sequence[Section]) -> str:
    """How well the order of the methods matches the paper's, table by table, the best first."""
    scales = Counter(section.scale for section in sections)
    usual, found = scales.most_common(1)[0][0] if scales else "", []
    for section in sections:
        agreement = None if section.variant.measures else order_agreement(section)
        if agreement:
            scale = "" if section.scale == usual else f"{section.scale} scale"
            where = ", ".join(filter(None, [scale, section.variant.title]))
            name = paper_table(section.table).subject(section.data)
            found.append((agreement, f"{name}{f' ({where})' if where else ''}"))
    if not found:
        return ""
    table = Table(
        (
            Column("data", "data", numeric=False),
            Column("correlation", "rank correlation"),
            Column("chance", "p"),
            Column("methods", "methods"),
        ),
        tuple(
            (name, f"{one.correlation:.2f}", _number(one.chance), one.methods)
            for one, name in sorted(found, key=lambda row: -row[0].correlation)
        ),
    )
    return (
        "**The order of the methods** here and in the paper's tables, compared by Spearman's rank "
        "correlation (1: the same order, 0: unrelated, −1: the reverse order); p is the chance of "
        f"a correlation as far from 0 between unrelated orders.\n\n{as_markdown(table)}"
    )


def _number(chance: float) -> str:
    """A chance as `odds` prints it, for a column that is called p."""
    return odds(chance).removeprefix("p ").removeprefix("= ")


@dataclass(frozen=True)
class Agreement:
    """How well two orders of methods match.

    Attributes:
        correlation: Spearman's rank correlation.
        chance: The chance of a correlation as far from zero if the orders were unrelated.
        methods: Number of methods.
    """

    correlation: float
    chance: float
    methods: int

    def __str__(self) -> str:
        return f"{self.correlation:.2f} ({self.methods} methods, {odds(self.chance)})"


def order_agreement(section: Section) -> Agreement | None:
    """How well the scores of a table order its methods as the paper's scores do.

    A method with a seed that failed or diverged comes last, as everywhere. None if fewer than five
    methods have runs here and a score in the paper: so few are in the same order too easily.
    """
    paper = paper_table(section.table)
    metric, runs = find_metric(paper.metrics[0]), [run for _, run in section.runs]
    ranks = []
    for row in _rows(paper, section.data):
        members, printed = row.runs(section.data, runs), paper.score(row, section.data)
        here = metric.estimate(members)
        failed = any(run.has_failed for run in members)
        if printed and (here or failed):
            mean = here.mean if here and not failed else math.nan
            ranks.append((metric.rank(mean), metric.rank(printed.mean)))
    if len(ranks) < _LEAST_ORDERED:
        return None
    found = rank_correlation(*zip(*ranks, strict=True))
    return found and Agreement(*found, len(ranks))


def _reservation(section: Section) -> str:
    """Why the paper's numbers cannot be expected, besides the scale that the title names."""
    runs = [run for _, run in section.runs]
    sizes = {flat_config(run.config).get("data.size") for run in runs} - {None}
    found = [f"images of {size} × {size}" for size in sizes if section.scale != "paper"]
    found += ["a slice of the data"] if any(map(is_slice_of_activity, runs)) else []
    return f": {', '.join(found)}" if found else ""


def _anchor(title: str) -> str:
    """The name that a heading has in links, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def put_overview(document: Path, overview: str) -> None:
    """Replace the overview in a document, and nothing else; it keeps the document's line ends."""
    before, after = around_overview(document)
    ends = "\r\n" if before.endswith("\r\n") else "\n"
    text = before + overview.replace("\n", ends) + after
    write_atomically(document.resolve(), text.encode())  # a link stays one


def around_overview(document: Path) -> tuple[str, str]:
    """The text before and after the overview in a document, with the lines that mark it.

    Raises:
        ConfigError: If the document cannot be read, or does not mark exactly one place.
        DataError: If it is not a plain file.
    """
    try:
        text = read_plain(document).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(document, "cannot be read as text", "name a Markdown file") from error
    begin, end = (
        list(re.finditer(rf"^{re.escape(mark)}[ \t]*(?:\r?\n|\Z)", text, re.MULTILINE))
        for mark in (_BEGIN, _END)
    )
    if not (len(begin) == len(end) == 1 and begin[0].end() <= end[0].start()):
        fix = f"put `{_BEGIN}` and `{_END}` there, each once and on its own line"
        raise ConfigError(document, "does not mark a place for the overview", fix)
    return text[: begin[0].end()], text[end[0].start() :]


@dataclass(frozen=True)
class Standing:
    """The best of a table, and the place of the paper's method.

    Attributes:
        leader: Name of the best method.
        best: Its score.
        ours: Name of the paper's method.
        score: Its score.
        place: Its place, from 1.
        methods: Number of methods that were trained.
        equals: Number of others with the same score as the best method.
        beside: Number of others with the same score as the paper's.
        missing: Number of methods of the table that have no score.
        lost: What happened to methods with a seed that failed or diverged, which have no place.
    """

    leader: str
    best: Estimate
    ours: str
    score: Estimate
    place: int
    methods: int
    equals: int = 0
    beside: int = 0
    missing: int = 0
    lost: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        remarks = [f"{self.missing} without a score"] if self.missing else []
        remarks += [f"{name} {why}" for name, why in self.lost.items()]
        remark = f" ({', '.join(remarks)})" if remarks else ""
        of, leaders = f"of {self.methods}", _together_with(self.equals)
        if self.place == 1 or self.ours in self.lost:
            return f"{self.leader} {self.best}, first {of}{leaders}{remark}"
        ours = f"{self.ours} {self.score}, place {self.place} {of}{_together_with(self.beside)}"
        return f"{self.leader} {self.best}{leaders}; {ours}{remark}"


def _together_with(others: int) -> str:
    return f", tied with {counted(others, 'other')}" if others else ""


def standing_here(
    paper: PaperTable, data: str, runs: Sequence[Record], metric: Metric | None = None
) -> Standing | None:
    """The standing among runs, if there is a run of the paper's method and of another.

    None, too, if all methods have diverged.

    Args:
        paper: The table.
        data: Name of the data set.
        runs: Runs of the table, all of one scale.
        metric: The metric that they are judged by; None means the first metric of the table.
    """
    metric = metric or find_metric(paper.metrics[0])
    seeds = {run.seed for run in runs}
    scores, failed, possible = {}, {}, _rows(paper, data)
    for row in possible:
        members = row.runs(data, runs)
        label = f"{row.label} †" if any(map(is_transductive, members)) else row.label
        score = metric.estimate(members, len(seeds))
        if lost := sum(run.has_failed for run in members):
            failed[label] = f"failed with {lost} of {counted(len(members), 'seed')}"
            score = Estimate(math.nan, None, metric.digits)
        if score is not None:
            scores[row.label] = (label, score)
    found = _standing(paper, data, scores, metric)
    missing = len(possible) - len(scores)
    return found and replace(found, missing=missing, lost={**found.lost, **failed})


def _rows(paper: PaperTable, data: str) -> list[PaperRow]:
    return [row for row in paper.rows if row.experiment(data) and not row.control]


def standing_in_paper(paper: PaperTable, data: str) -> Standing | None:
    """The standing in the paper; None if it prints no scores.

    Args:
        paper: The table.
        data: Name of the data set.
    """
    printed = {row.label: paper.score(row, data) for row in paper.rows}
    scores = {
        label: (label, replace(score, remark="")) for label, score in printed.items() if score
    }
    return _standing(paper, data, scores, find_metric(paper.metrics[0]))


def _standing(
    paper: PaperTable, data: str, scores: Mapping[str, tuple[str, Estimate]], metric: Metric
) -> Standing | None:
    """The standing among rows of the table, each with a name to show and a score."""
    own = [row.label for row in paper.rows if (row.experiment(data) or "").endswith(_OURS)]
    ours = next((label for label in own if label in scores), None)
    ranks = {label: metric.rank(score.mean) for label, (_, score) in scores.items()}
    if ours is None or len(scores) < 2 or min(ranks.values()) == math.inf:
        return None
    # Of equals, all have the place of the first.
    better = [label for label in ranks if ranks[label] < ranks[ours]]
    leader = min(better, key=ranks.__getitem__) if better else ours
    equals, beside = (
        sum(rank == ranks[label] for rank in ranks.values()) - 1 for label in (leader, ours)
    )
    lost = {name: "diverged" for name, score in scores.values() if not math.isfinite(score.mean)}
    standing = Standing(
        *scores[leader], *scores[ours], len(better) + 1, len(scores), equals, beside
    )
    return replace(standing, lost=lost)
