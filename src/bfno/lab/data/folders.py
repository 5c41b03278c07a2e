"""Folders of images, one for each class."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from bfno.lab.data.images import ImageSet, Split
from bfno.lab.data.pixels import SUFFIXES, Header, decode, quiet_pillow, read_header
from bfno.lab.data.reading import refusing_damage
from bfno.lab.data.stratify import hold_out_of_each_class
from bfno.lab.errors import ConfigError, DataError

__all__ = ["load_folder", "read_image"]

_LOG = logging.getLogger(__name__)
_THREADS = 4
_USUAL_SIDE, _LARGEST_COMMON_SIDE = 32, 96
_OTHER_NAMES_FOR_TEST = ("val", "valid", "validation")

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class _File:
    path: Path
    label: int


def load_folder(
    folder: Path,
    *,
    size: int | tuple[int, int] | None = None,
    colour: bool | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
    corrupt: str = "refuse",
    labelled: bool = True,
) -> ImageSet:
    """Load images whose folder's name is their class.

    Either `folder/train/CLASS/*` and `folder/test/CLASS/*`, or one of `folder/train/CLASS/*` and
    `folder/CLASS/*`, of which a random share of each class is for testing. Classes and files are
    taken in the order of their names. Hidden files and those that are no images are ignored.

    Images are stretched to one size, put on white where they are transparent and turned as their
    EXIF data says.

    Args:
        folder: Where the images lie.
        size: Height and width, or the side of a square. By default the size that all images have,
            if no side is above 96, else 32.
        colour: Whether images have three channels or one. By default one if all are stored grey.
        test_fraction: Share of each class for testing, where the folder has no test part.
        seed: Number that fixes that share.
        corrupt: What to do with images that cannot be read: `refuse`, or `skip` to leave them out
            and name them in `skipped`.
        labelled: Whether images have classes. If not, all images in the folder and below it are
            taken, or those in `folder/train` and `folder/test`; every label is 0.

    Raises:
        ConfigError: If a setting is out of range.
        DataError: If the folder is not as described or an image cannot be read.
    """
    _check_settings(size, test_fraction, corrupt)
    folder = Path(folder)
    classes, train, test = _find_parts(folder, _find_classes if labelled else _find_images)
    with quiet_pillow(), ThreadPoolExecutor(_THREADS) as pool:
        read = _Readings(pool)
        train_headers, train = read(train, lambda file: read_header(file.path))
        test_headers, test = read(test, lambda file: read_header(file.path))
        shape = _shape([*train_headers, *test_headers], size, colour)
        parts = [read(part, lambda file: decode(file.path, shape)) for part in (train, test)]
    skipped = _skip(read.errors, folder, corrupt)
    for _, files in parts[: 2 if test else 1]:
        _check_every_class(folder, files, classes)
    splits = [_split(images, files, shape) for images, files in parts]
    if not test:
        kept, held_out = hold_out_of_each_class(splits[0].labels, test_fraction, seed)
        splits = [splits[0].take(kept), splits[0].take(held_out)]
    return ImageSet(splits[0], splits[1], classes, skipped)


def read_image(path: Path, shape: tuple[int, int, int]) -> Tensor:
    """Read one image for a model that takes that shape.

    Args:
        path: An image file.
        shape: Channels (1 or 3), height and width.

    Returns:
        Bytes of that shape, made in the same way as by `load_folder`.

    Raises:
        ConfigError: If no image has that shape.
        DataError: If it cannot be read.
    """
    if shape[0] not in (1, 3) or min(shape) < 1:
        raise ConfigError("shape", f"no image has {shape}", "use 1 or 3 channels and sides above 0")
    path = Path(path)
    if not os.path.isfile(path):
        raise DataError(path, "is not there or no file", "name an image file")
    with quiet_pillow():
        return torch.from_numpy(np.ascontiguousarray(decode(path, shape)))


class _Readings:
    """Reads many files at once, and gathers those that cannot be read."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self.errors: list[DataError] = []

    def __call__(
        self, files: list[_File], function: Callable[[_File], _Result]
    ) -> tuple[list[_Result], list[_File]]:
        """Results and files where the function succeeds."""

        def attempt(file: _File) -> _Result | DataError:
            try:
                return function(file)
            except DataError as error:
                return error

        outcomes = list(zip(files, self._pool.map(attempt, files), strict=True))
        self.errors += [outcome for _, outcome in outcomes if isinstance(outcome, DataError)]
        good = [(outcome, file) for file, outcome in outcomes if not isinstance(outcome, DataError)]
        return [outcome for outcome, _ in good], [file for _, file in good]


