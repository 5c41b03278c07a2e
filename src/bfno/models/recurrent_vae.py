"""The recurrent variational autoencoder of irregular series."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bfno.models.gated import gated_update, run_gru
from bfno.models.likelihood import kl_to_standard_normal
from bfno.models.recurrent import row_gaps
from bfno.models.series import (
    ObservedRows,
    SeriesModel,
    SeriesOutput,
    check_samples,
    dense,
    latent_noise,
    network,
)

__all__ = ["RecurrentVAE"]


class RecurrentVAE(SeriesModel):
    """RNN-VAE: one recurrent unit reads a series into an initial state, another unfolds it.

    The first unit runs over the observed rows from the last to the first and gives a normal
    distribution of the second unit's state at the first row. At every row, the second unit takes
    its own prediction of the previous row, as if fully observed, and the gap.

    Classes of rows are predicted from the second unit's states, the class of a series from the mean
    of the distribution. In training the initial states are drawn at random; in evaluation every
    series gets the same noise in every call.

    Args:
        features: Number of features.
        classes: Number of classes.
        by_row: Whether every row has a label; otherwise every series has one.
        latents: Size of the second unit's state.
        encoder: Size of the first unit's state.
        units: Hidden size of the networks that give the distribution and the predictions.
        reverse_axis: "time" reads each series from its end. "public_code" reads it from its start
            and reverses the batch instead, as the published code does by mistake: each series gets
            the distribution of another.
        head: Hidden sizes of the network that classifies; none for a linear map.
        samples: Number of draws of the initial state; can be changed later.

    Raises:
        ValueError: If `reverse_axis` is neither, or `samples` is less than one.

    References:
        Rubanova et al., Latent ODEs for Irregularly-Sampled Time Series, 2019 (public code).

    Example:
        >>> model = RecurrentVAE(features=3, classes=7, by_row=True)
        >>> values = torch.ones(4, 5, 3)
        >>> output = model(torch.linspace(0, 1, 5).expand(4, 5), values, values > 0)
        >>> output.scores.shape, output.kl.shape
        (torch.Size([3, 4, 5, 7]), torch.Size([4]))
    """

    looks_ahead = True
    samples = 3  # the value of models pickled before this was a setting

    def __init__(
        self,
        features: int,
        classes: int,
        *,
        by_row: bool,
        latents: int = 20,
        encoder: int = 40,
        units: int = 50,
        reverse_axis: str = "time",
        head: tuple[int, ...] = (300, 300),
        samples: int = 3,
    ) -> None:
        super().__init__(features, classes, by_row=by_row)
        if reverse_axis not in ("time", "public_code"):
            raise ValueError(
                f"reverse_axis must be time or public_code, got {reverse_axis!r}; time is correct"
            )
        check_samples(samples)
        self.samples = samples
        self.couples_series = reverse_axis == "public_code"
        self.encoder = nn.GRUCell(2 * features + 1, encoder)
        self.posterior = network(encoder, units, 2 * latents)
        self.unfold = nn.GRUCell(2 * features + 1, latents)
        self.hide = dense(latents, units)
        self.show = dense(units, features)
        self.classifier = network(latents, *head, self.outputs, activation=nn.ReLU)

    def _run(self, times: Tensor, values: Tensor, mask: Tensor) -> SeriesOutput:
        mean, deviation = self._initial(times, values, mask)
        noise = latent_noise(self.samples, mean, training=self.training)
        initial = mean + deviation * noise
        rows = ObservedRows(times, values, mask)
        kind, gaps = self.hide.weight.dtype, row_gaps(rows.times)
        with torch.autocast(gaps.device.type, enabled=False):  # which would lose more in every row
            states = self._unfolded(initial.to(kind), gaps.to(kind))
        prediction = _each(rows, self.show(self.hide(states).tanh()))
        if self.by_row:
            scores = self._scores(_each(rows, self.classifier(states)))
        else:
            scores = self._scores(self.classifier(mean)).expand(len(initial), -1, -1)
        return SeriesOutput(scores, prediction, kl_to_standard_normal(mean, deviation))

    def _initial(self, times: Tensor, values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and deviation of the state at the first row, `(batch, latents)` each."""
        if self.couples_series:
            rows = ObservedRows(times.flip(0), values.flip(0), mask.flip(0))
        else:
            rows = ObservedRows(times, values, mask, backward=True)
        gaps = row_gaps(rows.times).unsqueeze(-1)
        seen = torch.cat((rows.values, rows.mask.to(gaps), gaps), dim=-1)
        states = run_gru(self.encoder, seen)
        number = torch.arange(len(states), device=states.device)
        last = states[number, rows.present.sum(1)]
        mean, deviation = self.posterior(last).chunk(2, dim=-1)
        return mean, deviation.abs()

    def _unfolded(self, initial: Tensor, gaps: Tensor) -> Tensor:
        """States before the first observed row and at each, `(samples, batch, rows + 1, latents)`.

        The prediction is an affine map of the decoder's hidden units, and its contribution to the
        gates is an affine map of the prediction: a step needs only the product of the two maps. The
        constant mask becomes part of the bias.
        """
        features, cell = self.features, self.unfold
        enter, leave = self.hide, self.show
        of_values, of_mask, of_gap = cell.weight_ih.split((features, features, 1), dim=1)
        known = cell.bias_ih + of_mask.sum(1) + of_values @ leave.bias
        from_gaps = gaps.unsqueeze(-1) * of_gap.squeeze(1) + known
        from_gaps = from_gaps.repeat(len(initial), 1, 1)
        from_hidden = (of_values @ leave.weight).t()
        of_state = torch.cat((cell.weight_hh, enter.weight)).t()
        bias = torch.cat((cell.bias_hh, enter.bias))
        sizes = (len(known), len(enter.bias))
        state = initial.flatten(0, 1)
        states = [state, state]
        for from_gap in from_gaps.unbind(1)[1:]:
            from_state, hidden = torch.addmm(bias, state, of_state).split(sizes, dim=1)
            from_input = torch.addmm(from_gap, hidden.tanh(), from_hidden)
            state = gated_update(from_input, from_state, state)
            states.append(state)
        return torch.stack(states, dim=1).unflatten(0, initial.shape[:2])


def _each(rows: ObservedRows, states: Tensor) -> Tensor:
    """The states after every row of the batch, for each sample."""
    return torch.stack([rows.after_each(one) for one in states.unbind(0)])
