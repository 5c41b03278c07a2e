"""One self-contained HTML page about runs, to read, print or send."""

from __future__ import annotations

import base64
import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from bfno.lab.errors import ConfigError
from bfno.lab.files import write_atomically
from bfno.lab.runs.record import Record, printable
from bfno.lab.views.curves import charts, curves, epoch_ticks
from bfno.lab.views.exhibit import Exhibit, read_exhibit
from bfno.lab.views.figures import style
from bfno.lab.views.layout import cell_text
from bfno.lab.views.listing import ListedRun, read_finished
from bfno.lab.views.methods import Replicates, replicates
from bfno.lab.views.metrics import COSTS
from bfno.lab.views.report.drawings import curve_drawings
from bfno.lab.views.report.exhibits import ShownFlow, flow_data, flow_view
from bfno.lab.views.report.run import Pictures, portable, read_pictures, run_view, setting_text
from bfno.lab.views.summary import (
    data_title,
    listed,
    opening,
    scale_notes,
    subtitle,
    summary,
    trust,
)
from bfno.lab.views.tables import method_table

__all__ = ["check_page", "render_report", "write_report"]

# The outline of each marker of the figures, around its middle.
_MARKERS = {
    "o": "M-3.2 0a3.2 3.2 0 1 0 6.4 0a3.2 3.2 0 1 0 -6.4 0",
    "s": "M-2.9-2.9h5.8v5.8h-5.8z",
    "^": "M0-3.9L3.7 2.7H-3.7z",
    "D": "M0-4.2L4.2 0L0 4.2L-4.2 0z",
    "v": "M0 3.9L3.7-2.7H-3.7z",
    "P": "M-1.3-4h2.6v2.7h2.7v2.6h-2.7v2.7h-2.6v-2.7h-2.7v-2.6h2.7z",
    "X": "M-2-4L0-2L2-4L4-2L2 0L4 2L2 4L0 2L-2 4L-4 2L-2 0L-4-2z",
    "<": "M-3.9 0L2.7-3.7V3.7z",
    ">": "M3.9 0L-2.7-3.7V3.7z",
    "p": "M0-4L3.8-1.2L2.4 3.2H-2.4L-3.8-1.2z",
}
_LINE_WIDTH = 2
_EVALUATIONS = {metric.key for metric in COSTS}
_PROTOCOLS = {
    "sound": "Protocol sound: test series come from other records or sequences than training "
    "series, every statistic is taken from the training part, and the mean over the latent "
    "samples is judged.",
    "published": "Protocol published: as in the published code, statistics are taken from all "
    "data, there is no validation part, and every latent sample is scored separately.",
}


def write_report(folders: Sequence[Path], out: Path, force: bool = False) -> Path:
    """Write one self-contained HTML page about runs.

    Args:
        folders: The runs, in any order; those that are not finished are named and left out.
        out: The file to write.
        force: Whether to overwrite an existing file.

    Returns:
        The file.

    Raises:
        ConfigError: No run is finished, the file exists already, or a package is missing.
        DataError: A run cannot be read, or the file cannot be written.
    """
    check_page(out, force)
    finished, unfinished = read_finished(folders)
    steps = {folder: run.chosen_step for folder, run in finished.items()}
    pictures = [read_pictures(folder / "figures", step) for folder, step in steps.items()]
    exhibits = [read_exhibit(folder, step) for folder, step in steps.items()]
    page = render_report([*finished.values()], pictures, exhibits, unfinished)
    write_atomically(Path(out), page.encode())
    return Path(out)


def check_page(out: Path, force: bool = False) -> None:
    """Refuse a page that cannot be written, before doing any work for it.

    Args:
        out: The file to write.
        force: Whether to overwrite an existing file.

    Raises:
        ConfigError: The file is a folder, or exists already.
    """
    out = Path(out)
    if out.is_dir():
        raise ConfigError(out, "is a folder", f"name a file, such as {out / 'report.html'}")
    if out.exists() and not force:
        raise ConfigError(out, "exists already", "pass --force, or name another file")


def render_report(
    runs: Sequence[Record],
    pictures: Sequence[Pictures] | None = None,
    exhibits: Sequence[Exhibit | None] | None = None,
    unfinished: Sequence[ListedRun] = (),
) -> str:
    """The page as text: a pure function of the runs, independent of their order.

    Args:
        runs: Runs of one task or of several.
        pictures: The pictures for a page from the folder of each run.
        exhibits: The exhibit of each run's classifier.
        unfinished: Runs without a result, which the page names.
    """
    try:
        from jinja2 import Environment, StrictUndefined
        from markupsafe import Markup
    except ImportError:
        raise ConfigError("jinja2", "is not installed", "pip install 'bfno[report]'") from None
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(cell=cell_text, setting=setting_text)
    shown = _shown(runs, pictures or [{}] * len(runs), exhibits or [None] * len(runs))
    sheet, script = _source("report.css"), _source("report.js")
    # Everything is escaped except our own files and figures, whose texts matplotlib has escaped.
    page = environment.from_string(_source("report.html.j2")).render(
        _content(shown),
        unfinished=_unfinished_views(unfinished),
        markup=Markup,
        sheet=sheet,
        script=script,
        digest=_digest(script),
    )
    return page if page.endswith("\n") else page + "\n"


def _unfinished_views(runs: Sequence[ListedRun]) -> list[dict[str, str]]:
    named = sorted(runs, key=lambda one: one.run.resolve().name)
    # Only the last name: the path of a folder is private.
    return [{"name": printable(one.run.resolve().name), "state": one.told()} for one in named]


