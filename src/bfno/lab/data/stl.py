"""STL-10's binary format: pixels column by column, and labels that count from one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bfno.lab.data.catalogue import DATA_SETS, DataSet
from bfno.lab.data.contents import Content, again
from bfno.lab.data.images import Split
from bfno.lab.data.labels import checked_labels
from bfno.lab.data.reading import refusing_damage
from bfno.lab.errors import DataError

__all__ = ["read_stl", "stl10_folds"]

_FOLDS, _FOLD_SIZE = 10, 1000
_FOLDS_LIMIT = 1 << 17


def read_stl(contents: Mapping[str, Content], data_set: DataSet) -> tuple[Split, Split]:
    """Return training and test part from the four files."""
    images, labels, test_images, test_labels = (contents[file.name] for file in data_set.contents)
    return _split(images, labels, data_set), _split(test_images, test_labels, data_set)


def _split(images: Content, labels: Content, data_set: DataSet) -> Split:
    count, rest = divmod(len(images.data), math.prod(data_set.shape))
    if rest or not count:
        raise images.wrong(f"is cut off: {len(images.data):,} bytes are not whole images")
    columns = images.data.reshape(count, *data_set.shape)
    numbers = checked_labels(labels.data.astype(np.int64) - 1, count, data_set.classes, labels)
    return Split(torch.from_numpy(np.ascontiguousarray(columns.swapaxes(2, 3))), numbers)


def stl10_folds(folder: Path) -> list[Tensor]:
    """Return the ten official training folds, each as indices into the training images.

    Args:
        folder: Folder with `fold_indices.txt`.

    Raises:
        DataError: If the file is missing or is not ten lines of a thousand indices.
    """
    path, data_set = folder / "fold_indices.txt", DATA_SETS["stl10"]
    with refusing_damage(path, again(data_set)), open(path, "rb") as stream:
        lines = stream.read(_FOLDS_LIMIT).decode("ascii").split("\n")
        folds = [torch.tensor([int(word) for word in line.split()]) for line in lines if line]
    whole = len(folds) == _FOLDS and all(len(fold) == _FOLD_SIZE for fold in folds)
    if not whole or any(fold.min() < 0 or fold.max() >= data_set.train_count for fold in folds):
        raise DataError(path, "is not ten lines of a thousand indices", again(data_set))
    return folds
