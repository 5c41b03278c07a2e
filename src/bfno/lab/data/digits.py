"""scikit-learn's 8 × 8 digits, which need no download."""

from __future__ import annotations

import torch

from bfno.lab.data.images import Split
from bfno.lab.data.stratify import hold_out_of_each_class
from bfno.lab.errors import ConfigError

__all__ = ["read_digits"]

_TEST_SHARE, _SEED = 0.2, 0


def read_digits() -> tuple[Split, Split]:
    """Return training and test part; a fixed random fifth of each class is for testing.

    The grey levels 0 to 16 become 0 to 255.

    Raises:
        ConfigError: If scikit-learn is missing.

    Example:
        >>> train, test = read_digits()
        >>> len(train), len(test)
        (1438, 359)
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ConfigError(
            "digits", "needs scikit-learn, which is missing", "pip install 'bfno[train]'"
        ) from error
    levels, labels = load_digits(return_X_y=True)
    images = torch.from_numpy(levels).mul(255 / 16).round().to(torch.uint8).view(-1, 1, 8, 8)
    whole = Split(images, torch.from_numpy(labels).to(torch.int64))
    train, test = hold_out_of_each_class(whole.labels, _TEST_SHARE, _SEED)
    return whole.take(train), whole.take(test)
