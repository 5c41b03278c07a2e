"""Whether a difference between methods may be chance."""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["LIMIT", "chance_of_lead"]

LIMIT = 0.05
"""A lead that chance alone gives more often than this proves nothing."""


def chance_of_lead(
    ours: Sequence[float | None], others: Sequence[float | None], rivals: int = 1
) -> float | None:
    """How often methods that are equal would lie at least as far apart: Welch's test.

    Args:
        ours: A score for each seed.
        others: Those of the other method.
        rivals: How many methods the other one is the best of. The more there are, the likelier it
            is that one of them was lucky; the probability is multiplied by their number.

    Returns:
        A probability; None if there are not two numbers of each.

    Example:
        >>> round(chance_of_lead([0.95, 0.96, 0.95], [0.92, 0.93, 0.92]), 4)
        0.0031
    """
    first, second = ([one for one in some if one is not None] for some in (ours, others))
    if min(len(first), len(second)) < 2 or not all(map(math.isfinite, first + second)):
        return None
    (mean, error), (other, other_error) = map(_mean_and_error, (first, second))
    error_of_lead = error + other_error
    if error_of_lead == 0:
        return 1.0 if mean == other else 0.0
    from scipy.special import stdtr  # scipy takes long to import

    freedom = error_of_lead**2 / (error**2 / (len(first) - 1) + other_error**2 / (len(second) - 1))
    both_sides = 2 * float(stdtr(freedom, -abs(mean - other) / math.sqrt(error_of_lead)))
    return min(1.0, rivals * both_sides)


def _mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """The mean, and the variance that it has itself."""
    mean = sum(values) / len(values)
    variance = sum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return mean, variance / len(values)
