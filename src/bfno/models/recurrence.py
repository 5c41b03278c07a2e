"""The loop of an ODE-RNN whose field is a plain tanh network, with a backward pass by hand.

States of series are small, so that autograd's bookkeeping takes longer than the arithmetic. Here
every operation writes into its place in a few large tensors that hold all ticks of a schedule one
after the other. The backward loop carries states' gradients only; those of the weights are one
product over all ticks for each weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bfno.models.schedule import Schedule
from bfno.ode import Tableau

__all__ = ["Cell", "run_recurrence"]


class Cell(NamedTuple):
    """Weights of a recurrent network; see `GRUUnit` for the update.

    Both gates act on both parts of the state alike, so each of them is given twice: then every
    operation acts on whole states.

    Attributes:
        field: Weight and bias of each layer of the field, with tanh between them.
        gates_hidden: From both parts of the state to the gates' hidden units.
        gates: From these to `[update, update, reset, reset]`.
        gates_bias: Their bias.
        new_hidden: From both parts of the state to the hidden units of the new state.
        new: From these to the new state.
        new_bias: Its bias.
    """

    field: tuple[tuple[Tensor, Tensor], ...]
    gates_hidden: Tensor
    gates: Tensor
    gates_bias: Tensor
    new_hidden: Tensor
    new: Tensor
    new_bias: Tensor


class _Layout(NamedTuple):
    """What does not need gradients."""

    schedule: Schedule
    tableau: Tableau
    size: int

    def by_tick(self, tensor: Tensor) -> Sequence[Any]:
        """Views of each tick; the stages' ones side by side where there are stages."""
        active = self.schedule.active
        if tensor.dim() == 2:
            return tensor.split(active)
        return list(zip(*(part.split(active) for part in tensor.unbind(0)), strict=True))


