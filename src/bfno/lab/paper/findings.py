"""The findings of all runs on the paper: sentences and one picture, for the top of a page."""

from __future__ import annotations

import itertools
import json
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from bfno.lab.data.catalogue import DATA_SETS
from bfno.lab.errors import DataError
from bfno.lab.experiments.resolve import resolve
from bfno.lab.files import read_plain
from bfno.lab.paper.claims import (
    ONE_SEED,
    PAPER_CLAIMS,
    Claim,
    Judgement,
    Lead,
    Outcome,
    how_sure,
    is_full_size,
    judge_claims,
)
from bfno.lab.paper.numbers import PaperRow, PaperTable, paper_table, table_names
from bfno.lab.paper.sections import has_changes, select_runs, variants_of
from bfno.lab.runs.record import Record
from bfno.lab.runs.variants import AS_DEFINED, Variant
from bfno.lab.views.curves import epoch_values
from bfno.lab.views.figures.style import FAINT, INK, PALETTE, Drawn, drawn
from bfno.lab.views.layout import Column, Table, as_markdown
from bfno.lab.views.metrics import Estimate, Metric, counted, find_metric, mean
from bfno.lab.views.summary import listed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

__all__ = [
    "CLAIMS_ANCHOR",
    "FullSize",
    "Released",
    "Verdicts",
    "counts_text",
    "explanation_text",
    "findings_text",
    "full_size_of",
    "leads_figure",
    "read_released",
    "released_text",
    "trained_text",
    "verdicts_of",
]

_COLOURS: dict[Outcome, str] = {
    "borne out": PALETTE[2],
    "not borne out": PALETTE[1],
    "undecided": PALETTE[6],
}
_DECIDED: tuple[Outcome, ...] = ("borne out", "not borne out")
CLAIMS_ANCHOR = "the-papers-claims-next-to-these-runs"
"""The link to the table of all claims on a page of results."""
_WIDTH, _ROW, _FRAME = 7.5, 0.45, 0.8  # inches
# The half width of an axis: a multiple of the largest lead, and some more for tiny leads.
_ROOM, _LEAST_ROOM = 1.5, 0.01
_FEW_EPOCHS = 10
_SAME_SIZE = 0.02  # as matched sizes differ
_RELEASED = "released"
"""Folder of the scores of the authors' weights, as `bfno eval --json` prints them."""


@dataclass(frozen=True)
class Verdicts:
    """The paper's claims next to the runs of one scale and variant.

    Attributes:
        scale: The scale.
        variant: The settings in which all runs differ from their experiments.
        judgements: The claims that they can test.
    """

    scale: str
    variant: Variant
    judgements: tuple[Judgement, ...]

    @property
    def title(self) -> str:
        """Which runs these are."""
        return ", ".join(filter(None, [f"{self.scale} scale", self.variant.title]))


def verdicts_of(runs: Sequence[Record], claims: Sequence[Claim] = PAPER_CLAIMS) -> list[Verdicts]:
    """Verdicts for every scale and variant whose runs can test a claim."""
    scales = sorted({run.scale for run in runs})
    found = [
        Verdicts(scale, variant, tuple(judge_claims(runs, scale, claims, variant)))
        for scale, variant in itertools.product(scales, variants_of(runs))
    ]
    judged = {
        (of.scale, one.claim)
        for of in found
        for one in of.judgements
        if one.outcome != "not comparable"
    }

    def is_news(of: Verdicts, one: Judgement) -> bool:
        """Whether it says something, or no other runs of the scale can say more."""
        return one.outcome != "not comparable" or (of.scale, one.claim) not in judged

    news = [
        replace(of, judgements=tuple(one for one in of.judgements if is_news(of, one)))
        for of in found
    ]
    return [of for of in news if of.judgements]


