"""A table, and how it is written: as plain text, Markdown, CSV or LaTeX."""

from __future__ import annotations

import csv
import html
import io
import itertools
import math
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from bfno.lab.errors import ConfigError
from bfno.lab.files import write_atomically

__all__ = [
    "FORMATS",
    "Cell",
    "Column",
    "Estimate",
    "Table",
    "as_csv",
    "as_latex",
    "as_markdown",
    "as_text",
    "cell_text",
    "find_format",
    "for_people",
    "stacked",
    "write_table",
]

TEXT_WIDTH = 100
"""Letters of a line in files; wider tables are cut into several."""


@dataclass(frozen=True)
class Estimate:
    """A number measured once or several times.

    Attributes:
        mean: Mean of the measurements.
        std: Their standard deviation, dividing by one less than their number; none for a single.
        digits: Decimals that are worth printing.
        remark: What has to stand beside it.

    Example:
        >>> str(Estimate.of([0.96, 0.98], digits=2))
        '0.97 ± 0.01'
    """

    mean: float
    std: float | None
    digits: int
    remark: str = ""

    @classmethod
    def of(cls, values: Iterable[float | None], digits: int) -> Estimate | None:
        """The estimate from measurements, some of which may be missing; none without any."""
        known = [value for value in values if value is not None]
        if not known:
            return None
        # Not the statistics module: it raises on infinities, which a diverged run may hold.
        mean = sum(known) / len(known)
        if len(known) == 1:
            return cls(mean, None, digits)
        squares = sum((value - mean) * (value - mean) for value in known)
        return cls(mean, math.sqrt(squares / (len(known) - 1)), digits)

    def __str__(self) -> str:
        text = _number(self.mean, self.digits)
        if self.std is not None:
            text += f" ± {_number(self.std, self.digits)}"
        return f"{text} {self.remark}".rstrip()


# A tuple holds seeds.
Cell = str | int | Estimate | tuple[int, ...] | None


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        key: Its name for programs: the key of the record where there is one.
        title: Its name for people; lines of it may stand below each other.
        numeric: Whether it holds numbers.
        measured: Whether these may have a standard deviation.
        group: Heading that it shares with its neighbours.
        for_programs: Whether only programs need it; people are not shown it.
    """

    key: str
    title: str
    numeric: bool = True
    measured: bool = False
    group: str = ""
    for_programs: bool = False


@dataclass(frozen=True)
class Table:
    """Columns, rows, which cells (row, column) are the best of their kind, and footnotes."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    best: frozenset[tuple[int, int]] = frozenset()
    notes: tuple[str, ...] = ()


def cell_text(cell: Cell) -> str:
    """A cell as people read it; a dash where there is nothing."""
    if cell is None:
        return "–"
    if isinstance(cell, tuple):
        return str(cell[0]) if len(cell) == 1 else f"{len(cell)} seeds"
    return f"{cell:,}" if isinstance(cell, int) else str(cell)


def as_text(table: Table, best: str = "{}") -> str:
    """The table as aligned plain text for a terminal.

    Args:
        table: The table.
        best: How the best cells are written, for terminals that can make them stand out.
    """
    table = for_people(table)
    heads = _headings(table.columns)
    body = [[cell_text(cell) for cell in row] for row in table.rows]
    widths = [max(map(len, column)) for column in zip(*heads, *body, strict=True)]
    groups = _spans(table.columns)
    for name, first, last in groups:
        widths[last] += max(0, len(name) - _span_width(widths[first : last + 1]))
    lines = [_group_line(groups, widths)] if any(name for name, *_ in groups) else []
    lines += ["  ".join(_aligned(line, widths, table.columns)).rstrip() for line in heads]
    lines.append("  ".join("-" * width for width in widths))
    for number, line in enumerate(body):
        cells = enumerate(_aligned(line, widths, table.columns))
        texts = ((best if (number, at) in table.best else "{}").format(text) for at, text in cells)
        lines.append("  ".join(texts).rstrip())
    for note in table.notes:
        lines += ["", *textwrap.wrap(note, TEXT_WIDTH)]
    return "".join(f"{line}\n" for line in lines)


def as_markdown(table: Table) -> str:
    """The table as GitHub's Markdown, the best cells in bold."""
    table = for_people(table)
    lines = [[_markdown(_one_line(column)) for column in table.columns]]
    lines.append(["---:" if column.numeric else "---" for column in table.columns])
    lines += _marked(table, _markdown, "**{}**")
    notes = "".join(f"\n{_markdown(note)}\n" for note in table.notes)
    return "".join(f"| {' | '.join(line)} |\n" for line in lines) + notes


