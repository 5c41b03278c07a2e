"""The numbers by which runs are compared: key, title, digits and direction of each, once."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["COMPANIONS", "HEADLINES", "Metric", "find_metric"]


@dataclass(frozen=True)
class Metric:
    """A number by which runs are compared.

    Attributes:
        key: Its key in the record.
        title: Its name for people.
        digits: Decimals that are worth printing.
        higher_is_better: Which way is up.
    """

    key: str
    title: str
    digits: int
    higher_is_better: bool

    @property
    def name(self) -> str:
        """The key without the split: `accuracy` of `test_accuracy`."""
        return self.key.removeprefix("test_")

    def rank(self, value: float | None) -> float:
        """A number to sort by: the best value is the smallest, no number at all comes last."""
        if value is None or math.isnan(value):
            return math.inf
        return -value if self.higher_is_better else value


# A run is judged by the one that it names, else by the first of these that it has; a new task adds
# its line here.
HEADLINES = (
    Metric("test_accuracy", "test accuracy", 4, higher_is_better=True),
    Metric("test_auroc", "test AUROC", 4, higher_is_better=True),
    Metric("test_bits_per_dim", "test bits/dim (uniform)", 3, higher_is_better=False),
    Metric("test_nll", "test NLL", 4, higher_is_better=False),
    Metric("test_mse", "test MSE", 5, higher_is_better=False),
    Metric("test_loss", "test loss", 4, higher_is_better=False),
)
# Shown beside the headline, though no run is judged by them: densities at the centres of bytes are
# what some papers print, but no bound.
COMPANIONS = (Metric("test_bits_per_dim_center", "test bits/dim (center)", 3, False),)


def find_metric(key: str) -> Metric:
    """The metric that has this key in records.

    Example:
        >>> find_metric("test_nll").title
        'test NLL'
    """
    return next(metric for metric in (*HEADLINES, *COMPANIONS) if metric.key == key)
