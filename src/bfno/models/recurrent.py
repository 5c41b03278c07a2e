"""Recurrent classifiers of irregular series: gaps, imputed values, and the networks."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bfno.models.gated import run_gru
from bfno.models.series import (
    ObservedRows,
    SeriesModel,
    SeriesOutput,
    check_wanted,
    dense,
    in_fractions,
    network,
)

__all__ = [
    "DecayImputation",
    "RecurrentClassifier",
    "decay_factor",
    "row_gaps",
    "time_since_observed",
]

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
    """Share left by a decay: `exp(-exponent)`, with negative exponents set to zero."""
    return torch.exp(-exponent.clamp(0.0, _LARGEST_EXPONENT))


class DecayImputation(nn.Module):
    """Values for missing observations: the last observed value, fading into the mean.

    The mean is over all observed values of the feature in the series, including later ones. It is
    zero if there are none; the last value is zero before the first observation.

    Args:
        features: Number of features; each fades at its own rate.

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
    """Index of the last row up to each one that observed the feature; 0 if there is none."""
    number = torch.arange(mask.shape[1], device=mask.device).view(-1, 1)
    return (number * mask).cummax(dim=1).values


class RecurrentClassifier(SeriesModel):
    """A gated recurrent unit over the rows in which something was observed.

    | | impute | decay |
    |---|---|---|
    | RNN-Δt | no | no |
    | RNN-Impute | yes | no |
    | RNN-D | no | yes |
    | GRU-D | yes | yes |

    The unit sees the values of a row, what was observed and, unless its state decays, the gap to
    the previous row. Between observations the state stays unchanged; the prediction of a row comes
    from the state before it. Only with `impute` do later rows influence a state, through the means
    of the features.

    Args:
        features: Number of features.
        classes: Number of classes.
        by_row: Whether every row has a label; otherwise every series has one.
        hidden: Size of the state.
        units: Hidden size of the network that predicts values.
        impute: Whether missing values are imputed; otherwise they are zero. See `DecayImputation`.
        decay: Whether the state fades with the time since each feature was observed.
        head: Hidden sizes of the network that classifies; none for a linear map.
        gap: The gap that belongs to a row, see `row_gaps`: "previous" or "next", each between rows
            in which something was observed. "public_code" is the time until the next row, whether
            or not anything was observed there, as in the published code.

    Raises:
        ValueError: If `gap` is none of these.

    References:
        Rubanova et al., Latent ODEs for Irregularly-Sampled Time Series, 2019 (public code).

    Example:
        >>> model = RecurrentClassifier(features=3, classes=2, by_row=False, impute=True)
        >>> values = torch.ones(4, 5, 3)
        >>> output = model(torch.linspace(0, 1, 5).expand(4, 5), values, values > 0)
        >>> output.scores.shape, output.prediction.shape
        (torch.Size([1, 4, 2]), torch.Size([1, 4, 5, 3]))
    """

    gap = "previous"  # the value of models pickled before this was a setting

    def __init__(
        self,
        features: int,
        classes: int,
        *,
        by_row: bool,
        hidden: int = 20,
        units: int = 100,
        impute: bool = False,
        decay: bool = False,
        head: tuple[int, ...] = (300, 300),
        gap: str = "previous",
    ) -> None:
        super().__init__(features, classes, by_row=by_row)
        if gap not in ("previous", "next", "public_code"):
            raise ValueError(f"gap must be previous, next or public_code, got {gap!r}")
        self.gap = gap
        self.imputation = DecayImputation(features) if impute else None
        self.decay = dense(features, 1) if decay else None
        self.gru = nn.GRUCell(2 * features + (not decay), hidden)
        self.decoder = network(hidden, units, features)
        self.classifier = network(hidden, *head, self.outputs, activation=nn.ReLU)

    def _run(self, times: Tensor, values: Tensor, mask: Tensor) -> SeriesOutput:
        rows = ObservedRows(times, values, mask)
        states = self._states(rows, (times, values, mask))
        if self.by_row:
            logits = rows.after_each(self.classifier(states))
        else:
            lengths = rows.present.sum(1)
            number = torch.arange(len(states), device=states.device)
            logits = self.classifier(states[number, lengths])
        prediction = rows.before_each(self.decoder(states))
        return SeriesOutput(self._scores(logits).unsqueeze(0), prediction.unsqueeze(0))

    def reconstruct(self, times: Tensor, values: Tensor, mask: Tensor, at: Tensor) -> Tensor:
        """Values expected from the rows before each time; see `SeriesModel.reconstruct`.

        Wanted times are not added as rows here, because they could change the gaps of others.
        """
        check_wanted(times, at)
        times = in_fractions(times)
        # One more row of padding: the prediction there has seen all the others.
        rows = [torch.cat((one, one[:, -1:]), dim=1) for one in (times, values, mask.bool())]
        rows[-1][:, -1] = False
        found = self(*rows).prediction
        before = torch.searchsorted(times.contiguous(), at.to(times).contiguous())
        return found.gather(2, before[None, :, :, None].expand(1, *before.shape, self.features))

    def _states(self, rows: ObservedRows, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """State before the first observed row and after each."""
        if self.gap == "public_code":
            inputs, kept = self._inputs(*batch, gap="next")
            kept = None if kept is None else rows.of_each(kept)
            return run_gru(self.gru, rows.of_each(inputs), kept)
        return run_gru(self.gru, *self._inputs(rows.times, rows.values, rows.mask, gap=self.gap))

    def _inputs(
        self, times: Tensor, values: Tensor, mask: Tensor, *, gap: str
    ) -> tuple[Tensor, Tensor | None]:
        """Input of the unit at each row, and the share of its previous state that is left."""
        kept, gaps = None, row_gaps(times, gap)
        seen = [mask.to(values), gaps.unsqueeze(-1)]
        if self.imputation is not None or self.decay is not None:
            since = time_since_observed(gaps, mask)
            if self.imputation is not None:
                values = self.imputation(values, mask, since)
            if self.decay is not None:
                kept = decay_factor(self.decay(since))
                seen.pop()
        return torch.cat((values, *seen), dim=-1), kept
