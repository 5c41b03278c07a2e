"""The command `bfno sweep`: find the best settings through many trainings."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bfno.lab.cli.board import follow
from bfno.lab.cli.options import (
    DataDir,
    Epochs,
    Gpus,
    On,
    OwnData,
    Partition,
    Scale,
    Seed,
    TimeLimit,
    takes,
)
from bfno.lab.cli.terminal import say
from bfno.lab.errors import ConfigError, bfno_command
from bfno.lab.views.metrics import find_metric

if TYPE_CHECKING:
    from bfno.lab.runs.sweep.running import Sweep
    from bfno.lab.runs.sweep.study import SweepPlan
    from bfno.lab.runs.sweep.trials import SweepResult

__all__ = ["app"]

app = typer.Typer()

# On a cluster all trials could run at once, and none would learn from the others.
_AT_A_TIME = 8


@dataclasses.dataclass(frozen=True)
class _Arguments:
    """Arguments of `bfno sweep`."""

    experiment: Annotated[
        str, typer.Argument(help="data/method, such as mnist/bfno-node, or a YAML file.")
    ]
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            "-s",
            help="What to try: section.key=log(low,high), uniform(low,high), int(low,high) or "
            "choice(a,b,...); or one value for all trials. Repeatable.",
        ),
    ] = None
    trials: Annotated[
        int, typer.Option(min=1, help="Trainings in total, including existing ones.")
    ] = 20
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1, help="Trials at a time; default one per GPU or core, or 8 on a cluster."
        ),
    ] = None
    on: On = "local"
    time: TimeLimit = None
    gpus: Gpus = None
    partition: Partition = None
    prune: Annotated[
        str,
        typer.Option(help="Stop bad trials early: median, halving or none."),
    ] = "median"
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder; default runs/DATA-METHOD-sweep.")
    ] = None
    scale: Scale = None
    seed: Seed = None
    epochs: Epochs = None
    own_data: OwnData = None
    data_dir: DataDir = None


@app.command()
@takes(_Arguments)
def sweep(arguments: _Arguments) -> int:
    """Find the best settings through many trainings, judged on validation samples.

    Writes best.yaml, which `bfno train` accepts, and a page, sweep.html. No trial sees test
    samples. If the sweep is stopped or killed, start it again: it continues with what is missing.
    Several sweeps, on one or many machines, can share a folder.

    Example: bfno sweep digits/bfno-node --set 'train.lr=log(1e-4,1e-2)' --trials 10
    """
    from bfno.lab.runs.campaign.choice import Choice

    choice = Choice(arguments.on, arguments.time, arguments.gpus, arguments.partition)
    plan, folder = _planned(arguments)
    if not choice.is_local:
        plan, folder = plan.for_other_machines(), folder.absolute()
    from bfno.lab.runs.campaign.running import failure_code
    from bfno.lab.runs.signals import Stopped
    from bfno.lab.runs.sweep.running import Sweep
    from bfno.lab.runs.sweep.study import Study

    engine, jobs = choice.engine(folder), arguments.jobs
    if jobs is None and not choice.is_local:
        jobs = _AT_A_TIME
    study = Study(folder, plan)
    made = Sweep(study, arguments.trials, jobs, plan.data_dir, engine)
    try:
        with contextlib.closing(made.run()) as rounds:  # which stops them in any case
            follow(rounds, find_metric(study.metric), made.slots)
    except Stopped as stop:
        _write(made)
        say(f"{stop}; the same command continues from here", error=True)
        return stop.exit_code
    found = _write(made)
    _say_result(found, folder)
    unfinished = sum(one.state == "running" for one in found.trials)
    if unfinished:
        say(f"{unfinished} trials are unfinished; the same command continues them", error=True)
    return 0 if found.best and not unfinished else failure_code(made.standings)


def _planned(arguments: _Arguments) -> tuple[SweepPlan, Path]:
    """Check the arguments, and return the plan and its folder."""
    for package in ("optuna", "jinja2", "matplotlib"):
        if importlib.util.find_spec(package) is None:
            why = f"{package} is not installed"
            raise ConfigError("bfno sweep", why, "pip install 'bfno[train,report,sweep]'")
    from bfno.lab.experiments.trees import merged, nested
    from bfno.lab.runs.record import flat_config
    from bfno.lab.runs.sweep.space import read_ranges
    from bfno.lab.runs.sweep.study import SweepPlan

    ranges, changes = read_ranges(arguments.settings or [])
    given = {
        "seed": arguments.seed,
        "train.epochs": arguments.epochs,
        "data.dir": None if arguments.data_dir is None else str(arguments.data_dir),
    }
    options = {name: value for name, value in given.items() if value is not None}
    names = {one.name for one in ranges}
    if "train.epochs" in options and "train.epochs" in names | {*flat_config(changes)}:
        raise ConfigError("--epochs", "repeats --set train.epochs", "keep one of them")
    changes = merged(changes, nested(options))
    plan = SweepPlan(
        arguments.experiment,
        ranges,
        arguments.scale,
        changes,
        arguments.own_data,
        prune=arguments.prune,
    )
    plan.check()
    name = plan.config({}).experiment.replace("/", "-")
    return plan, arguments.out or Path("runs") / f"{name}-sweep"


def _write(made: Sweep) -> SweepResult:
    """Write the results so far; a later start replaces them."""
    from bfno.lab.files import write_atomically
    from bfno.lab.views.report.sweep import render_sweep

    found = made.study.result()
    made.study.write_best()
    if found.best is not None:
        write_atomically(made.study.folder / "sweep.html", render_sweep(found).encode())
    return found


def _say_result(found: SweepResult, folder: Path) -> None:
    from bfno.lab.views.report.sweep import settings_text, sweep_sentence

    if found.best is None:
        say(f"{folder}: no trial finished; see output.log in the folders of the trials")
        return
    say(sweep_sentence(found))
    say(f"best settings: {settings_text(found.best.values)}")
    train = bfno_command("train", folder / "best.yaml")
    say(f"{folder}: try `{train}`; the page is {folder / 'sweep.html'}")
