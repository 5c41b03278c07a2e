"""The command `bfno reconstruct`: the values of series between and after observations."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from bfno.lab.cli.options import AnyCheckpoint, Reading, RunDataDir, takes
from bfno.lab.cli.targets import tell_new_folder
from bfno.lab.cli.terminal import say

__all__ = ["app", "keep_reconstruction"]

app = typer.Typer()


@dataclasses.dataclass(frozen=True)
class _Arguments:
    """Arguments of `bfno reconstruct`."""

    run: Annotated[Path, typer.Argument(help="Folder of a run of series.")]
    table: Annotated[
        Path | None,
        typer.Argument(help="Other series: a table or a folder; default the test split."),
    ] = None
    series: Annotated[
        list[str] | None, typer.Option(help="Name of a series; repeatable. Default the first 3.")
    ] = None
    features: Annotated[
        list[str] | None,
        typer.Option(help="Name of a feature; repeatable. Default: 4 that change."),
    ] = None
    until: Annotated[float | None, typer.Option(help="Continue the curves to this time.")] = None
    points: Annotated[int, typer.Option(min=2, max=100_000, help="Times per series.")] = 200
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="An SVG or PNG file; default both in RUN/figures."),
    ] = None
    csv: Annotated[Path | None, typer.Option(help="Also write the numbers to this CSV file.")] = (
        None
    )
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False
    hold_out: Annotated[
        float | None,
        typer.Option(help="Hide this share of the rows and print the errors there; -o draws them."),
    ] = None
    level: Annotated[
        float,
        typer.Option(help="Share of values that the interval should cover: 0.5, 0.8, 0.9 ..."),
    ] = 0.9
    data_dir: RunDataDir = None
    reading: Reading = None
    any_checkpoint: AnyCheckpoint = False

    def files(self) -> list[Path]:
        """The files to write; none if only the errors are requested."""
        pictures = [] if self.out is None else [self.out]
        if self.out is None and self.hold_out is None:
            folder = self.run / "figures"
            pictures = [folder / f"reconstruction.{kind}" for kind in ("svg", "png")]
        return [*pictures, *([] if self.csv is None else [self.csv])]


@app.command()
@takes(_Arguments)
def reconstruct(arguments: _Arguments) -> None:
    """Draw series between and after their observations, with predictive intervals.

    The curves of a latent model are its trajectories; other models predict each value from the
    rows before it. The interval was fitted on validation series.

    Example: bfno reconstruct runs/series-latent-bfno-node-s7 --hold-out 0.3
    """
    _draw(arguments)


def keep_reconstruction(run: Path, *, any_checkpoint: bool = False) -> None:
    """Draw the first series of a run's test split as its model sees them, unless they exist.

    A drawing of older weights, from before the run continued, is replaced.

    Args:
        run: Folder of the run.
        any_checkpoint: Whether another checkpoint may replace a damaged best one.

    Raises:
        ConfigError: If nothing is trained yet.
        DataError: If its files are damaged, or its data are gone.
        NumericalError: If the solver gives up.
    """
    from bfno.lab.runs.load import is_current

    arguments = _Arguments(run, any_checkpoint=any_checkpoint, force=True)
    if not is_current(arguments.files()[0], run):
        _draw(arguments)


def _draw(arguments: _Arguments) -> None:
    from bfno.lab.experiments.series import reconstruction
    from bfno.lab.experiments.trees import read_settings
    from bfno.lab.runs.load import note_picture, open_run
    from bfno.lab.views.figures.series import check_new, write_reconstruction

    kinds = (("svg", "png"), ("csv",))
    for file in arguments.files():
        check_new(file, kinds[file is arguments.csv], force=arguments.force)
    for file in filter(None, (arguments.out, arguments.csv)):
        tell_new_folder(file)
    request = reconstruction.ReconstructionRequest(
        arguments.table,
        tuple(arguments.series or ()),
        tuple(arguments.features or ()),
        arguments.until,
        arguments.points,
        arguments.data_dir,
        arguments.level,
        arguments.hold_out,
    )
    opened = open_run(arguments.run, any_checkpoint=arguments.any_checkpoint)
    opened = opened.read_with(read_settings(arguments.reading or ()))
    if arguments.hold_out is not None:
        scores = reconstruction.evaluate_hold_out(opened, request, arguments.hold_out)
        table = _hold_out_table({name: vars(one) for name, one in scores.items()}, arguments.level)
        say(*table)
    if arguments.files():
        found = [dataclasses.asdict(one) for one in reconstruction.reconstruct(opened, request)]
        for one in found:
            say(_line(one))
        for file in arguments.files():
            say(f"written to {write_reconstruction(found, file, force=arguments.force)}")
            if arguments.out is None and file is not arguments.csv:
                note_picture(file, arguments.run)


def _line(one: Mapping[str, Any]) -> str:
    """The errors of a series at its observations: scaled, then feature by feature."""
    name = one["series"] if one["hidden"] is None else f"{one['series']}, {one['hidden']}"
    if one["rmse"] is None:
        return f"{name}: nothing observed"
    features = (
        f"{feature} {curve['rmse']:.4g}"
        for feature, curve in one["curves"].items()
        if curve["rmse"] is not None
    )
    line = (
        f"{name}: root mean squared error at {one['observed']} observed values: "
        f"{one['rmse']:.4f} (scaled); {', '.join(features)}"
    )
    if one["level"] is None:
        return line
    kind = "" if one["hidden"] is None else " hidden"
    held = f"{one['inside']} of {one['judged']}{kind} values"
    return f"{line}; the {100 * one['level']:g} % interval holds {held}"


def _hold_out_table(scores: Mapping[str, Mapping[str, Any]], level: float) -> list[str]:
    lines = [f"{'hidden':14} {'values':>7} {'model':>9} {'series mean':>12} {'last value':>11}"]
    for name, score in scores.items():
        lines.append(
            f"{name:14} {score['values']:>7} {score['model']:>9.5f} "
            f"{score['series_mean']:>12.5f} {score['last_value']:>11.5f}"
        )
    lines.append("mean squared errors of scaled values")
    for name, score in scores.items():
        if score["coverage"] is not None:
            lines.append(
                f"{name}: the {100 * level:g} % interval covers {score['coverage']:.1%} of all "
                f"{score['hidden']:,} hidden values; its mean width is {score['width']:.3f} scaled"
            )
    return lines
