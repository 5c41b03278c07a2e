"""Divides labelled things so that each class keeps its share."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["hold_out_of_each_class"]


def hold_out_of_each_class(labels: Tensor, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Return the indices to keep and those to hold out, each in ascending order.

    A class of two or more keeps at least one on either side; a single one is kept.

    Args:
        labels: Class of each thing.
        share: Part of each class to hold out.
        seed: Number that fixes the choice.

    Example:
        >>> kept, held_out = hold_out_of_each_class(torch.tensor([0, 1, 0, 1, 1]), 0.5, seed=0)
        >>> len(kept), len(held_out)
        (2, 3)
    """
    generator = torch.Generator().manual_seed(seed)
    held_out = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique():
        members = (labels == label).nonzero().flatten()
        count = min(max(round(share * len(members)), 1), len(members) - 1)
        held_out[members[torch.randperm(len(members), generator=generator)[:count]]] = True
    return (~held_out).nonzero().flatten(), held_out.nonzero().flatten()
