"""The demo: two models on handwritten digits, compared in a table and a report."""

from __future__ import annotations

import itertools
from pathlib import Path

from bfno.lab.cli import display
from bfno.lab.cli.show import compare_runs, prepare
from bfno.lab.cli.terminal import say
from bfno.lab.errors import ConfigError, bfno_command
from bfno.lab.experiments.resolve import resolve
from bfno.lab.runs.session import start
from bfno.lab.views.report.page import write_report

__all__ = ["free_folder", "run_demo"]

_METHODS = ("bfno-node", "node")


def free_folder(name: str) -> Path:
    """The first of NAME, NAME-2, NAME-3, … that does not exist."""
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    return next(path for path in map(Path, names) if not path.exists())


def run_demo(out: Path, scale: str) -> None:
    """Train both models, print them side by side and write a report.

    Args:
        out: Folder of the runs and the report.
        scale: Size of the experiments.

    Raises:
        ConfigError: If the folder exists.
    """
    if out.exists():
        raise ConfigError(out, "exists already", "choose another folder with --out")
    report = out / "report.html"
    runs = [out / f"digits-{method}" for method in _METHODS]
    for method, run in zip(_METHODS, runs, strict=True):
        config = resolve(f"digits/{method}", scale=scale)
        say("", f"{config.experiment}: {config.train.epochs} epochs of handwritten digits")
        start(config, run, display.watchers(run, None))
    say("")
    compare_runs(runs)
    prepare(runs)
    say("", f"The report is {write_report(runs, report)}")
    first = bfno_command("eval", runs[0])
    say(f"Try `{first}`; your own images: `bfno train folder/bfno-net --data DIR`")
