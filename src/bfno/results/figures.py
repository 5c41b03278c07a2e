"""Figures of runs as SVG text: curves over the epochs and confusion matrices.

The same runs give the same bytes. Text and paper take the colours of the page that a figure stands
in, if it defines `--ink`, `--paper` and so on; alone, a figure is dark on white.
"""

from __future__ import annotations

import html
import io
import math
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from bfno.errors import ConfigError
from bfno.results.record import RunResult
from bfno.results.tables import Replicates, replicates

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "DOTS_PER_INCH",
    "FAINT",
    "INK",
    "PALETTE",
    "colours",
    "confusion_matrix",
    "drawing",
    "loss_curves",
    "metric_curves",
    "nfe_curves",
    "short_name",
    "svg_element",
]

# Okabe and Ito's colours, which people with any colour vision can tell apart.
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#6b6b6b")
INK, FAINT, _PAPER = "#1f2430", "#d9dce3", "#fefefe"
_THEME = {INK: "--ink", FAINT: "--faint", _PAPER: "--paper"}
_THEME |= {colour: f"--method-{index}" for index, colour in enumerate(PALETTE)}
_STYLE = {
    "svg.fonttype": "none",  # text stays text: small, searchable, and in any alphabet
    "text.parse_math": False,  # a dollar sign in a name is a dollar sign
    "font.size": 10.0,
    "font.sans-serif": ["DejaVu Sans", "Helvetica", "Arial", "sans-serif"],
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 11.0,
    "axes.titleweight": "bold",
    "axes.edgecolor": FAINT,
    "axes.facecolor": _PAPER,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "figure.facecolor": _PAPER,
    "figure.constrained_layout.use": True,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "legend.fontsize": 9.0,
}
# What matplotlib would stamp onto a file: its own version and the date.
_STAMPS = {"svg": ("Creator", "Date", "Format", "Type"), "png": ("Software",)}
DOTS_PER_INCH = 160
_MOST_CLASSES_WITH_NUMBERS = 20
_LONGEST_NAME = 24
_CURVE_WIDTH, _CURVE_HEIGHT, _LEGEND_ROW = 4.2, 3.0, 0.19  # inches
# Losses that differ by more than this factor do not show on a linear axis.
_WIDE_RANGE = 50.0


def colours(runs: Iterable[RunResult]) -> dict[str, str]:
    """A colour for each method, the same in every figure: ours first, the rest by name.

    Methods beyond the palette share its colours.
    """
    labels = {group.label for group in replicates(runs)}
    order = sorted(labels, key=lambda label: ("bfno" not in label, label))
    return {label: PALETTE[index % len(PALETTE)] for index, label in enumerate(order)}


def loss_curves(runs: Sequence[RunResult], palette: dict[str, str] | None = None) -> str | None:
    """Loss against epochs, in training and on samples held out.

    Args:
        runs: Runs of one task; those that differ in their seed alone become a mean and a band.
        palette: The colour of each method, as from `colours`.

    Returns:
        SVG text; none if there is nothing to draw.
    """
    keys, unit = _splits(runs, "loss"), "loss"
    if any("train_cross_entropy" in epoch for run in runs for epoch in run.epochs):
        # These train on more than the labels; what is held out is judged by the labels alone.
        held_out = {key: name for key, name in keys.items() if key != "train_loss"}
        keys, unit = {"train_cross_entropy": "training"} | held_out, "cross-entropy of the labels"
    return _curves(runs, palette, "Loss", unit, keys)


def metric_curves(runs: Sequence[RunResult], palette: dict[str, str] | None = None) -> str | None:
    """The headline metric against epochs; arguments and result as for `loss_curves`."""
    metric = runs[0].headline if runs else None
    if metric is None or metric.name == "loss":
        return None
    title = metric.title.removeprefix("test ")
    splits = _splits(runs, metric.name)
    return _curves(runs, palette, title[0].upper() + title[1:], title, splits)


def nfe_curves(runs: Sequence[RunResult], palette: dict[str, str] | None = None) -> str | None:
    """Function evaluations against epochs; arguments and result as for `loss_curves`."""
    passes = {"forward_nfe": "forward", "backward_nfe": "backward"}
    return _curves(runs, palette, "NFE", "function evaluations a solve", passes)


