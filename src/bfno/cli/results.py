"""The command that writes a page about all runs of the paper's tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["app"]

app = typer.Typer()


@app.command()
def results(
    folder: Annotated[Path, typer.Argument(help="Folder of runs, with or without weights.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The page.")] = Path("RESULTS.md"),
    keep: Annotated[
        Path | None,
        typer.Option("--from", help="First take over records of finished runs from this folder."),
    ] = None,
) -> None:
    """Every table, claim and figure of the paper that runs can show, as one Markdown page.

    With --from, FOLDER gets what a page needs of other runs, without their weights: small enough
    for version control.

    Example: bfno results results --from runs -o RESULTS.md
    """
    from bfno.results.archive import keep_runs
    from bfno.results.page import write_page

    if keep is not None:
        for place in keep_runs(keep, folder):
            print(f"{place}: kept")
    for file in write_page(folder, out):
        print(f"written to {file}")
