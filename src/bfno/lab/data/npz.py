"""CIFAR in numpy's `.npz` format, as people share it; no pickle is ever opened."""

from __future__ import annotations

import math
import zipfile
from pathlib import Path

import numpy as np
import torch
from numpy.lib import format as npy

from bfno.lab.data.catalogue import DataSet
from bfno.lab.data.contents import Content, again
from bfno.lab.data.images import Split
from bfno.lab.data.labels import checked_labels
from bfno.lab.data.reading import read_up_to, refusing_damage

__all__ = ["read_npz"]

_LABEL_BYTES = 8  # the widest whole numbers


def read_npz(path: Path, data_set: DataSet) -> tuple[Split, Split]:
    """Return training and test part from `train_images`, `train_labels` and so on.

    Images are bytes with channels last or first. Headers are checked against the official counts
    and the real size before anything is allocated.

    Raises:
        DataError: If an array is missing, damaged, of another type or too large.
    """
    content = Content(str(path), np.empty(0, np.uint8), again(data_set))
    with refusing_damage(path, content.fix), zipfile.ZipFile(path) as archive:
        counts = {"train": data_set.train_count, "test": data_set.test_count}
        train, test = (_split(archive, part, counts[part], data_set, content) for part in counts)
        return train, test


def _split(
    archive: zipfile.ZipFile, part: str, most: int, data_set: DataSet, content: Content
) -> Split:
    images = _array(archive, f"{part}_images", most * math.prod(data_set.shape), content)
    labels = _array(archive, f"{part}_labels", most * _LABEL_BYTES, content)
    channels, height, width = data_set.shape
    if images.shape[1:] == (height, width, channels):
        images = images.transpose(0, 3, 1, 2)
    if images.dtype != np.uint8 or images.shape[1:] != data_set.shape or not len(images):
        raise content.wrong(f"{part}_images is {images.dtype} of shape {images.shape}")
    if labels.dtype.kind not in "iu" or labels.ndim != 1:
        raise content.wrong(f"{part}_labels is {labels.dtype} of shape {labels.shape}")
    numbers = checked_labels(labels, len(images), data_set.classes, content)
    return Split(torch.from_numpy(np.ascontiguousarray(images)), numbers)


def _array(archive: zipfile.ZipFile, name: str, most: int, content: Content) -> np.ndarray:
    if f"{name}.npy" not in archive.namelist():
        raise content.wrong(f"lacks the array {name}")
    with archive.open(f"{name}.npy") as stream:
        version = npy.read_magic(stream)
        if version == (1, 0):
            shape, fortran, dtype = npy.read_array_header_1_0(stream)
        elif version == (2, 0):
            shape, fortran, dtype = npy.read_array_header_2_0(stream)
        else:
            raise content.wrong(f"{name} has the unknown version {version}")
        size = math.prod(shape) * dtype.itemsize
        if dtype.hasobject or not 0 <= size <= most:
            raise content.wrong(f"{name} declares {dtype} of shape {shape}")
        data = read_up_to(stream, size)
        # Reading beyond the array makes zipfile compare the checksum of the whole file.
        if len(data) != size or stream.read(1):
            raise content.wrong(f"{name} is not as long as its header declares")
    return data.view(dtype).reshape(shape, order="F" if fortran else "C")