def as_latex(table: Table) -> str:
    """The table for LaTeX with the package booktabs, the best cells in bold."""
    table = for_people(table)
    groups = [span for span in _spans(table.columns) if span[0]]
    lines = ["% needs \\usepackage{booktabs}"]
    lines.append(f"\\begin{{tabular}}{{{''.join('lr'[one.numeric] for one in table.columns)}}}")
    lines.append("\\toprule")
    if groups:
        heads = [
            f"\\multicolumn{{{last - first + 1}}}{{c}}{{{_latex(name)}}}"
            for name, first, last in _spans(table.columns)
        ]
        lines.append(" & ".join(heads) + " \\\\")
        lines.append("".join(f"\\cmidrule(lr){{{a + 1}-{b + 1}}}" for _, a, b in groups))
    rows = [[_latex(text) for text in line] for line in _headings(table.columns)]
    lines += [" & ".join(row) + " \\\\" for row in rows] + ["\\midrule"]
    lines += [" & ".join(row) + " \\\\" for row in _marked(table, _latex, "\\textbf{{{}}}")]
    lines += ["\\bottomrule", "\\end{tabular}"]
    if table.notes:
        lines += ["", "{\\footnotesize", *(f"{_latex(note)}\\par" for note in table.notes), "}"]
    return "".join(f"{line}\n" for line in lines)


def as_csv(table: Table) -> str:
    """The table for programs: full precision, each standard deviation in its own column."""
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    header = []
    for column in table.columns:
        header += [column.key, f"{column.key}_std"] if column.measured else [column.key]
    writer.writerow(header)
    for row in table.rows:
        line: list[object] = []
        for column, cell in zip(table.columns, row, strict=True):
            value, deviation = _plain(cell)
            line += [value, deviation] if column.measured else [value]
        writer.writerow(line)
    return written.getvalue()


def for_people(table: Table) -> Table:
    """The table without the columns that only programs need."""
    shown = [index for index, column in enumerate(table.columns) if not column.for_programs]
    return replace(_part(table, shown), notes=table.notes)


def stacked(table: Table, width: int) -> list[Table]:
    """Cut a table between groups of columns so that as plain text it is no wider than that.

    Columns before the first group are repeated; a group that is too wide by itself stays whole.
    A table without groups is cut between any two columns, and repeats the first that hold words.
    The last part has the notes.
    """
    lead, units = _cuts(table.columns)
    parts: list[list[int]] = []
    for columns in units:
        if parts and _width(_part(table, [*parts[-1], *columns])) <= width:
            parts[-1] += columns
        else:
            parts.append([*lead, *columns])
    if not parts:
        return [table]
    found = [_part(table, columns) for columns in parts]
    return [*found[:-1], replace(found[-1], notes=table.notes)]


def write_table(table: Table, file: Path, layout: str | None) -> Path:
    """Write a table to a file, or over it.

    Args:
        table: The table.
        file: Where it goes.
        layout: One of `FORMATS`; None chooses by the file's suffix.

    Raises:
        ConfigError: If there is no such format.
        DataError: If the file cannot be written.
    """
    write_atomically(file, FORMATS[find_format(layout, file)](table).encode())
    return file


def find_format(layout: str | None, file: Path | None) -> str:
    """The format that was asked for, by its name or by the suffix of a file; text if neither.

    Raises:
        ConfigError: If there is no such format.
    """
    if layout is None and file is not None:
        if file.suffix not in _SUFFIXES:
            why = f"{file.suffix or 'no suffix'!r} tells no format"
            raise ConfigError(file, why, f"end it in {', '.join(_SUFFIXES)}, or give --format")
        return _SUFFIXES[file.suffix]
    if layout is not None and layout not in FORMATS:
        raise ConfigError(f"--format {layout}", "is no format", f"write {', '.join(FORMATS)}")
    return layout or "text"


def _as_blocks(table: Table) -> str:
    return "\n".join(map(as_text, stacked(table, TEXT_WIDTH)))


