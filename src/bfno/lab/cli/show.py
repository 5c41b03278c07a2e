"""The commands that show runs: runs, compare, report, figures, results."""

from __future__ import annotations

import itertools
import json
import logging
import os
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bfno.lab.cli.options import AnyCheckpoint, Json, Runs
from bfno.lab.cli.targets import tell_new_folder
from bfno.lab.cli.terminal import bar, say, say_text, show_table, show_text
from bfno.lab.errors import ConfigError, UserError, bfno_command

if TYPE_CHECKING:
    from bfno.lab.runs.record import Record
    from bfno.lab.views.layout import Table
    from bfno.lab.views.listing import ListedRun

__all__ = ["app", "compare_runs", "prepare"]

app = typer.Typer()
_logger = logging.getLogger(__name__)


@app.command()
def compare(runs: Runs, as_json: Json = False) -> None:
    """Show the results of runs side by side.

    Prints sentences, a table, and curves over the epochs. Runs of `bfno table` are in runs/SCALE,
    other runs in runs.

    Example: bfno compare runs/cpu/mnist-*
    """
    compare_runs(runs, as_json)


@app.command(name="runs")
def list_runs(
    folder: Annotated[Path, typer.Argument(help="Folder of runs, or of folders of runs.")] = Path(
        "runs"
    ),
    order: Annotated[str, typer.Option("--sort", help="name, state, score or time.")] = "name",
    as_json: Json = False,
) -> None:
    """List runs: the state, score and time of each.

    A run is finished, in training, stopped (`bfno resume` continues it), failed or damaged.

    Example: bfno runs --sort score
    """
    from bfno.lab.views.listing import ORDERS, as_object, look_for_runs, run_table

    if order not in ORDERS:
        raise ConfigError(f"--sort {order}", "is not an order", f"write any of {', '.join(ORDERS)}")
    found = sorted(look_for_runs(folder), key=ORDERS[order])
    if as_json:
        say(*(json.dumps(as_object(one)) for one in found))
    elif not found:
        say(f"{folder}: has no runs; `bfno train` makes one")
    elif sys.stdout.isatty():
        show_table(run_table(found))
    else:
        _write([run_table(found)])


@app.command()
def report(
    runs: Runs,
    out: Annotated[Path, typer.Option("--out", "-o", help="The page.")] = Path("report.html"),
    force: Annotated[bool, typer.Option("--force", help="Replace an existing page.")] = False,
    any_checkpoint: AnyCheckpoint = False,
) -> None:
    """Write one HTML page about runs, to read and to share.

    The page has curves, confusion matrices, and a slider through time.

    Example: bfno report runs/digits-bfno-node-s7 runs/digits-node-s7 -o report.html
    """
    from bfno.lab.views.listing import read_finished
    from bfno.lab.views.report.page import check_page, write_report

    check_page(out, force)
    tell_new_folder(out)
    finished, unfinished = read_finished(runs)
    prepare(finished, any_checkpoint=any_checkpoint)
    for one in unfinished:
        say(f"note: {_left_out(one)}", error=True)
    say(f"The report is {write_report(runs, out, force=force)}")


@app.command()
def figures(
    runs: Runs,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the figures.")],
    force: Annotated[bool, typer.Option("--force", help="Replace existing figures.")] = False,
    any_checkpoint: AnyCheckpoint = False,
) -> None:
    """Draw every figure that the runs allow, as PNG and SVG.

    Runs of `bfno train` are in runs, those of `bfno table` in runs/SCALE.

    Example: bfno figures runs/mnist-* -o figures
    """
    from bfno.lab.views.figures.gallery import check_gallery, write_figures
    from bfno.lab.views.listing import read_finished

    check_gallery(out)
    # Refuses folders that are not runs, before the others draw their pictures.
    finished, unfinished = read_finished(runs)
    prepare(finished, any_checkpoint=any_checkpoint)
    for one in unfinished:
        say(f"note: {_left_out(one)}", error=True)
    for file in write_figures([*finished], out, force=force):
        say(str(file))


