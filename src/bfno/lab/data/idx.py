"""MNIST's format: a magic number, the counts, then plain bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch

from bfno.lab.data.catalogue import DataSet
from bfno.lab.data.contents import Content
from bfno.lab.data.images import Split
from bfno.lab.data.labels import checked_labels

__all__ = ["read_idx"]

_BYTES = 0x0800  # the format's code for bytes; the number of axes is added to it


def read_idx(contents: Mapping[str, Content], data_set: DataSet) -> tuple[Split, Split]:
    """Return training and test part from the four files."""
    images, labels, test_images, test_labels = (contents[file.name] for file in data_set.contents)
    return _split(images, labels, data_set), _split(test_images, test_labels, data_set)


def _split(images: Content, labels: Content, data_set: DataSet) -> Split:
    pixels = _array(images, axes=3)
    if pixels.shape[1:] != data_set.shape[1:]:
        found = " × ".join(map(str, pixels.shape[1:]))
        raise images.wrong(f"holds images of {found} pixels, not those of {data_set.title}")
    numbers = checked_labels(_array(labels, axes=1), len(pixels), data_set.classes, labels)
    return Split(torch.from_numpy(pixels).unsqueeze(1), numbers)


def _array(content: Content, axes: int) -> np.ndarray:
    """The bytes in the shape declared by the header, after checking it against the real size."""
    data, start = content.data, 4 * (1 + axes)
    if len(data) < start:
        raise content.wrong("ends within its header")
    magic, *shape = (int(number) for number in data[:start].view(">u4"))
    if magic != _BYTES + axes:
        raise content.wrong(f"begins with {magic:#010x}, not with {_BYTES + axes:#010x}")
    declared = start + math.prod(shape)
    if declared != len(data):
        side = "is cut off" if declared > len(data) else "is too long"
        raise content.wrong(f"{side}: its header declares {declared:,} bytes")
    if 0 in shape:
        raise content.wrong("holds nothing")
    return data[start:].reshape(shape)
