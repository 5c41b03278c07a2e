"""Tables, written as plain text, Markdown, CSV or LaTeX."""

from __future__ import annotations

import csv
import html
import io
import itertools
import re
import textwrap
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from bfno.lab.errors import ConfigError
from bfno.lab.files import write_atomically
from bfno.lab.views.metrics import Estimate

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable

__all__ = [
    "FORMATS",
    "Cell",
    "Column",
    "Table",
    "as_csv",
    "as_latex",
    "as_markdown",
    "as_rich",
    "as_text",
    "cell_text",
    "csv_text",
    "escaped",
    "find_format",
    "for_people",
    "stacked",
    "write_table",
]

TEXT_WIDTH = 100
"""Letters of a line in files; wider tables are cut into several."""
_NAME_WIDTH = 20  # letters of a group's name that stay in one line, however narrow its column
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-](inf|nan)")


# A tuple holds seeds.
Cell = str | int | Estimate | tuple[int, ...] | None


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        key: Its name for programs: the key in records, if there is one.
        title: Its name for people; it may have several lines.
        numeric: Whether it holds numbers.
        measured: Whether these may have a standard deviation.
        group: Heading that it shares with its neighbours.
        for_programs: Whether only programs need it; it is not shown to people.
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
    """A cell as people read it; a dash if it is empty."""
    if cell is None:
        return "–"
    if isinstance(cell, tuple):
        return str(cell[0]) if len(cell) == 1 else f"{len(cell)} seeds"
    return f"{cell:,}" if isinstance(cell, int) else str(cell)


def escaped(text: str) -> str:
    r"""The text on one line, with all characters escaped that could control a terminal.

    Names of classes, files and runs come from outside and may hold anything.

    Example:
        >>> print(escaped("red \x1b[31m, two\nlines, 猫"))
        red \x1b[31m, two\nlines, 猫
    """
    return "".join(
        one
        if one.isprintable() or unicodedata.category(one) == "Zs"
        else one.encode("unicode_escape").decode()
        for one in text
    )


def as_text(table: Table) -> str:
    """The table as aligned plain text, with its notes below."""
    lines = _plain_lines(as_rich(table))
    for note in table.notes:
        lines += ["", *textwrap.wrap(escaped(note), TEXT_WIDTH)]
    return "".join(f"{line}\n" for line in lines)


def as_rich(table: Table, rule: str = "-") -> RichTable:
    """The table for rich, as wide as necessary, with headings and the best cells in bold.

    Args:
        table: The table; its notes are left out.
        rule: The character of the line below the headings.
    """
    from rich.box import Box
    from rich.console import Group
    from rich.table import Table as RichTable
    from rich.text import Text

    table = for_people(table)
    blank = "    \n"
    found = RichTable(
        box=Box(2 * blank + f" {rule}  \n" + 5 * blank),
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
        header_style="bold",
        border_style="dim",
    )
    heads = zip(table.columns, _group_lines(table), _headings(table), strict=True)
    for column, group, titles in heads:
        justify = "right" if column.numeric else "left"
        # The name of a group begins where its first column does.
        lines = [Text(escaped(line), justify="left") for line in group]
        lines += [Text(escaped(line), justify=justify) for line in titles]
        found.add_column(Group(*lines), justify=justify, no_wrap=True)
    for number, row in enumerate(table.rows):
        cells = (
            Text(escaped(cell_text(cell)), "bold" if (number, place) in table.best else "")
            for place, cell in enumerate(row)
        )
        found.add_row(*cells)
    found.width = _console().measure(found).maximum
    return found


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
    rows = [[_latex(text) for text in line] for line in zip(*_headings(table), strict=True)]
    lines += [" & ".join(row) + " \\\\" for row in rows] + ["\\midrule"]
    lines += [" & ".join(row) + " \\\\" for row in _marked(table, _latex, "\\textbf{{{}}}")]
    lines += ["\\bottomrule", "\\end{tabular}"]
    if table.notes:
        lines += ["", "{\\footnotesize", *(f"{_latex(note)}\\par" for note in table.notes), "}"]
    return "".join(f"{line}\n" for line in lines)


def as_csv(table: Table) -> str:
    """The table for programs: full precision, each standard deviation in its own column."""
    header = []
    for column in table.columns:
        header += [column.key, f"{column.key}_std"] if column.measured else [column.key]
    lines: list[list[object]] = [[*header]]
    for row in table.rows:
        line: list[object] = []
        for column, cell in zip(table.columns, row, strict=True):
            value, deviation = _plain(cell)
            line += [value, deviation] if column.measured else [value]
        lines.append(line)
    return csv_text(lines)


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    """Rows as CSV, in which no text is a formula: a leading apostrophe prevents it.

    Example:
        >>> print(csv_text([["=cmd()", "-0.5", "-x"]]), end="")
        '=cmd(),-0.5,'-x
    """
    written = io.StringIO()
    csv.writer(written, lineterminator="\n").writerows(map(_harmless, row) for row in rows)
    return written.getvalue()


