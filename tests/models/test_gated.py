"""The gated recurrent unit over whole series against PyTorch's."""

import pytest
import torch
from torch import nn

from bfno.models.gated import gated_update, run_gru
from tests.cotangents import AT_ONCE, one_by_one
from tests.torch_versions import ONE_GRAPH

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


@pytest.mark.parametrize("way", AT_ONCE)
def test_several_gradients_at_once_are_refused(way):
    cell, inputs = nn.GRUCell(2, 3), torch.randn(2, 4, 2, requires_grad=True)
    states = run_gru(cell, inputs)
    pair = torch.randn(2, *states.shape)
    before = one_by_one(states, inputs, pair)
    with pytest.raises(RuntimeError, match=r"^run_gru .*is_grads_batched=True.*call the cell row"):
        AT_ONCE[way](states, inputs, pair)
    assert torch.equal(one_by_one(states, inputs, pair), before)
    states = stepwise(cell, inputs, torch.ones(2, 4, 1))
    torch.testing.assert_close(AT_ONCE[way](states, inputs, pair), before, rtol=0, atol=TOLERANCE)


def test_transforms_differentiate_single_steps():
    cell, inputs, kept = nn.GRUCell(2, 3), torch.randn(2, 4, 2), torch.rand(2, 4, 1)
    direction = torch.randn_like(inputs)

    def run(x, factor):
        return run_gru(cell, x, factor).square().sum()

    wanted = inputs.clone().requires_grad_(), kept.clone().requires_grad_()
    expected = torch.autograd.grad(run(*wanted), wanted)
    for one, other in zip(torch.func.grad(run, (0, 1))(inputs, kept), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=TOLERANCE)
    each = torch.func.vmap(torch.func.grad(lambda x: run_gru(cell, x[None]).sum()))(inputs)
    (whole,) = torch.autograd.grad(run_gru(cell, wanted[0]).sum(), wanted[0])
    torch.testing.assert_close(each, whole, rtol=0, atol=TOLERANCE)
    slope = torch.func.jvp(lambda x: run(x, kept), (inputs,), (direction,))[1]
    torch.testing.assert_close(slope, (expected[0] * direction).sum(), rtol=0, atol=TOLERANCE)
    twice = torch.func.hessian(run)(inputs, kept)
    steps = torch.func.hessian(lambda x: stepwise(cell, x, kept).square().sum())(inputs)
    torch.testing.assert_close(twice, steps, rtol=0, atol=TOLERANCE)


@ONE_GRAPH
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler's own
def test_a_compiler_may_follow_the_gradient():
    cell, inputs = nn.GRUCell(2, 3), torch.randn(2, 4, 2, requires_grad=True)
    compiled = torch.compile(run_gru, backend="eager", fullgraph=True)
    found, expected = (
        torch.autograd.grad(run(cell, inputs).square().sum(), inputs) for run in (compiled, run_gru)
    )
    torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE)
