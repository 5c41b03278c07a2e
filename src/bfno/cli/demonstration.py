"""The demo: two models on handwritten digits, compared in a table and a report."""

from __future__ import annotations

from pathlib import Path

from bfno.cli import display
from bfno.errors import ConfigError
from bfno.results.report import write_report
from bfno.train.experiment import resolve
from bfno.train.session import start

__all__ = ["run_demo"]

_METHODS = ("bfno-node", "node")


def run_demo(out: Path, scale: str) -> None:
    """Train both models, print them side by side and write a report.

    Args:
        out: Folder of the runs and the report.
        scale: Size of the experiments.

    Raises:
        ConfigError: If the folder holds a demo already.
    """
    report = out / "report.html"
    runs = [out / f"digits-{method}" for method in _METHODS]
    for place in (report, *runs):
        if place.exists():
            fix = f"remove it, or choose another folder with `bfno demo --out DIR`; see {report}"
            raise ConfigError(place, "is there already", fix)
    for method, run in zip(_METHODS, runs, strict=True):
        config = resolve(f"digits/{method}", scale=scale)
        print(f"\n{config.experiment}: {config.train.epochs} epochs of handwritten digits")
        start(config, run, display.watchers(config, run, None))
    print()
    display.comparison(runs)
    print(f"\nThe report is {write_report(runs, report)}")
    print(f"Try `bfno eval {runs[0]}`; your own images: `bfno train folder/bfno-node --folder DIR`")
