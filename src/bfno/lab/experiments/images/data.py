"""The images of an experiment, and how they are read: its own, others, single files."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import torch
from pydantic import Discriminator, Field, Tag
from torch import Tensor

from bfno.lab.data import (
    DATA_SETS,
    FolderSource,
    Split,
    Splits,
    divide,
    load,
    load_folder_splits,
    load_folder_test,
    read_image,
    resized,
)
from bfno.lab.data.folders import drawn_division
from bfno.lab.errors import ConfigError, first_names
from bfno.lab.experiments.experiment import TrainedRun, refuse_other_division
from bfno.lab.experiments.memory import InMemory, gone, is_in_memory, source_of
from bfno.lab.experiments.settings import Settings, one_of

__all__ = [
    "AnyImageDataSettings",
    "ImageDataSettings",
    "MemoryImageSettings",
    "divided_images",
    "folder_settings",
    "held_out_images",
    "other_images",
    "read_image_file",
    "refuse_other_draw",
]

_logger = logging.getLogger(__name__)
_RULES = 2  # of today


def _image_names() -> Iterable[str]:
    return (*DATA_SETS, "folder")


class ImageDataSettings(Settings):
    """The images, and how they are split.

    Attributes:
        name: A data set that `bfno data list` names, or `folder`.
        folder: The folder of images, if `name` is `folder`.
        dir: Folder of the data sets; None means `BFNO_DATA` or the user's cache.
        size: Side of the grid; None keeps that of the data set, which a folder does not have.
        colour: Whether a folder's images are read in colour.
        validation: Share of the training images held out for model selection.
        train_limit: Largest number of training images, validation included.
        test_limit: Largest number of test images.
        test_fraction: Share of a folder without a test part that becomes one.
        corrupt: What happens to files of a folder that cannot be read.
        rules: How a folder is read and split. With rules 2, images may be in nested folders of
            their class, and every part and limit is a draw in proportion to the classes. Runs of
            earlier releases keep rules 1, so that they resume and evaluate as they began.
    """

    name: Annotated[str, one_of(_image_names)]
    folder: Path | None = None
    dir: Path | None = None
    size: int | None = Field(default=None, ge=2, le=1024)
    colour: bool = True
    validation: float = Field(default=0.0, ge=0, lt=1)
    train_limit: int | None = Field(default=None, ge=1)
    test_limit: int | None = Field(default=None, ge=1)
    test_fraction: float = Field(default=0.2, gt=0, lt=1)
    corrupt: Literal["refuse", "skip"] = "refuse"
    rules: Literal[1, 2] = 1

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of the images that a model sees."""
        if self.name == "folder":
            side = self.size or 32
            return (3 if self.colour else 1, side, side)
        channels, height, width = DATA_SETS[self.name].shape
        return (channels, self.size or height, self.size or width)


class MemoryImageSettings(ImageDataSettings, InMemory):
    """Images in memory.

    Attributes:
        in_shape: Their channels, height and width.
    """

    # Settings are frozen, so that a narrower type cannot be undone by an assignment.
    name: Literal["memory"] = "memory"  # pyright: ignore[reportIncompatibleVariableOverride]
    in_shape: tuple[int, int, int] = (3, 32, 32)

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.in_shape


AnyImageDataSettings = Annotated[
    Annotated[ImageDataSettings, Tag("files")] | Annotated[MemoryImageSettings, Tag("memory")],
    Discriminator(source_of),
]
"""The settings of either, identified by the name."""

SettingsT = TypeVar("SettingsT", bound=ImageDataSettings)


def folder_settings(name: str) -> dict[str, Any]:
    """Settings for reading a folder of images; none for other data."""
    return {"rules": _RULES} if name == "folder" else {}


def divided_images(settings: ImageDataSettings, seed: int, *, labelled: bool = True) -> Splits:
    """Read images, and split them as the settings say.

    Args:
        settings: Which images.
        seed: Seed of the split.
        labelled: Whether the images must have classes.

    Raises:
        DataError: If files are missing or wrong.
        ConfigError: If the settings name no folder where they have to.
    """
    limits = {
        "validation": settings.validation,
        "train_limit": settings.train_limit,
        "test_limit": settings.test_limit,
    }
    if is_in_memory(settings):
        raise gone()
    if settings.name == "folder":
        return load_folder_splits(_source(settings, seed, labelled), **limits)
    found = load(settings.name, settings.dir)
    return divide(found, seed=seed, size=settings.size, labelled=labelled, **limits)


