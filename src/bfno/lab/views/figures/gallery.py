"""Draws all figures that runs allow, and writes them."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bfno.lab.errors import ConfigError, DataError
from bfno.lab.files import write_atomically
from bfno.lab.runs.folder import read_runs
from bfno.lab.runs.record import Record, task_of
from bfno.lab.views.exhibit import EXHIBIT, read_exhibit
from bfno.lab.views.figures.ablations import branches_figure, operators_figure
from bfno.lab.views.figures.curves import (
    EPOCH_FIGURES,
    cost_figure,
    epoch_figure,
    headline_figure,
    task_title,
)
from bfno.lab.views.figures.exhibits import flow_figure, spectra_figure, tsne_figure
from bfno.lab.views.figures.style import Drawn, Methods, drawn, read_picture, short_name
from bfno.lab.views.methods import kind_of, replicates
from bfno.lab.views.metrics import HEADLINES, headline_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["check_gallery", "draw_figures", "write_figures"]

_KINDS = {"images": "", "series": "series-", "densities": "density-"}
PICTURES = "figures"
"""The folder within a run's folder where other commands leave pictures."""
_WIDTH = 4.0  # inches of a picture of images
_WIDE = 2.5  # times as wide as high: such a picture has a row for itself
Named = Iterator[tuple[str, Drawn | None]]


@dataclass(frozen=True)
class _Place:
    """A run and its folder."""

    run: Record
    folder: Path


def check_gallery(out: Path) -> Path:
    """Make sure that figures can be written to a folder, before drawing them.

    Args:
        out: The folder, which may be missing.

    Raises:
        ConfigError: If it is not a folder, or lies below something that is not one.
    """
    nearest = next(place for place in (out.absolute(), *out.absolute().parents) if place.exists())
    if not nearest.is_dir():
        raise ConfigError(out, f"{nearest} is not a folder", "name a folder, or a new one")
    return out


def write_figures(folders: Sequence[Path], out: Path, *, force: bool = False) -> list[Path]:
    """Write every figure that the runs allow, as SVG and PNG.

    Args:
        folders: The runs, in any order.
        out: The folder to write to.
        force: Whether to overwrite existing figures.

    Returns:
        The files.

    Raises:
        ConfigError: If a run is not finished, the runs allow no figure, or a figure exists already.
        DataError: If a run cannot be read, or a file cannot be written.
    """
    check_gallery(out)
    places = list({Path(folder).resolve(): Path(folder) for folder in folders}.values())
    figures = draw_figures(read_runs(places), places)
    if not figures:
        fix = "name runs with epochs, or several runs"
        raise ConfigError(places[0], "has nothing that could be drawn", fix)
    contents = {out / f"{name}.svg": figure.svg.encode() for name, figure in figures.items()}
    contents |= {out / f"{name}.png": figure.png for name, figure in figures.items() if figure.png}
    present = sorted(file for file in contents if file.exists())
    if present and not force:
        raise ConfigError(present[0], "exists already", "pass --force, or name another folder")
    for file, content in sorted(contents.items()):
        write_atomically(file, content)
    return sorted(contents)


def draw_figures(runs: Sequence[Record], folders: Sequence[Path]) -> dict[str, Drawn]:
    """Every figure that the runs allow, by name: a pure function of the files in their folders.

    Args:
        runs: The runs, in any order.
        folders: The folder of each.

    Raises:
        DataError: If a file in a folder cannot be understood.
    """
    places = [_Place(*pair) for pair in zip(runs, folders, strict=True)]
    # In a fixed order, because that of the runs must not matter.
    places.sort(key=lambda place: (task_of(place.run), place.run.method, place.run.seed))
    figures: dict[str, Drawn] = {}
    # Figures compare methods of one kind: ours has the first look of each.
    by_kind = {
        kind: Methods.of(place.run for place in places if kind_of(place.run) == kind)
        for kind in _KINDS
    }
    for name, figure in (*_comparisons(by_kind), *_of_tasks(places, by_kind)):
        if figure is not None:
            figures[_free(name, figures)] = figure
    return figures


