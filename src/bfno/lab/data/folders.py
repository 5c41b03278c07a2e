"""Folders of images, one per class: how they are split and read."""

from __future__ import annotations

import hashlib
import logging
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np
import torch
from torch import Tensor

from bfno.lab.data.image_cache import decode_images
from bfno.lab.data.images import ImageSet, Split, Splits, checked, choose
from bfno.lab.data.listing import ImageFile, LeftOut, Listing, list_images
from bfno.lab.data.pixels import Header, SystemFailure, decode, quiet_pillow, read_header
from bfno.lab.data.stored import StoredImages
from bfno.lab.data.stratify import drawn_order, hold_out_of_each_class
from bfno.lab.errors import ConfigError, DataError

__all__ = [
    "FolderSource",
    "drawn_division",
    "load_folder",
    "load_folder_splits",
    "load_folder_test",
    "read_image",
]

_logger = logging.getLogger(__name__)
_AT_A_TIME = 256
"""Images that are looked at together; large parts are on disk."""
_USUAL_SIDE, _LARGEST_COMMON_SIDE = 32, 96
# Images of a part that take more bytes than that stay on disk.
_IN_MEMORY = 256 << 20


@dataclass(frozen=True)
class FolderSource:
    """A folder of images, and how it is read.

    Either `folder/train/CLASS/*` and `folder/test/CLASS/*`, or just one of `folder/train/CLASS/*`
    and `folder/CLASS/*`, from which a random share of each class is for testing. Images may be in
    folders within that of their class. One line names everything left out (hidden files, files that
    are not images, classes without images).

    Attributes:
        folder: Where the images are.
        shape: Channels, height and width that they are converted to.
        labelled: Whether images have classes. If not, all images in the folder and below it are
            used, or those in `folder/train` and `folder/test`; every label is 0.
        test_fraction: Share of each class for testing, where the folder has no test part.
        seed: Number that fixes that share and every draw.
        corrupt: What to do with images that cannot be read: `refuse`, or `skip` to leave them out.
        rules: 2; or 1, as in earlier releases: images in nested folders of a class were left out,
            parts kept the order of the names, a limit of test images took the first, and unreadable
            images were left out before splitting.
    """

    folder: Path
    shape: tuple[int, int, int]
    labelled: bool = True
    test_fraction: float = 0.2
    seed: int = 0
    corrupt: str = "refuse"
    rules: int = 2


def load_folder_splits(
    source: FolderSource,
    *,
    validation: float = 0.0,
    train_limit: int | None = None,
    test_limit: int | None = None,
) -> Splits:
    """Load the images of a folder, split for training.

    Every part is a random draw in proportion to the classes, in an order whose every beginning is
    such a draw too. Only images within the limits are read. Large parts stay on disk
    (`StoredImages`).

    Args:
        source: The folder.
        validation: Share of the kept training images that is held out, from 0 to below 1.
        train_limit: Training images to keep, validation included; all if there are fewer.
        test_limit: Test images to keep; all if there are fewer.

    Raises:
        ConfigError: If a setting is out of range or leaves a part empty.
        DataError: If the folder is not as described or an image cannot be read.
    """
    opened = _Folder(source)
    train, test = opened.parts()
    parts = choose(
        _labels(train),
        _labels(test),
        validation=validation,
        seed=source.seed,
        train_limit=train_limit,
        test_limit=test_limit,
        drawn=source.rules > 1,
    )
    chosen = {"training": _taken(train, parts.train), "test": _taken(test, parts.test)}
    if parts.validation is not None:
        chosen["validation"] = _taken(train, parts.validation)
    splits = opened.read(chosen)
    found = Splits(
        splits["training"],
        splits.get("validation"),
        splits["test"],
        opened.listing.classes,
        test_is_own=opened.listing.test is not None,
        division=_division(opened.listing),
    )
    _say_copies(found, source.folder)
    return checked(found, labelled=source.labelled)


def _say_copies(splits: Splits, folder: Path) -> None:
    """Report test images that are also training images, regardless of their files' names."""
    learned = set(_fingerprints(splits.train))
    copies = sum(one in learned for one in _fingerprints(splits.test))
    if copies:
        _logger.warning(
            "%s: %d of %d test images have the same pixels as a training image; remove copies, or "
            "the scores are too good",
            *(folder, copies, len(splits.test)),
        )


def _fingerprints(split: Split) -> Iterator[bytes]:
    """A checksum for each image, except for blank ones, which are alike without being copies."""
    for images in split.images.split(_AT_A_TIME):
        pixels = images[:].flatten(2)
        has_content = (pixels.amin(2) < pixels.amax(2)).any(1)
        for row in pixels[has_content].numpy():
            yield hashlib.blake2b(row.tobytes(), digest_size=16).digest()


