"""The fully connected field against plain layers over the concatenated time."""

import pytest
import torch
from torch.nn import functional as F

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


@pytest.mark.parametrize("options", [{"depth": 0}, {"activation": "step"}])
def test_impossible_options_are_refused(options):
    with pytest.raises(ValueError, match="must"):
        MLPField(2, 3, **options)
