"""CIFAR's binary format: records of label bytes and three planes of pixels."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch

from bfno.lab.data.catalogue import DataSet
from bfno.lab.data.contents import Content
from bfno.lab.data.images import Split
from bfno.lab.data.labels import checked_labels

__all__ = ["read_cifar"]


def read_cifar(contents: Mapping[str, Content], data_set: DataSet) -> tuple[Split, Split]:
    """Return training and test part from the batches."""
    batches = {file.name: _batch(contents[file.name], data_set) for file in data_set.contents}
    test = [batches.pop(name) for name in list(batches) if name.startswith("test")]
    return _joined(list(batches.values())), _joined(test)


def _batch(content: Content, data_set: DataSet) -> Split:
    # CIFAR-100 has two label bytes, the coarse class and then the fine one; the last one counts.
    label_bytes = 2 if data_set.name == "cifar100" else 1
    record = label_bytes + math.prod(data_set.shape)
    count, rest = divmod(len(content.data), record)
    if rest or not count:
        raise content.wrong(f"is cut off: {len(content.data):,} bytes are not whole images")
    records = content.data.reshape(count, record)
    labels = checked_labels(records[:, label_bytes - 1], count, data_set.classes, content)
    pixels = np.ascontiguousarray(records[:, label_bytes:]).reshape(count, *data_set.shape)
    return Split(torch.from_numpy(pixels), labels)


def _joined(batches: list[Split]) -> Split:
    return Split(
        torch.cat([batch.images for batch in batches]),
        torch.cat([batch.labels for batch in batches]),
    )
