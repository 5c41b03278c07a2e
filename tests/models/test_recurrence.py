"""The loop with a backward pass by hand against the one that autograd records."""

import pytest
import torch
from torch import nn

from bfno.dynamics import FirstOrder
from bfno.fields import Autonomous
from bfno.models import ode_rnn
from bfno.models.ode_rnn import ODERNN, make_ode_rnn
from bfno.models.series import network
from tests.cotangents import AT_ONCE, one_by_one
from tests.models.series_batches import on_union_of_times, random_batch


def strong(model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.6)
    return model


@pytest.mark.parametrize("layers", [0, 2])
@pytest.mark.parametrize("method", ["euler", "midpoint", "heun", "heun3", "rk4"])
def test_both_loops_agree_in_states_and_gradients(method, layers, monkeypatch):
    model = strong(make_ode_rnn(2, 3, layers=layers, units=4, gru_units=5, method=method, step=0.1))
    times, values, mask = random_batch((5, 3, 7, 1))
    values.requires_grad_()
    inputs = (values, *model.parameters())
    weights = [torch.randn(4, 7, 3) for _ in range(3)]

    def run():
        states = model(times, values, mask)
        total = torch.stack(states).mul(torch.stack(weights)).sum()
        return states, torch.autograd.grad(total, inputs)

    by_hand, gradients = run()
    monkeypatch.setattr(ode_rnn, "run_recurrence", None)
    monkeypatch.setattr(ODERNN, "_plain_layers", lambda self: None)
    recorded, expected = run()
    torch.testing.assert_close(by_hand, recorded, rtol=0, atol=1e-13)
    torch.testing.assert_close(gradients, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("method", ["euler", "midpoint"])
def test_both_loops_agree_where_few_series_see_a_row(method, monkeypatch):
    model = strong(make_ode_rnn(2, 3, units=4, gru_units=5, method=method, step=0.05))
    (times, values, mask), _ = on_union_of_times(random_batch((5, 3, 7, 1), share=0.7))
    mask[:, 0] = True
    schedule = model.schedule(times, mask.any(-1))
    seen = [count / going for count, going in zip(schedule.updated, schedule.active, strict=True)]
    assert {0.0, 0.25, 1.0} <= set(seen)  # steps to no row, rows of one series, rows of all
    values.requires_grad_()
    inputs = (values, *model.parameters())

    def run():
        states = model(times, values, mask)
        return states, torch.autograd.grad(torch.stack(states).square().sum(), inputs)

    by_hand = run()
    monkeypatch.setattr(ode_rnn, "run_recurrence", None)
    with pytest.raises(TypeError):
        run()  # it was the loop by hand
    monkeypatch.setattr(ODERNN, "_plain_layers", lambda self: None)
    torch.testing.assert_close(by_hand, run(), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("dynamics", ["first_order", "generalized_heavy_ball"])
def test_without_any_observation_gradients_of_updates_are_zero(dynamics):
    model = make_ode_rnn(2, 3, dynamics=dynamics, step=0.1)
    times, values, mask = random_batch()
    inputs = (values.requires_grad_(), *model.unit.parameters())
    total = torch.stack(model(times, values, mask & False)).sum()
    assert not any(gradient.any() for gradient in torch.autograd.grad(total, inputs))


def test_a_schedule_knows_who_sees_a_row_and_when():
    model = make_ode_rnn(2, 3, step=0.05)
    times, _, mask = random_batch((5, 3, 7, 1))
    schedule = model.schedule(times, mask.any(-1))
    assert sum(schedule.updated) == mask.any(-1).sum()
    assert (
        sorted(schedule.rows[schedule.updates])
        == mask.any(-1).flatten().nonzero().flatten().tolist()
    )
    starts = torch.tensor([0, *schedule.active]).cumsum(0)
    ticks = torch.arange(len(schedule.updated)).repeat_interleave(torch.tensor(schedule.updated))
    assert torch.equal(starts[ticks] + schedule.members, schedule.updates)
    last = schedule.rows.new_full((times.numel(),), -1)
    last = last.scatter_reduce(0, schedule.rows, torch.arange(len(schedule.rows)), "amax")
    assert torch.equal(last[schedule.rows[schedule.updates]], schedule.updates)


def test_fields_of_another_kind_are_left_to_autograd(monkeypatch):
    monkeypatch.setattr(ode_rnn, "run_recurrence", None)  # would fail if anything called it
    batch = random_batch()
    for field in (network(3, 4, 3, activation=nn.ReLU), nn.Linear(3, 3), nn.Sequential(nn.Tanh())):
        model = ODERNN(FirstOrder(Autonomous(field)), 2, 3)
        assert torch.isfinite(model(*batch).after).all()
    with pytest.raises(TypeError):
        make_ode_rnn(2, 3)(*batch)


def test_a_second_derivative_is_refused_rather_than_wrong():
    model = strong(make_ode_rnn(2, 3, layers=1, units=4, gru_units=5))
    times, values, mask = random_batch()
    values.requires_grad_()
    after = model(times, values, mask).after
    with pytest.raises(RuntimeError, match="differentiated once, not twice"):
        torch.autograd.grad(after.sum(), values, create_graph=True)


@pytest.mark.parametrize("way", AT_ONCE)
def test_several_gradients_at_once_are_refused_and_the_remedies_work(way):
    times, values, mask = random_batch()
    values.requires_grad_()
    after = strong(make_ode_rnn(2, 3, layers=1, units=4, gru_units=5))(times, values, mask).after
    pair = torch.randn(2, *after.shape)
    before = one_by_one(after, values, pair)
    with pytest.raises(RuntimeError, match=r"^an ODE-RNN .*is_grads_batched=True.*nn\.Softplus"):
        AT_ONCE[way](after, values, pair)
    assert torch.equal(one_by_one(after, values, pair), before)
    other = strong(ODERNN(FirstOrder(Autonomous(network(3, 4, 3, activation=nn.Softplus))), 2, 3))
    after = other(times, values, mask).after
    torch.testing.assert_close(
        AT_ONCE[way](after, values, pair), one_by_one(after, values, pair), rtol=1e-11, atol=1e-11
    )


def test_the_graph_can_be_pulled_back_twice():
    model = strong(make_ode_rnn(2, 3, layers=1, units=4, gru_units=5))
    times, values, mask = random_batch()
    total = model(times, values.requires_grad_(), mask).after.square().sum()
    first = torch.autograd.grad(total, values, retain_graph=True)
    assert torch.equal(first[0], torch.autograd.grad(total, values)[0])
