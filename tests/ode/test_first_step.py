"""The first step: its estimate, and the one that was right for the last batch."""

import copy
from typing import Any

import pytest
import torch
import torchdiffeq

import bfno

# The estimate

WAYS: list[dict[str, Any]] = [{}, {"independent": True}, {"land": False}, {"method": "trbdf2"}]


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize(("start", "rate"), [(1.7e9, 1e5), (-1.7e9, 1e5), (1.0, 1e16)])
def test_an_estimate_below_the_resolution_of_time_is_made_longer(start, rate, way):
    """Seconds since 1970, and a field so steep that the estimate would not move the clock."""
    slope, y0 = torch.tensor([[0.0, rate]]), torch.tensor([[1.0, 0.0]])
    ts = torch.tensor([start, start + 10])
    end = bfno.solve(lambda t, y: slope.clone() + 0 * y, y0, ts, **way).ys[-1]
    torch.testing.assert_close(end, y0 + 10 * slope, rtol=1e-6, atol=0)
    given = bfno.solve(
        lambda t, y: slope.clone() + 0 * y, y0, ts, first_step=1e-17, throw=False, **way
    )
    assert given.status is bfno.Status.STEP_UNDERFLOW  # the user's own is left as it is


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("unit", [2.0**54, 2.0**100])
def test_the_adjoint_of_a_large_gradient_is_solved(unit, dtype):
    y0 = torch.tensor([1.0, 2.0], dtype=dtype, requires_grad=True)
    rate = torch.tensor(0.5, dtype=dtype, requires_grad=True)
    ys = bfno.solve(
        lambda t, y: -rate * y * y, y0, torch.tensor([0.0, 3.0]), gradient="adjoint"
    ).ys[-1]
    found = torch.autograd.grad(ys, (y0, rate), torch.full_like(ys, unit))
    # y = y0 / (1 + r y0 t)
    below = 1 + 3 * rate.detach() * y0.detach()
    expected = below**-2, -(3 * (y0.detach() / below) ** 2).sum()
    torch.testing.assert_close([one / unit for one in found], list(expected), rtol=0, atol=1e-3)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize(
    ("rate", "longest"), [(1e-6, None), (1e-4, None), (1e-6, 0.1), (1e-12, None)]
)
def test_the_estimate_looks_no_further_than_the_end_and_the_largest_step(
    rate, longest, way, backward
):
    seen = []

    def field(t, y):
        seen.append(float(t.reshape(-1)[0]))
        return rate * y

    ts = torch.tensor([1.0, 0.0] if backward else [0.0, 1.0])
    bounds: dict[str, Any] = {} if longest is None else {"max_step": longest}
    bfno.solve(field, torch.ones(1, 1), ts, **way, **bounds)
    assert abs(seen[1] - seen[0]) <= (longest or 1.0)
    if way.get("land", True):
        assert 0 <= min(seen) <= max(seen) <= 1


def test_a_field_that_ends_with_its_times_is_solved():
    table = torch.ones(11)
    ys = bfno.solve(
        lambda t, y: 1e-4 * table[int(t * 10)] * y, torch.ones(1), table.new_tensor([0, 1])
    )
    assert float(ys.ys[-1]) == pytest.approx(1 + 1e-4)


def test_odeint_estimates_as_torchdiffeq_does():
    seen = {}
    for package in (bfno, torchdiffeq):
        times = seen[package] = []

        def field(t, y, times=times):
            times.append(float(t))
            return 1e-3 * torch.cos(t) * y

        package.odeint(field, torch.ones(2), torch.tensor([0.0, 1.0]), rtol=1e-5, atol=1e-5)
    assert max(seen[bfno]) > 1
    assert seen[bfno][:3] == pytest.approx(seen[torchdiffeq][:3])


# The step that was right for the last batch


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


def test_a_function_transform_uses_the_step_and_does_not_change_it():
    one, (x, _) = block(first_step="last"), batches(2)
    one(x)
    before = one.first_step.clone()
    one(x).sum().backward()
    expected = {name: weight.grad for name, weight in one.named_parameters()}
    one.first_step.copy_(before)
    found = torch.func.grad(lambda weights: torch.func.functional_call(one, weights, x).sum())(
        dict(one.named_parameters())
    )
    assert torch.equal(one.first_step, before)
    assert one.stats.step_ends[0] == before.item()
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_ensembles_need_fixed_steps_and_are_told_so():
    x = batches(1)[0]

    def ensemble(**settings):
        parts = [block(first_step="last", **settings) for _ in range(2)]
        state = torch.func.stack_module_state(parts)
        call = lambda state: torch.func.functional_call(parts[0], state, x)  # noqa: E731
        return torch.func.vmap(call)(state), torch.stack([part(x) for part in parts])

    with pytest.raises(ValueError, match="adaptive steps need numbers"):
        ensemble()
    torch.testing.assert_close(*ensemble(method="rk4", step=0.5), rtol=0, atol=1e-12)


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
