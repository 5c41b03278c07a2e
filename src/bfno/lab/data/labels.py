"""Labels and class names from files."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bfno.lab.data.catalogue import DataSet
from bfno.lab.data.contents import Content, again
from bfno.lab.data.reading import refusing_damage
from bfno.lab.errors import DataError

__all__ = ["checked_labels", "class_names"]

_NAMES_LIMIT = 1 << 16


def checked_labels(labels: np.ndarray, count: int, classes: int, content: Content) -> Tensor:
    """Return the labels as a tensor, after checking them against the images and the classes.

    Args:
        labels: Whole numbers, one per image.
        count: Number of images.
        classes: Number of classes.
        content: The file they came from.

    Raises:
        DataError: If their number or a value is wrong; it names the first wrong one.
    """
    if len(labels) != count:
        raise content.wrong(f"holds {len(labels):,} labels for {count:,} images")
    bad = np.flatnonzero((labels < 0) | (labels >= classes))
    if len(bad):
        raise content.wrong(
            f"label {int(labels[bad[0]])} of image {int(bad[0])} is none of the {classes} classes"
        )
    return torch.from_numpy(labels.astype(np.int64))


def class_names(folder: Path, data_set: DataSet) -> tuple[str, ...]:
    """The names in the data set's own file, or the official ones if it is missing."""
    path = folder / (data_set.names_file or "")
    if not os.path.isfile(path):
        return data_set.class_names
    with refusing_damage(path, again(data_set)), open(path, "rb") as stream:
        names = tuple(stream.read(_NAMES_LIMIT).decode().split())
    if len(set(names)) != data_set.classes or len(names) != data_set.classes:
        why = f"holds {len(names)} names instead of {data_set.classes} different ones"
        raise DataError(path, why, f"delete it, or {again(data_set)}")
    return names