FORMATS: Mapping[str, Callable[[Table], str]] = {
    "text": _as_blocks,
    "markdown": as_markdown,
    "csv": as_csv,
    "latex": as_latex,
}
"""How a table can be written, by name."""
_SUFFIXES = {".txt": "text", ".md": "markdown", ".csv": "csv", ".tex": "latex"}


def _part(table: Table, columns: list[int]) -> Table:
    """Some columns of a table, without its notes."""
    place = {column: index for index, column in enumerate(columns)}
    return Table(
        tuple(table.columns[index] for index in columns),
        tuple(tuple(row[index] for index in columns) for row in table.rows),
        frozenset((row, place[column]) for row, column in table.best if column in place),
    )


def _cuts(columns: tuple[Column, ...]) -> tuple[list[int], list[list[int]]]:
    """Columns that every part of a table repeats, and the others as they stay together."""
    spans = [(name, list(range(first, last + 1))) for name, first, last in _spans(columns)]
    if any(name for name, _ in spans):
        lead = [index for name, places in spans if not name for index in places]
        return lead, [places for name, places in spans if name]
    lead = list(itertools.takewhile(lambda index: not columns[index].numeric, range(len(columns))))
    return lead, [[index] for index in range(len(lead), len(columns))]


def _width(table: Table) -> int:
    return max(map(len, as_text(table).splitlines()))


def _spans(columns: tuple[Column, ...]) -> list[tuple[str, int, int]]:
    """Each group with its first and its last column."""
    found = []
    for name, members in itertools.groupby(enumerate(columns), lambda one: one[1].group):
        places = [index for index, _ in members]
        found.append((name, places[0], places[-1]))
    return found


def _headings(columns: tuple[Column, ...]) -> list[list[str]]:
    """Lines of titles, which all end in the same one."""
    titles = [column.title.split("\n") for column in columns]
    height = max(map(len, titles))
    return [
        list(line) for line in zip(*([""] * (height - len(t)) + t for t in titles), strict=True)
    ]


def _one_line(column: Column) -> str:
    title = column.title.replace("\n", " ")
    return f"{column.group}: {title}" if column.group else title


def _marked(table: Table, escape: Callable[[str], str], mark: str) -> list[list[str]]:
    """The cells as markup, with a mark around the best ones."""
    return [
        [
            (mark if (number, index) in table.best else "{}").format(escape(cell_text(cell)))
            for index, cell in enumerate(row)
        ]
        for number, row in enumerate(table.rows)
    ]


def _group_line(groups: list[tuple[str, int, int]], widths: list[int]) -> str:
    texts = [name.ljust(_span_width(widths[first : last + 1])) for name, first, last in groups]
    return "  ".join(texts).rstrip()


def _span_width(widths: list[int]) -> int:
    return sum(widths) + 2 * (len(widths) - 1)


def _plain(cell: Cell) -> tuple[object, float | None]:
    """A cell's value for programs, and its standard deviation."""
    if isinstance(cell, Estimate):
        return cell.mean, cell.std
    return " ".join(map(str, cell)) if isinstance(cell, tuple) else cell, None


def _number(value: float, digits: int) -> str:
    return f"{value:.3g}" if abs(value) >= 1e9 else f"{value:,.{digits}f}"


def _aligned(line: list[str], widths: list[int], columns: tuple[Column, ...]) -> list[str]:
    return [
        text.rjust(width) if column.numeric else text.ljust(width)
        for text, width, column in zip(line, widths, columns, strict=True)
    ]


def _markdown(text: str) -> str:
    # Names come from files: they must neither break the row nor become markup.
    for letter in "\\`*_[]|~":
        text = text.replace(letter, "\\" + letter)
    return html.escape(text, quote=False)


# What LaTeX would take for a command, and letters that its usual fonts do not have.
_LATEX = {
    "\\": "\\textbackslash{}",
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    **{letter: f"{{{letter}}}" for letter in "[]"},
    **{"~": "\\textasciitilde{}", "^": "\\textasciicircum{}"},
    **{"<": "\\textless{}", ">": "\\textgreater{}", "|": "\\textbar{}"},
    **{"±": "$\\pm$", "×": "$\\times$", "Δ": "$\\Delta$", "–": "--", "—": "---", "…": "\\dots{}"},
    **{"†": "\\dag{}", "*": "{*}", '"': "''", "`": "\\textasciigrave{}", "’": "'"},
}


def _latex(text: str) -> str:
    return "".join(_LATEX.get(letter, letter if ord(letter) < 0x180 else "?") for letter in text)
