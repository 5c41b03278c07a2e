"""Gaps between the rows of irregular series, and values for what was not observed in them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["DecayImputation", "decay_factor", "row_gaps", "time_since_observed"]

# A decay beyond this is zero in every precision.
_LARGEST_EXPONENT = 1000.0


def row_gaps(times: Tensor, which: str = "previous") -> Tensor:
    """Length of the gap beside each row.

    Args:
        times: `(batch, rows)`; ascending or descending.
        which: "previous" is the time since the row before, 0 at the first. "next" is the time
            until the row after, 0 at the last.

    Raises:
        ValueError: If `which` is neither.

    Example:
        >>> row_gaps(torch.tensor([[0.0, 1.0, 4.0]]))
        tensor([[0., 1., 3.]]...)
        >>> row_gaps(torch.tensor([[0.0, 1.0, 4.0]]), "next")
        tensor([[1., 3., 0.]]...)
    """
    if which not in ("previous", "next"):
        raise ValueError(f"gap must be previous or next, got {which!r}; previous is causal")
    return F.pad(times.diff(dim=1).abs(), (1, 0) if which == "previous" else (0, 1))


def time_since_observed(gaps: Tensor, mask: Tensor) -> Tensor:
    """Time between the last observation of a feature before a row and that row.

    Before its first observation a feature counts as observed in the first row.

    Args:
        gaps: `(batch, rows)`; see `row_gaps`.
        mask: `(batch, rows, features)`.

    Returns:
        `(batch, rows, features)`; the gaps from the row after the observation on, added up.

    Example:
        >>> mask = torch.tensor([[[True], [False], [True], [True]]])
        >>> time_since_observed(torch.tensor([[0.0, 1.0, 2.0, 4.0]]), mask).flatten()
        tensor([0., 1., 3., 4.]...)
    """
    elapsed = gaps.cumsum(1).unsqueeze(-1).expand(mask.shape)
    before = F.pad(_last_observed(mask)[:, :-1], (0, 0, 1, 0))
    since = elapsed - elapsed.gather(1, before)
    return torch.cat((elapsed[:, :1], since[:, 1:]), dim=1)


def decay_factor(exponent: Tensor) -> Tensor:
    """What a decay leaves, between 0 and 1: `exp(-exponent)`, negative exponents cut to zero."""
    return torch.exp(-exponent.clamp(0.0, _LARGEST_EXPONENT))


class DecayImputation(nn.Module):
    """Values for what was not observed: the last one, fading into the mean.

    The mean is that of all observed values of the feature in the series, also of later ones, and
    zero where there are none; so is the last value before the first observation.

    Args:
        features: Number of features; each fades at a rate of its own.

    Shape:
        `values` and `mask` `(batch, rows, features)`, values zero where nothing was observed, and
        `since` from `time_since_observed`, to `(batch, rows, features)`.

    References:
        Che et al., Recurrent Neural Networks for Multivariate Time Series with Missing Values,
        2018.
    """

    def __init__(self, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(features))
        self.bias = nn.Parameter(torch.zeros(features))

    def forward(self, values: Tensor, mask: Tensor, since: Tensor) -> Tensor:
        last = values.gather(1, _last_observed(mask))
        mean = values.sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)
        kept = decay_factor(self.weight * since + self.bias)
        return values.where(mask, torch.lerp(mean, last, kept))


def _last_observed(mask: Tensor) -> Tensor:
    """Number of the last row up to each one that observed the feature; 0 where there is none."""
    number = torch.arange(mask.shape[1], device=mask.device).view(-1, 1)
    return (number * mask).cummax(dim=1).values
