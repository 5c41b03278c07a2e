"""`first_step="last"`: a block that begins with the step that was right for the last batch."""

import copy
from typing import Any

import pytest
import torch

import bfno


def block(**settings) -> Any:
    torch.manual_seed(0)
    field = bfno.OperatorField("bfno", 1, 8, 2)
    for weight in field.parameters():
        weight.data *= 1.5  # a field that takes a few steps
    tolerances = {"rtol": 1e-3, "atol": 1e-3}
    return bfno.NeuralODE(bfno.FirstOrder(field), **tolerances, **settings)


def gradient_of(leaf):
    return torch.zeros(0) if leaf.grad is None else leaf.grad


def batches(count):
    generator = torch.Generator().manual_seed(1)
    return [torch.rand(4, 1, 6, 6, generator=generator) for _ in range(count)]


@pytest.mark.parametrize("method", ["dopri5", "bosh3"])
def test_later_batches_are_spared_the_estimate_and_a_careful_step(method):
    careful, bold = (block(method=method, first_step=start) for start in (None, "last"))
    first, second = batches(2)
    assert torch.equal(careful(first), bold(first))
    assert careful.stats.forward_evaluations == bold.stats.forward_evaluations
    careful(second)
    bold(second)
    # One that the estimate took, and at least one step.
    saved = careful.stats.forward_evaluations - bold.stats.forward_evaluations
    assert saved >= 1 + (6 if method == "dopri5" else 3)


def test_what_is_remembered_passes_the_error_test():
    one, (x, _) = block(first_step="last"), batches(2)
    one(x)
    remembered = one.first_step.item()
    ends = one.stats.step_ends
    assert ends[0] < remembered < ends[-1]  # the careful step was shorter
    one(x)
    assert one.stats.rejected == 0
    assert one.stats.step_ends[0] == pytest.approx(remembered)


def test_evaluation_uses_the_step_and_does_not_change_it():
    one, (first, second, third) = block(first_step="last"), batches(3)
    one(first)
    one.eval()
    before = one.first_step.clone()
    alone = one(third)
    one(10 * second)
    assert torch.equal(one.first_step, before)
    assert torch.equal(one(third), alone)
    assert one.stats.step_ends[0] == before.item()


def test_it_goes_with_the_state_so_that_training_resumes_bit_for_bit():
    def train(model, samples):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for sample in samples:
            optimizer.zero_grad()
            model(sample).square().mean().backward()
            optimizer.step()

    whole, samples = block(first_step="last"), batches(4)
    train(whole, samples[:2])
    stopped = copy.deepcopy(whole.state_dict())
    assert "first_step" in stopped
    train(whole, samples[2:])
    resumed = block(first_step="last")
    resumed.load_state_dict(stopped)
    train(resumed, samples[2:])
    state = resumed.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in whole.state_dict().items())


def test_blocks_that_do_not_remember_keep_the_state_they_had():
    assert "first_step" not in block().state_dict()
    assert "first_step" not in block(first_step=0.5).state_dict()
    assert "first_step='last'" in repr(block(first_step="last"))


def test_a_single_solve_has_no_last_step():
    with pytest.raises(ValueError, match="first_step='last' needs a NeuralODE"):
        bfno.solve(lambda t, y: -y, torch.ones(1), torch.tensor([0.0, 1.0]), first_step="last")
    with pytest.raises(ValueError, match="first_step must be a number"):
        block(first_step="first")


def test_gradients_are_those_of_the_same_first_step():
    one, (first, second) = block(first_step="last"), batches(2)
    one(first)
    given = block(first_step=one.first_step.item())
    for model in (one, given):
        model(second).square().sum().backward()
    pairs = zip(one.parameters(), given.parameters(), strict=True)
    assert all(torch.equal(*map(gradient_of, pair)) for pair in pairs)
