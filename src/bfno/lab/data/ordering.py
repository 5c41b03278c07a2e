"""The order of series of different lengths in training."""

from __future__ import annotations

import torch
from torch import Tensor

from bfno.lab.errors import ConfigError

__all__ = ["length_batches"]

_POOL = 16  # batches that are sorted together, enough for little padding
_POOLS = 4  # at least; sorted as a whole, the series would meet the same partners in every epoch


def length_batches(lengths: Tensor, batch: int, generator: torch.Generator) -> list[Tensor]:
    """Return random batches of indices of series of about the same length.

    Series are shuffled, sorted by length within pools of up to 16 batches and cut into batches,
    which are shuffled again. Every index occurs once; one batch may be smaller than the others.

    Args:
        lengths: Length of each series.
        batch: Number of series per batch.
        generator: Generator that decides the order.

    Raises:
        ConfigError: If the batch is smaller than 1.

    Example:
        >>> batches = length_batches(torch.tensor([3, 9, 3, 9]), 2, torch.Generator())
        >>> sorted(index for batch in batches for index in batch.tolist())
        [0, 1, 2, 3]
    """
    if batch < 1:
        raise ConfigError("batch", f"{batch} series are too few", "use 1 or more")
    order = torch.randperm(len(lengths), generator=generator)
    batches: list[Tensor] = []
    pool_size = batch * min(_POOL, max(1, len(lengths) // (_POOLS * batch)))
    for pool in order.split(pool_size):
        batches += pool[lengths[pool].argsort(stable=True)].split(batch)
    places = torch.randperm(len(batches), generator=generator).tolist()
    return [batches[place] for place in places if len(batches[place])]