def counts_text(verdicts: Sequence[Verdicts]) -> str:
    """How many claims the runs test, and how many comparisons had each outcome."""
    said = [one for of in verdicts for one in of.judgements]
    if not said:
        return "No claim of the paper has runs of all its methods yet.\n"
    claims = {one.claim.text for one in said if one.outcome != "not comparable"}
    single = sum(one.reason.endswith(ONE_SEED) for one in said)
    counts = []
    for outcome in get_args(Outcome):
        number = sum(one.outcome == outcome for one in said)
        whose = "" if single == number else f"{single} of them "
        few = f" ({whose}with one seed)" if outcome == "undecided" and single else ""
        counts += [f"{number} {outcome}{few}"] if number or outcome in _DECIDED else []
    several = f" of all {len(said)} comparisons" if len(said) > len(claims) else ""
    where = _most(verdicts).title + (", unless a line says otherwise" if verdicts[1:] else "")
    tested = f"Runs here test {len(claims)} of the paper's {len(PAPER_CLAIMS)} claims"
    verdict = f"Verdicts{several} ({where}): {listed(counts)}"
    return f"**The paper's claims.** {tested}. {verdict}.\n"


def findings_text(verdicts: Sequence[Verdicts]) -> str:
    """All claims by outcome, those that are decided or lead with reasons; then those untested."""
    most, lines = _most(verdicts), []
    said = [(of, one) for of in verdicts for one in of.judgements]
    for outcome in _DECIDED:
        found = [(of, one) for of, one in said if one.outcome == outcome]
        lines += [(outcome, f" {_claim_text(one, of, most)} ({one.reason})") for of, one in found]
    open_ones = [(of, one) for of, one in said if one.outcome == "undecided"]
    ahead = [(of, one) for of, one in open_ones if one.is_ahead]
    behind = [(of, one) for of, one in open_ones if not one.is_ahead]
    other = [(of, one) for of, one in said if one.outcome == "not comparable"]
    groups = {
        "undecided, ahead": [f"{_claim_text(one, of, most)}: {one.reason}" for of, one in ahead],
        "undecided, not ahead": _together(behind, most),
        "not comparable": _together(other, most),
    }
    lines += [(name, _items(texts)) for name, texts in groups.items() if texts]
    lines += [("without runs", f" {text}") for text in _untested(one for _, one in said)]
    return "".join(f"- **{name}**:{text}\n" for name, text in lines)


def _items(texts: Sequence[str]) -> str:
    """One text on the same line; several as a list below it."""
    return f" {texts[0]}" if len(texts) == 1 else "".join(f"\n  - {text}" for text in texts)


def _together(found: Iterable[tuple[Verdicts, Judgement]], most: Verdicts) -> list[str]:
    """Claims in words; those that differ only in their data or their pass are joined into one."""
    ways: dict[tuple[str, str, str, str], list[Claim]] = {}
    for of, one in found:
        claim = one.claim
        ways.setdefault((claim.praise, claim.remark, claim.on, _where(of, most)), []).append(claim)
    same: dict[tuple[str, str, str, tuple[str, ...]], list[Claim]] = {}
    for (praise, remark, _, where), claims in ways.items():
        passes = tuple(claim.way for claim in claims)
        same.setdefault((praise, remark, where, passes), []).append(claims[0])
    return [
        claims[0].on_all([claim.on for claim in claims], passes) + where
        for (_, _, where, passes), claims in same.items()
    ]


def _untested(said: Iterable[Judgement]) -> Iterator[str]:
    """The number of the paper's claims that have no runs, and their subjects."""
    tested = {one.claim.text for one in said}
    missing = [one for one in PAPER_CLAIMS if one.text not in tested]
    if missing:
        about = sorted({one.subject for one in missing})
        yield f"{counted(len(missing), 'claim')} about {listed(about)}"


def explanation_text(verdicts: Sequence[Verdicts], page: str = "") -> str:
    """How claims are judged.

    Args:
        verdicts: The verdicts.
        page: The page with all claims and their scores; empty if it is this page.
    """
    sure = how_sure(all(is_full_size(of.scale, of.variant) for of in verdicts))
    return f"**How sure.** {sure} [All claims with their scores]({page}#{CLAIMS_ANCHOR}).\n"


