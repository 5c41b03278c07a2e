"""The gated recurrent unit over whole series against PyTorch's."""

import pytest
import torch
from torch import nn

from bfno.models.gated import gated_update, run_gru

TOLERANCE = 1e-12


def stepwise(cell, inputs, kept):
    state = torch.zeros(len(inputs), cell.hidden_size)
    states = [state]
    for row in range(inputs.shape[1]):
        state = cell(inputs[:, row], state * kept[:, row])
        states.append(state)
    return torch.stack(states, dim=1)


def test_one_update_is_that_of_the_cell():
    cell = nn.GRUCell(4, 3)
    x, state = torch.randn(5, 4), torch.randn(5, 3)
    from_input = x @ cell.weight_ih.T + cell.bias_ih
    from_state = state @ cell.weight_hh.T + cell.bias_hh
    found = gated_update(from_input, from_state, state)
    torch.testing.assert_close(found, cell(x, state), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("rows", [1, 6])
def test_states_and_gradients_equal_those_of_single_steps(rows):
    cell = nn.GRUCell(4, 3)
    inputs = torch.randn(5, rows, 4, requires_grad=True)
    kept = torch.rand(5, rows, 1, requires_grad=True)
    found, expected = run_gru(cell, inputs, kept), stepwise(cell, inputs, kept)
    torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE)
    direction = torch.randn_like(found)
    wanted = [inputs, kept, *cell.parameters()]
    for one, other in zip(
        torch.autograd.grad(found, wanted, direction),
        torch.autograd.grad(expected, wanted, direction),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=0, atol=TOLERANCE)


def test_a_state_that_does_not_fade_is_that_of_pytorch():
    gru = nn.GRU(4, 3, batch_first=True)
    cell = nn.GRUCell(4, 3)
    cell.load_state_dict({name.removesuffix("_l0"): one for name, one in gru.named_parameters()})
    inputs = torch.randn(5, 6, 4)
    found = run_gru(cell, inputs)
    assert found[:, 0].eq(0).all()
    torch.testing.assert_close(found[:, 1:], gru(inputs)[0], rtol=0, atol=TOLERANCE)


def test_gradients_are_finite_differences():
    cell = nn.GRUCell(2, 3)
    inputs = torch.randn(2, 4, 2, requires_grad=True)
    kept = torch.rand(2, 4, 1, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, factor: run_gru(cell, x, factor), (inputs, kept))


def test_a_second_derivative_is_refused():
    inputs = torch.randn(2, 4, 2, requires_grad=True)
    states = run_gru(nn.GRUCell(2, 3), inputs)
    with pytest.raises(RuntimeError, match="twice"):
        torch.autograd.grad(states.sum(), inputs, create_graph=True)
