"""The command `bfno export`: a trained model as a file for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from bfno.lab.cli.options import AnyCheckpoint, Run, RunDataDir
from bfno.lab.cli.targets import tell_new_folder
from bfno.lab.cli.terminal import say

__all__ = ["app"]

app = typer.Typer()


@app.command()
def export(
    run: Run,
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write: .onnx or .pt2.")],
    steps: Annotated[
        int | None,
        typer.Option(
            min=1, max=1024, help="Fixed steps per equation; default: as few as are accurate."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    data_dir: RunDataDir = None,
    any_checkpoint: AnyCheckpoint = False,
) -> None:
    """Write a classifier of images to a file that runs without bfno.

    It takes any number of images as bytes and returns probabilities. Equations are solved with
    just enough fixed steps to keep the scores within the run's tolerance.

    Example: bfno export runs/folder-bfno-net-s7 -o model.onnx
    """
    from bfno.lab.experiments.experiment import ExportRequest
    from bfno.lab.runs.export import check_target, export_run

    check_target(out, force=force)
    tell_new_folder(out)
    request = ExportRequest(steps, data_dir)
    facts = export_run(run, out, request, any_checkpoint=any_checkpoint)
    say(*_lines(out, facts))


def _lines(out: Path, facts: dict[str, Any]) -> list[str]:
    shape = "×".join(map(str, facts["input"]["shape"][1:]))
    solver, found = facts["solver"], facts["difference"]
    lines = [f"{out}: {len(facts['classes'])} classes; any number of images of {shape} bytes"]
    if solver is None:
        return [*lines, "no equation to solve: the answers are those of the run"]
    if "steps" not in solver:
        return [*lines, f"solved by {solver['method']} as in the run: the answers are the same"]
    noun = "step" if solver["steps"] == 1 else "steps"
    changed = round(found["changed_classes"] * found["samples"])
    return [
        *lines,
        f"solved by {solver['steps']} {noun} of {solver['method']}; on {found['samples']} "
        f"{found['of']} scores differ by at most {found['scores']:.2g} from the run's own, "
        f"and {changed} of their classes change",
    ]