def _source(name: str) -> str:
    return resources.files("bfno.lab.views.report").joinpath(name).read_text(encoding="utf-8")


def _digest(script: str) -> str:
    """The hash by which the page's security policy allows its one script."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


Task = tuple[str, str, str]


@dataclass(frozen=True)
class _Shown:
    """The runs of a page in its order, with their pictures and exhibits, by identity.

    Two runs may have equal records, so equality does not distinguish them.
    """

    groups: list[Replicates]
    pictures: dict[int, Pictures]
    exhibits: dict[int, Exhibit | None]
    looks: dict[Task, dict[str, style.Look]]

    @property
    def ordered(self) -> list[Record]:
        return _runs(self.groups)

    def mark(self, group: Replicates, run: Record) -> dict[str, Any]:
        """The look of a method within its task, and the anchor of its run on the page."""
        # By place, not by name: a name may hold anything.
        place = next(place for place, other in enumerate(self.ordered, 1) if other is run)
        return _mark(self.looks[group.task][group.label], f"run-{place}")


def _mark(look: style.Look, anchor: str) -> dict[str, Any]:
    """The values with which the template marks a method.

    Args:
        look: Its look in figures.
        anchor: The anchor of its run on the page.
    """
    return {
        "hue": style.PALETTE.index(look.colour),
        "marker": _MARKERS[look.marker],
        "dashes": _dashes(look.dashes),
        "anchor": anchor,
    }


def _dashes(dashes: Any) -> str:
    """Dashes in units of the drawing; matplotlib counts them in line widths."""
    if isinstance(dashes, str):
        return "none"
    return " ".join(f"{_LINE_WIDTH * part:g}" for part in dashes[1])


def _shown(
    runs: Sequence[Record],
    pictures: Sequence[Pictures],
    exhibits: Sequence[Exhibit | None],
) -> _Shown:
    runs = [replace(run, experiment=portable(run.experiment)) for run in runs]
    groups = replicates(runs)
    return _Shown(
        groups,
        {id(run): picture for run, picture in zip(runs, pictures, strict=True)},
        {id(run): exhibit for run, exhibit in zip(runs, exhibits, strict=True)},
        {task: style.looks(one.label for one in members) for task, members in _by_task(groups)},
    )


def _by_task(groups: list[Replicates]) -> list[tuple[Task, list[Replicates]]]:
    by_task = itertools.groupby(groups, key=lambda group: group.task)
    return [(task, list(members)) for task, members in by_task]


def _runs(groups: list[Replicates]) -> list[Record]:
    return [run for group in groups for run in group.runs]


def _content(shown: _Shown) -> dict[str, Any]:
    """Everything that the template shows."""
    ordered = shown.ordered
    tasks = [_task(members, shown) for _, members in _by_task(shown.groups)]
    data = list(dict.fromkeys(map(data_title, ordered)))
    return {
        "title": f"Results on {listed(data)}",
        "subtitle": subtitle(shown.groups),
        "scales": scale_notes(shown.groups),
        "palette": list(zip(style.PALETTE, style.DARK_PALETTE, strict=True)),
        "class_inks": style.CLASS_INKS,
        "tasks": tasks,
        "explained": next((task for task in tasks if task["counted"]), None),
        "data": [
            {"curves": task["curves"], "epochs": task["epochs"], "flow": task["flow_data"]}
            for task in tasks
        ],
        "runs": [
            run_view(
                run,
                group.label,
                shown.mark(group, run),
                shown.pictures[id(run)],
                shown.exhibits[id(run)],
            )
            for group in shown.groups
            for run in group.runs
        ],
    }


def _task(groups: list[Replicates], shown: _Shown) -> dict[str, Any]:
    runs = _runs(groups)
    _, scale, protocol = groups[0].task
    choices, table = charts(runs), method_table(groups)
    counted = any(column.key in _EVALUATIONS for column in table.columns)
    watched = _watched(groups, shown)
    return {
        "title": f"{data_title(runs[0])}, scale {scale}" + (protocol and f", protocol {protocol}"),
        "protocol": _PROTOCOLS.get(protocol, ""),
        "opening": opening(groups),
        "summary": summary(groups),
        "trust": trust(runs[0]),
        "table": table,
        "counted": counted,
        "steady": counted and not any(chart["title"] == "Cost" for chart in choices),
        "marks": [shown.mark(group, group.runs[0]) for group in groups],
        "methods": [group.label for group in groups],
        "figures": curve_drawings(runs),
        "charts": choices,
        "curves": curves(groups, [key for chart in choices for key in chart["metrics"]]),
        "epochs": _epoch_ticks(runs),
        "flow": flow_view(watched),
        "flow_data": flow_data(watched),
        "banded": any(len(group.runs) > 1 for group in groups),
    }


def _epoch_ticks(runs: Sequence[Record]) -> list[int]:
    epochs = [epoch["epoch"] for run in runs for epoch in run.epochs]
    return epoch_ticks(min(epochs), max(epochs)) if epochs else []


def _watched(groups: list[Replicates], shown: _Shown) -> list[ShownFlow]:
    """One run of each method with states to show: ours and the plain one, then the best."""
    found = []
    for group in sorted(
        groups, key=lambda group: ("bfno" not in group.label, group.label != "node")
    ):
        exhibits = ((run, shown.exhibits[id(run)]) for run in group.runs)
        flows = ((run, one.flow) for run, one in exhibits if one and one.flow)
        for run, flow in itertools.islice(flows, 1):
            found.append(ShownFlow(group.label, shown.mark(group, run), run, flow))
    return found
