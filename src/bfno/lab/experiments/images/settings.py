"""The settings of an image classification."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from bfno.lab.experiments.presets import IMAGE_DATA
from bfno.lab.experiments.settings import Config, Settings

__all__ = ["ImageConfig", "ImageDataSettings", "ImageModelSettings"]


class ImageDataSettings(Settings):
    """Which images, and how they are divided.

    Attributes:
        name: A data set that `bfno data list` names, or `folder`.
        folder: The folder of images, if that is the name.
        dir: Where the files of data sets are; None leaves it to `BFNO_DATA` and the user's cache.
        size: Side of the grid; None keeps that of the data set, which a folder does not have.
        colour: Whether a folder's images are read in colour.
        validation: Share of the training images that is kept for model selection.
        train_limit: Most training images, validation included.
        test_limit: Most test images.
        test_fraction: Share of a folder without a test part that becomes one.
        corrupt: What happens to files of a folder that cannot be read.
    """

    name: Literal["digits", "mnist", "fashion-mnist", "cifar10", "cifar100", "stl10", "folder"]
    folder: Path | None = None
    dir: Path | None = None
    size: int | None = Field(default=None, ge=2, le=1024)
    colour: bool = True
    validation: float = Field(default=0.0, ge=0, lt=1)
    train_limit: int | None = Field(default=None, ge=1)
    test_limit: int | None = Field(default=None, ge=1)
    test_fraction: float = Field(default=0.2, gt=0, lt=1)
    corrupt: Literal["refuse", "skip"] = "refuse"

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of the images that a model sees."""
        if self.name == "folder":
            side = self.size or 32
            return (3 if self.colour else 1, side, side)
        channels, height, width = IMAGE_DATA[self.name].shape
        return (channels, self.size or height, self.size or width)


class ImageModelSettings(Settings):
    """The parts of the model and their sizes; see `bfno.lab.experiments.presets.ImageModel`."""

    dynamics: Literal[
        "first_order",
        "second_order",
        "heavy_ball",
        "generalized_heavy_ball",
        "nesterov",
        "generalized_nesterov",
        "adam",
    ]
    field: Literal["conv", "bfno", "fno", "afno"]
    channels: int = Field(ge=1, le=4096)
    width: int = Field(ge=1, le=65536)
    depth: int = Field(default=3, ge=1, le=64)
    field_options: dict[str, Any] = Field(default_factory=dict)
    dynamics_options: dict[str, Any] = Field(default_factory=dict)
    idle_scalars: int = Field(default=0, ge=0, le=64)


class ImageConfig(Config[ImageDataSettings, ImageModelSettings]):
    """Everything that decides the outcome of an image classification."""
