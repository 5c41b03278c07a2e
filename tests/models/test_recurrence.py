"""The loop with a backward pass by hand against the one that autograd records."""

import pytest
import torch
from torch import nn

from bfno.dynamics import FirstOrder
from bfno.fields import Autonomous
from bfno.models import ode_rnn
from bfno.models.ode_rnn import ODERNN, make_ode_rnn
from bfno.models.series import network
from tests.models.series_batches import random_batch


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


def test_the_graph_can_be_pulled_back_twice():
    model = strong(make_ode_rnn(2, 3, layers=1, units=4, gru_units=5))
    times, values, mask = random_batch()
    total = model(times, values.requires_grad_(), mask).after.square().sum()
    first = torch.autograd.grad(total, values, retain_graph=True)
    assert torch.equal(first[0], torch.autograd.grad(total, values)[0])
