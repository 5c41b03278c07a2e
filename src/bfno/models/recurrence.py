"""The loop of an ODE-RNN whose field is a plain tanh network, with a backward pass by hand.

States of series are small, so autograd's bookkeeping takes longer than the arithmetic. Here every
operation writes into its place in a few large tensors that hold all ticks of a schedule one after
the other. The backward loop carries only the gradients of states; the gradient of each weight is
one product over all ticks.

A processor computes a sigmoid in a quarter of the time of a hyperbolic tangent. So the tape holds
`u = σ(2 h)` instead of `tanh(h) = 2 u - 1`, and the following maps take that into account.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from bfno.models.schedule import Schedule
from bfno.ode import Tableau
from bfno.ode.solution import refuse_all_but_one_gradient

__all__ = ["Cell", "both_gates", "run_recurrence"]


Layer = tuple[Tensor, Tensor]
"""Weight and bias of a linear layer."""


class Cell(NamedTuple):
    """Weights of a recurrent network; see `GRUUnit` for the update.

    Attributes:
        field: Weight and bias of each layer of the field, with tanh between them.
        update: The same of the update gate, from the first half of the gates' hidden units.
        reset: The same of the reset gate, from the second half.
        new: The same of the new state, from its hidden units.
        gates_hidden: From both parts of the state to the gates' hidden units.
        new_hidden: From both parts of the state to the hidden units of the new state.
    """

    field: tuple[Layer, ...]
    update: Layer
    reset: Layer
    new: Layer
    gates_hidden: Tensor
    new_hidden: Tensor


def both_gates(update: Layer, reset: Layer) -> Layer:
    """Both gates as one map, to `[update, update, reset, reset]`.

    They act on both parts of the state alike. With each gate twice, every operation acts on whole
    states.
    """
    none = torch.zeros_like(update[0])
    weight = torch.cat((torch.cat((update[0], update[0], none, none)),
                        torch.cat((none, none, reset[0], reset[0]))), dim=1)  # fmt: skip
    return weight, torch.cat((update[1], update[1], reset[1], reset[1]))


def _after_sigmoid(layer: Layer) -> Layer:
    """A map of `2 u - 1` as a map of `u`."""
    return 2 * layer[0], layer[1] - layer[0].sum(1)


class _Layout(NamedTuple):
    """The parts that need no gradients."""

    schedule: Schedule
    tableau: Tableau
    size: int

    def by_tick(self, *tensors: Tensor) -> list[tuple[Tensor, ...]]:
        """Views of each tick, for tensors with a row for every step."""
        return list(zip(*(one.split(self.schedule.active) for one in tensors), strict=True))

    def by_tick_and_stage(self, *tensors: Tensor) -> list[tuple[tuple[Tensor, ...], ...]]:
        """The same for tensors with a part for every stage."""
        stages = ([part.split(self.schedule.active) for part in one.unbind(0)] for one in tensors)
        return list(zip(*(zip(*parts, strict=True) for parts in stages), strict=True))

    def by_update(self, *tensors: Tensor) -> list[tuple[Tensor, ...]]:
        """Views of each tick, for tensors with a row for every update."""
        return list(zip(*(one.split(self.schedule.updated) for one in tensors), strict=True))


def run_recurrence(
    schedule: Schedule, tableau: Tableau, cell: Cell, rows: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Go through a schedule.

    Args:
        schedule: The steps.
        tableau: The method that takes them.
        cell: The weights.
        rows: Contributions of the row of each update to the gates and the new state.

    Returns:
        States after each step `(steps, size)`, and both parts after its update
        `(steps, 2, size)`.
    """
    layout = _Layout(schedule, tableau, len(cell.update[1]))
    first, *later = cell.field
    layers = [first, *map(_after_sigmoid, (*later, cell.update, cell.reset, cell.new))]
    flat = [tensor for layer in layers for tensor in layer]
    return _Recurrence.apply(layout, *rows, *flat, cell.gates_hidden, cell.new_hidden)