@app.command()
def results(
    folder: Annotated[Path, typer.Argument(help="Folder of runs, with or without weights.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The page.")] = Path("RESULTS.md"),
    keep: Annotated[
        Path | None,
        typer.Option("--from", help="First copy the records of finished runs from this folder."),
    ] = None,
    overview: Annotated[
        Path | None,
        typer.Option(help="Markdown file that gets the summary and the overview too."),
    ] = None,
) -> None:
    """Write one Markdown page with the paper's tables, claims and figures.

    The page has what the runs can show, beside the paper's numbers.

    With --from, the records of other runs are first copied into the folder, without weights: small
    enough for version control. With --overview, the summary and the best of each table also go
    into a document of yours, between two comments; if they are missing, a message shows them.

    Example: bfno results results --from runs -o RESULTS.md --overview README.md
    """
    from bfno.lab.paper.page import figures_of, write_page
    from bfno.lab.runs.archive import keep_runs

    tell_new_folder(out)
    if keep is not None:
        _note_unfinished(keep)
        for place, what in keep_runs(keep, folder).items():
            say(f"{place}: {what}")
    if folder.is_dir() and (keep is None or not folder.samefile(keep)):
        _note_unfinished(folder)
    before = figures_of(out, folder)
    for file in write_page(folder, out, overview):
        say(f"written to {file}")
    for file in sorted(before - figures_of(out, folder)):
        if file.is_file():
            note = f"{os.path.relpath(file)} is no longer shown; remove it if nothing else needs it"
            say(f"note: {note}", error=True)


def _note_unfinished(folder: Path) -> None:
    from bfno.lab.runs.archive import unfinished_runs

    for place in unfinished_runs(folder):
        say(f"note: {place} is left out: it has no record of a finished training", error=True)


def compare_runs(runs: Sequence[Path], as_json: bool = False) -> None:
    """Print the results of runs side by side: tables, then a summary and curves for each task.

    Args:
        runs: Folders of runs.
        as_json: Whether to print an object for each method instead.
    """
    from bfno.lab.views.curves import method_objects
    from bfno.lab.views.listing import read_finished

    finished, unfinished = read_finished(runs)
    left_out = list(map(_left_out, unfinished))
    read = [*finished.values()]
    if as_json:
        say(*map(json.dumps, method_objects(read)))
        say(*left_out, error=True)
    elif sys.stdout.isatty():
        _show([*_parts(read), *left_out])
    else:
        _write([*_parts(read), *left_out])


def _left_out(run: ListedRun) -> str:
    from bfno.lab.runs.folder import RunFolder

    goes_on = run.state not in ("training", "failed") and RunFolder(run.run).can_go_on
    fix = f"; `{bfno_command('resume', run.run)}` continues it" if goes_on else ""
    return f"{run.run} is left out: {run.told()}{fix}"


def _parts(runs: Sequence[Record]) -> Iterator[Table | str]:
    """Tables of all tasks, then a summary and curves for each task."""
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


def _show(parts: Iterable[Table | str]) -> None:
    for part in parts:
        if isinstance(part, str):
            show_text(part)
        else:
            show_table(_with_short_heads(part))


def _with_short_heads(table: Table) -> Table:
    """The table, with one word per line in headings that have no group."""
    heads = (
        column if column.group else replace(column, title=column.title.replace(" ", "\n"))
        for column in table.columns
    )
    return replace(table, columns=tuple(heads))


def _write(parts: Iterable[Table | str]) -> None:
    from bfno.lab.views.layout import TEXT_WIDTH, as_text

    # Commands and names of folders are copied: they are not broken.
    wrapper = textwrap.TextWrapper(TEXT_WIDTH, break_on_hyphens=False, break_long_words=False)
    texts = (
        f"{wrapper.fill(part)}\n" if isinstance(part, str) else as_text(part) for part in parts
    )
    say_text("\n".join(texts))


def prepare(runs: Iterable[Path], *, any_checkpoint: bool = False) -> None:
    """Make missing exhibits, samples and reconstructions; warn about those that cannot be made.

    A run without a trained model in its folder, or without its data, is shown without them.

    Args:
        runs: Folders of runs.
        any_checkpoint: Whether another checkpoint may replace a damaged best one.
    """
    folders = list(runs)
    with bar("runs shown") as progress:
        for done, folder in enumerate(folders):
            if progress:
                progress(done, len(folders))
            if (folder / "checkpoints").is_dir():
                _prepare(folder, any_checkpoint)


def _prepare(folder: Path, any_checkpoint: bool) -> None:
    from bfno.lab.runs.folder import RunFolder

    try:
        shown = RunFolder(folder).read_config().shows
        if shown is not None:
            _makers()[shown](folder, any_checkpoint=any_checkpoint)
    except UserError as error:
        _logger.warning("%s is shown without pictures of its model: %s", folder, error)


def _makers() -> dict[str, Callable[..., object]]:
    """The functions that make a report's pictures of a model."""
    from bfno.lab.cli import reconstruct, sample
    from bfno.lab.runs.load import keep_exhibit

    return {
        "exhibit": keep_exhibit,
        "samples": sample.keep_samples,
        "reconstruction": reconstruct.keep_reconstruction,
    }
