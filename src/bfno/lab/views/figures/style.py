"""The style of all figures: colours, fonts, and how a figure becomes bytes.

The same runs give the same bytes. Text and background of an SVG take the colours of its page, if it
is themed and the page defines `--ink`, `--paper` and so on; by itself, a figure is dark on white.
"""

from __future__ import annotations

import html
import io
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bfno.lab.errors import ConfigError, DataError
from bfno.lab.runs.archive import LARGEST_PICTURE
from bfno.lab.runs.folder import RunFolder
from bfno.lab.runs.record import Record
from bfno.lab.views.methods import Replicates, replicates

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "CLASS_COLOURS",
    "CLASS_INKS",
    "DARK_PALETTE",
    "DOTS_PER_INCH",
    "FAINT",
    "INK",
    "MARKERS",
    "OURS",
    "PALETTE",
    "Drawn",
    "Look",
    "Methods",
    "drawing",
    "drawn",
    "is_ablation",
    "looks",
    "read_picture",
    "short_name",
    "svg_element",
]

# Okabe and Ito's colours, and two dark ones of Tol's: people with any colour vision can tell them
# apart. Ours is the first.
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#6b6b6b")
PALETTE += ("#661100", "#332288")
DARK_PALETTE = ("#3d9fdc", "#f0813a", "#2bbd92", "#e29bc2", "#f0b432", "#7fcaf2", "#8c8c8c")
DARK_PALETTE += ("#e05a5a", "#8a6df0")
"""The same hues on a dark page."""
CLASS_COLOURS = (*PALETTE, "#000000")
"""Dots of classes."""
CLASS_INKS = (
    ("#0072b2", "#4aa8e0"),
    ("#c24f00", "#f08a45"),
    ("#00795a", "#36c79b"),
    ("#b0467f", "#e69bc5"),
    ("#8f6400", "#f0b840"),
    ("#1b7fa8", "#85cff5"),
    ("#5f5f5f", "#b5b5b5"),
    ("#6a3d9a", "#b794e6"),
    ("#a01c1c", "#f27d7d"),
    ("#567d1e", "#a6d160"),
)
"""Letters of classes on a light and on a dark page: letters need more contrast than dots."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p")
_DASHES = ("-", (0, (5, 1.6)), (0, (1.2, 1.2)), (0, (6, 1.4, 1.2, 1.4)))
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
    "figure.constrained_layout.w_pad": 0.08,
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
_LARGEST_READ = 8 * 2**20
# Commands that draw pictures into the folder of a run.
_DRAWN_BY = {"samples": "sample", "reconstruction": "reconstruct"}
_LONGEST_NAME = 24
_ABLATION = re.compile(r"bfno-node-(branches|small).*|a?fno-node.*")


@dataclass(frozen=True)
class Look:
    """How a method is drawn, so that it can be recognised without colours too.

    Attributes:
        colour: Its colour.
        marker: Its marker, as matplotlib names them.
        dashes: Its line, as matplotlib takes them.
    """

    colour: str
    marker: str
    dashes: Any


OURS = Look(PALETTE[0], MARKERS[0], _DASHES[0])
"""The first look, which ours has."""


@dataclass(frozen=True)
class Drawn:
    """A figure, ready to be written.

    Attributes:
        alt: What it shows, for those who cannot see it.
        svg: The figure as SVG.
        png: The figure as PNG; None if its run has the picture only as SVG.
    """

    alt: str
    svg: str
    png: bytes | None


def is_ablation(method: str) -> bool:
    """Whether a method is a variant of ours for ablations only."""
    return _ABLATION.fullmatch(method) is not None


def looks(labels: Iterable[str]) -> dict[str, Look]:
    """A look for each method: ours first, the rest by name, those of ablations last.

    A method has the same look in all figures that get the same looks.
    """

    def place(label: str) -> tuple[bool, bool, str]:
        return is_ablation(label), "bfno" not in label, label

    return {label: _look(index) for index, label in enumerate(sorted(set(labels), key=place))}


def _look(index: int) -> Look:
    if index == 0:
        return OURS
    # No other method has the first colour. Eight others and ten markers: no pair twice among forty.
    turn, place = divmod(index - 1, len(PALETTE) - 1)
    # A colour repeats after eight, and so would its dashes, because there are four.
    dashes = _DASHES[(index + turn) % len(_DASHES)]
    return Look(PALETTE[1 + place], MARKERS[index % len(MARKERS)], dashes)


@dataclass(frozen=True)
class Methods:
    """The methods of a drawing, or those of them that a figure shows.

    Names and looks come from all runs of the drawing. Otherwise a figure of some runs would give a
    method another colour than the figure beside it.

    Attributes:
        groups: Runs that differ only in their seed, by task and then best first.
        looks: The look of each method of the drawing, by label.
    """

    groups: tuple[Replicates, ...]
    looks: Mapping[str, Look]

    @classmethod
    def of(cls, runs: Iterable[Record]) -> Methods:
        """The methods of a drawing.

        Args:
            runs: All of its runs.
        """
        groups = tuple(replicates(runs))
        return cls(groups, looks(group.label for group in groups))

    def part(self, keep: Callable[[Record], bool]) -> Methods:
        """Some of the runs, with the names and looks that they have among all."""
        kept = [
            Replicates(group.label, tuple(run for run in group.runs if keep(run)))
            for group in self.groups
        ]
        return replace(self, groups=tuple(group for group in kept if group.runs))

    def main(self) -> Methods:
        """Without ablations, which have their own figures; tasks with nothing else keep all."""
        found = []
        for _, groups in self.tasks():
            others = [group for group in groups if not is_ablation(group.runs[0].method)]
            found += others if len({group.runs[0].method for group in others}) > 1 else groups
        return replace(self, groups=tuple(found))

    def tasks(self) -> list[tuple[tuple[str, str, str], list[Replicates]]]:
        """The methods of each task."""
        by_task = groupby(self.groups, key=lambda group: group.task)
        return [(task, list(groups)) for task, groups in by_task]

    def looks_of(self, groups: Iterable[Replicates]) -> dict[str, Look]:
        """The looks of only these, in the order of all."""
        shown = {group.label for group in groups}
        return {label: look for label, look in self.looks.items() if label in shown}


def drawn(alt: str, paint: Callable[[Figure], None]) -> Drawn:
    """A figure as SVG and as PNG.

    Args:
        alt: What it shows, for those who cannot see it; figures of other runs say something else.
        paint: Fills an empty figure.

    Raises:
        ConfigError: matplotlib is missing.
    """
    with _canvas(alt) as figure:
        paint(figure)
        svg = svg_element(_saved(figure, "svg").decode(), alt, themed=False)
        return Drawn(alt, f"{svg}\n", _light(_saved(figure, "png")))


@contextmanager
def drawing(salt: str, kind: str = "svg") -> Iterator[tuple[Figure, io.BytesIO]]:
    """An empty figure, and the buffer that gets its bytes, which are the same every time.

    Args:
        salt: Makes the names inside a figure unique, because many share one page.
        kind: `svg` or `png`.

    Raises:
        ConfigError: matplotlib is missing.
    """
    written = io.BytesIO()
    with _canvas(salt) as figure:
        yield figure, written
        written.write(_saved(figure, kind))


@contextmanager
def _canvas(salt: str) -> Iterator[Figure]:
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        fix = "pip install 'bfno[report]'"
        raise ConfigError("matplotlib", "is not installed", fix) from None
    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()  # a user's own style would make other bytes of the same runs
        style: dict[Any, Any] = {**_STYLE, "svg.hashsalt": salt}
        matplotlib.rcParams.update(style)
        # The text of an SVG is set by the reader's browser: it need not be in matplotlib's font.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield Figure()


def _saved(figure: Figure, kind: str) -> bytes:
    written = io.BytesIO()
    nothing = dict.fromkeys(_STAMPS[kind])
    figure.savefig(written, format=kind, metadata=nothing, dpi=DOTS_PER_INCH)
    return written.getvalue()


def _light(png: bytes) -> bytes:
    """The same picture in fewer bytes: fewer colours if necessary, then fewer pixels."""
    from PIL import Image

    picture = Image.open(io.BytesIO(png)).convert("RGB")
    content = _packed(picture)
    while len(content) > LARGEST_PICTURE:
        content = _packed(picture.quantize(256, dither=Image.Dither.NONE))
        width, height = (round(0.8 * side) for side in picture.size)
        picture = picture.resize((width, height), Image.Resampling.LANCZOS)
    return content


def _packed(picture: Any) -> bytes:
    written = io.BytesIO()
    picture.save(written, "PNG", optimize=True)
    return written.getvalue()


def svg_element(svg: str, alt: str, *, themed: bool = True) -> str:
    """The SVG element alone, with a text for those who cannot see it.

    Args:
        svg: The output of matplotlib.
        alt: The text.
        themed: Whether it takes the colours of its page.
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
    """The name, shortened if it would not fit into a figure."""
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"


def read_picture(file: Path, step: int | None = None) -> bytes | None:
    """The content of a picture in the folder of a run; None if there is none of present weights.

    Args:
        file: The picture.
        step: The step that the run has chosen, if known.

    Raises:
        DataError: If it is too large or cannot be read.
    """
    try:
        if not file.is_file() or RunFolder(file.parent.parent).is_outdated(file.name, step):
            return None
        if file.stat().st_size > _LARGEST_READ:
            why = f"has more than {_LARGEST_READ >> 20} MB"
            fix = f"draw it again with `bfno {_DRAWN_BY[file.stem]} --force`"
            raise DataError(file, why, fix)
        return file.read_bytes()
    except OSError as error:
        why = f"cannot be read ({error.strerror})"
        raise DataError(file, why, "check the file's permissions") from None
