"""What all runs say of the paper: plain sentences and one picture, for the top of a page."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bfno.lab.errors import DataError
from bfno.lab.paper.claims import Judgement, Outcome, judge_claims
from bfno.lab.paper.numbers import paper_table
from bfno.lab.paper.sections import variants_of
from bfno.lab.runs.record import Record
from bfno.lab.runs.variants import Variant
from bfno.lab.views.figures.style import FAINT, INK, PALETTE, Drawn, drawn
from bfno.lab.views.metrics import LIMIT, Estimate, find_metric
from bfno.lab.views.summary import counted, listed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

__all__ = ["Verdicts", "findings_text", "leads_figure", "released_text", "verdicts_of"]

# What a claim that has been tested is called, in the order of the page.
_HEADS: dict[Outcome, str] = {
    "borne out": "Reproduced",
    "not borne out": "Not reproduced",
    "undecided": "Undecided",
}
_COLOURS: dict[Outcome, str] = {
    "borne out": PALETTE[2],
    "not borne out": PALETTE[1],
    "undecided": PALETTE[6],
}
_HOW_SURE = (
    "How sure that is: a claim counts as reproduced, or not, if chance alone would give such a "
    f"difference with a probability p of less than {LIMIT:g}. What small models show cannot refute "
    "what the paper says of large ones.\n"
)
_WIDTH, _ROW, _FRAME = 7.5, 0.45, 0.8  # inches
_RELEASED = "released"
"""Folder, beside those of the scales, of what `bfno eval --json` said of the authors' weights."""


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


def verdicts_of(runs: Sequence[Record]) -> list[Verdicts]:
    """Verdicts for every scale and variant whose runs can test a claim."""
    scales = sorted({run.scale for run in runs})
    found = [
        Verdicts(scale, variant, tuple(judge_claims(runs, scale, variant=variant)))
        for scale, variant in itertools.product(scales, variants_of(runs))
    ]
    return [one for one in found if one.judgements]


def findings_text(verdicts: Sequence[Verdicts]) -> str:
    """The claims by what became of them, one line each; their scores are in the table of claims."""
    tested = sum(one.outcome in _HEADS for of in verdicts for one in of.judgements)
    if not tested:
        return "No claim of the paper has runs of all its methods yet.\n"
    where = listed([of.title for of in verdicts])
    lines = [f"Runs here test {counted(tested, 'claim')} of the paper, at {where}.\n"]
    for outcome, head in _HEADS.items():
        found = [(of, one) for of in verdicts for one in of.judgements if one.outcome == outcome]
        if found:
            lines.append(f"**{head}** ({len(found)}):\n")
            lines += [f"- {_sentence(one, of, len(verdicts) > 1)}" for of, one in found]
            lines.append("")
    lines.append(_HOW_SURE)
    return "\n".join(lines)


def _sentence(one: Judgement, of: Verdicts, name_scale: bool) -> str:
    where = f" [{of.title}]" if name_scale else ""
    sure = one.verdict.removeprefix(one.outcome).removeprefix(":").strip()
    return f"{one.claim.text}{where}{' ' if sure.startswith('(') else ': '}{sure}"


def released_text(folder: Path) -> str:
    """What the authors' weights score in this program, beside what the paper prints.

    Args:
        folder: Folder of results; nothing is said unless it has a folder `released` with a file
            of `bfno eval --json` for each file of weights.

    Raises:
        DataError: If such a file is of another kind.
    """
    lines = [
        f"| after epoch {int(file.stem)} | {accuracy:.2%} of {samples:,} | {nfe:.1f} |"
        for file, accuracy, nfe, samples in _evaluations(folder)
    ]
    if not lines:
        return ""
    paper = paper_table("1")
    cell = next(row for row in paper.rows if row.method == "bfno-node").cells["cifar10"]
    printed = Estimate(100 * (cell.mean or 0.0), 100 * (cell.std or 0.0), 2)
    return "\n".join(
        [
            "## The authors' weights in this program\n",
            "| weights | CIFAR-10 test images classified correctly | evaluations per solve |",
            "| --- | --- | --- |",
            *lines,
            "",
            f"The paper prints {printed} %. `bfno import-released model/10.pt -o authors` and "
            f"`bfno eval authors --json` repeat a row; `{folder.name}/{_RELEASED}` has what it "
            "said.\n",
        ]
    )


def _evaluations(folder: Path) -> Iterator[tuple[Path, float, float, int]]:
    for file in sorted((folder / _RELEASED).glob("*.json")):
        try:
            said = json.loads(file.read_text(encoding="utf-8"))
            yield file, said["accuracy"], said["nfe"], said["samples"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(
                file, "is not what `bfno eval --json` writes", "write it anew"
            ) from error


def leads_figure(verdicts: Sequence[Verdicts]) -> Drawn | None:
    """How far each praised method leads the best other, with its interval and the paper's lead.

    Args:
        verdicts: The verdicts; nothing is drawn unless one has a lead.
    """
    rows = [
        (of, one) for of in verdicts for one in of.judgements if one.lead and one.outcome in _HEADS
    ]
    if not rows:
        return None
    costs = [row for row in rows if find_metric(row[1].claim.key).name == "nfe"]
    groups = [group for group in ([row for row in rows if row not in costs], costs) if group]

    def paint(figure: Figure) -> None:
        figure.set_size_inches(_WIDTH, _FRAME * (len(groups) + 0.5) + _ROW * len(rows))
        ratios = [len(group) for group in groups]
        panels = figure.subplots(len(groups), 1, height_ratios=ratios, squeeze=False)[:, 0]
        for axes, group in zip(panels, groups, strict=True):
            _draw_leads(axes, group, len(verdicts) > 1)
            axes.set_xlabel(
                f"lead over the best other, % of its {'NFE' if group is costs else 'score'}"
            )
        figure.legend(handles=_key(panels[0]), loc="outside upper left", ncols=4)

    words = "; ".join(f"{one.claim.text}: {one.outcome}" for _, one in rows)
    return drawn(f"Lead of the method that each claim praises. {words}", paint)


def _draw_leads(axes: Axes, rows: Sequence[tuple[Verdicts, Judgement]], name_scale: bool) -> None:
    axes.axvline(0, color=INK, linewidth=0.8)
    for place, (of, one) in enumerate(rows):
        lead, colour = one.lead, _COLOURS[one.outcome]
        if lead is None:
            continue
        if lead.interval:
            axes.hlines(place, *(100 * end for end in lead.interval), color=colour, linewidth=2.2)
        axes.plot(100 * lead.here, place, "o", color=colour)
        if lead.published is not None:
            axes.plot(100 * lead.published, place, "D", color=INK, fillstyle="none", markersize=5)
        text = f"{one.claim.text} ({of.title})" if name_scale else one.claim.text
        place_of_text = axes.get_yaxis_transform()  # from the left edge, whatever the numbers are
        axes.text(0, place - 0.3, text, transform=place_of_text, fontsize=8, va="center")
    axes.set_yticks([])
    axes.set_ylim(len(rows) - 0.6, -0.6)
    axes.grid(visible=True, axis="x", color=FAINT)


def _key(axes: Axes) -> list[Line2D]:
    """What colours and signs mean, as lines without points."""
    found = [
        axes.plot([], [], "o-", color=_COLOURS[outcome], label=head.lower())[0]
        for outcome, head in _HEADS.items()
    ]
    style = {"color": INK, "fillstyle": "none", "markersize": 5}
    return [*found, axes.plot([], [], "D", label="in the paper", **style)[0]]
