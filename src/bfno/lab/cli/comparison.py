"""Runs side by side in the terminal."""

from __future__ import annotations

import itertools
import json
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bfno.lab.cli.terminal import show_table, show_text

if TYPE_CHECKING:
    from bfno.lab.views.layout import Table
    from bfno.lab.views.record import RunResult

__all__ = ["compare_runs"]


def compare_runs(runs: Sequence[Path], as_json: bool = False) -> None:
    """Print the results of runs side by side: tables, and for each task what came out, and how.

    Args:
        runs: Folders of runs.
        as_json: Whether to print an object for each method instead.
    """
    from bfno.lab.views.curves import method_objects
    from bfno.lab.views.record import read_runs

    read = read_runs(list(runs))
    if as_json:
        print("\n".join(map(json.dumps, method_objects(read))))
    elif sys.stdout.isatty():
        _show(_parts(read))
    else:
        _write(_parts(read))


def _parts(runs: Sequence[RunResult]) -> Iterator[Table | str]:
    """Tables of all tasks, then of each task what came out and how its methods got there."""
    from bfno.lab.views.curves import curve_table
    from bfno.lab.views.methods import replicates
    from bfno.lab.views.summary import summary
    from bfno.lab.views.tables import comparisons

    yield from comparisons(runs)
    for _, members in itertools.groupby(replicates(runs), key=lambda group: group.task):
        groups = list(members)
        yield summary(groups)
        curves = curve_table(groups)
        if curves is not None:
            yield curves


def _show(parts: Iterator[Table | str]) -> None:
    for part in parts:
        if isinstance(part, str):
            show_text(part)
        else:
            show_table(_with_short_heads(part))


def _with_short_heads(table: Table) -> Table:
    """The table, headings that stand alone in it a word a line."""
    heads = (
        column if column.group else replace(column, title=column.title.replace(" ", "\n"))
        for column in table.columns
    )
    return replace(table, columns=tuple(heads))


def _write(parts: Iterator[Table | str]) -> None:
    from bfno.lab.views.layout import TEXT_WIDTH, as_text

    texts = (
        as_text(part) if not isinstance(part, str) else textwrap.fill(part, TEXT_WIDTH) + "\n"
        for part in parts
    )
    print("\n".join(texts), end="")
