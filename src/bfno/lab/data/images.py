"""Images with labels as tensors, and how they are split for training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from bfno.lab.data.stratify import drawn_order
from bfno.lab.errors import ConfigError, DataError

__all__ = ["ImageSet", "Parts", "Split", "Splits", "checked", "choose", "divide", "divide_drawn"]
__all__ += ["resized"]

# Images that are resized at once: 25 million float32 numbers for the largest images.
_CHUNK = 512


@dataclass(frozen=True)
class Split:
    """Images and their labels.

    Attributes:
        images: Bytes of shape `(count, channels, height, width)`.
        labels: Integers of shape `(count,)`.
    """

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: Tensor) -> Split:
        """Return these images, in this order."""
        return Split(self.images[indices], self.labels[indices])


@dataclass(frozen=True)
class ImageSet:
    """A data set as it is on disk.

    Attributes:
        train: The training part.
        test: The test part.
        classes: Name of each class, by its label.
        skipped: Files left out because they cannot be read.
    """

    train: Split
    test: Split
    classes: tuple[str, ...]
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True)
class Splits:
    """A data set as training sees it.

    Attributes:
        train: Images to learn from.
        validation: Images that choose the epoch, if any.
        test: Images used once, at the end.
        classes: Name of each class, by its label.
        test_is_own: Whether the user supplied the test images, which may differ from the others.
        division: Identifies the images of a folder that were divided by a draw: with one more or
            less, all parts would be others. Empty where they are always the same.
    """

    train: Split
    validation: Split | None
    test: Split
    classes: tuple[str, ...]
    test_is_own: bool = False
    division: str = ""


@dataclass(frozen=True)
class Parts:
    """The split of a data set, by the images' numbers in its training or test part.

    Attributes:
        train: Training images.
        validation: Those of the training part that choose the epoch, if any.
        test: Test images.
    """

    train: Tensor
    validation: Tensor | None
    test: Tensor


def choose(
    train: Tensor,
    test: Tensor,
    *,
    validation: float = 0.0,
    seed: int = 0,
    train_limit: int | None = None,
    test_limit: int | None = None,
    drawn: bool = True,
) -> Parts:
    """Choose images for training, validation and testing.

    Args:
        train: Labels of the training part.
        test: Labels of the test part.
        validation: Share of the kept training images that is set apart, from 0 to below 1.
        seed: Seed of all draws.
        train_limit: Training images to keep, validation included; all if there are fewer.
        test_limit: Test images to keep; all if there are fewer.
        drawn: Whether each part is a random draw in proportion to the classes, in an order whose
            every beginning is one too. If not, see `divide`.

    Raises:
        ConfigError: If a setting is out of range.
    """
    if not 0 <= validation < 1:
        raise ConfigError(
            "validation",
            f"{validation} is not a share",
            "use a number from 0 up to, but not including, 1",
        )
    for name, value in {"train_limit": train_limit, "test_limit": test_limit}.items():
        if value is not None and value < 1:
            raise ConfigError(name, f"{value} is less than 1", "use 1 or more, or leave it out")
    tested = drawn_order(test, seed) if drawn else torch.arange(len(test))
    order = drawn_order(train, seed) if drawn else _any_order(len(train), seed)
    order = order[:train_limit]
    kept = len(order) - round(validation * len(order))
    trained, held_out = order[:kept], order[kept:]
    if validation and not len(held_out):
        images = "image" if len(order) == 1 else "images"
        why = f"{validation:g} of {len(order)} training {images} leaves no validation image"
        fix = "add images, or train without validation: --set data.validation=0"
        raise ConfigError("validation images", why, fix)
    if not drawn:
        trained, held_out = trained.sort().values, held_out.sort().values
    return Parts(trained, held_out if validation else None, tested[:test_limit])


def _any_order(count: int, seed: int) -> Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))


def divide(
    images: ImageSet,
    *,
    validation: float = 0.0,
    seed: int = 0,
    train_limit: int | None = None,
    test_limit: int | None = None,
    size: int | None = None,
    labelled: bool = True,
) -> Splits:
    """Split a data set into training, validation and test images.

    One random order of the training part decides everything: its first `train_limit` images are
    kept, and the last share of these is the validation part. Each part is then put back into the
    order of the file. The first images of the test part are kept: published files are in random
    order (`bfno.lab.data.load_folder_splits` draws, because folders are ordered by class).

    Args:
        images: The data set.
        validation: Share of the kept training images that is set apart, from 0 to below 1.
        seed: Seed of the random order.
        train_limit: Training images to keep, validation included; all if there are fewer.
        test_limit: Test images to keep, the first ones of the file; all if there are fewer.
        size: Side of a square grid for all images. Sides that it divides are averaged over
            blocks; otherwise linear interpolation with antialiasing.
        labelled: Whether the labels matter, so that there must be several.

    Raises:
        ConfigError: If a setting is out of range or leaves a part empty.
        DataError: If the training images are all of one class.

    Example:
        >>> part = Split(torch.zeros(10, 1, 8, 8, dtype=torch.uint8), torch.arange(10) % 2)
        >>> splits = divide(ImageSet(part, part, ("a", "b")), validation=0.2, size=4)
        >>> splits.train.images.shape
        torch.Size([8, 1, 4, 4])
    """
    if size is not None and size < 1:
        raise ConfigError("size", f"{size} is less than 1", "use 1 or more, or leave it out")
    parts = choose(
        images.train.labels,
        images.test.labels,
        validation=validation,
        seed=seed,
        train_limit=train_limit,
        test_limit=test_limit,
        drawn=False,
    )
    found = Splits(
        _taken(images.train, parts.train),
        None if parts.validation is None else _taken(images.train, parts.validation),
        _taken(images.test, parts.test),
        images.classes,
    )
    checked(found, labelled=labelled)
    if size is None:
        return found
    held_out = None if found.validation is None else resized(found.validation, size)
    return Splits(resized(found.train, size), held_out, resized(found.test, size), found.classes)


def divide_drawn(
    images: Split, classes: tuple[str, ...], *, validation: float = 0.0, seed: int = 0
) -> Splits:
    """Split images for training and validation, in proportion to the classes.

    Args:
        images: All images.
        classes: Name of each class, by its label.
        validation: Share that is held out, from 0 to below 1.
        seed: Seed of the choice.

    Returns:
        Splits whose test part is empty.

    Raises:
        ConfigError: If the share is out of range or leaves a part empty.
    """
    nothing = torch.arange(0)
    parts = choose(images.labels, images.labels[nothing], validation=validation, seed=seed)
    held_out = None if parts.validation is None else images.take(parts.validation)
    return Splits(images.take(parts.train), held_out, images.take(nothing), classes)


def _taken(split: Split, which: Tensor) -> Split:
    """These images, without a copy if they are all images in order."""
    is_all = len(which) == len(split) and bool((which == torch.arange(len(which))).all())
    return split if is_all else split.take(which)


def checked(splits: Splits, *, labelled: bool = True) -> Splits:
    """Return the splits if a model can be trained with them.

    Args:
        splits: The splits.
        labelled: Whether the labels matter, so that there must be several.

    Raises:
        ConfigError: If one of them is empty.
        DataError: If the training images are all of one class.
    """
    parts = {"training": splits.train, "validation": splits.validation, "test": splits.test}
    fixes = {"test": "add images, or a folder test of your own beside train"}
    for name, part in parts.items():
        if part is not None and len(part) == 0:
            fix = fixes.get(name, "raise the limits or change the validation share")
            raise ConfigError(f"{name} images", "none are left", fix)
    labels = splits.train.labels
    if labelled and bool((labels == labels[0]).all()):
        raise DataError(
            "training images",
            f"all {len(labels)} are of one class, {splits.classes[int(labels[0])]!r}",
            "use images of two or more classes, or a larger train_limit",
        )
    return splits


def resized(split: Split, size: int) -> Split:
    """Return the images on a square grid, rounded to bytes.

    Sides that `size` divides are averaged over blocks; otherwise linear interpolation with
    antialiasing.

    Args:
        split: Images of any size.
        size: Side of the grid.

    Example:
        >>> images = torch.tensor([[[[0, 10], [20, 31]]]], dtype=torch.uint8)
        >>> resized(Split(images, torch.tensor([0])), 1).images.item()
        15
    """
    count, channels, height, width = split.images.shape
    if (height, width) == (size, size):
        return split
    resize = _average(size) if height % size == 0 and width % size == 0 else _interpolate(size)
    images = torch.empty(count, channels, size, size, dtype=torch.uint8)
    for start in range(0, count, _CHUNK):
        chunk = split.images[start : start + _CHUNK].to(torch.float32)
        images[start : start + _CHUNK] = resize(chunk).round_().clamp_(0, 255).to(torch.uint8)
    return replace(split, images=images)


def _average(size: int) -> Callable[[Tensor], Tensor]:
    return lambda images: functional.adaptive_avg_pool2d(images, size)


def _interpolate(size: int) -> Callable[[Tensor], Tensor]:
    return lambda images: functional.interpolate(
        images, (size, size), mode="bilinear", antialias=True
    )
