"""The inputs and outputs of every model of irregular series."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from bfno.layers.pointwise import is_stand_in
from bfno.ode import Stats
from bfno.ode.state import clock_dtype

__all__ = [
    "ObservedRows",
    "SeriesModel",
    "SeriesOutput",
    "as_clock",
    "check_clock",
    "check_samples",
    "check_wanted",
    "clock_start",
    "dense",
    "in_fractions",
    "in_order",
    "latent_noise",
    "network",
    "tanh_network",
]

# Share of their span by which another precision may move times.
_HARMLESS = 1e-6


@dataclass(frozen=True)
class SeriesOutput:
    """The output of a model for a batch of series.

    Attributes:
        scores: Scores of the classes, `(samples, batch, classes)` for one label per series or
            `(samples, batch, time, classes)` for one per row.
        prediction: Values that the model expects, `(samples, batch, time, features)`. A latent
            model has seen the whole series; a recurrent one only the rows before.
        kl: Divergence of the posterior of the initial state from its prior, averaged over its
            dimensions, `(batch,)`; None if there is no posterior.
        kinetic: Half the mean squared rate of change of the latent states, a scalar; None in
            evaluation, and for models that do not measure it.

    Example:
        >>> output = SeriesOutput(torch.randn(3, 5, 2), torch.randn(3, 5, 6, 4))
        >>> output.scores.softmax(-1).mean(0).shape  # probabilities, averaged over samples
        torch.Size([5, 2])
    """

    scores: Tensor
    prediction: Tensor
    kl: Tensor | None = None
    kinetic: Tensor | None = None


class SeriesModel(nn.Module, ABC):
    """A classifier of irregular series that also predicts their values.

    A batch is padded to its longest series: padding repeats the last time and observes nothing, so
    no model can distinguish it from missing rows.

    Args:
        features: Number of features.
        classes: Number of classes.
        by_row: Whether every row has a label; otherwise every series has one.

    Attributes:
        couples_series: Whether an output depends on the other series of the batch.
        looks_ahead: Whether predicted values come from the whole series; otherwise they come only
            from the rows before.
        samples: Number of latent samples, the first axis of the outputs.
        stats: Costs of the last call.
        class_names: Name of each class; numbers by default.
        feature_names: Name of each feature; numbers by default.

    Shape:
        `times` `(batch, time)`, ascending; `values` and `mask` `(batch, time, features)`. Times
        that the values' type would round count from the first of the batch: single precision
        cannot distinguish the seconds since 1970.

    Example:
        >>> class MeanClassifier(SeriesModel):
        ...     looks_ahead = True
        ...     def __init__(self, features, classes):
        ...         super().__init__(features, classes, by_row=False)
        ...         self.head = nn.Linear(features, self.outputs)
        ...     def _run(self, times, values, mask):
        ...         means = values.sum(1) / mask.sum(1).clamp(min=1)
        ...         prediction = means[:, None].expand_as(values)
        ...         return SeriesOutput(self._scores(self.head(means))[None], prediction[None])
        >>> values = torch.ones(4, 5, 3)
        >>> MeanClassifier(3, 2)(torch.zeros(4, 5), values, values > 0).scores.shape
        torch.Size([1, 4, 2])
    """

    couples_series = False
    looks_ahead = False
    samples = 1

    def __init__(self, features: int, classes: int, *, by_row: bool) -> None:
        super().__init__()
        self.features, self.classes, self.by_row = features, classes, by_row
        self.class_names = tuple(str(number) for number in range(classes))
        self.feature_names = tuple(str(number) for number in range(features))
        self.stats = Stats()

    def forward(self, times: Tensor, values: Tensor, mask: Tensor) -> SeriesOutput:
        if values.shape != (*times.shape, self.features) or mask.shape != values.shape:
            raise ValueError(
                f"times must have shape (batch, time), values and mask (batch, time, "
                f"{self.features}), got {tuple(times.shape)}, {tuple(values.shape)} and "
                f"{tuple(mask.shape)}"
            )
        if not times.shape[1]:
            raise ValueError("a batch of series needs at least one row; leave empty series out")
        mask = mask.bool()
        check_clock(times)
        seen = self._seen(values, mask)
        if not len(times):
            return self._of_nothing(seen)
        return self._run(as_clock(times, seen), seen, mask)

    def _seen(self, values: Tensor, mask: Tensor) -> Tensor:
        """The observed values as floating-point numbers; times are converted to their type."""
        if not values.is_floating_point():
            weight = next(self.parameters(), None)
            values = values.to(torch.get_default_dtype() if weight is None else weight.dtype)
        # Entries that were not observed may hold anything, even NaN, and must not reach any sum.
        return values.where(mask, 0.0)

    def _of_nothing(self, values: Tensor) -> SeriesOutput:
        """The output for an empty batch: that of a series without observations, with it cut off."""
        rest = values.new_zeros(1, *values.shape[1:])
        one = self._run(rest[..., 0], rest, rest.bool())
        kl = None if one.kl is None else one.kl[:0]
        kinetic = None if one.kinetic is None else 0.0 * one.kinetic
        return SeriesOutput(one.scores[:, :0], one.prediction[:, :0], kl, kinetic)

    @abstractmethod
    def _run(self, times: Tensor, values: Tensor, mask: Tensor) -> SeriesOutput:
        """Scores and predictions; values that were not observed are zero."""

    def reconstruct(self, times: Tensor, values: Tensor, mask: Tensor, at: Tensor) -> Tensor:
        """Expected values at any times, between the observed ones or after them.

        A model that does not look ahead predicts them from the rows before each time, without a row
        at exactly that time.

        Args:
            times: Times of the rows, `(batch, time)`.
            values: `(batch, time, features)`.
            mask: Whether the value was observed.
            at: Times at which values are wanted, `(batch, wanted)`, in any order.

        Returns:
            `(samples, batch, wanted, features)`.

        Raises:
            ValueError: If a time is before the first row of its series.
        """
        check_wanted(times, at)
        times = in_fractions(times)
        # Wanted times are rows that observe nothing. The order is stable: a model that looks ahead
        # may see a row at the same time, one that forecasts may not.
        nothing = values.new_zeros(*at.shape, values.shape[-1])
        wanted, known = (at.to(times), nothing, nothing.bool()), (times, values, mask.bool())
        pairs = (
            zip(known, wanted, strict=True) if self.looks_ahead else zip(wanted, known, strict=True)
        )
        moments, rows, seen = (torch.cat(pair, dim=1) for pair in pairs)
        moments, order = moments.sort(dim=1, stable=True)
        wide = order.unsqueeze(-1).expand(-1, -1, values.shape[-1])
        found = self(moments, rows.gather(1, wide), seen.gather(1, wide)).prediction
        start = times.shape[1] if self.looks_ahead else 0
        return in_order(found, order)[:, :, start : start + at.shape[1]]

    @property
    def outputs(self) -> int:
        """Number of outputs that the classifier needs; see `_scores`."""
        return 1 if self.classes == 2 and not self.by_row else self.classes

    def _scores(self, logits: Tensor) -> Tensor:
        """Scores of the classes; a single logit is that of the second of two classes."""
        if self.outputs > 1:
            return logits
        return torch.cat((torch.zeros_like(logits), logits), dim=-1)


def check_samples(samples: int) -> None:
    """Refuse a number of latent samples that is not at least one."""
    if samples < 1:
        raise ValueError(f"samples must be at least 1, got {samples}")


def check_clock(times: Tensor) -> None:
    """Refuse invalid times; on devices other than the processor, do not check them.

    Raises:
        ValueError: If one is not finite, or is less than the previous one.
    """
    if is_stand_in(times) or times.device.type != "cpu":
        return  # the numbers are not known yet, or would have to be waited for
    if not bool(times.isfinite().all() & (times.diff(dim=1) >= 0).all()):
        raise ValueError(
            "times must be finite and ascend within each series; sort rows by their times, and "
            "leave those without one out"
        )


def in_fractions(times: Tensor) -> Tensor:
    """The times as floating-point numbers, because there are times between whole ones."""
    return times if times.is_floating_point() else times.to(clock_dtype(times.device))


def clock_start(times: Tensor, values: Tensor) -> Tensor:
    """The start to count times from: the first of the batch if the type would round them, else 0.

    Args:
        times: `(batch, time)`, not empty.
        values: A tensor of this type.
    """
    first = times.min()
    moved = (times.to(values.dtype).to(times.dtype) - times).abs().max()
    is_moved = moved > _HARMLESS * (times.max() - first)
    return torch.where(is_moved, first, torch.zeros_like(first))


def as_clock(times: Tensor, values: Tensor, start: Tensor | None = None) -> Tensor:
    """Times in the type of the values, counted from a start; None finds it by `clock_start`."""
    times = in_fractions(times)
    start = clock_start(times, values) if start is None else start
    return (times - start).to(values.dtype)


def check_wanted(times: Tensor, at: Tensor) -> None:
    """Refuse wanted times that do not belong to the series.

    Raises:
        ValueError: If there is not one row per series, or a time lies before the series' first.
    """
    if at.dim() != 2 or len(at) != len(times) or not bool((at >= times[:, :1]).all()):
        raise ValueError(
            "at must hold one row of times per series, none before the series' first time, got "
            f"shape {tuple(at.shape)} for {len(times)} series"
        )


def in_order(path: Tensor, order: Tensor) -> Tensor:
    """Restore the original order of states that were sorted by time.

    Args:
        path: `(samples, batch, time, size)`, in ascending order of time.
        order: The indices that `sort` returned for the times, `(batch, time)`.
    """
    place = order.argsort(dim=1)[None, :, :, None].expand(*path.shape)
    return path.gather(2, place)


class ObservedRows:
    """The rows of a batch in which something was observed, packed together.

    Padding, which observes nothing at the time of the previous row, is never among them.

    Args:
        times: `(batch, time)`.
        values: `(batch, time, features)`.
        mask: `(batch, time, features)`.
        backward: Whether the last row comes first.
        with_empty: Whether rows in which nothing was observed are kept as well.

    Attributes:
        times: `(batch, rows)`; padding repeats a series' last time (its first one if backward).
        values: `(batch, rows, features)`; zero in padding.
        mask: `(batch, rows, features)`; false in padding.
        present: `(batch, rows)`; true for rows, false for padding.

    Example:
        >>> mask = torch.tensor([[[True], [False], [True]]])
        >>> rows = ObservedRows(torch.tensor([[0.0, 1.0, 2.0]]), mask * 1.0, mask, backward=True)
        >>> rows.times
        tensor([[2., 0.]]...)
    """

    def __init__(
        self,
        times: Tensor,
        values: Tensor,
        mask: Tensor,
        *,
        backward: bool = False,
        with_empty: bool = False,
    ) -> None:
        observed = mask.any(-1)
        if with_empty:
            is_first = torch.ones_like(observed[:, :1])
            observed = observed | torch.cat((is_first, times.diff(dim=1) != 0), dim=1)
        self._seen = observed.cumsum(1)
        lengths = observed.sum(1, keepdim=True)
        most = max(int(lengths.max()), 1)
        number = torch.arange(most, device=times.device)
        self.present = number < lengths
        order = (~observed).to(torch.int8).argsort(dim=1, stable=True)[:, :most]
        last = (lengths - 1).clamp(min=0)
        place = (last - number if backward else number.expand(len(times), -1)).clamp(min=0)
        self._chosen = order.gather(1, torch.minimum(place, last))
        self.times = times.gather(1, self._chosen)
        self.values, self.mask = self.of_each(values), self.of_each(mask)

    def of_each(self, whole: Tensor) -> Tensor:
        """Values of a tensor `(batch, time, size)` at these rows; zero in padding."""
        wide = self._chosen.unsqueeze(-1).expand(-1, -1, whole.shape[-1])
        return whole.gather(1, wide) * self.present.unsqueeze(-1)

    def after_each(self, states: Tensor) -> Tensor:
        """States after every row of the batch, observed or not.

        Args:
            states: `(batch, rows + 1, size)`: before the first observed row, then after each one.
        """
        return self._at(self._seen, states)

    def before_each(self, states: Tensor) -> Tensor:
        """States before every row of the batch; see `after_each`."""
        return self._at(torch.nn.functional.pad(self._seen[:, :-1], (1, 0)), states)

    @staticmethod
    def _at(number: Tensor, states: Tensor) -> Tensor:
        return states.gather(1, number.unsqueeze(-1).expand(-1, -1, states.shape[-1]))


def latent_noise(samples: int, mean: Tensor, *, training: bool) -> Tensor:
    """Standard normal numbers for samples of initial states.

    Args:
        samples: Number of samples.
        mean: Mean of the initial states, `(batch, latents)`.
        training: Whether they are random. If not, they are the same for every series and in every
            call, so outputs are reproducible and do not depend on the batch.

    Returns:
        `(samples, batch, latents)` in training, else `(samples, 1, latents)`.
    """
    if training:
        return torch.randn(samples, *mean.shape, dtype=mean.dtype, device=mean.device)
    fixed = torch.Generator().manual_seed(_NOISE_SEED)
    shape = (samples, 1, mean.shape[-1])
    return torch.randn(shape, generator=fixed, dtype=torch.float64).to(mean, non_blocking=True)


_NOISE_SEED = 1991
"""Any number works, as long as it never changes."""


def dense(inputs: int, outputs: int) -> nn.Linear:
    """A linear layer that starts small: weights of deviation 0.1, no bias."""
    layer = nn.Linear(inputs, outputs)
    nn.init.normal_(layer.weight, std=0.1)
    nn.init.zeros_(layer.bias)
    return layer


def network(*sizes: int, activation: type[nn.Module] = nn.Tanh) -> nn.Sequential:
    """Dense layers of these sizes with an activation between them.

    Example:
        >>> len(network(3, 50, 50, 2))
        5
    """
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [dense(inputs, outputs), activation()]
    return nn.Sequential(*layers[:-1])


def tanh_network(inputs: int, outputs: int, layers: int, units: int) -> nn.Sequential:
    """The network of the Latent-ODE experiments: `layers` hidden maps between two outer ones."""
    return network(inputs, *[units] * (layers + 1), outputs)
