"""Latent states that move together with the attention between their coordinates."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from bfno.models.generators import CoupledGenerator

__all__ = ["ACEGenerator", "correlation"]

_SMALLEST_VARIANCE = 1e-12


class ACEGenerator(CoupledGenerator):
    """Moves states `z` and an attention `a` between their coordinates, each by the other (ACE).

    For each latent sample, with one row of `z` a series and as many rows of `a` as coordinates,

        z̃ = z softmax(a)ᵀ,    z' = f(z̃),    a' = z̃ᵀ g(z̃) / batch,

    where the softmax makes every row of `a` sum to one. The attention starts as the correlation
    of the coordinates over the batch, and is not read out. Every series therefore depends on the
    others of its batch.

    Args:
        field: The network `f` of states, `(..., size)` to the same.
        attention_field: The network `g`, of the same shape. Belongs to the variant `own` alone.
        variant: `own` as above. `public_code` takes `a` without the softmax and `f` for `g`, as
            the published code does. That code also draws the map from `g(z̃)` to `a'` anew at
            every call, which no training can follow; it is the mean above in both variants.
        **settings: As for `Generator`.

    References:
        Jhin et al., ACE-NODE: Attentive Co-Evolving Neural Ordinary Differential Equations, 2021.
    """

    def __init__(
        self,
        field: nn.Module,
        attention_field: nn.Module | None = None,
        *,
        variant: str = "own",
        **settings: Any,
    ) -> None:
        super().__init__(field, **settings)
        if variant not in ("own", "public_code"):
            raise ValueError(f"variant must be own or public_code, got {variant!r}")
        if (variant == "own") != (attention_field is not None):
            raise ValueError("attention_field belongs to variant='own' alone, which needs it")
        self.variant, self.attention_field = variant, attention_field

    def rates(self, z: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
        """How states `(samples, batch, size)` and attentions `(samples, size, size)` change."""
        weights = a.softmax(-1) if self.variant == "own" else a
        attended = z @ weights.mT
        slope = self.field(attended)
        other = slope if self.attention_field is None else self.attention_field(attended)
        return slope, attended.mT @ other / z.shape[1]

    def _trajectories(self, z0: Tensor, times: Tensor) -> Tensor:
        batch = z0.shape[1]

        def rates(t: Tensor, rows: Tensor) -> Tensor:
            z, a = rows[:batch].transpose(0, 1), rows[batch:].transpose(0, 1)
            return torch.cat(self.rates(z, a), dim=1).transpose(0, 1).contiguous()

        # States and attentions have rows of the same size, so they fit into one tensor.
        rows = torch.cat((z0, correlation(z0)), dim=1).transpose(0, 1).contiguous()
        return self._solve_together(rates, rows, times)


def correlation(z: Tensor) -> Tensor:
    """Correlation of coordinates over the batch.

    A coordinate that is the same in the whole batch, as every one is in a batch of one, correlates
    with nothing, not even with itself.

    Args:
        z: `(samples, batch, size)`.

    Returns:
        `(samples, size, size)`.

    Example:
        >>> correlation(torch.tensor([[[1.0, 5.0, 2.0], [3.0, 1.0, 2.0]]])).round(decimals=3)
        tensor([[[ 1., -1.,  0.],
                 [-1.,  1.,  0.],
                 [ 0.,  0.,  0.]]]...)
    """
    centred = z - z.mean(1, keepdim=True)
    # The root of a variance of zero has no slope; this little more gives it one.
    deviation = (centred.square().mean(1, keepdim=True) + _SMALLEST_VARIANCE).sqrt()
    normalised = centred / deviation
    return normalised.mT @ normalised / z.shape[1]