def load_folder_test(
    source: FolderSource, limit: int | None = None, *, drawn: bool | None = None
) -> tuple[Split, tuple[str, ...]]:
    """Load the test images of a folder, and the names of its classes.

    Args:
        source: The folder.
        limit: Number of images; the same ones in the same order as from `load_folder_splits`.
        drawn: Whether they are drawn; by default if the rules say so.

    Raises:
        ConfigError: If a setting is out of range.
        DataError: If the folder is not as described or an image cannot be read.
    """
    opened = _Folder(source)
    _, test = opened.parts()
    order = torch.arange(len(test))
    if source.rules > 1 if drawn is None else drawn:
        order = drawn_order(_labels(test), source.seed)
    return opened.read({"test": _taken(test, order[:limit])})["test"], opened.listing.classes


def drawn_division(source: FolderSource) -> str | None:
    """Identify the images of a folder of which a share was drawn for testing.

    Args:
        source: The folder.

    Returns:
        The `division` of its splits; None if the folder has a test part.

    Raises:
        DataError: If the folder is not as described.
    """
    nested = source.rules > 1
    listing = list_images(source.folder, labelled=source.labelled, nested=nested)
    return _division(listing) if listing.test is None else None


def _division(listing: Listing) -> str:
    """A checksum of the names of all images that are divided by a draw.

    It tells whether test images are among them: those of a test part of its own are not.
    """
    names = [file.name for file in listing.train] + ["test"] * (listing.test is not None)
    return hashlib.sha256(os.fsencode("\0".join(names))).hexdigest()[:32]


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
    """Load all images of a folder, whose subfolders are the classes.

    Classes and files are in the order of their names. Images are stretched to one size, put on
    white where they are transparent, and rotated as their EXIF data says. `FolderSource` describes
    the folder.

    Args:
        folder: Where the images are.
        size: Height and width, or the side of a square. By default the size that all images have,
            if no side is above 96, else 32.
        colour: Whether images have three channels or one. By default one if all are stored in grey.
        test_fraction: Share of each class for testing, where the folder has no test part.
        seed: Number that fixes that share.
        corrupt: What to do with images that cannot be read: `refuse`, or `skip` to leave them out
            and name them in `skipped`.
        labelled: Whether images have classes; see `FolderSource`.

    Raises:
        ConfigError: If a setting is out of range.
        DataError: If the folder is not as described or an image cannot be read.
    """
    if size is not None and np.min(size) < 1:
        raise ConfigError("size", f"{size} is less than 1", "use 1 or more, or leave it out")
    folder = Path(folder)
    listing = None
    if size is None or colour is None:
        listing = list_images(folder, labelled=labelled)
        size, colour = _looks(listing, size, colour)
    height, width = (size, size) if isinstance(size, int) else size
    shape = (3 if colour else 1, height, width)
    opened = _Folder(FolderSource(folder, shape, labelled, test_fraction, seed, corrupt), listing)
    train, test = opened.parts()
    splits = opened.read({"training": train, "test": test})
    return ImageSet(
        splits["training"], splits["test"], opened.listing.classes, tuple(opened.skipped)
    )


def read_image(path: Path, shape: tuple[int, int, int]) -> Tensor:
    """Read one image for a model that takes that shape.

    Args:
        path: An image file.
        shape: Channels (1 or 3), height and width.

    Returns:
        Bytes of that shape, made as in `load_folder`.

    Raises:
        ConfigError: If no image has that shape.
        DataError: If it cannot be read.
    """
    if shape[0] not in (1, 3) or min(shape) < 1:
        raise ConfigError("shape", f"no image has {shape}", "use 1 or 3 channels and sides above 0")
    path = Path(path)
    if not os.path.isfile(path):
        raise DataError(path, "is missing or not a file", "name an image file")
    with quiet_pillow():
        return torch.from_numpy(np.ascontiguousarray(decode(path, shape)))


