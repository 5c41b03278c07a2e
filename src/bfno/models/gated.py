"""The gated recurrent unit over whole series, with its own backward pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bfno.layers.pointwise import is_stand_in
from bfno.ode.solution import refuse_all_but_one_gradient

__all__ = ["gated_update", "run_gru"]


def gated_update(from_input: Tensor, from_state: Tensor, state: Tensor) -> Tensor:
    """The state of a gated recurrent unit after a step.

    Args:
        from_input: Contribution of the input to the three gates, `(batch, 3 * size)`, in PyTorch's
            order: reset, update, new.
        from_state: Contribution of the state to them, in the same shape and order.
        state: The state before the step, `(batch, size)`.
    """
    size = state.shape[-1]
    gates = torch.sigmoid(from_input[:, : 2 * size] + from_state[:, : 2 * size])
    reset, update = gates.chunk(2, dim=-1)
    new = torch.addcmul(from_input[:, 2 * size :], reset, from_state[:, 2 * size :])
    return torch.lerp(new.tanh(), state, update)


def run_gru(cell: nn.GRUCell, inputs: Tensor, kept: Tensor | None = None) -> Tensor:
    """Run a gated recurrent unit over rows, starting from a state of zeros.

    About twice as fast as `nn.GRU` on a CPU, and the state may fade. Gradients cannot be
    differentiated again, nor computed several at a time, except by the transforms of `torch.func`.

    Args:
        cell: The unit.
        inputs: `(batch, rows, cell.input_size)`.
        kept: Factor of the state before each step, `(batch, rows, 1)`; None leaves it unchanged.

    Raises:
        GradientError: In a backward pass with `create_graph=True` or `is_grads_batched=True`, or
            in one that `torch.func` transforms without having transformed the steps.

    Returns:
        State before the first row and after each, `(batch, rows + 1, cell.hidden_size)`.

    Example:
        >>> cell, inputs = nn.GRUCell(3, 2), torch.ones(1, 4, 3)
        >>> states = run_gru(cell, inputs)
        >>> torch.allclose(states[:, 1], cell(inputs[:, 0]))
        True
    """
    if torch.is_autocast_enabled(inputs.device.type):
        # Half precision would lose more in every row, and the results of a step have one dtype.
        kind = cell.weight_hh.dtype
        with torch.autocast(inputs.device.type, enabled=False):
            return run_gru(cell, inputs.to(kind), None if kept is None else kept.to(kind))
    # Rows first, so that each step reads and writes contiguous memory.
    from_inputs = F.linear(inputs.transpose(0, 1), cell.weight_ih, cell.bias_ih)
    factors = inputs.new_ones(1, 1, 1) if kept is None else kept.transpose(0, 1)
    factors = factors.expand(len(from_inputs), -1, -1)
    run = _run_plainly if is_stand_in(inputs) else _Recurrence.apply
    states = run(from_inputs, factors, cell.weight_hh, cell.bias_hh)
    return F.pad(states.transpose(0, 1), (0, 0, 1, 0))


def _run_plainly(from_inputs: Tensor, factors: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The steps of `_Recurrence` in ordinary operations, for compilers and function transforms."""
    state, states = from_inputs.new_zeros(from_inputs.shape[1], weight.shape[1]), []
    for from_input, factor in zip(from_inputs, factors, strict=True):
        state = state * factor
        state = gated_update(from_input, F.linear(state, weight, bias), state)
        states.append(state)
    return torch.stack(states)


class _Recurrence(torch.autograd.Function):
    """The steps of `run_gru`, rows first.

    Autograd would record and replay every operation of every row. Here a backward step is one
    product of matrices and three elementwise operations; the rest is done for all rows at once.
    """

    @staticmethod
    def forward(
        ctx: Any, from_inputs: Tensor, factors: Tensor, weight: Tensor, bias: Tensor
    ) -> Tensor:
        rows, batch, _ = from_inputs.shape
        size = weight.shape[1]
        states = from_inputs.new_zeros(rows + 1, batch, size)
        faded, new = from_inputs.new_empty(2, rows, batch, size)
        gates = from_inputs.new_empty(rows, batch, 2 * size)
        from_states = torch.empty_like(from_inputs)
        new_states = from_states[..., 2 * size :]
        to_gates = weight.t()
        fading = _by_row(states[:-1], factors, faded, from_states)
        opening = _by_row(from_inputs[..., : 2 * size], from_states[..., : 2 * size], gates)
        renewing = _by_row(from_inputs[..., 2 * size :], gates[..., :size], new_states, new)
        moving = _by_row(gates[..., size:], states[1:])
        steps = zip(fading, opening, renewing, moving, strict=True)
        for (old, factor, state, from_state), to_open, to_renew, (update, result) in steps:
            torch.mul(old, factor, out=state)
            torch.addmm(bias, state, to_gates, out=from_state)
            torch.add(*to_open[:2], out=to_open[2]).sigmoid_()
            fresh = torch.addcmul(*to_renew[:3], out=to_renew[3]).tanh_()
            torch.lerp(fresh, state, update, out=result)
        ctx.save_for_backward(states, factors, weight, faded, new, new_states, gates)
        return states[1:]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        refuse_all_but_one_gradient(gradients, "run_gru", "or call the cell row by row")
        states, factors, weight, faded, new, new_states, gates = ctx.saved_tensors
        reset, update = gates.chunk(2, dim=-1)
        to_new = (1 - update) * (1 - new.square())
        to_update = (faded - new) * update * (1 - update)
        to_reset = to_new * new_states * reset * (1 - reset)
        to_gates = torch.stack((to_reset, to_update, to_new * reset), dim=2)
        of_states = F.pad(gradients[0], (0, 0, 0, 0, 1, 0))
        of_faded, of_gates = torch.empty_like(new), torch.empty_like(to_gates)
        flat = of_gates.flatten(2)
        after, before = of_states[1:], of_states[:-1]
        steps = _by_row(after.unsqueeze(2), to_gates, of_gates, flat, of_faded, factors, before)
        passing = _by_row(after, update)
        for (wide, to_gate, of_gate, one, through, factor, earlier), kept in reversed(
            list(zip(steps, passing, strict=True))
        ):
            torch.mul(to_gate, wide, out=of_gate)
            torch.mul(*kept, out=through).addmm_(one, weight)
            earlier.addcmul_(through, factor)
        of_inputs = torch.cat((flat[..., : -new.shape[-1]], after * to_new), dim=-1)
        of_factors = None
        if ctx.needs_input_grad[1]:
            of_factors = (of_faded * states[:-1]).sum(-1, keepdim=True)
        of_weight = flat.flatten(0, 1).t() @ faded.flatten(0, 1)
        return of_inputs, of_factors, of_weight, flat.sum((0, 1))


def _by_row(*tensors: Tensor) -> list[tuple[Tensor, ...]]:
    """The rows of some tensors side by side; making all views at once costs far less."""
    return list(zip(*[one.unbind() for one in tensors], strict=True))
