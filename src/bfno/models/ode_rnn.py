"""Recurrent networks whose state follows a differential equation between two rows."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeGuard, TypeVar

import torch
from torch import Tensor, nn

from bfno.dynamics import Dynamics, FirstOrder, GeneralizedHeavyBall, GeneralizedNesterov
from bfno.fields import Autonomous
from bfno.layers.modules import is_untouched
from bfno.layers.pointwise import is_stand_in
from bfno.models.recurrence import Cell, both_gates, run_recurrence
from bfno.models.schedule import Schedule, make_schedule
from bfno.models.series import (
    SeriesModel,
    SeriesOutput,
    dense,
    network,
    tanh_network,
)
from bfno.ode.advance import take_step
from bfno.ode.solution import Stats
from bfno.ode.tableaus import find_explicit

__all__ = [
    "DYNAMICS",
    "ODERNN",
    "GRUUnit",
    "ODERNNClassifier",
    "RecurrentStates",
    "make_ode_rnn",
]

DYNAMICS = ("first_order", "generalized_heavy_ball", "generalized_nesterov")
"""The dynamics of an ODE-RNN's state, by name."""


_Module = TypeVar("_Module", bound=nn.Module)


class RecurrentStates(NamedTuple):
    """States of a recurrent network, `(batch, time, size)` each.

    Attributes:
        before: At the time of each row, before the row is seen.
        after: At the time of each row, after the row is seen.
        spread: The second part of the state, after the row is seen.
    """

    before: Tensor
    after: Tensor
    spread: Tensor