def _skip(errors: list[DataError], folder: Path, corrupt: str) -> tuple[str, ...]:
    """Names of the files that are left out, if there are any and that is allowed."""
    if not errors:
        return ()
    errors = sorted(errors, key=lambda error: str(error.what))
    if corrupt == "refuse":
        more = f", and {len(errors) - 1} more cannot be read" if errors[1:] else ""
        fix = f"{errors[0].fix}, or leave such files out with --set data.corrupt=skip"
        raise DataError(errors[0].what, errors[0].why + more, fix)
    skipped = tuple(str(Path(str(error.what)).relative_to(folder)) for error in errors)
    first = ", ".join(skipped[:3])
    _LOG.warning("%s: left out %d unreadable images, first %s", folder, len(skipped), first)
    return skipped


def _check_settings(size: int | tuple[int, int] | None, fraction: float, corrupt: str) -> None:
    if size is not None and np.min(size) < 1:
        raise ConfigError("size", f"{size} is less than 1", "use 1 or more, or leave it out")
    if not 0 < fraction < 1:
        raise ConfigError("test_fraction", f"{fraction} is no share", "use one between 0 and 1")
    if corrupt not in ("refuse", "skip"):
        raise ConfigError("corrupt", f"{corrupt!r} is unknown", "use refuse or skip")


def _find_parts(
    folder: Path, find: Callable[[Path], tuple[tuple[str, ...], list[_File]]]
) -> tuple[tuple[str, ...], list[_File], list[_File]]:
    """Class names, training files and test files; no test files if there is no such part."""
    if not os.path.isdir(folder):
        raise DataError(folder, "is no folder", "name a folder of images")
    train, test = folder / "train", folder / "test"
    if not os.path.isdir(train):
        return *find(folder), []
    classes, files = find(train)
    if not os.path.isdir(test):
        for name in _OTHER_NAMES_FOR_TEST:
            if os.path.isdir(folder / name):
                raise DataError(folder, f"has train and {name}, but no test", f"rename {name}")
        return classes, files, []
    test_classes, test_files = find(test)
    if odd := sorted(set(classes) ^ set(test_classes)):
        why = f"train and test differ in the classes {', '.join(odd)}"
        raise DataError(folder, why, "give both parts the same class folders")
    return classes, files, test_files


def _find_classes(folder: Path) -> tuple[tuple[str, ...], list[_File]]:
    fix = "put the images of each class into a folder of its own"
    with refusing_damage(folder, fix):
        folders = [path for path in _visible(folder) if os.path.isdir(path)]
        if len(folders) < 2:
            why = f"has {len(folders) or 'no'} class folder{'s' * (not folders)}"
            raise DataError(folder, why, f"{fix}; at least two classes")
        files = []
        for label, path in enumerate(folders):
            found = [file for file in _visible(path) if file.suffix.lower() in SUFFIXES]
            found = [_File(file, label) for file in found if os.path.isfile(file)]
            if not found:
                raise DataError(path, "holds no images", "add images or delete the folder")
            files += found
    return tuple(path.name for path in folders), files


def _find_images(folder: Path) -> tuple[tuple[str, ...], list[_File]]:
    """No classes, and all images in a folder and below it."""
    fix = "name a folder with images in it"
    with refusing_damage(folder, fix):
        found = [path for path in sorted(folder.rglob("*")) if path.suffix.lower() in SUFFIXES]
        shown = [
            path
            for path in found
            if not any(part.startswith(".") for part in path.relative_to(folder).parts)
        ]
        files = [_File(path, 0) for path in shown if os.path.isfile(path)]
        if not files:
            raise DataError(folder, "holds no images", fix)
    return (), files


def _visible(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


def _check_every_class(folder: Path, files: Iterable[_File], classes: tuple[str, ...]) -> None:
    counts = Counter(file.label for file in files)
    for label, name in enumerate(classes):
        if not counts[label]:
            raise DataError(folder, f"no image of class {name!r} can be read", "replace the images")


def _shape(
    headers: list[Header], size: int | tuple[int, int] | None, colour: bool | None
) -> tuple[int, int, int]:
    if size is None:
        sizes = {header.size for header in headers}
        common = len(sizes) == 1 and max(max(sizes)) <= _LARGEST_COMMON_SIDE
        size = sizes.pop() if common else _USUAL_SIDE
    height, width = (size, size) if isinstance(size, int) else size
    if colour is None:
        colour = not all(header.grey for header in headers)
    return (3 if colour else 1), height, width


def _split(images: list[np.ndarray], files: list[_File], shape: tuple[int, int, int]) -> Split:
    pixels = np.stack(images) if images else np.empty((0, *shape), np.uint8)
    return Split(torch.from_numpy(pixels), torch.tensor([file.label for file in files]).long())
