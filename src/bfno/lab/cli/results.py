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
    overview: Annotated[
        Path | None,
        typer.Option(help="Markdown file whose overview of the tables is brought up to date too."),
    ] = None,
) -> None:
    """Write all tables, claims and figures as one page.

    A page of Markdown with every table, claim and figure of the paper that runs can show.

    With --from, FOLDER gets what a page needs of other runs, without their weights: small enough
    for version control. With --overview, a document of your own shows the tables' first places
    between two comments; a message names them if they are not there yet.

    Example: bfno results results --from runs -o RESULTS.md --overview README.md
    """
    from bfno.lab.paper.page import write_page
    from bfno.lab.runs.archive import keep_runs

    if keep is not None:
        for place in keep_runs(keep, folder):
            print(f"{place}: kept as it is now")
    for file in write_page(folder, out, overview):
        print(f"written to {file}")
