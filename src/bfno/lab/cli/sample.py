"""The command `bfno sample`: new samples of a density."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from bfno.lab.cli.options import AnyCheckpoint, takes
from bfno.lab.cli.targets import tell_new_folder
from bfno.lab.cli.terminal import say
from bfno.lab.errors import ConfigError

__all__ = ["app", "keep_samples"]

app = typer.Typer()

_SAMPLES, _POINTS, _PAIRS = 64, 2000, 8
_REAL = "real"


@dataclass(frozen=True)
class _Words:
    """The words behind `bfno sample`."""

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
    real: Annotated[bool, typer.Option("--real", help="Show test images beside them.")] = False
    judge: Annotated[
        Path | None,
        typer.Option(help="Run of a classifier of such images; says how sure it is of them."),
    ] = None
    interpolate: Annotated[
        bool,
        typer.Option(
            "--interpolate",
            help="Go from one image to another: from files, or from the test split.",
        ),
    ] = False
    steps: Annotated[int, typer.Option(min=2, max=50, help="Images per pair, with both ends.")] = 10
    force: Annotated[bool, typer.Option("--force", help="Replace an existing picture.")] = False
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder of the data sets; default where the run found them.")
    ] = None
    any_checkpoint: AnyCheckpoint = False

    @property
    def run(self) -> Path:
        return self.places[0]

    @property
    def columns(self) -> bool:
        """Whether images stand in columns with names."""
        return self.real or (len(self.places) > 1 and not self.interpolate)

    def picture(self) -> Path:
        """The file to write."""
        if self.out is not None:
            return self.out
        if len(self.places) > 1 and not self.interpolate:
            raise ConfigError("--out", "several runs have no folder in common", "name it with -o")
        return self.run / "figures" / f"{'interpolation' if self.interpolate else 'samples'}.png"


@app.command()
@takes(_Words)
def sample(words: _Words) -> None:
    """Draw new samples of a density.

    A grid of images, runs side by side, or points and their paths.

    Example: bfno sample runs/moons-ffjord-rnode-s7 -o moons.png
    """
    _draw(words)


def keep_samples(run: Path, *, any_checkpoint: bool = False) -> None:
    """Draw the picture of a run's samples unless it exists; images stand beside real ones.

    Args:
        run: Folder of the run.
        any_checkpoint: Whether another checkpoint may stand for a damaged best one.

    Raises:
        ConfigError: If nothing is trained yet.
        DataError: If its files are damaged, or its data are gone.
        NumericalError: If the solver gives up.
    """
    words = _Words([run], any_checkpoint=any_checkpoint)
    if not words.picture().exists():
        _draw(replace(words, real=len(_density_config(run).data.shape) > 1))


def _draw(words: _Words) -> None:
    from bfno.lab.views.figures.densities import write_picture

    config = _check(words)
    if words.interpolate:
        content = _interpolations(words)
    elif len(config.data.shape) == 1:
        content = _plane(words)
    else:
        content = _images(words)
    say(f"written to {write_picture(content, words.picture(), force=words.force)}")


def _check(words: _Words) -> Any:
    """Refuse what cannot be drawn or written, before anything is computed; return the settings."""
    from bfno.lab.views.figures.densities import MOST_IMAGES, check_picture

    if words.real and words.interpolate:
        raise ConfigError("--real", "real images are the ends of --interpolate", "leave it out")
    if not math.isfinite(words.temperature):
        raise ConfigError(
            "--temperature", f"{words.temperature} is not a finite number", "write a number"
        )
    if words.interpolate and len(words.places) % 2 == 0:
        why = f"{len(words.places) - 1} images do not make pairs"
        raise ConfigError(
            "--interpolate", why, "name two images, or none to take them from the test split"
        )
    runs = words.places[:1] if words.interpolate else words.places
    configs = [_density_config(run) for run in runs]
    is_plane = [len(config.data.shape) == 1 for config in configs]
    if any(is_plane) and (words.columns or words.interpolate or words.judge):
        where = runs[is_plane.index(True)]
        fix = "name it alone, without --real, --judge or --interpolate"
        raise ConfigError(where, "models points, not images", fix)
    drawn = words.columns or is_plane[0]
    check_picture(words.picture(), ("png", "svg") if drawn else ("png",), force=words.force)
    if words.real and len({config.data.name for config in configs}) > 1:
        raise ConfigError("--real", "the runs learned different data", "name runs of one data set")
    images = (words.count or 1) * (words.steps if words.interpolate else 1)
    if images > MOST_IMAGES and not is_plane[0]:
        why = f"{images:,} images do not fit a picture, {MOST_IMAGES:,} do"
        raise ConfigError("-n", why, "ask for fewer")
    if words.judge is not None:
        _check_judge(words.judge, words)
    if words.out is not None:
        tell_new_folder(words.out)
    return configs[0]


def _check_judge(judge: Path, words: _Words) -> None:
    """Refuse a classifier that cannot see what is drawn."""
    from bfno.lab.experiments.images.experiment import ImageExperiment
    from bfno.lab.runs.folder import RunFolder

    if words.interpolate:
        raise ConfigError("--judge", "judges samples, not interpolations", "leave it out")
    config = RunFolder(judge).read_config()
    if not isinstance(config, ImageExperiment):
        why = f"{judge} is a run of {config.experiment}, which does not classify images"
        raise ConfigError("--judge", why, "name a run of mnist/bfno-node, say")
    for run in words.places:
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


def _open(words: _Words, run: Path) -> Any:
    from bfno.lab.runs.load import open_run

    return open_run(run, any_checkpoint=words.any_checkpoint)


def _images(words: _Words) -> bytes:
    """A grid of samples, or columns of them and of real images."""
    from bfno.lab.views.figures.densities import image_columns, image_grid

    # Opened before anything is drawn, which may take long.
    classifier = None if words.judge is None else _open(words, words.judge)
    shown = _shown(words)
    if words.judge is not None and classifier is not None:
        _introduce(words.judge, classifier.config, words.places)
        _say_how_sure(classifier, shown)
    if words.columns:
        return image_columns(shown, words.picture().suffix.lower().lstrip("."))
    (images,) = shown.values()
    return image_grid(images)


def _shown(words: _Words) -> dict[str, Any]:
    """Images as arrays of bytes by the name that they get."""
    from bfno.lab.experiments.density.sampling import test_images

    shown = {}
    if words.real:
        opened = _open(words, words.run)
        shown[_REAL] = test_images(opened, words.count or _SAMPLES, words.data_dir).numpy()
    for name, run in _names(words.places).items():
        shown[name] = _drawn(words, run)
    return shown


def _introduce(judge: Path, config: Any, runs: list[Path]) -> None:
    """Say who judges, and what it has not learned."""
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


def _drawn(words: _Words, run: Path) -> Any:
    """Samples of a run as an array of bytes."""
    from bfno.lab.experiments.density.sampling import draw

    opened, count = _open(words, run), words.count or _SAMPLES
    batch = opened.config.train.eval_batch
    images = draw(opened, count, words.temperature, words.seed, batch).numpy()
    say(f"{run}: {count} samples, temperature {words.temperature:g}, seed {words.seed}")
    return images


def _plane(words: _Words) -> bytes:
    from bfno.lab.experiments.density.sampling import picture_plane
    from bfno.lab.views.figures.densities import PlanePicture, density_figure

    count = words.count or _POINTS
    found = picture_plane(_open(words, words.run), count, words.temperature, words.seed)
    low_x, high_x, low_y, high_y = found.window
    say(f"{words.run}: {count} samples, temperature {words.temperature:g}, seed {words.seed}")
    say(
        f"the density integrates to {found.mass:.4f} over [{low_x:.2f}, {high_x:.2f}] × "
        f"[{low_y:.2f}, {high_y:.2f}]"
    )
    return density_figure(PlanePicture(**vars(found)), words.picture().suffix.lower().lstrip("."))


def _interpolations(words: _Words) -> bytes:
    from bfno.lab.experiments.density.sampling import interpolate, read_files, test_images
    from bfno.lab.views.figures.densities import image_grid

    opened, files = _open(words, words.run), words.places[1:]
    if files:
        ends = read_files(opened, files)
    else:
        ends = test_images(opened, 2 * (words.count or _PAIRS), words.data_dir)
    pairs = len(ends) // 2
    batch = opened.config.train.eval_batch
    images = interpolate(opened, ends[: 2 * pairs : 2], ends[1::2], words.steps, batch)
    noun = "pair" if pairs == 1 else "pairs"
    say(f"{words.run}: {pairs} {noun}, {words.steps} images per pair")
    return image_grid(images.flatten(0, 1).numpy(), words.steps)