class GRUUnit(nn.Module):
    """The update of an ODE-RNN: a gated unit made of networks, with state `y` and spread `s`.

    `u = σ(MLP[y, s, x])`, `r = σ(MLP[y, s, x])`, `[n, q] = MLP[y r, s r, x]`, and then
    `y ← (1 - u) n + u y`, `s ← (1 - u) |q| + u s`. Each network has one hidden layer with tanh.

    The part of the hidden layers that depends on `x` alone is one product for all rows, see
    `read`; both gates share their products as well.

    Args:
        inputs: Size of `x`.
        size: Size of `y`, and of `s`.
        units: Hidden units of each network.

    References:
        Rubanova et al., Latent Ordinary Differential Equations for Irregularly-Sampled Time
        Series, 2019.
    """

    def __init__(self, inputs: int, size: int, units: int) -> None:
        super().__init__()
        self.size, self.units = size, units
        self.read_row = dense(inputs, 3 * units)
        self.gates_hidden = nn.Parameter(torch.empty(2 * size, 2 * units).normal_(std=0.1))
        self.update = dense(units, size)
        self.reset = dense(units, size)
        self.new_hidden = nn.Parameter(torch.empty(2 * size, units).normal_(std=0.1))
        self.new = dense(units, 2 * size)

    def read(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Contributions of rows `x` to the gates and to the new state."""
        gates, new = self.read_row(x).split((2 * self.units, self.units), dim=-1)
        return gates, new

    def cell(self, field: tuple[tuple[Tensor, Tensor], ...]) -> Cell:
        """The weights, together with those of a field's layers."""
        update, reset, new = ((one.weight, one.bias) for one in (self.update, self.reset, self.new))
        return Cell(field, update, reset, new, self.gates_hidden, self.new_hidden)

    def weights(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        """The maps of states, with each gate twice."""
        gates, bias = both_gates(*self.cell(())[1:3])
        new = self.new
        return self.gates_hidden, gates.T, bias, self.new_hidden, new.weight.T, new.bias

    def forward(
        self,
        state: Tensor,
        row: tuple[Tensor, Tensor],
        weights: tuple[Tensor, ...] | None = None,
    ) -> Tensor:
        """Update states.

        Args:
            state: `y` and then `s`, `(batch, 2 * size)`.
            row: The result of `read` for the rows.
            weights: The result of `weights`, if it was called before.
        """
        gates_hidden, gates, bias, new_hidden, new, new_bias = weights or self.weights()
        hidden = torch.addmm(row[0], state, gates_hidden).tanh()
        update, reset = torch.addmm(bias, hidden, gates).sigmoid().chunk(2, dim=-1)
        hidden = torch.addmm(row[1], state * reset, new_hidden).tanh()
        mean, spread = torch.addmm(new_bias, hidden, new).chunk(2, dim=-1)
        candidate = torch.cat((mean, spread.abs()), dim=1)
        return candidate.lerp(state, update)


class ODERNN(nn.Module):
    """A recurrent network whose state moves by an equation between rows and jumps at them.

    Every series has its own times and its own steps: the network takes one step of all series at
    once, whichever row each is moving towards, and leaves out series that have ended. A row
    updates the state if anything was observed in it.

    In every gap the dynamics' clock runs once through its interval, with its rates multiplied by
    the length of the gap. Only dynamics that depend on time notice this.

    Args:
        dynamics: Moves the state.
        features: Number of features.
        size: Numbers in the state.
        gru_units: Hidden units of the update's networks.
        method: Name of a Runge–Kutta method with fixed steps.
        step: Largest step; a gap is divided into as many equal steps as needed.
        steps: `own` as above, or `public_code` for `max(2, int(r)) - 1` steps in a gap of `r`
            times `step`, `step` being a share of the series' duration, as in the published code.
        gaps: `own`, or `public_code` to do as the published code does in forward mode: it moves
            from the previous row back to the one before it, and once over the whole series.
        backward: Whether to go from the last row to the first, starting shortly after the last.

    Attributes:
        stats: How often the last call evaluated the field.

    Shape:
        `times` `(batch, time)`, `values` and `mask` `(batch, time, features)` to
        `RecurrentStates` of `(batch, time, size)`.

    Example:
        >>> network = ODERNN(FirstOrder(lambda t, y: -y), features=3, size=4, step=0.1)
        >>> values = torch.ones(5, 6, 3)
        >>> network(torch.linspace(0, 1, 6).expand(5, 6), values, values > 0).after.shape
        torch.Size([5, 6, 4])
    """

    def __init__(
        self,
        dynamics: Dynamics,
        features: int,
        size: int,
        gru_units: int = 50,
        *,
        method: str = "midpoint",
        step: float = 0.02,
        steps: str = "own",
        gaps: str = "own",
        backward: bool = False,
    ) -> None:
        super().__init__()
        if not step > 0:
            raise ValueError(f"step must be positive, got {step}")
        if steps not in ("own", "public_code"):
            raise ValueError(f"steps must be own or public_code, got {steps!r}")
        if gaps not in ("own", "public_code") or (gaps == "public_code" and backward):
            raise ValueError(
                f"gaps must be own, or public_code in a forward network, got {gaps!r} with "
                f"backward={backward}"
            )
        self.dynamics, self.size, self.step = dynamics, size, step
        self.steps, self.gaps, self.backward = steps, gaps, backward
        self.unit = GRUUnit(2 * features, size, gru_units)
        # Neither an error estimate nor the slope at the end of a step is needed.
        self.tableau = find_explicit(method, "an ODE-RNN").without_end_stage
        self.stats = Stats()

    def forward(self, times: Tensor, values: Tensor, mask: Tensor) -> RecurrentStates:
        if not times.numel():
            shape = tuple(times.shape)
            raise ValueError(f"an ODE-RNN needs a series and a row, got times of shape {shape}")
        if torch.is_autocast_enabled(values.device.type):
            # Half precision would lose more in every step, and a step's results have one dtype.
            kind = self.unit.gates_hidden.dtype
            with torch.autocast(values.device.type, enabled=False):
                return self(times.to(kind), values.to(kind), mask)
        mask = mask.bool()
        values = values.where(mask, 0.0)  # values that were not observed may be anything, even NaN
        if self.backward:
            times, values, mask = times.flip(1), values.flip(1), mask.flip(1)
        schedule = self.schedule(times, mask.any(-1))
        rows = torch.cat((values, mask.to(values.dtype)), dim=-1).flatten(0, 1)
        before, after = self._run(schedule, rows)
        states = schedule.at_rows(before, after)
        if self.backward:
            states = [state.flip(1) for state in states]
        return RecurrentStates(*states)

    def schedule(self, times: Tensor, observed: Tensor) -> Schedule:
        """The steps from row to row; times are in the order in which the network visits them."""
        gaps, counts = self._gaps(times)
        return make_schedule(gaps, counts, observed, self.dynamics.interval)

    def _gaps(self, times: Tensor) -> tuple[Tensor, Tensor]:
        """Signed time before each row, and the smallest number of steps for it."""
        lead = -_LEAD if self.backward or self.gaps == "public_code" else 0.0
        own = torch.cat((times.new_full((len(times), 1), lead), times.diff(dim=1)), dim=1)
        if self.gaps == "own":
            return own, self._counts(own, times)
        gaps = torch.cat((own[:, :1], times[:, -1:] - times[:, :1], -own[:, 1:-1]), dim=1)
        gaps = gaps[:, : times.shape[1]]
        # A row at the same time as the previous one is padding, where nothing may happen.
        gaps = torch.cat((gaps[:, :1], gaps[:, 1:].where(own[:, 1:] != 0, 0.0)), dim=1)
        counts = self._counts(gaps, times)
        counts[:, 1:2].clamp_(max=1)
        return gaps, counts

    def _counts(self, gaps: Tensor, times: Tensor) -> Tensor:
        if self.steps == "own":
            return steps_in(gaps, self.step)
        span = (times[:, -1:] - times[:, :1]).abs()
        return published_steps_in(gaps, self.step * span)

    def _run(self, schedule: Schedule, rows: Tensor) -> tuple[Tensor, Tensor]:
        """States before and after the update of every step, after the series' starts."""
        steps = len(schedule.active)
        self.stats = Stats(steps * len(self.tableau.stages), 0, steps)
        read = self.unit.read(rows.index_select(0, schedule.rows[schedule.updates]))
        start = rows.new_zeros(schedule.width, 2, self.size)
        layers = self._plain_layers()
        if layers is None or is_stand_in(rows) or schedule.sizes.requires_grad:
            before, after = self._run_plainly(schedule, read, start)
        else:
            before, after = run_recurrence(schedule, self.tableau, self.unit.cell(layers), read)
        return torch.cat((start[:, 0], before)), torch.cat((start, after))

    def _run_plainly(
        self, schedule: Schedule, read: tuple[Tensor, Tensor], state: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The same for any dynamics, recorded by autograd."""
        weights, state = self.unit.weights(), state.flatten(1)
        before, after = [state[:0, : self.size]], [state[:0]]
        steps = [schedule.times, schedule.lengths, schedule.sizes]
        updates = [schedule.members, *read]
        for time, length, size, members, *row in zip(
            *(part.split(schedule.active) for part in steps),
            *(part.split(schedule.updated) for part in updates),
            strict=True,
        ):
            y, s = state[: len(size)].chunk(2, dim=1)
            y = take_step(self.dynamics, self.tableau, y, (time, length), size)
            state = torch.cat((y, s), dim=1)
            if len(members) == len(size):
                state = self.unit(state, row, weights)
            elif len(members) or not len(schedule.updates):
                # Even without any update, weights have gradients, which are zero.
                updated = self.unit(state.index_select(0, members), row, weights)
                state = state.index_copy(0, members, updated)
            before.append(y)
            after.append(state)
        return torch.cat(before), torch.cat(after).unflatten(1, (2, -1))

    def _plain_layers(self) -> tuple[tuple[Tensor, Tensor], ...] | None:
        """Weights of the field's layers, if it is a plain tanh network.

        The loop then uses these weights and calls none of the modules that hold them, so each
        module has to be of exactly the expected class.
        """
        if not (_is_exactly(self.dynamics, FirstOrder) and _is_exactly(self.unit, GRUUnit)):
            return None
        field = self.dynamics.field
        if not (_is_exactly(field, Autonomous) and _is_exactly(field.network, nn.Sequential)):
            return None
        layers = list(field.network)
        linear = [one for one in layers[::2] if _is_exactly(one, nn.Linear)]
        between = [one for one in layers[1::2] if _is_exactly(one, nn.Tanh)]
        if len(linear) != len(between) + 1 or len(linear) + len(between) != len(layers):
            return None
        found = tuple((one.weight, one.bias) for one in linear)
        return None if any(bias is None for _, bias in found) else found


def _is_exactly(thing: Any, kind: type[_Module]) -> TypeGuard[_Module]:
    """Whether an object is of exactly this class, and has no attributes that override it."""
    return type(thing) is kind and is_untouched(thing)


_LEAD = 0.01
"""Time between the last row and the start of a backward network."""


def steps_in(gaps: Tensor, step: float) -> Tensor:
    """Number of steps of at most `step` in each gap, disregarding rounding errors of the gap."""
    counts = (gaps.detach().abs() / step - 1e-4).ceil().long()
    return torch.maximum(counts, (gaps != 0).long())


def published_steps_in(gaps: Tensor, step: Tensor) -> Tensor:
    """Number of steps that the published code takes in each gap; they are longer than requested.

    Args:
        gaps: `(batch, time)`.
        step: The step of each series, `(batch, 1)`; 0 for a series of zero duration.
    """
    ratio = (gaps.detach().abs() / step.detach()).where(step > 0, 0.0)
    # This is its number of points from the beginning of a gap to its end, both included.
    counts = ratio.long().clamp(min=2) - 1
    return counts.where(gaps != 0, 0)


class ODERNNClassifier(SeriesModel):
    """An ODE-RNN that classifies a series, or every row of it, from what it has seen so far.

    Args:
        features: Number of features.
        classes: Number of classes.
        recurrent: The network; `make_ode_rnn` makes it.
        by_row: Whether every row has a label; otherwise every series has one.
        decoder: Hidden units of the network that predicts a row from the state before it.
        head: Hidden units of the classifier's layers.
        reconstruction: `own` predicts a row from the state that has moved to its time.
            `public_code` predicts it from the state after the previous row, which has not moved
            yet, and the first row from itself, as the published code does.

    Example:
        >>> model = ODERNNClassifier(3, 2, make_ode_rnn(3, latents=4), by_row=True)
        >>> values = torch.ones(5, 6, 3)
        >>> model(torch.linspace(0, 1, 6).expand(5, 6), values, values > 0).scores.shape
        torch.Size([1, 5, 6, 2])
    """

    def __init__(
        self,
        features: int,
        classes: int,
        recurrent: ODERNN,
        *,
        by_row: bool,
        decoder: int = 100,
        head: tuple[int, ...] = (300, 300),
        reconstruction: str = "own",
    ) -> None:
        super().__init__(features, classes, by_row=by_row)
        if reconstruction not in ("own", "public_code"):
            raise ValueError(f"reconstruction must be own or public_code, got {reconstruction!r}")
        if recurrent.backward:
            raise ValueError(
                "a classifier reads series forward, or it would see the future; build its ODERNN "
                "with backward=False"
            )
        self.recurrent, self.reconstruction = recurrent, reconstruction
        position = recurrent.size // recurrent.dynamics.components
        self.decoder = network(position, decoder, features)
        self.head = network(position, *head, self.outputs, activation=nn.ReLU)

    def _run(self, times: Tensor, values: Tensor, mask: Tensor) -> SeriesOutput:
        states = self.recurrent(times, values, mask)
        self.stats = self.recurrent.stats
        seen = states.after if self.by_row else states.after[:, -1]
        scores = self._scores(self.head(self._read_out(seen)))
        if self.reconstruction == "own":
            prediction = self.decoder(self._read_out(states.before))
        else:
            previous = nn.functional.pad(states.after[:, :-1], (0, 0, 1, 0))
            prediction = self.decoder(self._read_out(previous))
            first = values[:, :1].where(mask[:, :1], prediction[:, :1])
            prediction = torch.cat((first, prediction[:, 1:]), dim=1)
        return SeriesOutput(scores.unsqueeze(0), prediction.unsqueeze(0))

    def _read_out(self, states: Tensor) -> Tensor:
        read = self.recurrent.dynamics.read_out(states.flatten(0, -2))
        return read.unflatten(0, states.shape[:-1])


def make_ode_rnn(
    features: int,
    latents: int = 20,
    *,
    layers: int = 3,
    units: int = 50,
    gru_units: int = 50,
    dynamics: str = "first_order",
    **options: Any,
) -> ODERNN:
    """An ODE-RNN whose field is a tanh network.

    Args:
        features: Number of features.
        latents: Size of the position; dynamics with momentum double the size of the state.
        layers: Hidden maps of the field.
        units: Hidden units of the field.
        gru_units: Hidden units of the update's networks.
        dynamics: One of `DYNAMICS`.
        **options: Options of `ODERNN`.

    Example:
        >>> make_ode_rnn(41, dynamics="generalized_heavy_ball").size
        40
    """
    field = Autonomous(tanh_network(latents, latents, layers, units))
    if dynamics == "first_order":
        moved: Dynamics = FirstOrder(field)
    elif dynamics == "generalized_heavy_ball":
        moved = GeneralizedHeavyBall(field, restoring="learned", restoring_logit=1.0)
    elif dynamics == "generalized_nesterov":
        moved = GeneralizedNesterov(field, restoring="learned", restoring_logit=0.0)
    else:
        raise ValueError(f"dynamics must be one of {', '.join(DYNAMICS)}, got {dynamics!r}")
    return ODERNN(moved, features, moved.components * latents, gru_units, **options)