def confusion_matrix(run: RunResult) -> str | None:
    """Which classes a run takes for which; none if the run recorded no such counts."""
    size = len(run.confusion)
    if not size:
        return None
    alt = f"Confusion matrix of {run.method} on {run.data}"
    with drawing(f"{alt}, {run.name}") as (figure, written):
        side = min(7.0, max(3.4, 1.6 + 0.36 * size))
        figure.set_size_inches(side, side)
        axes = figure.subplots()
        _draw_counts(axes, run.confusion)
        numbered = size <= _MOST_CLASSES_WITH_NUMBERS
        names = [short_name(name) for name in run.classes] if numbered else []
        if len(names) == size:
            upright = max(map(len, names)) > 3
            axes.set_xticks(range(size), names, rotation=90 if upright else 0)
            axes.set_yticks(range(size), names)
        axes.set(xlabel="predicted class", ylabel="true class", aspect="equal")
        axes.invert_yaxis()
        axes.grid(visible=False)
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
    return svg_element(written.getvalue().decode(), alt)


def _splits(runs: Sequence[RunResult], name: str) -> dict[str, str]:
    """Keys to draw with their names: training, if it has this metric, and what was held out."""
    known = {key for run in runs for epoch in run.epochs for key in epoch}
    names = {"train": "training", "test": "test", "validation": "validation"}
    found = [split for split in names if f"{split}_{name}" in known]
    # A third kind of dashes would not be told apart.
    return {f"{split}_{name}": names[split] for split in found[:2]}


def _curves(
    runs: Sequence[RunResult],
    palette: dict[str, str] | None,
    title: str,
    unit: str,
    keys: dict[str, str],
) -> str | None:
    groups = replicates(runs)
    series = [
        (group, key, points) for group in groups for key in keys if (points := _points(group, key))
    ]
    if not series:
        return None
    palette = palette or colours(runs)
    labels = list(dict.fromkeys(group.label for group in groups))
    dashes = dict(zip(keys, ("-", (0, (4, 2))), strict=False))
    alt = f"{title} on {groups[0].task[0]}: {unit} against epochs"
    with drawing(f"{alt}, {groups[0].task}") as (figure, written):
        columns, rows = _legend_shape(labels)
        figure.set_size_inches(_CURVE_WIDTH, _CURVE_HEIGHT + _LEGEND_ROW * rows)
        axes = figure.subplots()
        for group, key, points in series:
            _draw_series(axes, points, palette[group.label], dashes[key])
        _scale_axes(axes, [value for _, _, points in series for *_, value in points])
        axes.set_title(title)
        axes.set(xlabel="epoch", ylabel=unit)
        used = [key for key in keys if any(key == other for _, other, _ in series)]
        methods = {label: palette[label] for label in labels}
        _add_legends(axes, methods, {keys[key]: dashes[key] for key in used}, columns)
    return svg_element(written.getvalue().decode(), alt)


def _points(group: Replicates, key: str) -> list[tuple[int, float, float, float]]:
    """Epoch, lowest, highest and mean value over the seeds."""
    values: dict[int, list[float]] = {}
    for run in group.runs:
        for epoch in run.epochs:
            value = epoch.get(key)
            if value is not None and math.isfinite(value):
                values.setdefault(epoch["epoch"], []).append(value)
    return [
        (epoch, min(found), max(found), sum(found) / len(found))
        for epoch, found in sorted(values.items())
    ]


def _draw_series(
    axes: Axes, points: list[tuple[int, float, float, float]], colour: str, dashes: Any
) -> None:
    epochs, low, high, mean = zip(*points, strict=True)
    dots = {"marker": "o", "markersize": 2.8} if len(points) <= 12 else {}
    axes.plot(epochs, mean, color=colour, linestyle=dashes, linewidth=1.7, **dots)
    if low != high:
        axes.fill_between(epochs, low, high, color=colour, alpha=0.14, linewidth=0)


