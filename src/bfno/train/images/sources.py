"""Images for a trained model: of its own data, of others, of files."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from bfno.data import DATA_SETS, Split, read_image, resized
from bfno.presets import IMAGE_DATA
from bfno.train.images.settings import ImageDataSettings

__all__ = ["other_images", "read_image_file"]

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