def _most(verdicts: Sequence[Verdicts]) -> Verdicts:
    """The runs that need not be named each time: unchanged ones that test the most claims."""
    return max(verdicts, key=lambda of: (of.variant == AS_DEFINED, len(of.judgements)))


def _claim_text(one: Judgement, of: Verdicts, most: Verdicts) -> str:
    """The claim, and which runs test it if they are not those of the first line."""
    return one.claim.text + _where(of, most)


def _where(of: Verdicts, most: Verdicts) -> str:
    """What distinguishes runs from those that need not be named."""
    if of is most:
        return ""
    return f" [{of.title if of.scale != most.scale else of.variant.title}]"


@dataclass(frozen=True)
class Released:
    """The scores of one file of the authors' weights, from `bfno eval --json`.

    Attributes:
        epoch: The epoch after which they were saved, which is the file's name.
        accuracy: Share of the test images of CIFAR-10 that are classified correctly.
        nfe: Evaluations per solve.
        samples: Number of these images.
    """

    epoch: int
    accuracy: float
    nfe: float
    samples: int

    @property
    def is_possible(self) -> bool:
        """Whether the numbers are possible."""
        counts = (self.epoch, self.nfe, self.samples)
        return 0 <= self.accuracy <= 1 and all(1 <= count < math.inf for count in counts)


def read_released(folder: Path) -> list[Released]:
    """The scores of the authors' weights in this program, by epoch.

    Args:
        folder: Folder of results; its folder `released` has a file for each epoch, if any.

    Raises:
        DataError: If such a file is of another kind.
    """
    found: dict[int, Released] = {}
    for file in sorted((folder / _RELEASED).glob("*.json")):
        one = _released(file)
        if found.setdefault(one.epoch, one) is not one:
            raise DataError(file, f"is a second file of epoch {one.epoch}", "remove one of them")
    return [found[epoch] for epoch in sorted(found)]


def _released(file: Path) -> Released:
    try:
        said = json.loads(read_plain(file).decode())
        found = Released(int(file.stem), said["accuracy"], said["nfe"], said["samples"])
        if not file.stem.isdecimal() or not all(map(_is_number, astuple(found))):
            raise ValueError(said)
        if tuple(said["classes"]) != DATA_SETS["cifar10"].class_names or not found.is_possible:
            raise ValueError(said)
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        why = "is not what `bfno eval --json` writes for CIFAR-10 weights"
        raise DataError(file, why, "write it again, as EPOCH.json") from error
    return found


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def released_text(found: Sequence[Released]) -> str:
    """The scores of the authors' weights beside the paper's; nothing if there are none."""
    if not found:
        return ""
    cell = next(row for row in paper_table("1").rows if row.method == "bfno-node").cells["cifar10"]
    printed = Estimate(100 * (cell.mean or 0.0), 100 * (cell.std or 0.0), 2)
    last, *earlier = reversed(found)
    scores = [
        f"{_share_right(last)} of {last.samples:,} test images of CIFAR-10 correctly after "
        f"epoch {last.epoch} ({last.nfe:.0f} evaluations of the field per solve)",
        *(
            f"{_share_right(one)} of {one.samples:,} after epoch {one.epoch} ({one.nfe:.0f})"
            for one in earlier
        ),
    ]
    return (
        "**The authors' published weights**, run at full size in this program, classify "
        f"{listed(scores)}. The paper prints {printed} %. To repeat this: "
        "`bfno import-released model/10.pt -o authors`, then `bfno eval authors`.\n"
    )


def _share_right(one: Released) -> str:
    return f"{100 * one.accuracy:.2f} %"


@dataclass(frozen=True)
class FullSize:
    """Models trained here at the size of a table of the paper.

    Attributes:
        table: The table.
        data: Name of the data.
        variant: Settings in which they differ from the paper's, except for the number of epochs.
        rows: The runs of each method: those with a score that have the most epochs, and those that
            failed.
    """

    table: PaperTable
    data: str
    variant: Variant
    rows: tuple[tuple[PaperRow, list[Record], list[Record]], ...]

    @property
    def runs(self) -> list[Record]:
        """All of their runs."""
        return [run for _, members, failed in self.rows for run in (*members, *failed)]

    @property
    def metric(self) -> Metric:
        """The metric that they are judged by."""
        return find_metric(self.table.metrics[0])