class _Folder:
    """A folder that is being read.

    Args:
        source: The folder, and how to read it.
        listing: Its images, if they are known.
    """

    def __init__(self, source: FolderSource, listing: Listing | None = None) -> None:
        if not 0 < source.test_fraction < 1:
            why = f"{source.test_fraction} is not a share"
            raise ConfigError("test_fraction", why, "use one between 0 and 1")
        if source.corrupt not in ("refuse", "skip"):
            raise ConfigError("corrupt", f"{source.corrupt!r} is unknown", "use refuse or skip")
        self.source = source
        self.listing = listing or list_images(
            source.folder, labelled=source.labelled, nested=source.rules > 1
        )
        self.skipped: list[str] = []

    def parts(self) -> tuple[Sequence[ImageFile], Sequence[ImageFile]]:
        """Those for training and those for testing."""
        files, tested = self.listing.train, self.listing.test
        if self.source.rules == 1 and self.source.corrupt == "skip":
            files = self._readable(files)
            tested = None if tested is None else self._readable(tested)
        if tested is not None:
            return files, tested
        kept, held_out = hold_out_of_each_class(
            _labels(files), self.source.test_fraction, self.source.seed
        )
        return _taken(files, kept), _taken(files, held_out)

    def _readable(self, files: Sequence[ImageFile]) -> tuple[ImageFile, ...]:
        found = decode_images(self.listing, files, self.source.shape)
        self.listing.left_out.add_unreadable([files[number].name for number in found.errors])
        return tuple(files[number] for number in found.kept)

    def read(self, parts: Mapping[str, Sequence[ImageFile]]) -> dict[str, Split]:
        """Read parts of the folder, all at once; report files that are left out."""
        files = [file for part in parts.values() for file in part]
        found = decode_images(self.listing, files, self.source.shape)
        self._leave_out([files[number] for number in found.errors], list(found.errors.values()))
        splits, before = dict[str, Split](), 0
        for name, part in parts.items():
            inside = (found.kept >= before) & (found.kept < before + len(part))
            rows, kept = found.rows.take(inside), found.kept[inside] - before
            is_large = rows.size > _IN_MEMORY
            labels = _labels([part[number] for number in kept])
            splits[name] = Split(StoredImages(rows) if is_large else rows.read(), labels)
            before += len(part)
        if found.errors:
            self._check_classes(parts, {name: split.labels for name, split in splits.items()})
        return splits

    def _leave_out(self, files: Sequence[ImageFile], errors: list[DataError]) -> None:
        """Refuse unreadable images, or report them with everything else that is left out."""
        if errors and self.source.corrupt == "refuse":
            errors = sorted(errors, key=lambda error: str(error.what))
            more = f", and {len(errors) - 1} more cannot be read" if errors[1:] else ""
            fix = f"{errors[0].fix}, or leave such files out with --set data.corrupt=skip"
            raise DataError(errors[0].what, errors[0].why + more, fix)
        self.skipped = sorted(file.name for file in files)
        left_out = LeftOut(dict(self.listing.left_out.names))
        left_out.add_unreadable(self.skipped)
        left_out.say(self.source.folder)

    def _check_classes(
        self, parts: Mapping[str, Sequence[ImageFile]], kept: Mapping[str, Tensor]
    ) -> None:
        """Refuse a class or a part without a readable image; warn if a part lacks a class."""
        present = {name: set(labels.tolist()) for name, labels in kept.items()}
        lacking = {
            name: Counter(file.label for file in part if file.label not in present[name])
            for name, part in parts.items()
        }
        lost = sorted(set[int]().union(*lacking.values()).difference(*present.values()))
        # The test part alone does not show whether a class is lost completely.
        if lost and "training" in parts:
            self._refuse(f"image{self._of_class(lost[0])}")
        for name, part in parts.items():
            if part and len(kept[name]) == 0:
                self._refuse(f"{name} image")
            for label, count in sorted(lacking[name].items()):
                of_class = self._of_class(label)
                _logger.warning(
                    "%s: no %s image%s can be read (of %d)",
                    *(self.source.folder, name, of_class, count),
                )

    def _of_class(self, label: int) -> str:
        return f" of class {self.listing.classes[label]!r}" if self.listing.classes else ""

    def _refuse(self, what: str) -> NoReturn:
        raise DataError(self.source.folder, f"no {what} can be read", "replace the images")


def _labels(files: Sequence[ImageFile]) -> Tensor:
    return torch.tensor([file.label for file in files], dtype=torch.int64)


def _taken(files: Sequence[ImageFile], which: Tensor) -> list[ImageFile]:
    return [files[number] for number in which.tolist()]


def _looks(
    listing: Listing, size: int | tuple[int, int] | None, colour: bool | None
) -> tuple[int | tuple[int, int], bool]:
    """Size and colour that suit the images, if not given."""
    headers = _headers(listing)
    if size is None:
        sizes = {header.size for header in headers}
        common = len(sizes) == 1 and max(max(sizes)) <= _LARGEST_COMMON_SIDE
        size = sizes.pop() if common else _USUAL_SIDE
    if colour is None:
        colour = not all(header.grey for header in headers)
    return size, colour


def _headers(listing: Listing) -> list[Header]:
    """Read the headers of those images that can be read."""

    def attempt(file: ImageFile) -> Header | None:
        try:
            return read_header(listing.folder / file.name)
        except SystemFailure:
            raise
        except DataError:
            return None

    with quiet_pillow(), ThreadPoolExecutor() as pool:
        return [header for header in pool.map(attempt, listing.files) if header is not None]
