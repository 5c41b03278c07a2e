"""The command about figures of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bfno.lab.cli.words import AnyCheckpoint

__all__ = ["app"]

app = typer.Typer()


@app.command()
def figures(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Folders of runs.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the figures.")],
    force: Annotated[bool, typer.Option("--force", help="Replace existing figures.")] = False,
    any_checkpoint: AnyCheckpoint = False,
) -> None:
    """Write every figure that runs can give, as PNG and SVG.

    Runs of `bfno train` are in runs, those of `bfno table` in runs/SCALE.

    Example: bfno figures runs/mnist-* -o figures
    """
    from bfno.lab.cli.exhibits import prepare
    from bfno.lab.runs.folder import read_runs
    from bfno.lab.views.figures.gallery import check_gallery, write_figures

    check_gallery(out)
    read_runs(runs)  # refuses what is no finished run, before pictures are asked of the others
    prepare(runs, any_checkpoint=any_checkpoint)
    for file in write_figures(runs, out, force=force):
        print(file)