def full_size_of(runs: Sequence[Record]) -> list[FullSize]:
    """The tables of the paper that have runs of two methods at its size.

    Runs that differ only in their number of epochs are in one group.

    Args:
        runs: Any runs.
    """
    full = [run for run in runs if run.scale == "paper"]
    groups: dict[tuple[Variant, str], dict[int, Record]] = defaultdict(dict)
    for variant in variants_of(full):
        counted_runs = select_runs(full, variant).counted
        for data in {run.data for run in counted_runs} if not variant.measures else ():
            members = [run for run in counted_runs if run.data == data]
            if has_changes(members, variant):
                groups[variant.without("train.epochs"), data] |= {id(run): run for run in members}
    found = (
        _full_size(paper_table(table), data, variant, [*members.values()])
        for table in table_names()
        if table.isdigit()  # the paper shows its ablations as figures
        for (variant, data), members in groups.items()
    )
    return [one for one in found if sum(bool(members) for _, members, _ in one.rows) > 1]


def _full_size(paper: PaperTable, data: str, variant: Variant, runs: Sequence[Record]) -> FullSize:
    rows = []
    for row in paper.rows:
        members = row.runs(data, runs)
        failed = [run for run in members if run.has_failed]
        scored = [run for run in members if paper.metrics[0] in run.result]
        if scored or failed:
            rows.append((row, _longest(scored), failed))
    return FullSize(paper, data, variant, tuple(rows))


def trained_text(found: Sequence[FullSize]) -> str:
    """The scores of models trained here at the paper's size, beside the paper's."""
    return "\n".join(map(_trained, found))


def _trained(of: FullSize) -> str:
    seeds = {run.seed for _, members, _ in of.rows for run in members}
    rows, sizes = [], []
    for row, members, failed in of.rows:
        progress = (_epochs_text(members, failed), _after_each_epoch(members, of.metric))
        score = of.metric.estimate(members, len(seeds))
        rows.append((row.label, *progress, score, of.table.score(row, of.data)))
        sizes += _other_size(row, (members or failed)[0])
    but = f" except for {of.variant.title}" if of.variant.title else ""
    told = (
        f"**Trained here at full size**, with the paper's settings{but} "
        f"({counted(len(seeds), 'seed')}): "
        f"{of.metric.title} on {of.table.subject(of.data)}."
    )
    columns = (
        Column("method", "method", numeric=False),
        Column("epochs", "epochs"),
        Column("progress", "after each epoch"),
        Column("here", "here"),
        Column("paper", "in the paper"),
    )
    shown = [place for place in range(len(columns)) if any(row[place] for row in rows)]
    table = Table(
        tuple(columns[place] for place in shown),
        tuple(tuple(row[place] for place in shown) for row in rows),
    )
    return f"{' '.join([told, *sizes])}\n\n{as_markdown(table)}"


def _longest(runs: Sequence[Record]) -> list[Record]:
    most = max((len(run.epochs) for run in runs), default=0)
    return [run for run in runs if len(run.epochs) == most]


def _epochs_text(runs: Sequence[Record], failed: Sequence[Record]) -> str:
    """How many of the paper's epochs the runs trained, and how many runs failed."""
    found = []
    for run in runs[:1]:
        published = resolve(run.experiment, scale=run.scale).train.epochs
        trained = len(run.epochs)
        found.append(f"{trained}" if trained == published else f"{trained} of {published}")
    found += [f"{counted(len(failed), 'run')} failed"] if failed else []
    return ", ".join(found)


def _after_each_epoch(runs: Sequence[Record], metric: Metric) -> str:
    """The means of a few epochs; a single one is the score itself, and many need a figure."""
    means = [mean(values) for values in epoch_values(runs, metric.key).values()]
    if not 1 < len(means) <= _FEW_EPOCHS:
        return ""
    return ", ".join(f"{one:.{metric.digits}f}" for one in means)


