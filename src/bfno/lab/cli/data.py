"""The commands `bfno data list`, `get` and `check`."""

from __future__ import annotations

from typing import Annotated

import typer

from bfno.lab.cli.options import DataDir, Group
from bfno.lab.cli.terminal import download_progress, say

__all__ = ["app"]

app = typer.Typer(
    cls=Group, help="Data sets: list, download, check.", epilog="Example: bfno data get mnist"
)

Name = Annotated[str, typer.Argument(help="A name that `bfno data list` prints.")]


@app.command(name="list")
def list_sets() -> None:
    """List the data sets with their sizes and origins.

    Example: bfno data list
    """
    from bfno.lab.data import DATA_SETS, SERIES_SETS

    for data in DATA_SETS.values():
        channels, height, width = data.shape
        shape = f"{height}×{width}×{channels}"
        counts = f"{data.train_count:,} + {data.test_count:,}"
        classes = f"{len(data.class_names)} classes"
        say(f"{data.name:14} {shape:9} {classes:11} {counts:15} {data.homepage}")
    for series in SERIES_SETS.values():
        shape, classes = f"{series.features} values", f"{series.classes} classes"
        say(f"{series.name:14} {shape:9} {classes:11} {series.amount:15} {series.homepage}")
    say(f"{'folder':14} your own images: --data photos, with photos/<class>/, or train/ and test/")
    say(f"{'series':14} your own series: --data patients.csv, a table id,time,...,label")


@app.command()
def get(name: Name, data_dir: DataDir = None) -> None:
    """Download a data set from its official source.

    An interrupted download continues where it stopped.

    Example: bfno data get mnist
    """
    from bfno.lab.data import DATA_SETS, SERIES_SETS, store

    with download_progress() as progress:
        folder = store.get(name, data_dir, progress=progress)
    found = {**DATA_SETS, **SERIES_SETS}[name]
    say(f"{name}: complete in {folder}")
    say(f"terms of use: {found.licence}; see {found.homepage}")


@app.command()
def check(name: Name, data_dir: DataDir = None) -> int:
    """Check the files of a data set.

    Compares official checksums, or the known contents where there are none.

    Example: bfno data check mnist
    """
    from bfno.lab.data import store

    checks = store.check(name, data_dir)
    for file in checks:
        say(f"{file.state:16} {file.path}" + (f"  ({file.detail})" if file.detail else ""))
    if not checks:
        say(f"{name}: comes with a library, nothing to check")
    return 0 if all(file.state == "ok" for file in checks) else 3
