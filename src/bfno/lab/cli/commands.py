"""Every command: its words, what it calls, what it prints."""

from __future__ import annotations

import importlib.metadata
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from bfno.lab.cli import data, density, display, figures, results, series, table
from bfno.lab.cli.comparison import compare_runs
from bfno.lab.cli.data import DataDir
from bfno.lab.cli.groups import Group
from bfno.lab.cli.words import AnyCheckpoint

__all__ = ["app"]

# The first letter keeps the lines as they are.
_BEGIN = """\b
Begin:        bfno demo
Your images:  bfno train folder/bfno-node --folder photos
The paper:    bfno table 1 --data mnist
Every option: bfno train --help
"""

app = typer.Typer(
    name="bfno",
    cls=Group,
    help="Neural ODEs whose vector field is a neural operator: train, evaluate, use, compare.",
    epilog=_BEGIN,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.add_typer(data.app, name="data")
app.add_typer(series.app)
app.add_typer(density.app)
app.add_typer(table.app)
app.add_typer(figures.app)
app.add_typer(results.app)

Run = Annotated[Path, typer.Argument(help="Folder of a run.")]
Sets = Annotated[
    list[str] | None, typer.Option("--set", "-s", help="A setting, section.key=value; repeatable.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Seed = Annotated[int | None, typer.Option(help="Decides everything random; else 7, or the file's.")]
Scale = Annotated[str | None, typer.Option(help="smoke, cpu (default) or paper.")]
Log = Annotated[str | None, typer.Option(help="tensorboard: write event files too.")]


def _version(wanted: bool) -> None:
    if wanted:
        print(importlib.metadata.version("bfno"))
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Debug = False,
) -> None:
    pass


@app.command()
def train(
    experiment: Annotated[str, typer.Argument(help="data/method, mnist/bfno-node say, or a YAML.")],
    settings: Sets = None,
    scale: Scale = None,
    seed: Seed = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run; else runs/DATA-METHOD-sSEED.")
    ] = None,
    data_dir: DataDir = None,
    folder: Annotated[
        Path | None,
        typer.Option(help="Your images, where data is folder or folder-density."),
    ] = None,
    log: Log = None,
) -> None:
    """Train a model; `bfno models` lists the methods.

    Example: bfno train digits/bfno-node --scale cpu --set train.epochs=5
    """
    config = _resolved(experiment, settings, scale, seed, data_dir, folder)
    from bfno.lab.runs.session import default_folder, start

    place = out or default_folder(config)
    watchers = display.watchers(config, place, log)
    display.finished(start(config, place, watchers), place)


@app.command()
def config(
    experiment: Annotated[str, typer.Argument(help="data/method or a YAML file.")],
    settings: Sets = None,
    scale: Scale = None,
    seed: Seed = None,
) -> None:
    """Print every setting of an experiment as YAML.

    The file may be edited and trained: bfno train mine.yaml

    Example: bfno config mnist/bfno-node --scale paper
    """
    print(_resolved(experiment, settings, scale, seed).as_yaml(), end="")


@app.command()
def resume(run: Run, settings: Sets = None, data_dir: DataDir = None, log: Log = None) -> None:
    """Go on with a stopped or killed run, bit for bit.

    Example: bfno resume runs/digits-bfno-node-s7
    """
    from bfno.lab.experiments import trees
    from bfno.lab.runs import folder as runs
    from bfno.lab.runs import session

    changes = trees.read_settings(settings or [])
    if data_dir is not None:
        changes = trees.merged(changes, {"data": {"dir": str(data_dir.resolve())}})
    watchers = display.watchers(runs.RunFolder(run).read_config(), run, log)
    display.finished(session.resume(run, changes, watchers), run)


@app.command(name="eval")
def evaluate(
    run: Run,
    data: Annotated[
        str | None, typer.Option(help="Other data: a data set's name, a folder, or a table.")
    ] = None,
    data_dir: DataDir = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first N test samples.")] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Samples at a time.")] = None,
    as_json: Json = False,
    any_checkpoint: AnyCheckpoint = False,
) -> None:
    """Test a run: metrics and function evaluations.

    Of a classifier also the scores of each class and what it confuses.

    Example: bfno eval runs/digits-bfno-node-s7 --json
    """
    from bfno.lab.experiments.families import family_of
    from bfno.lab.experiments.family import TestRequest
    from bfno.lab.runs.load import open_run

    opened = open_run(run, any_checkpoint=any_checkpoint)
    with display.bar("samples") as progress:
        request = TestRequest(data, data_dir, limit, batch, progress)
        found = family_of(opened.config.experiment).evaluate(opened, request)
    print(json.dumps(found) if as_json else display.evaluation(found))


