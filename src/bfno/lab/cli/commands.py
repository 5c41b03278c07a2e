"""The program: train, resume, eval, predict and smaller commands; the others join here."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from bfno.lab.cli import data, display, export, reconstruct, sample, show, sweep, table
from bfno.lab.cli.options import (
    AnyCheckpoint,
    DataDir,
    Debug,
    Epochs,
    Group,
    Independent,
    Json,
    Log,
    OldFolder,
    OwnData,
    Reading,
    Run,
    RunDataDir,
    Scale,
    Seed,
    Sets,
)
from bfno.lab.cli.terminal import bar, say, say_text
from bfno.lab.errors import ConfigError, bfno_command

__all__ = ["BENCHMARKS", "app"]

# The first letter keeps the lines as they are.
_BEGIN = """\b
Begin:        bfno demo
Your images:  bfno train folder/bfno-net --data photos
Your series:  bfno train series/latent-bfno-node --data patients.csv
The paper:    bfno table 1 --data mnist
Every option: bfno train --help
"""

BENCHMARKS = (
    "layer", "step", "solver", "growth", "busy", "memory", "precision", "series", "flow", "stiff",
    "work",
)  # fmt: skip
"""What `bfno bench` can measure."""

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
for commands in (export, reconstruct, sample, sweep, table, show):
    app.add_typer(commands.app)


def _version(wanted: bool) -> None:
    if wanted:
        say(importlib.metadata.version("bfno"))
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
    experiment: Annotated[
        str,
        typer.Argument(
            help="data/method, such as mnist/bfno-node; just folder, series or folder-density; "
            "or a YAML file."
        ),
    ],
    settings: Sets = None,
    scale: Scale = None,
    seed: Seed = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run; default runs/DATA-METHOD-sSEED.")
    ] = None,
    own_data: OwnData = None,
    folder: OldFolder = None,
    epochs: Epochs = None,
    data_dir: DataDir = None,
    log: Log = None,
) -> None:
    """Train a model; `bfno models` lists the methods.

    Example: bfno train folder/bfno-net --data photos --epochs 50
    """
    if own_data is not None and folder is not None:
        raise ConfigError("--folder", "is the old name of --data", "leave it out")
    changes = _changes(settings, seed=seed, epochs=epochs, data_dir=data_dir)
    config = _resolved(experiment, scale, changes, own_data or folder)
    from bfno.lab.data import telling
    from bfno.lab.runs.session import default_folder, start

    place = out or default_folder(config)
    watchers = display.watchers(place, log)
    with bar("images decoded") as progress, telling(progress):
        record = start(config, place, watchers)
    display.finished(record, place)


@app.command()
def config(
    experiment: Annotated[str, typer.Argument(help="data/method or a YAML file.")],
    settings: Sets = None,
    scale: Scale = None,
    seed: Seed = None,
) -> None:
    """Print every setting of an experiment as YAML.

    Save it, edit it and train it: bfno train mine.yaml

    Example: bfno config mnist/bfno-node --scale paper
    """
    say_text(_resolved(experiment, scale, _changes(settings, seed=seed)).as_yaml())


@app.command()
def resume(
    run: Run,
    settings: Sets = None,
    epochs: Epochs = None,
    data_dir: RunDataDir = None,
    log: Log = None,
) -> None:
    """Continue a stopped or killed run, bit for bit.

    Example: bfno resume runs/digits-bfno-node-s7
    """
    from bfno.lab.data import telling
    from bfno.lab.runs import session

    place = None if data_dir is None else data_dir.resolve()
    changes = _changes(settings, epochs=epochs, data_dir=place)
    watchers = display.watchers(run, log)
    with bar("images decoded") as progress, telling(progress):
        record = session.resume(run, changes, watchers)
    display.finished(record, run)


@app.command(name="eval")
def evaluate(
    run: Run,
    data: Annotated[
        str | None, typer.Option(help="Other data: a data set's name, a folder, or a table.")
    ] = None,
    data_dir: RunDataDir = None,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Use only N test samples, drawn in proportion to the classes; for known image "
            "data sets, the first N.",
        ),
    ] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Samples per batch.")] = None,
    independent: Independent = False,
    reading: Reading = None,
    any_checkpoint: AnyCheckpoint = False,
    as_json: Json = False,
) -> None:
    """Test a run: metrics and function evaluations.

    For a classifier, it also prints the scores of each class and the confusion matrix.

    Example: bfno eval runs/digits-bfno-node-s7 --json
    """
    from bfno.lab.data import telling
    from bfno.lab.experiments.experiment import TestRequest
    from bfno.lab.runs.load import open_run

    opened = open_run(run, any_checkpoint=any_checkpoint).read_with(_changes(reading))
    apart = {"independent": opened.config.make_independent(opened.model)} if independent else {}
    with bar("images decoded") as decoded, bar("samples") as progress:
        request = TestRequest(data, data_dir, limit, batch, progress, independent)
        with telling(decoded):
            found = {**opened.config.evaluate(opened, request), **apart}
    say(*([json.dumps(found)] if as_json else display.evaluation(found)))


@app.command()
def predict(
    run: Run,
    files: Annotated[
        list[Path], typer.Argument(help="Images, tables of series, or folders of them.")
    ],
    layout: Annotated[
        str | None,
        typer.Option(
            "--format", help="table, csv or json; default table, or by the file's ending."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File to write: .csv, .json or .jsonl.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    independent: Independent = False,
    reading: Reading = None,
    any_checkpoint: AnyCheckpoint = False,
) -> int:
    """Classify files, or say how likely they are under a density.

    Prints the class and the probabilities of each image, series or row; for densities, bits/dim.

    Example: bfno predict runs/folder-bfno-net-s7 new -o answers.csv
    """
    from bfno.lab.cli.predictions import make_writer

    writer = make_writer(layout, out, force=force)
    from bfno.lab.runs.load import open_run

    opened = open_run(run, any_checkpoint=any_checkpoint).read_with(_changes(reading))
    if independent:
        alone = "each file is solved by itself" if opened.config.solves_files_alone else None
        say(f"independent: {alone or opened.config.make_independent(opened.model)}", error=True)
    code, failed = 0, 0
    for prediction in opened.config.predict(opened, _files(opened, files)):
        if prediction.error is None:
            writer.add(prediction)
        else:
            code, failed = prediction.error.exit_code, failed + 1
            say(f"error: {prediction.error}", error=True)
    writer.finish(failed)
    return code


def _files(run: Any, places: list[Path]) -> Iterator[Path]:
    """The files named, and those that a run reads from the folders named."""
    for place in places:
        yield from run.config.files_in(run, place) if place.is_dir() else [place]


@app.command()
def models(
    wanted: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="A data set, an experiment, or part of its name."),
    ] = None,
    scale: Annotated[
        str | None, typer.Option(help="Only the sizes at this scale: smoke, cpu or paper.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the methods for every data set with their sizes.

    A size is a number of parameters: at scale cpu, at scale paper, and as printed in the paper.
    Experiments on your own data (folder, folder-density and series) come first.

    Example: bfno models folder
    """
    from bfno.lab.experiments.sizes import model_sizes, select

    display.check_scale(scale)
    rows = model_sizes() if wanted is None else select(model_sizes(), wanted)
    if as_json:
        say(*(json.dumps(display.size_object(row, scale)) for row in rows))
    else:
        say(*display.size_lines(rows, scale))


