"""The convolutional field against plain convolutions over the concatenated time channel."""

import pytest
import torch
from torch.nn import functional as F

from bfno.fields.convolution import ConvField

# Same float64 products in another order.
TOLERANCE = 1e-12

ACTIVATIONS = {"relu": F.relu, "softplus": F.softplus, "tanh": torch.tanh}
TIMES = {
    "number": lambda: 0.7,
    "scalar tensor": lambda: torch.tensor(0.7, requires_grad=True),
    "one a sample": lambda: torch.tensor([0.3, -1.2], requires_grad=True),
}


def reference(field, t, y):
    """Concatenate a constant image of the time, then convolve, three times."""
    values = torch.as_tensor(t).expand(len(y)).view(-1, 1, 1, 1)
    for layer in (field.enter, field.mix, field.leave):
        y = torch.cat((y, values.expand(-1, 1, *y.shape[2:])), dim=1)
        y = F.conv2d(y, layer.weight, layer.bias, padding=layer.weight.shape[-1] // 2)
        if layer is not field.leave:
            y = ACTIVATIONS[field.activation](y)
    return y


def gradients(result, direction, inputs):
    return torch.autograd.grad(result, inputs, direction)


@pytest.mark.parametrize("time", TIMES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("space", [(5, 6), (1, 3)])
def test_output_and_gradients_equal_those_with_a_time_channel(time, activation, space):
    field = ConvField(channels=3, hidden=6, out_channels=2, activation=activation)
    t = TIMES[time]()
    y = torch.randn(2, 3, *space, requires_grad=True)
    inputs = [y, *field.parameters(), *([t] if isinstance(t, torch.Tensor) else [])]
    result, expected = field(t, y), reference(field, t, y)
    torch.testing.assert_close(result, expected, rtol=0, atol=TOLERANCE)
    direction = torch.randn_like(result)
    found = gradients(result, direction, inputs)
    for one, other in zip(found, gradients(expected, direction, inputs), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=TOLERANCE)


def test_second_derivatives_match_finite_differences():
    field = ConvField(channels=2, hidden=3, activation="softplus")
    t = torch.tensor([0.4, 0.9], requires_grad=True)
    y = torch.randn(2, 2, 3, 3, requires_grad=True)
    assert torch.autograd.gradgradcheck(field, (t, y), fast_mode=True)


def test_a_double_precision_clock_keeps_the_precision_of_the_state():
    field = ConvField(channels=2, hidden=3).float()
    y = torch.randn(2, 2, 4, 4, dtype=torch.float32)
    for t in (torch.tensor(0.5), torch.tensor([0.5, 0.5])):
        assert t.dtype == torch.float64
        torch.testing.assert_close(field(t, y), field(0.5, y))
        assert field(t, y).dtype == torch.float32


@pytest.mark.parametrize(("channels", "hidden", "out"), [(1, 92, 1), (12, 51, 12), (24, 50, 12)])
def test_parameter_count_is_that_of_the_specification(channels, hidden, out):
    field = ConvField(channels, hidden, out)
    count = sum(parameter.numel() for parameter in field.parameters())
    expected = (
        (channels + 2) * hidden + 9 * (hidden + 1) * hidden + hidden + (hidden + 1) * out + out
    )
    assert count == expected


def test_weights_start_as_those_of_a_library_convolution():
    torch.manual_seed(3)
    ours = ConvField(channels=3, hidden=40).mix
    torch.manual_seed(3)
    library = torch.nn.Conv2d(41, 40, 3)
    # Uniform in ±1/√(41·9): bounds exact, deviation of 15,000 draws known to half a percent.
    assert ours.weight.abs().max() <= 1 / (41 * 9) ** 0.5
    torch.testing.assert_close(ours.weight.std(), library.weight.std(), rtol=0.02, atol=0)
    assert ours.bias.abs().max() <= 1 / (41 * 9) ** 0.5


def test_one_time_too_many_is_refused():
    with pytest.raises(ValueError, match="one value per sample"):
        ConvField(channels=2, hidden=3)(torch.zeros(3), torch.zeros(2, 2, 4, 4))


def test_an_unknown_activation_is_refused():
    with pytest.raises(ValueError, match="activation"):
        ConvField(channels=2, hidden=3, activation="gelu?")
