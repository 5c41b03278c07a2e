"""Irregular series as tensors, and batches of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bfno.lab.data.table_layout import TableLayout

__all__ = ["UNLABELLED", "Scaling", "Series", "SeriesBatch", "SeriesSplits", "in_single"]

UNLABELLED = -1
"""The label of rows and series without one."""

# Share of a feature's scale by which single precision may move a value.
_HARMLESS = 0.01


@dataclass(frozen=True)
class SeriesBatch:
    """A batch of series, padded to the longest.

    Attributes:
        times: `(batch, time)`; padding repeats a series' last time.
        values: `(batch, time, features)`; zero where nothing was observed.
        mask: `(batch, time, features)`; whether the value was observed.
        labels: `(batch,)`, or `(batch, time)` if every row has one; `UNLABELLED` for none.
        rows: `(batch, time)`; number of the row among all rows of the table, -1 for no row.
    """

    times: Tensor
    values: Tensor
    mask: Tensor
    labels: Tensor
    rows: Tensor

    def to(self, device: torch.device, dtype: torch.dtype) -> SeriesBatch:
        """The same on another device, in another precision."""
        return SeriesBatch(
            self.times.to(device, dtype, non_blocking=True),
            self.values.to(device, dtype, non_blocking=True),
            self.mask.to(device, non_blocking=True),
            self.labels.to(device, non_blocking=True),
            self.rows,
        )


@dataclass(frozen=True)
class Series:
    """Irregular series, one after the other.

    Attributes:
        times: Time of each row, `(rows,)`, in double precision; ascending within a series.
        values: `(rows, features)`, in single precision once they are scaled; zero where nothing
            was observed.
        mask: `(rows, features)`; whether the value was observed.
        labels: `(count,)`, or `(rows,)` where every row has one; `UNLABELLED` for none.
        starts: Number of each series' first row, then the number of all rows, `(count + 1,)`.
        ids: Name of each series.
        by_row: Whether every row has a label; else every series.
    """

    times: Tensor
    values: Tensor
    mask: Tensor
    labels: Tensor
    starts: Tensor
    ids: tuple[str, ...]
    by_row: bool

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def lengths(self) -> Tensor:
        """Number of rows of each series."""
        return self.starts.diff()

    def take(self, indices: Tensor) -> Series:
        """Return these series, in this order."""
        rows = self._rows(indices)
        lengths = self.lengths[indices]
        return Series(
            self.times[rows],
            self.values[rows],
            self.mask[rows],
            self.labels[rows] if self.by_row else self.labels[indices],
            torch.cat((lengths.new_zeros(1), lengths.cumsum(0))),
            tuple(self.ids[index] for index in indices.tolist()),
            self.by_row,
        )

    def batch(self, indices: Tensor) -> SeriesBatch:
        """Return these series as a batch, each at its own times."""
        lengths = self.lengths[indices]
        number = torch.arange(int(lengths.max()))
        within = number < lengths[:, None]
        last = (lengths - 1)[:, None]
        rows = self.starts[indices][:, None] + torch.minimum(number, last)
        labels = self.labels[indices]
        if self.by_row:
            labels = self.labels[rows].where(within, torch.tensor(UNLABELLED))
        present = within[:, :, None]
        return SeriesBatch(
            self.times[rows],
            self.values[rows] * present,
            self.mask[rows] & present,
            labels,
            rows.where(within, torch.tensor(-1)),
        )

    def union_batch(self, indices: Tensor) -> SeriesBatch:
        """Return these series on the union of their times, as the published code does.

        If a series has no row at a time of another, nothing is observed there.
        """
        part, numbers = self.take(indices), self._rows(indices)
        times, place = part.times.unique(return_inverse=True)
        owner = torch.arange(len(part)).repeat_interleave(part.lengths)
        shape = (len(part), len(times))
        values = part.values.new_zeros(*shape, part.values.shape[-1])
        mask = torch.zeros_like(values, dtype=torch.bool)
        values[owner, place], mask[owner, place] = part.values, part.mask
        labels = part.labels
        if self.by_row:
            labels = torch.full(shape, UNLABELLED)
            labels[owner, place] = part.labels
        rows = torch.full(shape, -1)
        rows[owner, place] = numbers
        return SeriesBatch(times.expand(shape), values, mask, labels, rows)

    def public_batch(self, indices: Tensor) -> SeriesBatch:
        """Return these series as the published code has them.

        They are on the union of their times, divided by the largest one. Times at which all values
        of the batch add up to zero are left out, except with labels of rows, which would be left
        out too: there the published code fails.
        """
        whole = self.union_batch(indices)
        times = whole.times / (whole.times.max() or 1.0)
        kept = whole.values.sum((0, 2)) != 0
        if self.by_row or not bool(kept.any()):
            return replace(whole, times=times)
        return SeriesBatch(
            times[:, kept],
            whole.values[:, kept],
            whole.mask[:, kept],
            whole.labels,
            whole.rows[:, kept],
        )

    def _rows(self, indices: Tensor) -> Tensor:
        lengths = self.lengths[indices]
        ends = lengths.cumsum(0)
        offset = self.starts[indices] - (ends - lengths)
        return torch.arange(int(lengths.sum())) + offset.repeat_interleave(lengths)


@dataclass(frozen=True)
class Scaling:
    """An affine map of times and values, kept with a run so that new data are scaled alike.

    A scaled time is `time / span`; a scaled value is `(value - shift) / scale`, clipped at `limit`
    on both sides.

    Attributes:
        span: Time that becomes 1.
        shift: One number per feature.
        scale: One number per feature.
        limit: Largest absolute value; None does not clip.
    """

    span: float
    shift: tuple[float, ...]
    scale: tuple[float, ...]
    limit: float | None = None

    def apply(self, series: Series) -> Series:
        """Return the series as a model sees them."""
        # Only the observed values, which are a small part of many data sets.
        place = series.mask.nonzero(as_tuple=True)
        scale = self._row(self.scale)[place[1]]
        seen = in_single(series.values[place].double(), scale)
        seen = (seen - self._row(self.shift)[place[1]]) / scale
        if self.limit is not None:
            seen = seen.clamp(-self.limit, self.limit)
        values = torch.zeros_like(series.values, dtype=torch.float32)
        values[place] = seen.to(values.dtype)
        return replace(series, times=series.times / self.span, values=values)

    def restore(self, values: Tensor) -> Tensor:
        """Return scaled values of shape `(..., features)` in the units of the data."""
        scale, shift = self._row(self.scale), self._row(self.shift)
        return values * scale.to(values) + shift.to(values)

    @staticmethod
    def _row(numbers: tuple[float, ...]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.float64)


def in_single(values: Tensor, scale: Tensor) -> Tensor:
    """Round values to single precision, in which ordinary values are scaled.

    A value that this would move by more than a hundredth of its scale stays as it is: far from
    zero, single precision cannot distinguish close values.

    Args:
        values: In double precision.
        scale: The divisor of each.
    """
    rounded = values.float().double()
    return rounded.where((rounded - values).abs() <= _HARMLESS * scale, values)


@dataclass(frozen=True)
class SeriesSplits:
    """Series as training sees them.

    Attributes:
        train: Series to learn from.
        validation: Series that choose the epoch, if any.
        test: Series used once, at the end.
        features: Name of each feature.
        classes: Name of each class, by its label.
        scaling: How raw times and values were scaled for the model.
        layout: The layout found in the user's own tables.
        division: Identifies the user's own series, which were divided: with one more or less, all
            parts and the scaling would be others. Empty for the known sets.
    """

    train: Series
    validation: Series | None
    test: Series
    features: tuple[str, ...]
    classes: tuple[str, ...]
    scaling: Scaling
    layout: TableLayout | None = None
    division: str = ""