def run_recurrence(
    schedule: Schedule, tableau: Tableau, cell: Cell, rows: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Go through a schedule.

    Args:
        schedule: The steps.
        tableau: The method that takes them.
        cell: The weights.
        rows: What the gates and the new state take from the row of each step.

    Returns:
        States after each step `(steps, size)`, and both parts after its update
        `(steps, 2, size)`.
    """
    layout = _Layout(schedule, tableau, len(cell.new_bias) // 2)
    flat = [tensor for layer in cell.field for tensor in layer]
    return _Recurrence.apply(layout, *rows, *flat, *cell[1:])


def _cell(weights: Sequence[Tensor]) -> Cell:
    count = len(weights) - len(Cell._fields) + 1
    return Cell(tuple(zip(weights[:count:2], weights[1:count:2], strict=True)), *weights[count:])


class _Recurrence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, layout: _Layout, gates: Tensor, new: Tensor, *weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        tape = _Tape(layout, _cell(weights), gates)
        tape.record(gates, new)
        ctx.tape = tape
        ctx.save_for_backward(*weights)
        return tape.moved[:, : layout.size].clone(), tape.after.view(-1, 2, layout.size)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            # Autograd is on in a backward pass only if its result is to be differentiated again.
            raise RuntimeError(
                "an ODE-RNN with a tanh network can be differentiated once, not twice"
            )
        back = _Backward(ctx.tape, _cell(ctx.saved_tensors))
        back.run(gradients[0], gradients[1].flatten(1).clone())
        return None, back.gates_hidden, back.new_hidden, *back.weights()


class _Tape:
    """Results of all ticks: of the field's stages `(stages, steps, …)`, of updates `(steps, …)`.

    Attributes:
        layers: What each layer of the field took in, and then the slopes.
        moved: Both parts of the state after the step.
        after: Both parts after the update.
    """

    def __init__(self, layout: _Layout, cell: Cell, like: Tensor) -> None:
        self.layout, self._cell = layout, cell
        steps, size, stages = len(like), layout.size, len(layout.tableau.stages)
        widths = [*(weight.shape[1] for weight, _ in cell.field), size]
        self.layers = [like.new_empty(stages, steps, width) for width in widths]
        self.moved, self.kept, self.new, self.after = like.new_empty(4, steps, 2 * size).unbind(0)
        self.gates = like.new_empty(steps, 4 * size)
        self.gates_hidden = like.new_empty(steps, cell.gates_hidden.shape[1])
        self.new_hidden = like.new_empty(steps, cell.new_hidden.shape[1])
        self._field = [(weight.T, bias) for weight, bias in cell.field]
        self._rows = [_nonzero(row) for row in layout.tableau.stages]
        self._weights = _nonzero(layout.tableau.weights)

    def record(self, gates: Tensor, new: Tensor) -> None:
        """Go through the schedule."""
        layout, size = self.layout, self.layout.size
        schedule = layout.schedule
        ticks = [schedule.sizes.unsqueeze(-1), gates, new, schedule.idle, self.moved]
        ticks += [self.gates_hidden, self.gates, self.gates[:, : 2 * size]]
        ticks += [self.gates[:, 2 * size :], self.kept, self.new_hidden, self.new]
        ticks += [self.new[:, size:], self.after]
        halves = [self.moved[:, :size], self.moved[:, size:]]
        ends = [self.after[:, :size], self.after[:, size:]]
        y, s = gates.new_zeros(2, schedule.width, size).unbind(0)
        lists = [layout.by_tick(part) for part in [*halves, *ends, *ticks, *self.layers]]
        for moved_y, moved_s, end_y, end_s, step, *views in zip(*lists, strict=True):
            if len(y) != len(step):
                y, s = y[: len(step)], s[: len(step)]
            self._move(y, step, views[13:], moved_y)
            moved_s.copy_(s)
            self._update(*views[:13])
            y, s = end_y, end_s

    def _move(self, y: Tensor, step: Tensor, layers: Sequence[Any], out: Tensor) -> None:
        slopes, (last, last_bias) = layers[-1], self._field[-1]
        for stage, row in enumerate(self._rows):
            value = _add(y, slopes, row, step, layers[0][stage])
            for (weight, bias), target in zip(self._field, layers[1:-1], strict=False):
                value = torch.addmm(bias, value, weight, out=target[stage]).tanh_()
            torch.addmm(last_bias, value, last, out=slopes[stage])
        _add(y, slopes, self._weights, step, out)

    def _update(self, gate: Tensor, fresh: Tensor, idle: Tensor, *views: Tensor) -> None:
        state, gates_hidden, gates, update, reset, kept, new_hidden, new, spread, after = views
        cell = self._cell
        torch.addmm(gate, state, cell.gates_hidden, out=gates_hidden).tanh_()
        torch.addmm(cell.gates_bias, gates_hidden, cell.gates, out=gates).sigmoid_()
        update.masked_fill_(idle, 1.0)
        torch.mul(state, reset, out=kept)
        torch.addmm(fresh, kept, cell.new_hidden, out=new_hidden).tanh_()
        torch.addmm(cell.new_bias, new_hidden, cell.new, out=new)
        spread.abs_()
        torch.lerp(new, state, update, out=after)


class _Backward:
    """Gradients of all ticks, named like what they belong to.

    With `g` the gradient after an update, the factors of `g` that lead to the gates and to the new
    state are known beforehand, for all ticks at once.
    """

    def __init__(self, tape: _Tape, cell: Cell) -> None:
        self._tape, self._cell, size = tape, cell, tape.layout.size
        self._keep, self._reset = tape.gates.split(2 * size, dim=1)
        self._to_new = 1 - self._keep
        self._to_update = (tape.moved - tape.new).mul_(self._keep).mul_(self._to_new)
        # The tape holds the absolute value of the second part.
        signs = torch.addmm(cell.new_bias[size:], tape.new_hidden, cell.new[:, size:]).sign_()
        self._to_new[:, size:].mul_(signs)
        self._to_reset = tape.kept * (1 - self._reset)
        self._new_slope = 1 - tape.new_hidden.square()
        self._gates_slope = 1 - tape.gates_hidden.square()
        self._layer_slopes = [1 - layer.square() for layer in tape.layers[1:-1]]
        self.new, self.gates = torch.empty_like(tape.new), torch.empty_like(tape.gates)
        self.new_hidden = torch.empty_like(tape.new_hidden)
        self.gates_hidden = torch.empty_like(tape.gates_hidden)
        self.layers = [torch.empty_like(layer) for layer in tape.layers[1:]]
        self._stages = _pulled_back(tape.layout.tableau)

    def run(self, before: Tensor, after: Tensor) -> None:
        """Pull the gradients of all states back to the first tick; `after` is overwritten."""
        layout, size = self._tape.layout, self._tape.layout.size
        ticks = [before, layout.schedule.sizes.unsqueeze(-1), after[:, :size], after]
        ticks += [self._to_new, self._to_update, self._keep, self._to_reset, self._reset]
        ticks += [self._new_slope, self._gates_slope, self.new, self.gates]
        ticks += [self.gates[:, : 2 * size], self.gates[:, 2 * size :]]
        ticks += [self.new_hidden, self.gates_hidden, *self._layer_slopes, *self.layers]
        lists = [layout.by_tick(part) for part in ticks]
        hidden, later = 14 + len(self._layer_slopes), None
        for arrived, step, y, *views in zip(*(reversed(one) for one in lists), strict=True):
            gradient = views[0]
            if later is not None:
                (gradient if len(later) == len(gradient) else gradient[: len(later)]).add_(later)
            later = self._update(*views[:14])
            self._move(y.add_(arrived), step, views[14:hidden], views[hidden:])

    def _update(self, gradient: Tensor, *views: Tensor) -> Tensor:
        """Turn the gradient after an update into the one before it, in place."""
        to_new, to_update, keep, to_reset, through, new_slope, gates_slope = views[:7]
        new, gates, update, reset, new_hidden, gates_hidden = views[7:]
        cell = self._cell
        torch.mul(gradient, to_new, out=new)
        torch.mul(gradient, to_update, out=update)
        torch.mm(new, cell.new.T, out=new_hidden).mul_(new_slope)
        kept = torch.mm(new_hidden, cell.new_hidden.T)
        torch.mul(kept, to_reset, out=reset)
        torch.mm(gates, cell.gates.T, out=gates_hidden).mul_(gates_slope)
        gradient.mul_(keep).addcmul_(kept, through)
        return gradient.addmm_(gates_hidden, cell.gates_hidden.T)

    def _move(self, y: Tensor, step: Tensor, slopes: Sequence[Any], layers: Sequence[Any]) -> None:
        """Turn the gradient after a step into the one before it, in place."""
        field, pulled = self._cell.field, [y]
        for stage, terms in self._stages:
            value = layers[-1][stage]
            (first, weight), *others = terms
            torch.mul(pulled[first], step, out=value)
            if weight != 1:
                value.mul_(weight)
            for number, weight in others:
                value.addcmul_(pulled[number], step, value=weight)
            for number in range(len(slopes) - 1, -1, -1):
                value = torch.mm(value, field[number + 1][0], out=layers[number][stage])
                value.mul_(slopes[number][stage])
            pulled.append(torch.mm(value, field[0][0]))
        for part in pulled[1:]:
            y.add_(part)

    def weights(self) -> list[Tensor]:
        """Gradients of the weights, in the order in which they came."""
        tape, found = self._tape, []
        for inputs, outputs in zip(tape.layers[:-1], self.layers, strict=True):
            rows = outputs.flatten(0, 1)
            found += [rows.T @ inputs.flatten(0, 1), rows.sum(0)]
        found += [tape.moved.T @ self.gates_hidden, tape.gates_hidden.T @ self.gates]
        found += [self.gates.sum(0), tape.kept.T @ self.new_hidden]
        return [*found, tape.new_hidden.T @ self.new, self.new.sum(0)]


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
