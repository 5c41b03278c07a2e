"""Images for a trained model: of its own data, of others, of files."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from bfno.lab.data import DATA_SETS, Split, read_image, resized
from bfno.lab.experiments.family import TrainedRun
from bfno.lab.experiments.images.build import load_images
from bfno.lab.experiments.images.settings import ImageDataSettings
from bfno.lab.experiments.presets import IMAGE_DATA

__all__ = ["other_images", "own_test_images", "read_image_file", "shown_to"]

SettingsT = TypeVar("SettingsT", bound=ImageDataSettings)


def other_images(settings: SettingsT, data: str | None, data_dir: Path | None) -> SettingsT:
    """The settings of a run's images with other ones in their place.

    Args:
        settings: Those of the run.
        data: Name of a data set, or a folder, which is read as the run's images are; None changes
            nothing.
        data_dir: Where the files of data sets are; None is where the run found them.
    """
    changes: dict[str, Any] = {"dir": data_dir or settings.dir}
    if data is not None:
        if data in DATA_SETS:
            changes |= {"name": data, "folder": None}
        else:
            size, colour = settings.shape[1], settings.shape[0] == 3
            folder = Path(data).resolve()
            changes |= {"name": "folder", "folder": folder, "size": size, "colour": colour}
    return settings.model_copy(update=changes)


def own_test_images(run: TrainedRun, most: int) -> Split:
    """The first test images of a run as its model sees them.

    Args:
        run: The trained model.
        most: How many at most.

    Raises:
        DataError: If files are missing or wrong.
    """
    found = load_images(run.config.data, run.config.seed).test
    return shown_to(run, found, min(most, run.config.data.test_limit or most))


def shown_to(run: TrainedRun, split: Split, limit: int | None) -> Split:
    """The first images of a split, on the grid of a run's model."""
    first = Split(split.images[:limit], split.labels[:limit])
    return resized(first, run.model.in_shape[-1])


def read_image_file(settings: ImageDataSettings, file: Path) -> Tensor:
    """One image as a model saw those of its training: on their own grid first, then coarser.

    Args:
        settings: Those of the training.
        file: An image file of any size.

    Returns:
        Bytes, `(1, channels, height, width)`.

    Raises:
        DataError: If it cannot be read.
    """
    native = settings.shape if settings.name == "folder" else IMAGE_DATA[settings.name].shape
    split = Split(read_image(file, native).unsqueeze(0), torch.zeros(1, dtype=torch.int64))
    return resized(split, settings.shape[-1]).images