def _cell(weights: Sequence[Tensor]) -> Cell:
    *pairs, gates_hidden, new_hidden = weights
    *field, update, reset, new = zip(pairs[::2], pairs[1::2], strict=True)
    return Cell(tuple(field), update, reset, new, gates_hidden, new_hidden)


class _Recurrence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, layout: _Layout, gates: Tensor, new: Tensor, *weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        with torch.inference_mode():  # nothing needs to track views and changes
            tape = _Tape(layout, _cell(weights), gates)
            tape.record(gates, new)
        ctx.tape = tape
        ctx.save_for_backward(*weights)
        before = tape.after[:, : layout.size].clone()
        before[layout.schedule.updates] = tape.moved[:, : layout.size]
        return before, tape.after.view(-1, 2, layout.size).clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        refuse_all_but_one_gradient(
            gradients,
            "an ODE-RNN with a tanh network",
            "or use another activation such as nn.Softplus",
        )
        with torch.inference_mode():
            back = _Backward(ctx.tape, _cell(ctx.saved_tensors))
            back.run(gradients[0], gradients[1].flatten(1).clone())
        return None, back.gates_hidden.clone(), back.new_hidden.clone(), *back.weights()


class _Tape:
    """Results of all steps: of the field's stages `(stages, steps, …)`, of updates `(updates, …)`.

    Attributes:
        layers: The input of each layer of the field, after the first `u`, and then the slopes.
        after: Both parts of the state after each step, `(steps, …)`, and after its update.
        moved: Both parts before each update.
        gates_hidden: The hidden units of the gates, `u`.
        new_hidden: The hidden units of the new state.
    """

    def __init__(self, layout: _Layout, cell: Cell, like: Tensor) -> None:
        self.layout, self._cell = layout, cell
        steps, updates = len(layout.schedule.sizes), len(like)
        size, stages = layout.size, len(layout.tableau.stages)
        widths = [*(weight.shape[1] for weight, _ in cell.field), size]
        self.layers = [like.new_empty(stages, steps, width) for width in widths]
        self.after = like.new_empty(steps, 2 * size)
        self.moved, self.kept, self.new = like.new_empty(3, updates, 2 * size).unbind(0)
        self.gates = like.new_empty(updates, 4 * size)
        self.gates_hidden = like.new_empty(updates, cell.gates_hidden.shape[1])
        self.new_hidden = like.new_empty(updates, cell.new_hidden.shape[1])
        self._field = [(weight.T, bias) for weight, bias in cell.field]
        to_gates, self._gates_bias = both_gates(cell.update, cell.reset)
        self._to_gates, self._to_new = to_gates.T, cell.new[0].T
        self._rows = [_nonzero(row) for row in layout.tableau.stages]
        self._weights = _nonzero(layout.tableau.weights)

    def record(self, gates: Tensor, new: Tensor) -> None:
        """Go through the schedule."""
        layout, size = self.layout, self.layout.size
        schedule, after = layout.schedule, self.after
        moves = layout.by_tick(
            schedule.sizes.unsqueeze(-1), after, after[:, :size], after[:, size:]
        )
        stages = layout.by_tick_and_stage(*self.layers)
        updates = layout.by_update(
            *(schedule.members, self.moved, gates, new, self.gates_hidden, self.gates),
            *(self.gates[:, : 2 * size], self.gates[:, 2 * size :], self.kept, self.new_hidden),
            *(self.new, self.new[:, size:]),
        )
        y, s = gates.new_zeros(2, schedule.width, size).unbind(0)
        for (step, end, end_y, end_s), layers, (members, moved, *views) in zip(
            moves, stages, updates, strict=True
        ):
            if len(y) != len(step):
                y, s = y[: len(step)], s[: len(step)]
            self._move(y, step, layers, end_y)
            end_s.copy_(s)
            if len(members) == len(step):
                self._update(moved.copy_(end), *views, out=end)
            elif len(members):
                torch.index_select(end, 0, members, out=moved)
                end.index_copy_(0, members, self._update(moved, *views))
            y, s = end_y, end_s

    def _move(self, y: Tensor, step: Tensor, layers: Sequence[Any], out: Tensor) -> None:
        slopes, (last, last_bias) = layers[-1], self._field[-1]
        for stage, row in enumerate(self._rows):
            value = _add(y, slopes, row, step, layers[0][stage])
            for (weight, bias), target in zip(self._field, layers[1:-1], strict=False):
                value = torch.addmm(bias, value, weight, beta=2, alpha=2, out=target[stage])
                value.sigmoid_()
            torch.addmm(last_bias, value, last, out=slopes[stage])
        _add(y, slopes, self._weights, step, out)

    def _update(self, state: Tensor, *views: Tensor, out: Tensor | None = None) -> Tensor:
        gate, fresh, gates_hidden, gates, update, reset, kept, new_hidden, new, spread = views
        cell = self._cell
        torch.addmm(gate, state, cell.gates_hidden, beta=2, alpha=2, out=gates_hidden).sigmoid_()
        torch.addmm(self._gates_bias, gates_hidden, self._to_gates, out=gates).sigmoid_()
        torch.mul(state, reset, out=kept)
        torch.addmm(fresh, kept, cell.new_hidden, beta=2, alpha=2, out=new_hidden).sigmoid_()
        torch.addmm(cell.new[1], new_hidden, self._to_new, out=new)
        spread.abs_()
        return torch.lerp(new, state, update, out=out)


