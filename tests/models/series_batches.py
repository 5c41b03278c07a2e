"""Small irregular series, and ways of changing them that models must not notice."""

from typing import NamedTuple

import torch
from torch import Tensor


class Batch(NamedTuple):
    """Arguments of a model of series."""

    times: Tensor
    values: Tensor
    mask: Tensor


def random_batch(lengths=(5, 3, 7), features=2, *, seed=0, share=0.6):
    """Series of these lengths, each on random times of its own from zero on, padded."""
    draw = torch.Generator().manual_seed(seed)
    longest = max(lengths)
    times = torch.rand(len(lengths), longest, generator=draw).sort(dim=1).values
    times = times - times[:, :1]
    mask = torch.rand(len(lengths), longest, features, generator=draw) < share
    values = torch.randn(len(lengths), longest, features, generator=draw)
    for row, length in enumerate(lengths):
        times[row, length:] = times[row, length - 1]
        mask[row, length:] = False
    return Batch(times, values * mask, mask)


def one_series(batch, row, length=None):
    """A series of a batch without the others."""
    return Batch(*(part[row : row + 1, :length] for part in batch))


def changed_series(batch, row):
    """The same batch with other values and other times in one series."""
    times, values = batch.times.clone(), batch.values.clone()
    times[row] = times[row] * 0.7 + 0.1
    values[row] += batch.mask[row] * 1.5
    return Batch(times, values, batch.mask)


def padded(batch, rows=3):
    """The same batch with more padding."""
    times = torch.cat((batch.times, batch.times[:, -1:].expand(-1, rows)), dim=1)
    more = (0, 0, 0, rows)
    pad = torch.nn.functional.pad
    return Batch(times, pad(batch.values, more), pad(batch.mask, more))


def with_rubbish_where_nothing_was_observed(batch):
    """The same observations, with not-a-number everywhere else."""
    return Batch(batch.times, batch.values.where(batch.mask, torch.nan), batch.mask)


def on_union_of_times(batch):
    """The same rows on the union of all times, and the place of each row on it."""
    union, place = batch.times.unique(return_inverse=True)
    shape = (len(batch.times), len(union), batch.values.shape[-1])
    values, mask = torch.zeros(shape), torch.zeros(shape, dtype=torch.bool)
    series = torch.arange(len(batch.times))[:, None].expand_as(place)
    seen = batch.mask.any(-1)
    values[series[seen], place[seen]] = batch.values[seen]
    mask[series[seen], place[seen]] = batch.mask[seen]
    return Batch(union.expand(len(batch.times), -1), values, mask), place