@app.command(name="import-released")
def import_released(
    file: Annotated[Path, typer.Argument(help="One of the authors' .pt files.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the new run.")],
) -> None:
    """Turn weights that the paper's authors published into a run.

    Their public repository, WooJin-Cho/BFNO-NODE, has the weights for CIFAR-10 after each epoch of
    one run: model/1.pt to model/10.pt.

    Example: bfno import-released model/1.pt -o authors
    """
    from bfno.lab.runs import released

    released.import_released(file, out)
    say(f"{out}: ready; try `{bfno_command('eval', out, '--limit', 1000)}`")


@app.command()
def demo(
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder of the demo; default a new one.")
    ] = None,
    scale: Annotated[str, typer.Option(help="smoke or cpu.")] = "cpu",
) -> None:
    """Compare BFNO-NODE and NODE on handwritten digits.

    It takes about a minute, downloads nothing, and ends in a report.

    Example: bfno demo --scale smoke
    """
    from bfno.lab.cli.demo import free_folder, run_demo

    run_demo(out or free_folder("demo"), scale)


@app.command()
def bench(
    groups: Annotated[
        list[str] | None, typer.Argument(help=f"Any of {', '.join(BENCHMARKS)}; default all.")
    ] = None,
    as_json: Json = False,
    repeats: Annotated[int | None, typer.Option(min=1, help="Measurements of each pair.")] = None,
) -> None:
    """Measure speed and memory against other libraries, side by side.

    The benchmarks are in the repository, not in the installed package.

    Example: bfno bench layer --repeats 5
    """
    for group in groups or ():
        if group not in BENCHMARKS:
            raise ConfigError(group, "is not a benchmark", f"write any of {', '.join(BENCHMARKS)}")
    words = [*(groups or []), *(["--json"] if as_json else [])]
    _run_benchmarks(words + (["--repeats", str(repeats)] if repeats else []))


def _run_benchmarks(words: list[str]) -> None:
    """Run the benchmarks of a checkout, which are not part of the installed package."""
    root = Path(__file__).resolve().parents[4]
    if not (root / "benchmarks" / "__main__.py").is_file():
        why = "needs a clone of the repository, but this is an installed package"
        raise ConfigError("bench", why, "clone the repository and run `make bench` there")
    paths = [str(root), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, "-m", "benchmarks", *words]
    done = subprocess.run(command, env=environment, check=False)
    if done.returncode:
        raise ConfigError("bench", f"ended with exit code {done.returncode}", "see above")


def _resolved(
    experiment: str, scale: str | None, changes: dict[str, Any], data: Path | None = None
) -> Any:
    from bfno.lab.experiments.resolve import resolve

    return resolve(experiment, scale=scale, changes=changes, data=data)


def _changes(
    settings: list[str] | None,
    *,
    seed: int | None = None,
    epochs: int | None = None,
    data_dir: Path | None = None,
) -> dict[str, Any]:
    """The settings that a command names, by --set or by their own options."""
    from bfno.lab.errors import ConfigError
    from bfno.lab.experiments.trees import merged, nested, read_settings, setting

    changes, flags = read_settings(settings or []), {}
    given = {
        "--seed": ("seed", seed),
        "--epochs": ("train.epochs", epochs),
        "--data-dir": ("data.dir", None if data_dir is None else str(data_dir)),
    }
    for option, (name, value) in given.items():
        if value is None:
            continue
        section, _, key = name.rpartition(".")
        said = setting(changes, section, key, None) if section else changes.get(key)
        if said is not None:
            raise ConfigError(option, f"repeats --set {name}", "keep one of them")
        flags = merged(flags, nested({name: value}))
    return merged(changes, flags)
