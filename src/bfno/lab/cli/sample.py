"""The command `bfno sample`: new samples from a density."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from bfno.lab.cli.options import AnyCheckpoint, RunDataDir, takes
from bfno.lab.cli.targets import tell_new_folder
from bfno.lab.cli.terminal import say
from bfno.lab.errors import ConfigError

__all__ = ["app", "keep_samples"]

app = typer.Typer()

_SAMPLES, _POINTS, _PAIRS = 64, 2000, 8
_REAL = "real"


@dataclass(frozen=True)
class _Arguments:
    """Arguments of `bfno sample`."""

    places: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN", help="Folders of runs; with --interpolate one run, then pairs of images."
        ),
    ]
    count: Annotated[
        int | None,
        typer.Option(
            "-n", min=1, max=100_000, help="How many; default 64 images, 2000 points or 8 pairs."
        ),
    ] = None
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="A PNG or SVG file; default RUN/figures/samples.png."),
    ] = None
    temperature: Annotated[
        float, typer.Option(min=0.0, help="Below 1, samples are likelier and vary less.")
    ] = 1.0
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Seed of the samples.")] = 0
    real: Annotated[bool, typer.Option("--real", help="Show test images beside the samples.")] = (
        False
    )
    judge: Annotated[
        Path | None,
        typer.Option(help="Run of a classifier of such images; prints how sure it is of them."),
    ] = None
    interpolate: Annotated[
        bool,
        typer.Option(
            "--interpolate",
            help="Go from one image to another; the images are files, or from the test split.",
        ),
    ] = False
    steps: Annotated[int, typer.Option(min=2, max=50, help="Images per pair, with both ends.")] = 10
    force: Annotated[bool, typer.Option("--force", help="Replace an existing picture.")] = False
    data_dir: RunDataDir = None
    any_checkpoint: AnyCheckpoint = False

    @property
    def run(self) -> Path:
        return self.places[0]

    @property
    def in_columns(self) -> bool:
        """Whether the images are in columns with names."""
        return self.real or (len(self.places) > 1 and not self.interpolate)

    def picture(self) -> Path:
        """The file to write."""
        if self.out is not None:
            return self.out
        if len(self.places) > 1 and not self.interpolate:
            why = "several runs have no folder in common"
            raise ConfigError("--out", why, "name a file with -o")
        return self.run / "figures" / f"{'interpolation' if self.interpolate else 'samples'}.png"


@app.command()
@takes(_Arguments)
def sample(arguments: _Arguments) -> None:
    """Draw new samples from a density.

    The picture shows a grid of images, runs side by side, or points and their paths.

    Example: bfno sample runs/moons-ffjord-rnode-s7 -o moons.png
    """
    _draw(arguments)


def keep_samples(run: Path, *, any_checkpoint: bool = False) -> None:
    """Draw the picture of a run's samples unless it exists; images are next to real ones.

    A picture of older weights, from before the run continued, is drawn again.

    Args:
        run: Folder of the run.
        any_checkpoint: Whether another checkpoint may replace a damaged best one.

    Raises:
        ConfigError: If nothing is trained yet.
        DataError: If its files are damaged, or its data are gone.
        NumericalError: If the solver gives up.
    """
    from bfno.lab.runs.load import is_current

    arguments = _Arguments([run], any_checkpoint=any_checkpoint, force=True)
    if not is_current(arguments.picture(), run):
        _draw(replace(arguments, real=len(_density_config(run).data.shape) > 1))


def _draw(arguments: _Arguments) -> None:
    from bfno.lab.runs.load import note_picture
    from bfno.lab.views.figures.densities import write_picture

    config = _check(arguments)
    if arguments.interpolate:
        content = _interpolations(arguments)
    elif len(config.data.shape) == 1:
        content = _plane(arguments)
    else:
        content = _images(arguments)
    say(f"written to {write_picture(content, arguments.picture(), force=arguments.force)}")
    if arguments.out is None:
        note_picture(arguments.picture(), arguments.run)


def _check(arguments: _Arguments) -> Any:
    """Refuse what cannot be drawn or written before computing anything; return the settings."""
    from bfno.lab.views.figures.densities import MOST_IMAGES, check_picture

    if arguments.real and arguments.interpolate:
        raise ConfigError("--real", "--interpolate shows real images anyway", "leave it out")
    if not math.isfinite(arguments.temperature):
        raise ConfigError(
            "--temperature", f"{arguments.temperature} is not a finite number", "write a number"
        )
    if arguments.interpolate and len(arguments.places) % 2 == 0:
        why = f"{len(arguments.places) - 1} images do not form pairs"
        raise ConfigError(
            "--interpolate", why, "name two images, or none to take them from the test split"
        )
    runs = arguments.places[:1] if arguments.interpolate else arguments.places
    configs = [_density_config(run) for run in runs]
    is_plane = [len(config.data.shape) == 1 for config in configs]
    if any(is_plane) and (arguments.in_columns or arguments.interpolate or arguments.judge):
        where = runs[is_plane.index(True)]
        fix = "name it alone, without --real, --judge or --interpolate"
        raise ConfigError(where, "models points, not images", fix)
    drawn = arguments.in_columns or is_plane[0]
    check_picture(arguments.picture(), ("png", "svg") if drawn else ("png",), force=arguments.force)
    if arguments.real and len({config.data.name for config in configs}) > 1:
        raise ConfigError("--real", "the runs learned different data", "name runs of one data set")
    images = (arguments.count or 1) * (arguments.steps if arguments.interpolate else 1)
    if images > MOST_IMAGES and not is_plane[0]:
        why = f"{images:,} images do not fit into a picture"
        raise ConfigError("-n", why, f"ask for at most {MOST_IMAGES:,}")
    if arguments.judge is not None:
        _check_judge(arguments.judge, arguments)
    if arguments.out is not None:
        tell_new_folder(arguments.out)
    return configs[0]


def _check_judge(judge: Path, arguments: _Arguments) -> None:
    """Refuse a classifier that does not accept the samples."""
    from bfno.lab.experiments.images.experiment import ImageExperiment
    from bfno.lab.runs.folder import RunFolder

    if arguments.interpolate:
        raise ConfigError("--judge", "judges samples, not interpolations", "leave it out")
    config = RunFolder(judge).read_config()
    if not isinstance(config, ImageExperiment):
        why = f"{judge} is a run of {config.experiment}, which does not classify images"
        raise ConfigError("--judge", why, "name, for example, a run of mnist/bfno-node")
    for run in arguments.places:
        drawn = _density_config(run).data.shape
        if drawn != config.data.shape:
            why = f"sees images of shape {config.data.shape}, but {run} draws {drawn}"
            fix = "train a classifier with the same data.size and data.colour"
            raise ConfigError(f"--judge {judge}", why, fix)


def _density_config(run: Path) -> Any:
    from bfno.lab.runs.folder import RunFolder

    config = RunFolder(run).read_config()
    if config.shows != "samples":
        why = f"is a run of {config.experiment}, which is not a density"
        raise ConfigError(run, why, "name a run of a density, such as mnist-density/ffjord-rnode")
    return config


def _open(arguments: _Arguments, run: Path) -> Any:
    from bfno.lab.runs.load import open_run

    return open_run(run, any_checkpoint=arguments.any_checkpoint)


def _images(arguments: _Arguments) -> bytes:
    """A grid of samples, or columns of them and of real images."""
    from bfno.lab.views.figures.densities import image_columns, image_grid

    # Opened before anything is drawn, which may take long.
    classifier = None if arguments.judge is None else _open(arguments, arguments.judge)
    shown = _shown(arguments)
    if arguments.judge is not None and classifier is not None:
        _introduce(arguments.judge, classifier.config, arguments.places)
        _say_how_sure(classifier, shown)
    if arguments.in_columns:
        return image_columns(shown, arguments.picture().suffix.lower().lstrip("."))
    (images,) = shown.values()
    return image_grid(images)


def _shown(arguments: _Arguments) -> dict[str, Any]:
    """Images as arrays of bytes, by the name of their column."""
    from bfno.lab.experiments.density.sampling import test_images

    shown = {}
    if arguments.real:
        opened = _open(arguments, arguments.run)
        shown[_REAL] = test_images(opened, arguments.count or _SAMPLES, arguments.data_dir).numpy()
    for name, run in _names(arguments.places).items():
        shown[name] = _drawn(arguments, run)
    return shown


def _introduce(judge: Path, config: Any, runs: list[Path]) -> None:
    """Name the classifier, and say if it has learned other data."""
    from bfno.lab.runs.folder import RunFolder

    record = RunFolder(judge).finished_record()
    score = record and record.result.get("test_accuracy")
    known = "unknown" if score is None else f"{score:.2%}"
    say(f"classifier: {config.experiment}, test accuracy {known}")
    for run in runs:
        learned = _density_config(run).data.name
        if learned != config.data.name:
            say(f"note: {run} learned {learned}, but the classifier learned {config.data.name}")


def _say_how_sure(classifier: Any, shown: dict[str, Any]) -> None:
    import torch

    from bfno.lab.experiments.images.calibration import probabilities

    for name, images in shown.items():
        found = probabilities(classifier, torch.from_numpy(images))
        sure, classes = found.amax(1).mean().item(), len(found.argmax(1).unique())
        say(
            f"{name}: on average the classifier is {sure:.1%} sure of these {len(images)} images, "
            f"and finds {classes} of its {found.shape[1]} classes among them"
        )


def _names(runs: list[Path]) -> dict[str, Path]:
    """Runs by their method, or by their folder where methods are the same."""
    methods = [_density_config(run).experiment.partition("/")[2] for run in runs]
    folders = [run.absolute().name for run in runs]
    for names in (methods, folders):
        if len({*names, _REAL}) > len(runs):  # a run may be called `real`, too
            return dict(zip(names, runs, strict=True))
    return {str(run.absolute()): run for run in runs}


def _drawn(arguments: _Arguments, run: Path) -> Any:
    """Samples of a run as an array of bytes."""
    from bfno.lab.experiments.density.sampling import draw

    opened, count = _open(arguments, run), arguments.count or _SAMPLES
    batch = opened.config.train.eval_batch
    images = draw(opened, count, arguments.temperature, arguments.seed, batch).numpy()
    _say_drawn(arguments, run, count)
    return images


def _say_drawn(arguments: _Arguments, run: Path, count: int) -> None:
    say(f"{run}: {count} samples, temperature {arguments.temperature:g}, seed {arguments.seed}")


def _plane(arguments: _Arguments) -> bytes:
    from bfno.lab.experiments.density.sampling import picture_plane
    from bfno.lab.views.figures.densities import PlanePicture, density_figure

    count = arguments.count or _POINTS
    found = picture_plane(
        _open(arguments, arguments.run), count, arguments.temperature, arguments.seed
    )
    low_x, high_x, low_y, high_y = found.window
    _say_drawn(arguments, arguments.run, count)
    say(
        f"the density integrates to {found.mass:.4f} over [{low_x:.2f}, {high_x:.2f}] × "
        f"[{low_y:.2f}, {high_y:.2f}]"
    )
    return density_figure(
        PlanePicture(**vars(found)), arguments.picture().suffix.lower().lstrip(".")
    )


def _interpolations(arguments: _Arguments) -> bytes:
    from bfno.lab.experiments.density.sampling import interpolate, read_files, test_images
    from bfno.lab.views.figures.densities import image_grid

    opened, files = _open(arguments, arguments.run), arguments.places[1:]
    if files:
        ends = read_files(opened, files)
    else:
        ends = test_images(opened, 2 * (arguments.count or _PAIRS), arguments.data_dir)
    pairs = len(ends) // 2
    batch = opened.config.train.eval_batch
    images = interpolate(opened, ends[: 2 * pairs : 2], ends[1::2], arguments.steps, batch)
    noun = "pair" if pairs == 1 else "pairs"
    say(f"{arguments.run}: {pairs} {noun}, {arguments.steps} images per pair")
    return image_grid(images.flatten(0, 1).numpy(), arguments.steps)
