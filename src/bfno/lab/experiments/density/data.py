"""The samples of a density, images or points, and how they are read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag
from torch import Tensor

from bfno.lab.data import TOYS, resized, toy_points
from bfno.lab.errors import ConfigError
from bfno.lab.experiments.experiment import TrainedRun
from bfno.lab.experiments.images.data import (
    ImageDataSettings,
    divided_images,
    held_out_images,
    other_images,
    refuse_other_draw,
)
from bfno.lab.experiments.memory import InMemory, gone, is_in_memory
from bfno.lab.experiments.seeds import derive_seed
from bfno.lab.experiments.settings import Settings, one_of

__all__ = [
    "DensityData",
    "DensityDataSettings",
    "ImagesSettings",
    "MemoryPointsSettings",
    "PointsSettings",
    "held_out_samples",
    "load_samples",
    "require_images",
]

# Every run is judged by the same points, independent of its seed.
_POINT_SEEDS = {"validation": 1, "test": 2}


class ImagesSettings(ImageDataSettings):
    """The images; labels do not matter, and a folder needs no classes.

    Attributes:
        flip: Whether training images are mirrored, left to right, every other time.
    """

    flip: bool = False


class PointsSettings(Settings):
    """The points in the plane.

    Attributes:
        name: Their shape; see `bfno.lab.data.toy_points`.
        points: Number of training points.
        held_out: Number of points for model selection, and the same number for testing.
    """

    name: Annotated[str, one_of(lambda: TOYS)]
    points: int = Field(default=25_600, ge=1, le=10_000_000)
    held_out: int = Field(default=2_000, ge=2, le=1_000_000)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a sample."""
        return (2,)


class MemoryPointsSettings(InMemory):
    """Points in memory, of any number of coordinates.

    Attributes:
        name: Marks them as in memory.
        coordinates: Number of coordinates of a point.
        validation: Share of the points held out for model selection.
    """

    name: Literal["memory"] = "memory"
    coordinates: int = Field(default=2, ge=1)
    validation: float = Field(default=0.1, ge=0, lt=1)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a sample."""
        return (self.coordinates,)


def _kind(settings: Any) -> str:
    if is_in_memory(settings):
        return "memory"
    name = settings.get("name") if isinstance(settings, dict) else getattr(settings, "name", None)
    return "points" if name in TOYS else "images"


DensityDataSettings = Annotated[
    Annotated[ImagesSettings, Tag("images")]
    | Annotated[PointsSettings, Tag("points")]
    | Annotated[MemoryPointsSettings, Tag("memory")],
    Discriminator(_kind),
]
"""The settings of any data, identified by the name."""


@dataclass(frozen=True)
class DensityData:
    """Samples of a density, images as bytes or points as numbers, split for training.

    Attributes:
        train: Samples to learn from.
        validation: Samples that choose the epoch, if any.
        test: Samples used once, at the end.
        test_is_own: Whether the user supplied the test samples, which may differ from the others.
        scaling: For standardised points: what was subtracted from each coordinate, and what it was
            then divided by.
        division: Identifies the images that were divided, see `Splits`.
    """

    train: Tensor
    validation: Tensor | None
    test: Tensor
    test_is_own: bool = False
    scaling: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    division: str = ""

    def not_learned(self) -> dict[str, Tensor]:
        """Splits that the model has not learned from, but that are like the training samples."""
        if self.validation is None:
            return {"test": self.test}
        is_like = len(self.test) > 0 and not self.test_is_own
        alike = {"test": self.test} if is_like else {}
        return {"validation": self.validation, **alike}


def load_samples(
    settings: ImagesSettings | PointsSettings | MemoryPointsSettings, seed: int
) -> DensityData:
    """Read or draw samples, and split them as the settings say.

    Raises:
        DataError: If files are missing or wrong.
        ConfigError: If the settings lack a required folder.
    """
    if isinstance(settings, MemoryPointsSettings):
        raise gone()
    if isinstance(settings, PointsSettings):
        drawn = derive_seed(seed, "points") % 2**31
        return DensityData(
            toy_points(settings.name, settings.points, drawn),
            _held_out_points(settings, "validation"),
            _held_out_points(settings, "test"),
        )
    splits = divided_images(settings, seed, labelled=False)
    validation = None if splits.validation is None else splits.validation.images
    return DensityData(
        splits.train.images,
        validation,
        splits.test.images,
        splits.test_is_own,
        division=splits.division,
    )


def _held_out_points(settings: PointsSettings, split: str) -> Tensor:
    """Points that models are not trained on, for `validation` or `test`."""
    return toy_points(settings.name, settings.held_out, _POINT_SEEDS[split])


def held_out_samples(
    run: TrainedRun,
    data: str | None = None,
    data_dir: Path | None = None,
    limit: int | None = None,
) -> Tensor:
    """Test samples of a run's own data, or of other data, in the shape that its model takes.

    Args:
        run: The trained model.
        data: Other data, a name or a folder; None is the run's own.
        data_dir: Where the files of data sets are; None is where the run found them.
        limit: Largest number of samples, instead of the run's own number of test samples.

    Raises:
        ConfigError: If the samples do not suit the model.
        DataError: If files are missing or wrong.
    """
    settings = run.config.data
    if isinstance(settings, MemoryPointsSettings):
        raise gone()
    if isinstance(settings, PointsSettings):
        if data is not None and data not in TOYS:
            raise ConfigError(data, "is not a set of points", f"use one of {', '.join(TOYS)}")
        named = settings.model_copy(update={"name": data or settings.name})
        return _held_out_points(named, "test")[:limit]
    settings = other_images(settings, data, data_dir)
    refuse_other_draw(run, settings, labelled=False)
    found, _ = held_out_images(settings, run.config.seed, limit, labelled=False)
    channels, side, _ = run.model.event_shape
    if found.images.shape[1] != channels:
        raise ConfigError(
            data or settings.name,
            f"has {found.images.shape[1]} channels, the images of the run {channels}",
            "name a folder, whose images are read as the run needs them",
        )
    return resized(found, side).images


def require_images(run: TrainedRun) -> None:
    """Refuse a run that models points if files or images are required.

    Raises:
        ConfigError: If it does.
    """
    if len(run.model.event_shape) != 3:
        what, why = run.config.experiment, "models points, not images"
        raise ConfigError(what, why, "name a run of images, for example mnist-density/ffjord-rnode")
