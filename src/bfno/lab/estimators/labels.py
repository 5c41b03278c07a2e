"""Labels of any kind, for classifiers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.utils import assert_all_finite, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from torch import Tensor

from bfno.lab.estimators.masked import refuse_masked

__all__ = ["encoded_labels"]


def encoded_labels(y: Any, count: int, samples: str) -> tuple[np.ndarray, Tensor]:
    """The classes in order, and the number of the class of each sample.

    Args:
        y: Labels: words, numbers or booleans.
        count: Number of samples.
        samples: The word for them in messages.

    Raises:
        ValueError: If labels are missing or masked, too many or too few, or all the same.

    Example:
        >>> encoded_labels(["no", "yes", "no"], 3, "images")
        (array(['no', 'yes'], dtype='<U3'), tensor([0, 1, 0]))
    """
    if y is None:
        raise ValueError("fit requires y to be passed, but the target y is None")
    refuse_masked(y, "y", "leave samples without label out")
    labels = column_or_1d(np.asarray(y), warn=True)
    if len(labels) != count:
        raise ValueError(f"y must hold one label for each of the {count} {samples}, got {len(y)}")
    if labels.dtype.kind == "f":
        assert_all_finite(labels, input_name="y")
    if labels.dtype.kind in "OmM" and any(_is_missing(label) for label in labels):
        raise ValueError("y must hold no missing label; leave samples without label out")
    if labels.dtype.kind in "OS" and any(isinstance(label, bytes) for label in labels):
        raise ValueError("y must hold str instead of bytes; [label.decode() for label in y]")
    try:
        check_classification_targets(labels)
        classes, codes = np.unique(labels, return_inverse=True)
    except TypeError:
        raise ValueError("y must hold labels of one kind, such as str, got a mixture") from None
    if len(classes) < 2:
        raise ValueError(f"y must hold at least two classes, got 1 class: {classes[0]!r}")
    return classes, torch.from_numpy(codes.astype(np.int64))


def _is_missing(label: object) -> bool:
    try:
        return label is None or bool(label != label)
    except TypeError:  # the NA of pandas is neither equal nor unequal to anything
        return True
