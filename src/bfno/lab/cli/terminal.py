"""Everything that reaches the terminal: lines, tables and bars.

Names of classes, files and runs come from outside. All output goes through `say` or a table,
which escape characters that could control the terminal.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bfno.lab.views.layout import as_rich, escaped, stacked

if TYPE_CHECKING:
    from bfno.lab.views.layout import Table

__all__ = ["PrintableFormatter", "bar", "download_progress", "say", "say_text"]
__all__ += ["show_table", "show_text"]


def say(*lines: str, error: bool = False) -> None:
    """Print lines, with all characters escaped that could control a terminal.

    Args:
        lines: The lines; a newline inside one is escaped too.
        error: Whether they go to standard error.
    """
    for line in lines:
        print(escaped(line), file=sys.stderr if error else sys.stdout, flush=True)


def say_text(text: str, error: bool = False) -> None:
    """Print a text of several lines like `say`."""
    say(*text.removesuffix("\n").split("\n"), error=error)


class PrintableFormatter(logging.Formatter):
    """Formats notes so that nothing in them controls a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(map(escaped, super().format(record).split("\n")))


def show_table(table: Table) -> None:
    """Print a table no wider than the terminal, its headings and best cells in bold."""
    from rich.console import Console

    console = Console(highlight=False)
    for part in stacked(replace(table, notes=()), console.width):
        console.print(as_rich(part, rule="─"), crop=False)
        console.print()
    for note in table.notes:
        show_text(note)


def show_text(text: str) -> None:
    """Print sentences, wrapped at the terminal's width, and an empty line."""
    from rich.console import Console
    from rich.text import Text

    Console(highlight=False).print(Text(escaped(text)), end="\n\n")


@contextlib.contextmanager
def bar(label: str) -> Iterator[Callable[[int, int], None] | None]:
    """Yield a function that updates a bar with the number done and the total; None elsewhere.

    The bar appears when the first is done and disappears when all are, so another can follow.
    """
    if not sys.stderr.isatty():
        yield None
        return
    with contextlib.ExitStack() as shown:
        update: Any = None

        def tell(done: int, total: int) -> None:
            nonlocal update
            update = update or shown.enter_context(_bars())
            update(label, done, total)
            if done >= total:
                shown.close()
                update = None

        yield tell


@contextlib.contextmanager
def download_progress() -> Iterator[Callable[[str, int, int | None], None] | None]:
    """A bar for each file of a download; None if there is no terminal."""
    with _bars(in_bytes=True) as update:
        yield update


@contextlib.contextmanager
def _bars(in_bytes: bool = False) -> Iterator[Callable[[str, int, int | None], None] | None]:
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    counter = DownloadColumn() if in_bytes else MofNCompleteColumn()
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        counter,
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, Any] = {}

        def update(name: str, done: int, total: int | None) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(escaped(name), total=total)
            bars.update(tasks[name], completed=done, total=total)

        yield update