class _Backward:
    """Gradients of all steps and updates, named after the tensors they belong to.

    With `g` the gradient after an update, the factors of `g` that lead to the gates and to the new
    state are known beforehand, for all updates at once. So are the slopes `2 u (1 - u)` of hidden
    units; their factor 2 is one of the maps that lead back to these. Gradients take the places of
    the factors that they are multiplied by.
    """

    def __init__(self, tape: _Tape, cell: Cell) -> None:
        self._tape, size = tape, tape.layout.size
        self._keep, self._reset = tape.gates.split(2 * size, dim=1)
        self.new, self.gates = 1 - self._keep, 1 - tape.gates
        self.gates[:, : 2 * size].mul_(self._keep).mul_(tape.moved - tape.new)
        self.gates[:, 2 * size :].mul_(tape.kept)
        # The tape holds the absolute value of the second part.
        signs = F.linear(tape.new_hidden, cell.new[0][size:], cell.new[1][size:]).sign_()
        self.new[:, size:].mul_(signs)
        self.new_hidden, self.gates_hidden = _slope(tape.new_hidden), _slope(tape.gates_hidden)
        self.layers = [_slope(layer) for layer in tape.layers[1:-1]]
        self.layers.append(torch.empty_like(tape.layers[-1]))
        self._from_new = 2 * cell.new[0]
        self._from_gates = 2 * both_gates(cell.update, cell.reset)[0]
        self._through_new, self._through_gates = cell.new_hidden.T, cell.gates_hidden.T
        self._field = [cell.field[0][0], *(2 * weight for weight, _ in cell.field[1:])]
        self._stages = _pulled_back(tape.layout.tableau)

    def run(self, before: Tensor, after: Tensor) -> None:
        """Pull the gradients of all states back to the first tick; `after` is overwritten."""
        layout, size = self._tape.layout, self._tape.layout.size
        schedule = layout.schedule
        moves = layout.by_tick(schedule.sizes.unsqueeze(-1), before, after, after[:, :size])
        stages = layout.by_tick_and_stage(*self.layers)
        updates = layout.by_update(
            *(schedule.members, self._keep, self._reset, self.new, self.gates),
            *(self.gates[:, : 2 * size], self.gates[:, 2 * size :]),
            *(self.new_hidden, self.gates_hidden),
        )
        later = after[:0]
        for (step, arrived, gradient, y), layers, (members, *views) in zip(
            reversed(moves), reversed(stages), reversed(updates), strict=True
        ):
            (gradient if len(later) == len(gradient) else gradient[: len(later)]).add_(later)
            if len(members) == len(step):
                self._update(gradient, *views)
            elif len(members):
                updated = self._update(gradient.index_select(0, members), *views)
                gradient.index_copy_(0, members, updated)
            self._move(y.add_(arrived), step, layers)
            later = gradient

    def _update(self, gradient: Tensor, *views: Tensor) -> Tensor:
        """Turn the gradient after an update into the one before it, in place."""
        keep, through, new, gates, update, reset, new_hidden, gates_hidden = views
        new.mul_(gradient)
        update.mul_(gradient)
        new_hidden.mul_(torch.mm(new, self._from_new))
        kept = torch.mm(new_hidden, self._through_new)
        reset.mul_(kept)
        gates_hidden.mul_(torch.mm(gates, self._from_gates))
        gradient.mul_(keep).addcmul_(kept, through)
        return gradient.addmm_(gates_hidden, self._through_gates)

    def _move(self, y: Tensor, step: Tensor, layers: Sequence[Any]) -> None:
        """Turn the gradient after a step into the one before it, in place."""
        field, pulled = self._field, [y]
        for stage, terms in self._stages:
            value = layers[-1][stage]
            (first, weight), *others = terms
            torch.mul(pulled[first], step, out=value)
            if weight != 1:
                value.mul_(weight)
            for number, weight in others:
                value.addcmul_(pulled[number], step, value=weight)
            for number in range(len(layers) - 2, -1, -1):
                value = layers[number][stage].mul_(torch.mm(value, field[number + 1]))
            if stage:
                pulled.append(torch.mm(value, field[0]))
            else:  # the first one comes last, and its part alone is not needed
                y.addmm_(value, field[0])
        for part in pulled[1:]:
            y.add_(part)

    def weights(self) -> list[Tensor]:
        """Gradients of the weights, in the order in which they were given."""
        tape, found = self._tape, []
        for inputs, outputs in zip(tape.layers[:-1], self.layers, strict=True):
            found += _gradients(outputs.flatten(0, 1), inputs.flatten(0, 1))
        update, again, reset, more = self.gates.chunk(4, dim=1)  # each gate is there twice
        units = tape.gates_hidden.chunk(2, dim=1)
        found += _gradients(update + again, units[0])
        found += _gradients(reset + more, units[1])
        found += _gradients(self.new, tape.new_hidden)
        return [*found, tape.moved.T @ self.gates_hidden, tape.kept.T @ self.new_hidden]


def _slope(units: Tensor) -> Tensor:
    """`u (1 - u)`."""
    return torch.sub(1, units).mul_(units)


def _gradients(rows: Tensor, inputs: Tensor) -> Layer:
    """Gradients of a layer's weight and bias, given those of its outputs."""
    return rows.T @ inputs, rows.sum(0)


Terms = list[tuple[int, float]]


def _nonzero(weights: Sequence[float]) -> Terms:
    return [(number, weight) for number, weight in enumerate(weights) if weight]


def _pulled_back(tableau: Tableau) -> list[tuple[int, Terms]]:
    """Stages from last to first, each with its weights of the end and of the stages before it."""
    count, found = len(tableau.stages), []
    for stage in reversed(range(count)):
        later = [tableau.stages[m][stage] for m in reversed(range(stage + 1, count))]
        found.append((stage, _nonzero([tableau.weights[stage], *later])))
    return found


def _add(start: Tensor, parts: Sequence[Tensor], terms: Terms, step: Tensor, out: Tensor) -> Tensor:
    """Write `start + step Σ weight part` to `out` and return it."""
    if not terms:
        return out.copy_(start)
    for number, weight in terms:
        start = torch.addcmul(start, parts[number], step, value=weight, out=out)
    return out