def held_out_images(
    settings: ImageDataSettings, seed: int, limit: int | None = None, *, labelled: bool = True
) -> tuple[Split, tuple[str, ...]]:
    """Read test images, on the data set's own grid, and the names of their classes.

    For a folder, a limit takes a draw in proportion to the classes. For a known data set it takes
    the first images: the published files are in random order, and recorded results depend on it.

    Args:
        settings: Which images.
        seed: Seed of the test part of a folder that has none, and of the draw.
        limit: Largest number of test images, instead of the number in the settings.
        labelled: Whether a folder must have classes.

    Raises:
        DataError: If files are missing or wrong.
        ConfigError: If the settings name no folder where they have to.
    """
    if is_in_memory(settings):
        raise gone()
    if settings.name == "folder":
        source = _source(settings, seed, labelled)
        if limit is not None:
            return load_folder_test(source, limit, drawn=True)
        found, classes = load_folder_test(source, settings.test_limit)
        there = set(found.labels.tolist())
        if absent := [name for label, name in enumerate(classes) if label not in there]:
            # By the rules of earlier releases a limit took the first images, sorted by class.
            names = f"{'classes' if absent[1:] else 'class'} {first_names(absent)}"
            _logger.warning("%s: no test image is of the %s", settings.folder, names)
        return found, classes
    limit = limit or settings.test_limit
    found = load(settings.name, settings.dir)
    return Split(found.test.images[:limit], found.test.labels[:limit]), found.classes


def refuse_other_draw(
    run: TrainedRun, settings: ImageDataSettings, *, labelled: bool = True
) -> None:
    """Refuse test images that are drawn from a folder that has changed since the training.

    Another draw has images among them from which the model has learned.

    Args:
        run: The trained model.
        settings: The images that it is to be tested on.
        labelled: Whether a folder has to have classes.

    Raises:
        ConfigError: If the folder is that of the run and holds other images by now.
        DataError: If it cannot be listed.
    """
    is_its_own = settings.name == "folder" and settings.folder == run.config.data.folder
    if is_its_own and "division" in run.facts:
        now = drawn_division(_source(settings, run.config.seed, labelled))
        if now is not None:  # else the user has chosen the test images
            refuse_other_division(settings.folder, run.facts, now)


def _source(settings: ImageDataSettings, seed: int, labelled: bool) -> FolderSource:
    if settings.folder is None:
        raise ConfigError("data.folder", "is not set", "name your folder with --data PATH")
    return FolderSource(
        settings.folder,
        settings.shape,
        labelled,
        settings.test_fraction,
        seed,
        settings.corrupt,
        settings.rules,
    )


def other_images(settings: SettingsT, data: str | None, data_dir: Path | None) -> SettingsT:
    """The settings of a run's images, with other images in their place.

    Args:
        settings: Those of the run.
        data: Name of a data set, or a folder, which is read like the run's images; None changes
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
            if folder != settings.folder:
                changes |= folder_settings("folder")
                if folder.is_dir() and not (folder / "test").is_dir():
                    _logger.warning(
                        "%s: has no folder test; only the %g %% that a training would hold out are "
                        "tested",
                        folder,
                        100 * settings.test_fraction,
                    )
    return settings.model_copy(update=changes)


def read_image_file(settings: ImageDataSettings, file: Path) -> Tensor:
    """Read one image as in a model's training: on its own grid first, then coarser.

    Args:
        settings: The settings of the training.
        file: An image file of any size.

    Returns:
        Bytes, `(1, channels, height, width)`.

    Raises:
        DataError: If it cannot be read.
    """
    if settings.name not in DATA_SETS:
        return read_image(file, settings.shape).unsqueeze(0)
    image = read_image(file, DATA_SETS[settings.name].shape).unsqueeze(0)
    return resized(Split(image, torch.zeros(1, dtype=torch.int64)), settings.shape[-1]).images
