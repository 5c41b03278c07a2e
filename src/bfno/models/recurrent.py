"""Recurrent classifiers of irregular series."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bfno.models.gated import run_gru
from bfno.models.imputation import (
    DecayImputation,
    decay_factor,
    row_gaps,
    time_since_observed,
)
from bfno.models.series import ObservedRows, SeriesModel, SeriesOutput, dense, network

__all__ = ["RecurrentClassifier"]


class RecurrentClassifier(SeriesModel):
    """A gated recurrent unit over the rows in which something was observed.

    | | impute | decay |
    |---|---|---|
    | RNN-Δt | no | no |
    | RNN-Impute | yes | no |
    | RNN-D | no | yes |
    | GRU-D | yes | yes |

    The unit sees the values of a row, what was observed and, unless its state decays, the gap to
    the row before. Between observations the state stays as it is; the prediction of a row comes
    from the state before it. Only with `impute` does anything of later rows, the means of the
    features, reach a state.

    Args:
        features: Number of features.
        classes: Number of classes.
        by_row: Whether every row has a label; else every series.
        hidden: Size of the state.
        units: Hidden size of the network that predicts values.
        impute: Whether what was not observed is imputed; else it is zero. See `DecayImputation`.
        decay: Whether the state fades with the time since each feature was observed.
        head: Hidden sizes of the network that classifies; none for a linear map.

    Attributes:
        gap: Which gap belongs to a row, see `row_gaps`: "previous", or "next" as in the published
            code.

    References:
        Rubanova et al., Latent ODEs for Irregularly-Sampled Time Series, 2019 (public code).

    Example:
        >>> model = RecurrentClassifier(features=3, classes=2, by_row=False, impute=True)
        >>> values = torch.ones(4, 5, 3)
        >>> output = model(torch.linspace(0, 1, 5).expand(4, 5), values, values > 0)
        >>> output.scores.shape, output.prediction.shape
        (torch.Size([1, 4, 2]), torch.Size([1, 4, 5, 3]))
    """

    gap = "previous"

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
    ) -> None:
        super().__init__(features, classes, by_row=by_row)
        self.imputation = DecayImputation(features) if impute else None
        self.decay = dense(features, 1) if decay else None
        self.gru = nn.GRUCell(2 * features + (not decay), hidden)
        self.decoder = network(hidden, units, features)
        self.classifier = network(hidden, *head, self.outputs, activation=nn.ReLU)

    def _run(self, times: Tensor, values: Tensor, mask: Tensor) -> SeriesOutput:
        rows = ObservedRows(times, values, mask)
        states = self._states(rows)
        if self.by_row:
            logits = rows.after_each(self.classifier(states))
        else:
            lengths = rows.present.sum(1)
            logits = self.classifier(states[torch.arange(len(states)), lengths])
        prediction = rows.before_each(self.decoder(states))
        return SeriesOutput(self._scores(logits).unsqueeze(0), prediction.unsqueeze(0))

    def _states(self, rows: ObservedRows) -> Tensor:
        """State before the first observed row and after each."""
        values, kept, gaps = rows.values, None, row_gaps(rows.times, self.gap)
        seen = [rows.mask.to(values), gaps.unsqueeze(-1)]
        if self.imputation is not None or self.decay is not None:
            since = time_since_observed(gaps, rows.mask)
            if self.imputation is not None:
                values = self.imputation(values, rows.mask, since)
            if self.decay is not None:
                kept = decay_factor(self.decay(since))
                seen.pop()
        return run_gru(self.gru, torch.cat((values, *seen), dim=-1), kept)
