"""Reconstructed series as a figure and as a table.

A series is a plain dictionary: its name as `series`, the time `end` of its last observation, and
`curves`, a dictionary by feature of `times` and `values` that were observed and of `mean`, `low`
and `high` of the reconstruction at the times `at`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bfno.lab.errors import ConfigError
from bfno.lab.files import write_atomically
from bfno.lab.views.figures.style import FAINT, INK, PALETTE, drawing, short_name, svg_element
from bfno.lab.views.layout import csv_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "check_new",
    "reconstruction_csv",
    "reconstruction_figure",
    "write_reconstruction",
]

Series = Mapping[str, Any]

_KINDS = ("svg", "png")
_WIDTH, _HEIGHT, _LEGEND_ROW = 2.7, 1.75, 0.22  # inches; the first two of a panel
_NARROWEST = 5.0
_MOST_PANELS = 100
_LINE, _DOT = PALETTE[0], PALETTE[1]


def check_new(out: Path, kinds: Sequence[str], *, force: bool = False) -> Path:
    """Make sure that a file may be written, before the work that it is to hold.

    Args:
        out: The file.
        kinds: Endings that its name may have, without the dot.
        force: Whether it may be there already.

    Raises:
        ConfigError: If it is a folder, is there already, or has another ending.
    """
    if out.is_dir():
        raise ConfigError(out, "is a folder", f"name a file, such as {out / f'series.{kinds[0]}'}")
    if out.suffix.lower().lstrip(".") not in kinds:
        listed = " or ".join(f".{kind}" for kind in kinds)
        raise ConfigError(out, "has an unknown ending", f"end it in {listed}")
    if out.exists() and not force:
        raise ConfigError(out, "exists already", "pass --force, or name another file")
    return out


def write_reconstruction(series: Sequence[Series], out: Path, *, force: bool = False) -> Path:
    """Write reconstructed series, as a figure or as a table by the ending of the file's name.

    Args:
        series: The series.
        out: A file that ends in .svg, .png or .csv.
        force: Whether to overwrite a file that is there.

    Raises:
        ConfigError: If the file is there already, or its ending says nothing.
        DataError: If it cannot be written.
    """
    check_new(out, (*_KINDS, "csv"), force=force)
    kind = out.suffix.lower().lstrip(".")
    if kind == "csv":
        content = reconstruction_csv(series).encode()
    else:
        content = reconstruction_figure(series, kind)
    write_atomically(out, content)
    return out


def reconstruction_csv(series: Sequence[Series]) -> str:
    """The reconstruction for programs: a line for each series, feature and time.

    Example:
        >>> curve = {"at": [0.5], "mean": [2.0], "low": [1.0], "high": [3.0]}
        >>> print(reconstruction_csv([{"series": "a", "curves": {"x": curve}}]), end="")
        series,feature,time,mean,low,high
        a,x,0.5,2.0,1.0,3.0
    """
    rows: list[list[object]] = [["series", "feature", "time", "mean", "low", "high"]]
    for one in series:
        for feature, curve in one["curves"].items():
            for point in zip(*(curve[key] for key in ("at", "mean", "low", "high")), strict=True):
                rows.append([one["series"], feature, *point])
    return csv_text(rows)


def reconstruction_figure(series: Sequence[Series], kind: str = "svg") -> bytes:
    """A row of panels for each series, a column for each feature.

    Dots are observations, the line is the mean of the latent samples, the band reaches from the
    lowest to the highest of them. Where a series goes on after its last observation, the ground is
    shaded.

    Args:
        series: The series, all with the same features.
        kind: `svg` or `png`.

    Raises:
        ConfigError: If there are too many panels, or matplotlib is missing.
    """
    features = list(series[0]["curves"])
    panels = len(series) * len(features)
    if panels > _MOST_PANELS:
        why = f"{panels} do not fit a figure, {_MOST_PANELS} do"
        raise ConfigError("panels", why, "name fewer series or features")
    names = [str(one["series"]) for one in series]
    alt = f"Reconstruction of {', '.join(features)} of series {', '.join(names)}"
    with drawing(alt, kind) as (figure, written):
        width = max(_NARROWEST, 0.5 + _WIDTH * len(features))
        columns = 4 if width > 8 else 2
        height = 0.5 + _HEIGHT * len(series) + _LEGEND_ROW * math.ceil(4 / columns)
        figure.set_size_inches(width, height)
        grid = figure.subplots(len(series), len(features), squeeze=False, sharex="row")
        for row, one in zip(grid, series, strict=True):
            for axes, feature in zip(row, features, strict=True):
                _draw(axes, one["curves"][feature], one["end"])
            row[0].set_ylabel(short_name(str(one["series"])), fontweight="bold")
        for axes, feature in zip(grid[0], features, strict=True):
            axes.set_title(short_name(feature))
        for axes in grid[-1]:
            axes.set_xlabel("time")
        figure.align_ylabels(grid[:, 0])
        _add_legend(figure, columns, extended=any(map(_goes_on, series)))
    if kind == "png":
        return written.getvalue()
    return svg_element(written.getvalue().decode(), alt, themed=False).encode() + b"\n"


def _goes_on(one: Series) -> bool:
    return any(curve["at"][-1] > one["end"] for curve in one["curves"].values())


def _draw(axes: Axes, curve: Mapping[str, Any], end: float) -> None:
    from matplotlib.ticker import MaxNLocator

    at = curve["at"]
    if at[-1] > end:
        axes.axvspan(end, at[-1], color=FAINT, alpha=0.45, linewidth=0)
        axes.axvline(end, color=INK, linestyle=":", linewidth=1.1)
    axes.fill_between(at, curve["low"], curve["high"], color=_LINE, alpha=0.22, linewidth=0)
    axes.plot(at, curve["mean"], color=_LINE, linewidth=1.6)
    dots = {"linestyle": "none", "marker": "o", "markersize": 3.4, "markeredgewidth": 0.5}
    axes.plot(curve["times"], curve["values"], color=_DOT, markeredgecolor="white", **dots)
    edge = 0.02 * (at[-1] - at[0])
    if edge > 0:
        axes.set_xlim(at[0] - edge, at[-1] + (0 if at[-1] > end else edge))
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_locator(MaxNLocator(4))
    limits = _limits(curve, end)
    if limits is not None:
        axes.set_ylim(*limits)


def _limits(curve: Mapping[str, Any], end: float) -> tuple[float, float] | None:
    """Heights that show all up to the end, and beyond it as much again above and below.

    An extrapolation that runs away would otherwise press everything else into a line.
    """
    points = list(zip(curve["at"], curve["low"], curve["high"], strict=True))
    inner = [*curve["values"], *(y for at, *pair in points if at <= end for y in pair)]
    inner = [value for value in inner if math.isfinite(value)]
    if not inner or max(inner) == min(inner):
        return None
    low, high = min(inner), max(inner)
    room = high - low
    outer = [y for at, *pair in points if at > end for y in pair if math.isfinite(y)]
    low = min([low, *(max(value, low - room) for value in outer)])
    high = max([high, *(min(value, high + room) for value in outer)])
    return low - 0.06 * (high - low), high + 0.06 * (high - low)


def _add_legend(figure: Figure, columns: int, *, extended: bool) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: dict[str, Any] = {
        "observed": Line2D([], [], color=_DOT, marker="o", markersize=5, linestyle="none"),
        "mean of the samples": Line2D([], [], color=_LINE, linewidth=2),
        "lowest to highest sample": Patch(facecolor=_LINE, alpha=0.22),
    }
    if extended:
        handles["after the last observation"] = Patch(facecolor=FAINT, alpha=0.45)
    figure.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=columns)
