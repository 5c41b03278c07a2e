"""Which figures runs can give, and writing them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from bfno.lab.errors import ConfigError
from bfno.lab.files import write_atomically
from bfno.lab.runs.folder import read_runs
from bfno.lab.runs.metrics import HEADLINES
from bfno.lab.runs.record import Record as RunResult
from bfno.lab.views.exhibit import EXHIBIT, read_exhibit
from bfno.lab.views.figures.ablations import branches_figure, operators_figure
from bfno.lab.views.figures.comparisons import (
    EPOCH_FIGURES,
    cost_figure,
    epoch_figure,
    headline_figure,
)
from bfno.lab.views.figures.exhibits import spectra_figure, tsne_figure
from bfno.lab.views.figures.flows import flow_figure
from bfno.lab.views.figures.methods import Methods
from bfno.lab.views.figures.run_pictures import PICTURES, kept_reconstruction, samples_figure
from bfno.lab.views.figures.style import Drawn
from bfno.lab.views.tables import replicates
from bfno.lab.views.tasks import kind_of, task_of

__all__ = ["check_gallery", "draw_figures", "write_figures"]

_KINDS = {"images": "", "series": "series-", "densities": "density-"}
Named = Iterator[tuple[str, Drawn | None]]


@dataclass(frozen=True)
class _Place:
    """A run and its folder."""

    run: RunResult
    folder: Path


def check_gallery(out: Path) -> Path:
    """Make sure that figures may be written to a folder, before they are drawn.

    Args:
        out: The folder, which may be missing.

    Raises:
        ConfigError: If it is no folder, or lies below something that is none.
    """
    nearest = next(place for place in (out.absolute(), *out.absolute().parents) if place.exists())
    if not nearest.is_dir():
        raise ConfigError(out, f"{nearest} is no folder", "name a folder, or a new one")
    return out


def write_figures(folders: Sequence[Path], out: Path, *, force: bool = False) -> list[Path]:
    """Write every figure that runs can give, as SVG and as PNG.

    Args:
        folders: The runs, in any order.
        out: The folder to write to.
        force: Whether to overwrite figures that are there.

    Returns:
        The files.

    Raises:
        ConfigError: If a run is not finished, the runs give no figure, or a figure is there
            already.
        DataError: If a run cannot be read, or a file cannot be written.
    """
    check_gallery(out)
    places = list({Path(folder).resolve(): Path(folder) for folder in folders}.values())
    figures = draw_figures(read_runs(places), places)
    if not figures:
        fix = "name runs with epochs, or several runs"
        raise ConfigError(places[0], "has nothing that could be drawn", fix)
    contents = {out / f"{name}.svg": drawn.svg.encode() for name, drawn in figures.items()}
    contents |= {out / f"{name}.png": drawn.png for name, drawn in figures.items() if drawn.png}
    present = sorted(file for file in contents if file.exists())
    if present and not force:
        raise ConfigError(present[0], "is there already", "pass --force, or name another folder")
    for file, content in sorted(contents.items()):
        write_atomically(file, content)
    return sorted(contents)


def draw_figures(runs: Sequence[RunResult], folders: Sequence[Path]) -> dict[str, Drawn]:
    """Every figure that runs can give, by name: a pure function of the files in their folders.

    Args:
        runs: The runs, in any order.
        folders: The folder of each.

    Raises:
        DataError: If a file in a folder cannot be understood.
    """
    places = [_Place(*pair) for pair in zip(runs, folders, strict=True)]
    # In an order of their own, since that of the runs must not matter.
    places.sort(key=lambda place: (task_of(place.run), place.run.method, place.run.seed))
    figures: dict[str, Drawn] = {}
    # Figures compare methods of one kind: ours has the first look of each.
    by_kind = {
        kind: Methods.of(place.run for place in places if kind_of(place.run) == kind)
        for kind in _KINDS
    }
    for name, drawn in (*_comparisons(by_kind), *_of_tasks(places, by_kind)):
        if drawn is not None:
            figures[_free(name, figures)] = drawn
    return figures


def _comparisons(by_kind: Mapping[str, Methods]) -> Named:
    """Figures with a panel for each task of a kind."""
    for kind, prefix in _KINDS.items():
        shown = by_kind[kind].main()
        for metric in HEADLINES:
            judged = shown.part(lambda run, metric=metric: run.headline == metric)
            name = metric.name.replace("_", "-")
            yield prefix + name, headline_figure(judged, metric)
            yield f"{prefix}{name}-against-cost", cost_figure(judged)
        for name in EPOCH_FIGURES:
            yield prefix + name, epoch_figure(shown, name)


def _of_tasks(places: Sequence[_Place], by_kind: Mapping[str, Methods]) -> Named:
    """Figures of one task each, and of one run each."""
    for task, members in groupby(places, key=lambda place: task_of(place.run)):
        here, data = list(members), _file_name(task[0])
        methods = by_kind[kind_of(here[0].run)].part(lambda run, task=task: task_of(run) == task)
        yield f"branches-{data}", branches_figure(methods)
        yield f"operators-{data}", operators_figure(methods)
        first = _first_seeds(here)
        yield f"samples-{data}", samples_figure([(one.run, one.folder) for one in first])
        yield from _exhibits(first, data)
        for place in first:
            name = f"reconstruction-{data}-{_file_name(place.run.method)}"
            yield name, kept_reconstruction(place.run, place.folder)


def _exhibits(places: Sequence[_Place], data: str) -> Named:
    read = [(place.run, read_exhibit(place.folder)) for place in places]
    shown = [(run, exhibit) for run, exhibit in read if exhibit is not None]
    yield f"tsne-{data}", tsne_figure(shown)
    yield f"spectra-{data}", spectra_figure(shown)
    for run, exhibit in shown:
        yield f"flow-{data}-{_file_name(run.method)}", flow_figure(run, exhibit)


def _first_seeds(places: Sequence[_Place]) -> list[_Place]:
    """One run of each method: pictures of every seed would say the same. Ours come first."""
    folders = {id(place.run): place for place in places}
    groups = replicates([place.run for place in places])
    groups.sort(key=lambda group: ("bfno" not in group.label, group.label))
    of_methods = [[folders[id(run)] for run in group.runs] for group in groups]
    # Not every seed may have been asked for pictures.
    return [next(filter(_has_pictures, seeds), seeds[0]) for seeds in of_methods]


def _has_pictures(place: _Place) -> bool:
    return (place.folder / EXHIBIT).exists() or (place.folder / PICTURES).exists()


def _file_name(name: str) -> str:
    """The name with nothing in it that a file system could take for something else.

    Example:
        >>> _file_name("../My data (own.csv)")
        'my-data-own-csv'
    """
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:60] or "unnamed"


def _free(name: str, taken: dict[str, Drawn]) -> str:
    """The name, with a number behind it if another figure has it."""
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{name}-{number}"
    return free
