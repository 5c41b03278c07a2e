"""Reconstructed series as a figure and as a table.

A series is a plain dictionary: its name as `series`, the time `end` of its last observation, and
`curves`, a dictionary by feature of `times` and `values` that were observed and of `mean`, `low`
and `high` of the reconstruction at the times `at`. It may have `hidden`, the pattern of rows hidden
from the model, and `level`, the share that predictive intervals should cover; curves then have
`hidden_times` and `hidden_values`, and `lower` and `upper` ends of the intervals.
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
_HIDDEN = {"markerfacecolor": "white", "markeredgecolor": INK, "markeredgewidth": 1.1}


def check_new(out: Path, kinds: Sequence[str], *, force: bool = False) -> Path:
    """Make sure that a file can be written, before computing its content.

    Args:
        out: The file.
        kinds: Endings that its name may have, without the dot.
        force: Whether an existing file may be replaced.

    Raises:
        ConfigError: If it is a folder, exists already, or has another ending.
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
        force: Whether to overwrite an existing file.

    Raises:
        ConfigError: If the file exists already, or its ending is unknown.
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
        >>> curve |= {"lower": [0.5], "upper": [3.5]}
        >>> print(reconstruction_csv([{"series": "a", "curves": {"x": curve}}]), end="")
        series,feature,time,mean,low,high,lower,upper
        a,x,0.5,2.0,1.0,3.0,0.5,3.5
    """
    lines = ("mean", "low", "high", "lower", "upper")
    hiding = any(one.get("hidden") for one in series)
    head: list[object] = ["series", *(["hidden"] if hiding else []), "feature", "time", *lines]
    rows: list[list[object]] = [head]
    for one in series:
        place = [one["series"], *([one.get("hidden")] if hiding else [])]
        for feature, curve in one["curves"].items():
            nothing = [""] * len(curve["at"])
            columns = (curve.get(line) or nothing for line in lines)
            for point in zip(curve["at"], *columns, strict=True):
                rows.append([*place, feature, *point])
    return csv_text(rows)


def reconstruction_figure(series: Sequence[Series], kind: str = "svg") -> bytes:
    """A row of panels for each series, a column for each feature.

    Dots are observations, circles those that were hidden from the model, the line is the mean of
    the model's samples. The band is the predictive interval; without one, it reaches from the
    lowest to the highest sample. Where a series continues after its last observation, the
    background is shaded.

    Args:
        series: The series, all with the same features.
        kind: `svg` or `png`.

    Raises:
        ConfigError: If there are too many panels, or matplotlib is missing.
    """
    features = list(series[0]["curves"])
    panels = len(series) * len(features)
    if panels > _MOST_PANELS:
        why = f"{panels} do not fit into a figure; at most {_MOST_PANELS} do"
        raise ConfigError("panels", why, "name fewer series or features")
    names = [str(one["series"]) for one in series]
    alt = f"Reconstruction of {', '.join(features)} of series {', '.join(names)}"
    with drawing(alt, kind) as (figure, written):
        width = max(_NARROWEST, 0.5 + _WIDTH * len(features))
        columns = 4 if width > 8 else 2
        handles = _legend(series)
        height = 0.5 + _HEIGHT * len(series) + _LEGEND_ROW * math.ceil(len(handles) / columns)
        figure.set_size_inches(width, height)
        grid = figure.subplots(len(series), len(features), squeeze=False, sharex="row")
        for row, one in zip(grid, series, strict=True):
            for axes, feature in zip(row, features, strict=True):
                _draw(axes, one["curves"][feature], one["end"])
            name = short_name(str(one["series"]))
            hidden = one.get("hidden")
            row[0].set_ylabel(f"{name}\n{hidden}" if hidden else name, fontweight="bold")
        for axes, feature in zip(grid[0], features, strict=True):
            axes.set_title(short_name(feature))
        for axes in grid[-1]:
            axes.set_xlabel("time")
        figure.align_ylabels(grid[:, 0])
        place: Any = "outside lower center"
        figure.legend(list(handles.values()), list(handles), loc=place, ncols=columns)
    if kind == "png":
        return written.getvalue()
    return svg_element(written.getvalue().decode(), alt, themed=False).encode() + b"\n"


def _goes_on(one: Series) -> bool:
    return any(curve["at"][-1] > one["end"] for curve in one["curves"].values())


def _draw(axes: Axes, curve: Mapping[str, Any], end: float) -> None:
    from matplotlib.ticker import MaxNLocator

    at = curve["at"]
    edge = 0.02 * (at[-1] - at[0])
    if at[-1] > end:
        axes.axvspan(end, at[-1] + edge, color=FAINT, alpha=0.45, linewidth=0)
        axes.axvline(end, color=INK, linestyle=":", linewidth=1.1)
    axes.fill_between(at, *_band(curve), color=_LINE, alpha=0.22, linewidth=0)
    axes.plot(at, curve["mean"], color=_LINE, linewidth=1.6)
    dots = {"linestyle": "none", "marker": "o", "markersize": 3.4, "markeredgewidth": 0.5}
    axes.plot(curve["times"], curve["values"], color=_DOT, markeredgecolor="white", **dots)
    if curve.get("hidden_times"):
        axes.plot(curve["hidden_times"], curve["hidden_values"], **{**dots, **_HIDDEN})
    if edge > 0:
        axes.set_xlim(min([at[0], *curve["times"]]) - edge, at[-1] + edge)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_locator(MaxNLocator(4))
    limits = _limits(curve, end)
    if limits is not None:
        axes.set_ylim(*limits)


def _limits(curve: Mapping[str, Any], end: float) -> tuple[float, float] | None:
    """Heights that show all up to the end, and beyond it as much again above and below.

    A diverging extrapolation would otherwise squeeze everything else into a line.
    """
    points = list(zip(curve["at"], *_band(curve), strict=True))
    inner = [*curve["values"], *curve.get("hidden_values", ())]
    inner += [y for at, *pair in points if at <= end for y in pair]
    inner = [value for value in inner if math.isfinite(value)]
    if not inner or max(inner) == min(inner):
        return None
    low, high = min(inner), max(inner)
    room = high - low
    outer = [y for at, *pair in points if at > end for y in pair if math.isfinite(y)]
    low = min([low, *(max(value, low - room) for value in outer)])
    high = max([high, *(min(value, high + room) for value in outer)])
    return low - 0.06 * (high - low), high + 0.06 * (high - low)


def _band(curve: Mapping[str, Any]) -> tuple[Sequence[float], Sequence[float]]:
    """The band around the line: the predictive interval, or else the range of the samples."""
    if curve.get("lower") is None:
        return curve["low"], curve["high"]
    return curve["lower"], curve["upper"]


def _legend(series: Sequence[Series]) -> dict[str, Any]:
    """Legend handles of the figure, by their labels."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    dot: dict[str, Any] = {"marker": "o", "markersize": 5, "linestyle": "none"}
    handles: dict[str, Any] = {"observed": Line2D([], [], color=_DOT, **dot)}
    if any(one.get("hidden") for one in series):
        handles["hidden from the model"] = Line2D([], [], **{**dot, **_HIDDEN})
    level = series[0].get("level")
    band = "lowest to highest sample" if level is None else f"{100 * level:g} % interval"
    handles["expected value"] = Line2D([], [], color=_LINE, linewidth=2)
    handles[band] = Patch(facecolor=_LINE, alpha=0.22)
    if any(map(_goes_on, series)):
        handles["after the last observation"] = Patch(facecolor=FAINT, alpha=0.45)
    return handles