def _other_size(row: PaperRow, run: Record) -> Iterator[str]:
    """The size of a model whose size differs from the paper's."""
    published = row.cells[run.data].parameters if run.data in row.cells else None
    if published and run.parameters and abs(run.parameters / published - 1) > _SAME_SIZE:
        yield f"{row.label} has {run.parameters:,} parameters here and {published:,} in the paper."


def leads_figure(verdicts: Sequence[Verdicts]) -> Drawn | None:
    """How far each praised method leads the best other, with its interval and the paper's lead.

    Args:
        verdicts: The verdicts; nothing is drawn unless one has a lead.
    """
    rows = [
        (of, one, one.lead)
        for outcome in _COLOURS
        for of in verdicts
        for one in of.judgements
        if one.lead and one.outcome == outcome
    ]
    if not rows:
        return None
    shown: set[Outcome] = {one.outcome for _, one, _ in rows}
    costs = [row for row in rows if find_metric(row[1].claim.key).name == "nfe"]
    groups = [group for group in ([row for row in rows if row not in costs], costs) if group]

    def paint(figure: Figure) -> None:
        figure.set_size_inches(_WIDTH, _FRAME * (len(groups) + 0.5) + _ROW * len(rows))
        ratios = [len(group) for group in groups]
        panels = figure.subplots(len(groups), 1, height_ratios=ratios, squeeze=False)[:, 0]
        for axes, group in zip(panels, groups, strict=True):
            _draw_leads(axes, group, most)
            axes.set_xlabel(
                f"lead over the best other, % of its {'NFE' if group is costs else 'score'}"
            )
        figure.legend(handles=_key(panels[0], shown), loc="outside upper left", ncols=4)

    most = _most(verdicts)
    words = "; ".join(f"{_claim_text(one, of, most)}: {one.outcome}" for of, one, _ in rows)
    return drawn(f"Lead of the method that each claim praises. {words}", paint)


def _draw_leads(
    axes: Axes, rows: Sequence[tuple[Verdicts, Judgement, Lead]], most: Verdicts
) -> None:
    axes.axvline(0, color=INK, linewidth=0.8)
    from_the_left = axes.get_yaxis_transform()  # independent of the numbers
    for place, (of, one, lead) in enumerate(rows):
        colour = _COLOURS[one.outcome]
        if lead.interval:
            low, high = (100 * end for end in lead.interval)
            axes.hlines(place, low, high, color=colour, linewidth=2.2)
        # Without an interval, a point is less certain than it looks.
        filled = "full" if lead.interval else "none"
        axes.plot(100 * lead.here, place, "o", color=colour, fillstyle=filled)
        if lead.published is not None:
            axes.plot(100 * lead.published, place, "D", color=INK, fillstyle="none", markersize=5)
        text = _claim_text(one, of, most)
        box = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
        style = {"fontsize": 8, "va": "center", "bbox": box}
        axes.text(0, place - 0.35, text, transform=from_the_left, **style)
    # Two seeds may give an interval that dwarfs everything else; it is cut off at the frame.
    largest = max(abs(value) for _, _, lead in rows for value in (lead.here, lead.published or 0.0))
    room = 100 * (_ROOM * largest + _LEAST_ROOM)
    axes.set_xlim(-room, room)
    axes.set_yticks([])
    axes.set_ylim(len(rows) - 0.6, -0.6)
    axes.grid(visible=True, axis="x", color=FAINT)


def _key(axes: Axes, shown: Collection[Outcome]) -> list[Line2D]:
    """What signs and the colours that are there mean, as lines without points."""
    found = [
        axes.plot([], [], "o-", color=colour, label=outcome)[0]
        for outcome, colour in _COLOURS.items()
        if outcome in shown
    ]
    style = {"color": INK, "fillstyle": "none", "markersize": 5}
    return [*found, axes.plot([], [], "D", label="in the paper", **style)[0]]