def _comparisons(by_kind: Mapping[str, Methods]) -> Named:
    """Figures with a panel for each task of a kind."""
    for kind, prefix in _KINDS.items():
        shown = by_kind[kind].main()
        for metric in HEADLINES:
            judged = shown.part(lambda run, metric=metric: headline_of(run) == metric)
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
    read = [(one.run, read_exhibit(one.folder, one.run.chosen_step)) for one in places]
    shown = [(run, exhibit) for run, exhibit in read if exhibit is not None]
    yield f"tsne-{data}", tsne_figure(shown)
    yield f"spectra-{data}", spectra_figure(shown)
    for run, exhibit in shown:
        yield f"flow-{data}-{_file_name(run.method)}", flow_figure(run, exhibit)


def _first_seeds(places: Sequence[_Place]) -> list[_Place]:
    """One run of each method, ours first: pictures of every seed would show the same."""
    folders = {id(place.run): place for place in places}
    groups = replicates([place.run for place in places])
    groups.sort(key=lambda group: ("bfno" not in group.label, group.label))
    of_methods = [[folders[id(run)] for run in group.runs] for group in groups]
    # Not every seed needs to have pictures.
    return [next(filter(_has_pictures, seeds), seeds[0]) for seeds in of_methods]


def _has_pictures(place: _Place) -> bool:
    return (place.folder / EXHIBIT).exists() or (place.folder / PICTURES).exists()


def _file_name(name: str) -> str:
    """The name without characters that have a meaning in file systems.

    Example:
        >>> _file_name("../My data (own.csv)")
        'my-data-own-csv'
    """
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:60] or "unnamed"


def _free(name: str, taken: dict[str, Drawn]) -> str:
    """The name, with a number if another figure has it."""
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{name}-{number}"
    return free


def samples_figure(places: Sequence[tuple[Record, Path]]) -> Drawn | None:
    """Show samples of densities, a panel for each run; None if no run has such a picture.

    Args:
        places: Runs of one task, each with its folder.

    Raises:
        DataError: If a picture cannot be read.
    """
    found = [(run, _pixels(run, folder / PICTURES / "samples.png")) for run, folder in places]
    panels = [(run, pixels) for run, pixels in found if pixels is not None]
    if not panels:
        return None
    high, wide = panels[0][1].shape[:2]
    columns = 1 if wide > _WIDE * high else min(2, len(panels))
    rows = math.ceil(len(panels) / columns)
    width = _WIDTH * 2 if columns == 1 and wide > _WIDE * high else _WIDTH

    def paint(figure: Figure) -> None:
        figure.set_size_inches(width * columns, (width * high / wide + 0.35) * rows)
        grid = list(figure.subplots(rows, columns, squeeze=False).flat)
        for axes, (run, pixels) in zip(grid, panels, strict=False):
            axes.imshow(pixels, interpolation="antialiased")
            axes.set_title(short_name(run.method))
        for axes in grid:
            axes.set_axis_off()

    names = ", ".join(run.method for run, _ in panels)
    return drawn(f"Samples of {names} on {task_title(task_of(panels[0][0]))}", paint)


def kept_reconstruction(run: Record, folder: Path) -> Drawn | None:
    """The series that `bfno reconstruct` drew for a run; None if there are none.

    Args:
        run: The run.
        folder: Its folder.

    Raises:
        DataError: If the picture cannot be read.
    """
    svg, png = (
        read_picture(folder / PICTURES / f"reconstruction.{kind}", run.chosen_step)
        for kind in ("svg", "png")
    )
    if svg is None and png is None:
        return None
    alt = f"Reconstructed series of {run.method} on {task_title(task_of(run))}"
    if svg is None:  # it may be too large to be kept
        return _painted(alt, _pixels(run, folder / PICTURES / "reconstruction.png"), png)
    return Drawn(alt, svg.decode("utf-8", errors="replace"), png)


def _painted(alt: str, pixels: np.ndarray | None, png: bytes | None) -> Drawn:
    """A picture as a separate figure."""
    assert pixels is not None

    def paint(figure: Figure) -> None:
        high, wide = pixels.shape[:2]
        figure.set_size_inches(2 * _WIDTH, 2 * _WIDTH * high / wide)
        axes = figure.subplots()
        axes.imshow(pixels, interpolation="antialiased")
        axes.set_axis_off()

    return replace(drawn(alt, paint), png=png)


def _pixels(run: Record, file: Path) -> np.ndarray | None:
    from PIL import Image

    content = read_picture(file, run.chosen_step)
    if content is None:
        return None
    try:
        with Image.open(io.BytesIO(content)) as picture:
            return np.asarray(picture.convert("RGB"))
    except (OSError, ValueError, Image.DecompressionBombError):
        raise DataError(file, "is not a picture", "remove it, and draw it again") from None