def _scale_axes(axes: Axes, values: list[float]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.margins(x=0.02)
    if min(values) > 0 and max(values) > _WIDE_RANGE * min(values):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=8))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _legend_shape(labels: list[str]) -> tuple[int, int]:
    """Columns and rows: as many columns as the longest name leaves room for."""
    columns = max(1, 42 // (max(len(short_name(label)) for label in labels) + 5))
    return columns, math.ceil(len(labels) / columns)


def _add_legends(axes: Axes, methods: dict[str, str], styles: dict[str, Any], columns: int) -> None:
    """Colours tell the methods, below; dashes what was measured, on the line of the title."""
    from matplotlib.lines import Line2D

    dashes = [Line2D([], [], color=INK, linestyle=style) for style in styles.values()]
    corner = {"loc": "lower right", "bbox_to_anchor": (1, 1), "borderaxespad": 0.2}
    axes.legend(dashes, list(styles), ncols=len(styles), **corner)
    lines = [Line2D([], [], color=colour, linewidth=3) for colour in methods.values()]
    names = [short_name(label) for label in methods]
    axes.figure.legend(lines, names, loc="outside lower left", ncols=columns)


def _draw_counts(axes: Axes, counts: list[list[int]]) -> None:
    """Cells as dark as their share of the true class, with their counts where these fit."""
    from matplotlib.colors import to_rgb

    size = len(counts)
    shares = [[count / max(sum(row), 1) for count in row] for row in counts]
    # Opacity, not a colour map: an empty cell then has the colour of the page, light or dark.
    cells = [[(*to_rgb(PALETTE[0]), share) for share in row] for row in shares]
    small = size <= _MOST_CLASSES_WITH_NUMBERS
    if not small:
        axes.imshow(cells, interpolation="nearest")
        return
    edges = [index - 0.5 for index in range(size + 1)]
    axes.pcolormesh(edges, edges, cells, edgecolors=FAINT, linewidth=0.5)
    for row, column in ((row, column) for row in range(size) for column in range(size)):
        if counts[row][column]:
            colour = "white" if shares[row][column] > 0.5 else INK
            text = {"ha": "center", "va": "center", "color": colour, "fontsize": 8.5}
            axes.text(column, row, str(counts[row][column]), **text)


@contextmanager
def drawing(salt: str, kind: str = "svg") -> Iterator[tuple[Figure, io.BytesIO]]:
    """An empty figure, and what holds its bytes afterwards, the same whenever it is drawn.

    Args:
        salt: Makes the names inside a figure its own, since many share one page.
        kind: `svg` or `png`.

    Raises:
        ConfigError: matplotlib is missing.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        fix = "pip install 'bfno[report]'"
        raise ConfigError("matplotlib", "is not installed", fix) from None
    written = io.BytesIO()
    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()  # a user's own style would make other bytes of the same runs
        style: dict[Any, Any] = {**_STYLE, "svg.hashsalt": salt}
        matplotlib.rcParams.update(style)
        # The text of an SVG is set by the reader's browser: it need not be in matplotlib's font.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure = Figure()
        yield figure, written
        nothing = dict.fromkeys(_STAMPS[kind])
        figure.savefig(written, format=kind, metadata=nothing, dpi=DOTS_PER_INCH)


def svg_element(svg: str, alt: str, *, themed: bool = True) -> str:
    """The SVG element alone, with a text for those who cannot see it.

    Args:
        svg: What matplotlib wrote.
        alt: The text.
        themed: Whether it takes the colours of the page that it stands in.
    """
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", svg, flags=re.DOTALL)
    used = set(re.findall(r'(?:url\(|href=")#([^)"]+)', svg))
    # Names that nothing refers to would be there once for each figure of a page.
    svg = re.sub(r'(<\w+) id="([^"]*)"', lambda name: name[0] if name[2] in used else name[1], svg)
    if themed:
        svg = re.sub(r"((?:fill|stroke): )(#[0-9a-f]{6})\b", _themed, svg)
    label = html.escape(alt, quote=True)
    return svg.replace("<svg", f'<svg role="img" aria-label="{label}"', 1).strip()


def _themed(colour: re.Match[str]) -> str:
    name = _THEME.get(colour[2])
    return colour[0] if name is None else f"{colour[1]}var({name}, {colour[2]})"


def short_name(name: str) -> str:
    """The name, cut off where it would not fit a figure."""
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"
