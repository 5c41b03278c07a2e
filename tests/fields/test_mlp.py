"""The fully connected field against plain layers over the concatenated time."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from bfno.fields import mlp
from bfno.fields.interface import pull_back
from bfno.fields.mlp import MLPField

# Same float64 products in another order.
TOLERANCE = 1e-12

ACTIVATIONS = {"relu": F.relu, "softplus": F.softplus, "tanh": torch.tanh}
TIMES = [0.7, torch.tensor(0.7), torch.tensor([0.3, -1.2])]


def reference(field, t, y):
    if field.time:
        values = torch.as_tensor(t).expand(len(y)).view(-1, *[1] * (y.dim() - 1))
        y = torch.cat((y, values.expand(*y.shape[:-1], 1)), dim=-1)
    for layer in (field.enter, *field.inner):
        y = ACTIVATIONS[field.activation](layer(y))
    return field.leave(y)


@pytest.mark.parametrize("t", TIMES, ids=["number", "scalar tensor", "one a sample"])
@pytest.mark.parametrize("shape", [(2, 3), (2, 5, 3)])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("depth", [1, 3])
def test_output_and_gradients_equal_those_with_a_time_input(t, shape, activation, depth):
    field = MLPField(3, 7, depth, out_features=2, activation=activation)
    y = torch.randn(*shape, requires_grad=True)
    result, expected = field(t, y), reference(field, t, y)
    torch.testing.assert_close(result, expected, rtol=0, atol=TOLERANCE)
    direction = torch.randn_like(result)
    inputs = [y, *field.parameters()]
    found = torch.autograd.grad(result, inputs, direction)
    wanted = torch.autograd.grad(expected, inputs, direction)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=TOLERANCE)


def test_gradient_in_time_matches_finite_differences():
    field = MLPField(features=2, hidden=4)
    t = torch.tensor([0.4, 0.9], requires_grad=True)
    y = torch.randn(2, 2, requires_grad=True)
    assert torch.autograd.gradcheck(field, (t, y))
    assert torch.autograd.gradgradcheck(field, (t, y))


def test_a_field_without_time_ignores_it():
    field = MLPField(features=3, hidden=5, time=False)
    y = torch.randn(2, 3)
    assert torch.equal(field(0.0, y), field(9.0, y))
    torch.testing.assert_close(field(0.0, y), reference(field, 0.0, y), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("t", [0.3, torch.zeros(0)])
def test_an_empty_batch_gives_an_empty_batch(t):
    y = torch.zeros(0, 3, requires_grad=True)
    value = MLPField(3, 6, out_features=2)(t, y)
    assert value.shape == (0, 2)
    assert torch.autograd.grad(value.sum(), y)[0].shape == (0, 3)


class Adapted(nn.Linear):
    """A layer with a term of its own, as adapters have."""

    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs)
        self.more = nn.Parameter(torch.randn(outputs, inputs))

    def forward(self, input):
        return super().forward(input) + (input @ self.more.T).sin()


def _watched(inputs, outputs):
    layer = nn.Linear(inputs, outputs)
    layer.register_forward_hook(lambda _, __, result: result.sin())
    return layer


def _with_forward(inputs, outputs):
    layer = nn.Linear(inputs, outputs)
    forward = layer.forward
    layer.forward = lambda input: forward(input).sin()
    return layer


def _normed(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, outputs), nn.LayerNorm(outputs))


REPLACED = {
    "subclass": Adapted,
    "hook": _watched,
    "forward of its own": _with_forward,
    "another class": _normed,
    "no bias": lambda inputs, outputs: nn.Linear(inputs, outputs, bias=False),
}


@pytest.mark.parametrize("time", [True, False])
@pytest.mark.parametrize("t", TIMES, ids=["number", "scalar tensor", "one a sample"])
@pytest.mark.parametrize("place", ["enter", "inner", "leave"])
@pytest.mark.parametrize("make", REPLACED.values(), ids=REPLACED)
def test_layers_put_in_place_are_called_and_pulled_back_through(make, place, t, time):
    field, y = MLPField(3, 4, 3, time=time), torch.randn(2, 3, requires_grad=True)
    layer = make(*{"enter": (3 + time, 4), "inner": (4, 4), "leave": (4, 3)}[place])
    if place == "inner":
        field.inner[0] = layer
    else:
        setattr(field, place, layer)
    cotangent = torch.randn(2, 3)
    expected = reference(field, t, y)
    (pulled,) = torch.autograd.grad(expected, y, cotangent)
    torch.testing.assert_close(field(t, y), expected, rtol=0, atol=TOLERANCE)
    found = pull_back(field, t, y, cotangent)
    torch.testing.assert_close(found, (expected, pulled), rtol=0, atol=TOLERANCE)


def test_a_layer_put_in_place_may_need_its_result_for_its_own_derivative():
    field, y = MLPField(3, 4, activation="relu"), torch.randn(2, 3, requires_grad=True)
    field.inner[0] = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    assert torch.autograd.gradcheck(lambda y: field(0.3, y), y)


def test_weights_that_are_parametrised_do_not_slow_a_field_down(monkeypatch):
    field, y = MLPField(3, 4, 3), torch.randn(2, 3, requires_grad=True)
    layers: Any = (field.enter, field.inner[0], field.leave)
    for layer in layers:
        nn.utils.parametrizations.weight_norm(layer)
        layer.parametrizations.weight.original0.data.mul_(2)
    cotangent = torch.randn(2, 3)
    expected = reference(field, 0.7, y)
    (pulled,) = torch.autograd.grad(expected, y, cotangent)
    monkeypatch.setattr(mlp, "pull_back_by_autograd", None)  # a call of it fails
    found = pull_back(field, 0.7, y, cotangent)
    torch.testing.assert_close(found, (expected, pulled), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("options", [{"depth": 0}, {"activation": "step"}])
def test_impossible_options_are_refused(options):
    with pytest.raises(ValueError, match="must"):
        MLPField(2, 3, **options)