@app.command()
def predict(
    run: Run,
    files: Annotated[list[Path], typer.Argument(help="Images, or tables of series.")],
    layout: Annotated[str, typer.Option("--format", help="table, csv or json.")] = "table",
    any_checkpoint: AnyCheckpoint = False,
) -> int:
    """Classify files, or tell how likely a density finds them.

    Class and probabilities of images, of series, or of their rows; of densities bits/dim.

    Example: bfno predict runs/folder-bfno-node-s7 new/*.jpg --format csv
    """
    printer = display.prediction_printer(layout)
    from bfno.lab.experiments.families import family_of
    from bfno.lab.runs.load import open_run

    code, opened = 0, open_run(run, any_checkpoint=any_checkpoint)
    for prediction in family_of(opened.config.experiment).predict(opened, files):
        if prediction.error is None:
            printer(prediction)
        else:
            code = prediction.error.exit_code
            print(f"error: {prediction.error}", file=sys.stderr)
    return code


@app.command()
def models(as_json: Json = False) -> None:
    """List the methods for every data set with their sizes.

    A size is the number of parameters here, then that in the paper where it gives one.

    Example: bfno models --json
    """
    from bfno.lab.experiments.sizes import model_sizes

    for row in model_sizes():
        print(json.dumps(row) if as_json else display.size_row(row), flush=True)


@app.command(name="import-released")
def import_released(
    file: Annotated[Path, typer.Argument(help="One of the authors' .pt files.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the new run.")],
) -> None:
    """Turn weights that the paper's authors published into a run.

    Their public repository, WooJin-Cho/BFNO-NODE, has those of CIFAR-10 after each epoch of one
    run: model/1.pt to model/10.pt.

    Example: bfno import-released model/1.pt -o authors
    """
    from bfno.lab.runs import released

    released.import_released(file, out)
    print(f"{out}: ready; try `bfno eval {out} --limit 1000`")


@app.command()
def demo(
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder of the demo; else a new one.")
    ] = None,
    scale: Annotated[str, typer.Option(help="smoke or cpu.")] = "cpu",
) -> None:
    """Compare BFNO-NODE and NODE on handwritten digits.

    It takes about three minutes, downloads nothing, and ends in a report.

    Example: bfno demo --scale smoke
    """
    from bfno.lab.cli.demonstration import free_folder, run_demo

    run_demo(out or free_folder("demo"), scale)


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs.")], as_json: Json = False
) -> None:
    """Show results of runs side by side.

    In words, as a table, and with curves of how they got there. Runs of `bfno table` are in
    runs/SCALE, the others in runs.

    Example: bfno compare runs/cpu/mnist-*
    """
    compare_runs(runs, as_json)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The page.")] = Path("report.html"),
    force: Annotated[bool, typer.Option("--force", help="Replace an existing page.")] = False,
    any_checkpoint: AnyCheckpoint = False,
) -> None:
    """Write one page about runs, to read and send on.

    It has curves, what the models confuse, and a slider through time.

    Example: bfno report runs/digits-bfno-node-s7 runs/digits-node-s7 -o report.html
    """
    from bfno.lab.cli.exhibits import prepare
    from bfno.lab.views.report.page import check_page, write_report

    check_page(out, force)
    prepare(runs, any_checkpoint=any_checkpoint)
    print(f"The report is {write_report(runs, out, force=force)}")


@app.command()
def bench(
    groups: Annotated[
        list[str] | None, typer.Argument(help="layer, step, solver, growth, series, flow.")
    ] = None,
    as_json: Json = False,
    repeats: Annotated[int | None, typer.Option(min=1, help="Measurements of each pair.")] = None,
) -> None:
    """Measure against peers, side by side in one run.

    Example: bfno bench layer --repeats 5
    """
    from bfno.lab.cli.benchmarks import run_benchmarks

    words = [*(groups or []), *(["--json"] if as_json else [])]
    run_benchmarks(words + (["--repeats", str(repeats)] if repeats else []))


def _resolved(
    experiment: str,
    settings: list[str] | None,
    scale: str | None,
    seed: int | None,
    data_dir: Path | None = None,
    folder: Path | None = None,
) -> Any:
    from bfno.lab.experiments.resolve import resolve
    from bfno.lab.experiments.trees import merged, read_settings

    flags: dict[str, Any] = {} if seed is None else {"seed": seed}
    places = {"dir": data_dir, "folder": folder}
    given = {name: str(place) for name, place in places.items() if place is not None}
    if given:
        flags["data"] = given
    return resolve(experiment, scale=scale, changes=merged(read_settings(settings or []), flags))
