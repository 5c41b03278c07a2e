"""The peers of the models of series: the same weights, walked over the union of all times.

This is how the published code is written: at every time that any series of the batch has, all
series are moved there, and those that have a row at that time are updated.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.timing import peer_library
from bfno.models import LatentODE, ODERNNClassifier, SeriesOutput
from bfno.models.encoders import Posterior
from bfno.models.ode_rnn import ODERNN, GRUUnit

__all__ = ["PlainLatentODE", "PlainODERNN", "walk"]

# The published code starts this long after the last time when it goes backwards, and takes more
# than one step only where a gap is longer than a fiftieth of the whole.
_LEAD, _LONGEST_STEPS = 0.01, 50


class PlainODERNN(nn.Module):
    """An ODE-RNN classifier on the union of times.

    Args:
        model: The model whose weights it shares; its labels are those of series.
    """

    def __init__(self, model: ODERNNClassifier) -> None:
        super().__init__()
        self.model = model

    def forward(self, times: Tensor, values: Tensor, mask: Tensor) -> SeriesOutput:
        model = self.model
        before, after, _ = walk(model.recurrent, times[0], values, mask)
        scores = model._scores(model.head(after[-1]))
        return SeriesOutput(scores[None], model.decoder(torch.stack(before, dim=1))[None])


class PlainLatentODE(nn.Module):
    """A latent ODE with an ODE-RNN encoder on the union of times, solved by torchdiffeq.

    Args:
        model: The model whose weights it shares; its labels are those of series.
    """

    def __init__(self, model: LatentODE) -> None:
        super().__init__()
        self.model = model

    def forward(self, times: Tensor, values: Tensor, mask: Tensor) -> SeriesOutput:
        model: Any = self.model
        _, after, spread = walk(model.encoder.recurrent, times[0], values, mask)
        last = torch.cat((after[-1], spread[-1]), dim=-1)
        posterior = Posterior(model.encoder.posterior(last))
        z0 = model._start(posterior)
        generator = model.generator
        tolerances = {name: generator.settings[name] for name in ("rtol", "atol", "method")}
        path = peer_library("torchdiffeq").odeint(generator.field, z0, times[0], **tolerances)
        prediction = model.decoder(path.permute(1, 2, 0, 3))
        return SeriesOutput(model._scores(model.head(z0)), prediction, posterior.divergence())


def walk(
    recurrent: ODERNN, times: Tensor, values: Tensor, mask: Tensor
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """States before and after every time, and their spreads after it.

    Args:
        recurrent: The network.
        times: `(time,)`, ascending.
        values: `(batch, time, features)`.
        mask: Likewise.
    """
    rows = torch.cat((values, mask.to(values.dtype)), dim=-1)
    observed = mask.any(-1)
    order = list(range(len(times)))
    now = times[0]
    if recurrent.backward:
        order, now = order[::-1], times[-1] + _LEAD
    y = values.new_zeros(len(values), recurrent.size)
    s = torch.zeros_like(y)
    update = _Update(recurrent.unit)
    before, after, spread = [], [], []
    for index in order:
        y = _move(recurrent.dynamics, y, now, times[index], float(times[-1] - times[0]))
        now = times[index]
        before.append(y)
        new_y, new_s = update(y, s, rows[:, index])
        seen = observed[:, index, None]
        y, s = new_y.where(seen, y), new_s.where(seen, s)
        after.append(y)
        spread.append(s)
    return before, after, spread


def _move(field: Any, y: Tensor, start: Tensor, end: Tensor, span: float) -> Tensor:
    gap = float(end - start)
    longest = span / _LONGEST_STEPS
    if abs(gap) < longest:
        return y + field(start, y) * gap
    points = torch.linspace(float(start), float(end), max(2, int(abs(gap) / longest)))
    return peer_library("torchdiffeq").odeint(field, y, points, method="euler")[-1]


class _Update:
    """The update as its formulas read, a network for each gate, its weights lying ready."""

    def __init__(self, unit: GRUUnit) -> None:
        read = unit.read_row
        hidden = (*unit.gates_hidden.split(unit.units, dim=1), unit.new_hidden)
        rows = read.weight.split(unit.units)
        maps = [torch.cat((of.T, row), dim=1) for of, row in zip(hidden, rows, strict=True)]
        last = (unit.update, unit.reset, unit.new)
        self._networks = list(zip(maps, read.bias.split(unit.units), last, strict=True))

    def __call__(self, y: Tensor, s: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        joined = torch.cat((y, s, x), dim=1)
        update, reset = (self._run(number, joined).sigmoid() for number in (0, 1))
        joined = torch.cat((y * reset, s * reset, x), dim=1)
        mean, width = self._run(2, joined).chunk(2, dim=1)
        return (1 - update) * mean + update * y, ((1 - update) * width.abs() + update * s).abs()

    def _run(self, number: int, joined: Tensor) -> Tensor:
        weight, bias, last = self._networks[number]
        return last(nn.functional.linear(joined, weight, bias).tanh())
