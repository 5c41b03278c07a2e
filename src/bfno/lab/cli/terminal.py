"""Tables and sentences on a terminal."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bfno.lab.views.layout import Table

__all__ = ["show_table", "show_text"]

_BOLD = "\x1b[1m{}\x1b[0m"


def show_table(table: Table) -> None:
    """Print a table no wider than the terminal, its headings and best cells in bold."""
    from rich.console import Console
    from rich.text import Text

    from bfno.lab.views.layout import as_text, stacked

    console = Console(highlight=False)
    for part in stacked(replace(table, notes=()), console.width):
        heading = True
        for line in as_text(part, best=_BOLD).splitlines():
            if heading and not line.strip("- "):
                heading = False
                console.print(Text(line.replace("-", "─"), style="dim"), soft_wrap=True)
            else:
                text = Text.from_ansi(line, style="bold" if heading else "")
                console.print(text, soft_wrap=True)
        console.print()
    for note in table.notes:
        show_text(note)


def show_text(text: str) -> None:
    """Print sentences, wrapped at the terminal's width, and an empty line."""
    from rich.console import Console
    from rich.text import Text

    Console(highlight=False).print(Text(text), end="\n\n")