def _harmless(cell: object) -> object:
    """The cell as text that no spreadsheet computes and no terminal obeys."""
    if not isinstance(cell, str):
        return cell
    computed = cell.startswith(("=", "+", "-", "@", "\t", "\r")) and not _NUMBER.fullmatch(cell)
    return "'" * computed + escaped(cell)


def for_people(table: Table) -> Table:
    """The table without the columns that only programs need."""
    shown = [index for index, column in enumerate(table.columns) if not column.for_programs]
    return replace(_part(table, shown), notes=table.notes)


def stacked(table: Table, width: int) -> list[Table]:
    """Cut a table between groups of columns so that each part fits a width as plain text.

    Columns before the first group are repeated; a group that is too wide by itself is not cut. A
    table without groups is cut between any two columns, and repeats its first columns of words. The
    last part has the notes.
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
    """Write a table to a file, replacing it if it exists.

    Args:
        table: The table.
        file: The file.
        layout: One of `FORMATS`; None chooses by the file's suffix.

    Raises:
        ConfigError: If there is no such format.
        DataError: If the file cannot be written.
    """
    write_atomically(file, FORMATS[find_format(layout, file)](table).encode())
    return file


def find_format(layout: str | None, file: Path | None) -> str:
    """The requested format, by its name or the suffix of a file; text if neither is given.

    Raises:
        ConfigError: If there is no such format.
    """
    if layout is None and file is not None:
        if file.suffix not in _SUFFIXES:
            why = f"{file.suffix or 'no suffix'!r} does not name a format"
            raise ConfigError(file, why, f"end it in {', '.join(_SUFFIXES)}, or give --format")
        return _SUFFIXES[file.suffix]
    if layout is not None and layout not in FORMATS:
        raise ConfigError(f"--format {layout}", "is not a format", f"write {', '.join(FORMATS)}")
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
    """Columns that every part of a table repeats, and the units of the other columns."""
    spans = [(name, list(range(first, last + 1))) for name, first, last in _spans(columns)]
    if any(name for name, _ in spans):
        lead = [index for name, places in spans if not name for index in places]
        return lead, [places for name, places in spans if name]
    lead = list(itertools.takewhile(lambda index: not columns[index].numeric, range(len(columns))))
    return lead, [[index] for index in range(len(lead), len(columns))]


def _width(table: Table) -> int:
    return as_rich(table).width or 0


def _plain_lines(table: RichTable) -> list[str]:
    console = _console()
    with console.capture() as captured:
        console.print(table)
    return [line.rstrip() for line in captured.get().splitlines()]


def _console() -> Console:
    """A console without colours that is wide enough for any table."""
    from rich.console import Console

    return Console(width=100_000, color_system=None, force_terminal=False, legacy_windows=False)


def _spans(columns: tuple[Column, ...]) -> list[tuple[str, int, int]]:
    """Each group with its first and its last column."""
    found = []
    for name, members in itertools.groupby(enumerate(columns), lambda one: one[1].group):
        places = [index for index, _ in members]
        found.append((name, places[0], places[-1]))
    return found


def _headings(table: Table) -> list[list[str]]:
    """The lines of each column's title, padded to the same number at the top."""
    titles = [column.title.split("\n") for column in table.columns]
    height = max(map(len, titles))
    return [[""] * (height - len(title)) + title for title in titles]


def _group_lines(table: Table) -> list[list[str]]:
    """The lines above the title of each column: the name of a group above its first column.

    A long name that would widen its column is broken into lines.
    """
    names = {first: name for name, first, _ in _spans(table.columns) if name}
    lines = []
    for place, title in enumerate(_headings(table)):
        cells = [*title, *(cell_text(row[place]) for row in table.rows)]
        width = max(_NAME_WIDTH, *map(len, cells))
        name = names.get(place, "")
        lines.append(textwrap.wrap(name, width, break_long_words=False))
    height = max(map(len, lines))
    return [[""] * (height - len(line)) + line for line in lines]


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


def _plain(cell: Cell) -> tuple[object, float | None]:
    """A cell's value for programs, and its standard deviation."""
    if isinstance(cell, Estimate):
        return cell.mean, cell.std
    return " ".join(map(str, cell)) if isinstance(cell, tuple) else cell, None


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
