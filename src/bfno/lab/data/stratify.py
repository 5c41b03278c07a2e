"""Splits and draws labelled items so that each class keeps its share."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["drawn_order", "hold_out_of_each_class"]


def hold_out_of_each_class(labels: Tensor, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Return the indices to keep and those to hold out, each in ascending order.

    A class of two or more has at least one on either side; a single item is kept.

    Args:
        labels: Class of each thing.
        share: Part of each class to hold out.
        seed: Seed of the choice.

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


def drawn_order(labels: Tensor, seed: int) -> Tensor:
    """Return all indices in a random order whose every beginning and end is a fair draw.

    For any N, the first N items have each class in proportion, up to about one item; twice as many
    items as there are classes contain at least one of each. For items of one class, it is any
    order.

    Args:
        labels: Class of each thing.
        seed: Seed of the order.

    Example:
        >>> labels = torch.tensor([0] * 90 + [1] * 10)
        >>> labels[drawn_order(labels, seed=0)][:20].sum()
        tensor(2)
    """
    generator = torch.Generator().manual_seed(seed)
    shuffled = torch.randperm(len(labels), generator=generator)
    classes, inverse, counts = labels[shuffled].unique(return_inverse=True, return_counts=True)
    by_class = inverse.argsort(stable=True)
    starts = counts.cumsum(0) - counts
    number = torch.empty_like(by_class)  # of each thing among those of its class
    number[by_class] = torch.arange(len(labels)) - starts[inverse[by_class]]
    # Spread evenly, the items of a class are in the middle of stretches of equal length ...
    places = (number.double() + 0.5) * (len(labels) / counts[inverse].double())
    # ... but the first one of a rare class not as late as that.
    turns = torch.randperm(len(classes), generator=generator)[inverse].double()
    places = places.where(number > 0, places.minimum(turns))
    return shuffled[places.argsort(stable=True)]
