"""The fields of flows: their Jacobian products, and how they start."""

import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from bfno.fields import MLPField, flow
from bfno.fields.flow import FlowConvField, FlowOperatorField, Kernels
from bfno.fields.interface import prepared, pull_back, pull_back_by_autograd

TIMES = {"shared": 0.3, "one a sample": [0.1, 0.5, 0.9]}


def disturbed(field):
    for parameter in field.parameters():
        nn.init.normal_(parameter, std=0.3)
    return field


def make(kind):
    if kind == "conv":
        return disturbed(FlowConvField(2, 5))
    layer, _, options = kind.partition(" ")
    skip, _, inner = options.partition(" ")
    chosen = {"skip": skip, "branches": 2} if layer == "bfno" else {}
    if layer == "fno":
        chosen = {"modes": 2}
    return disturbed(FlowOperatorField(layer, 2, 4, 2, inner_activation=inner or None, **chosen))


KINDS = ["conv", "bfno conv relu", "bfno conv softplus", "bfno linear tanh", "bfno identity", "fno"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("time", TIMES)
def test_the_fields_own_jacobian_product_is_that_of_autograd(kind, time):
    field = make(kind)
    t = torch.tensor(TIMES[time], requires_grad=True)
    y, cotangent = torch.randn(3, 2, 4, 5, requires_grad=True), torch.randn(3, 2, 4, 5)
    inputs = [y, t, *field.parameters()]
    results = []
    for way in (pull_back, pull_back_by_autograd):
        pair = way(field, t, y, cotangent)
        loss = pair[0].sin().sum() + pair[1].square().sum()
        results.append((*pair, *torch.autograd.grad(loss, inputs)))
    # Softplus takes numbers above 20 for its own value, which differs by 2e-9.
    torch.testing.assert_close(*results, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("activation", ["relu", "softplus", "tanh"])
@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("time", TIMES)
def test_the_product_of_a_fully_connected_field_is_that_of_autograd(activation, depth, time):
    field = disturbed(MLPField(2, 5, depth, activation=activation))
    t = torch.tensor(TIMES[time], requires_grad=True)
    y, cotangent = torch.randn(3, 2, requires_grad=True), torch.randn(3, 2)
    results = []
    for way in (pull_back, pull_back_by_autograd):
        pair = way(field, t, y, cotangent)
        loss = pair[0].sin().sum() + pair[1].square().sum()
        inputs = [y, t, *field.parameters()]
        results.append((*pair, *torch.autograd.grad(loss, inputs, materialize_grads=True)))
    torch.testing.assert_close(*results, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("kind", ["conv", "bfno conv"])
def test_the_value_that_comes_with_the_product_is_the_field(kind):
    field, t, y = make(kind), torch.tensor(0.7), torch.randn(3, 2, 4, 5)
    value = pull_back(field, t, y, torch.randn_like(y))[0]
    torch.testing.assert_close(value, field(t, y), rtol=1e-12, atol=1e-12)


def test_the_convolutional_field_is_its_published_formula():
    field, y = disturbed(FlowConvField(1, 3)), torch.randn(2, 1, 4, 4)
    expected = y
    for index, layer in enumerate(field.layers):
        time = torch.full_like(expected[:, :1], 0.4)
        weight, bias = layer.weight, layer.bias
        expected = F.conv2d(torch.cat((expected, time), 1), weight, bias, padding=1)  # pyright: ignore
        if index < len(field.layers) - 1:
            expected = F.softplus(expected)
    torch.testing.assert_close(field(0.4, y), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", ["conv", "bfno"])
def test_a_fresh_field_is_a_shift_that_no_state_changes(kind):
    field = FlowConvField(1, 4) if kind == "conv" else FlowOperatorField("bfno", 1, 4, 3)
    first, second = (field(0.5, torch.randn(1, 1, 6, 6)) for _ in range(2))
    assert torch.equal(first, second)
    assert (
        pull_back(field, 0.5, torch.randn(1, 1, 6, 6), torch.ones(1, 1, 6, 6))[1].abs().max() == 0
    )


def test_a_prepared_field_gives_gradients_to_the_weights_of_the_field():
    field, y = make("conv"), torch.randn(2, 2, 4, 4)
    ready = prepared(field, y)
    torch.testing.assert_close(ready(0.2, y), field(0.2, y), rtol=1e-13, atol=1e-13)
    ready(0.2, y).sum().backward()
    assert all(parameter.grad is not None for parameter in field.parameters())


@pytest.mark.parametrize("time", [0.3, torch.tensor(0.3), torch.linspace(0, 1, 5)])
def test_a_few_samples_at_a_time_give_what_all_give(time, monkeypatch):
    field, y, noise = FlowConvField(2, 3), torch.randn(5, 2, 4, 4), torch.randn(5, 2, 4, 4)
    nn.init.normal_(field._convolutions()[-1].weight)

    def found():
        value, product = field.pull_back(time, y, noise)
        total = value.sum() + field(time, y).square().sum() + product.square().sum()
        return value, product, *torch.autograd.grad(total, list(field.parameters()))

    whole = found()
    monkeypatch.setattr(flow, "_PIECE_BYTES", 2 * 3 * 16 * y.element_size())  # two samples
    torch.testing.assert_close(found(), whole)


@pytest.mark.parametrize("t", [0.3, torch.zeros(0)])
def test_an_empty_batch_gives_an_empty_batch(t):
    field, y = FlowConvField(3, 6), torch.zeros(0, 3, 6, 6, requires_grad=True)
    value, pulled = pull_back(field, t, y, torch.zeros(0, 3, 6, 6))
    assert field(t, y).shape == value.shape == pulled.shape == (0, 3, 6, 6)
    assert torch.autograd.grad(value.sum(), y)[0].shape == (0, 3, 6, 6)


def test_a_field_without_preparation_stays_itself():
    field = MLPField(2, 3)
    assert prepared(field, torch.zeros(1, 2)) is field


def test_autograd_serves_a_field_in_inference_mode_and_without_gradients():
    network, y, cotangent = disturbed(MLPField(2, 3)), torch.randn(4, 2), torch.randn(4, 2)
    field = lambda t, y: network(t, y)  # noqa: E731
    expected = pull_back(field, 0.1, y, cotangent)
    with torch.inference_mode():
        found = pull_back(field, 0.1, y.clone(), cotangent)
    torch.testing.assert_close(found, [part.detach() for part in expected])
    with torch.no_grad():
        value, pulled = pull_back(field, 0.1, y, cotangent)
    assert not value.requires_grad and not pulled.requires_grad


def test_a_field_that_ignores_the_state_pulls_back_nothing():
    value, pulled = pull_back(
        lambda t, y: torch.ones_like(y), 0.0, torch.randn(2, 3), torch.ones(2, 3)
    )
    assert torch.equal(value, torch.ones(2, 3)) and torch.equal(pulled, torch.zeros(2, 3))


def make_case(widths=(2, 5, 4, 2), batch=3, grid=(4, 5)):
    weights = [
        (0.4 * torch.randn(after, before, 3, 3)).requires_grad_()
        for before, after in itertools.pairwise(widths)
    ]
    biases = [torch.randn(after, 1, 1).requires_grad_() for after in widths[1:]]
    x = torch.randn(batch, widths[0], *grid, requires_grad=True)
    return x, torch.randn(batch, widths[-1], *grid), weights, biases


def by_autograd(x, cotangent, weights, biases):
    value = x
    for index, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        value = F.conv2d(value, weight, padding=1) + bias
        if index < len(weights) - 1:
            value = F.softplus(value)
    (pulled,) = torch.autograd.grad(value, x, cotangent, create_graph=True)
    return value, pulled


@pytest.mark.parametrize("widths", [(1, 3, 1), (2, 5, 4, 2), (3, 2)])
def test_value_product_and_all_their_gradients_are_those_of_autograd(widths):
    x, cotangent, weights, biases = make_case(widths)
    found = Kernels(weights).pull_back(x, cotangent, biases)
    expected = by_autograd(x, cotangent, weights, biases)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)
    factors = [torch.randn_like(part) for part in expected]
    inputs = [x, *weights, *biases]
    gradients = [
        torch.autograd.grad(pair, inputs, factors, retain_graph=True, materialize_grads=True)
        for pair in (found, expected)
    ]
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-10)


def test_the_plain_value_is_the_same():
    x, cotangent, weights, biases = make_case()
    kernels = Kernels(weights)
    value = kernels.pull_back(x, cotangent, biases)[0]
    torch.testing.assert_close(kernels.convolve(x, biases), value, rtol=1e-13, atol=1e-13)


def test_a_bias_for_every_sample_and_point_gets_its_own_gradient():
    x, cotangent, weights, _ = make_case()
    biases = [torch.randn(3, len(weight), 4, 5, requires_grad=True) for weight in weights]
    found = Kernels(weights).pull_back(x, cotangent, biases)
    expected = by_autograd(x, cotangent, weights, biases)
    gradients = [
        torch.autograd.grad([part.square().sum() for part in pair], biases, retain_graph=True)
        for pair in (found, expected)
    ]
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-10)


def test_the_product_can_be_differentiated_twice():
    x, cotangent, weights, biases = make_case((1, 2, 1), batch=1, grid=(3, 2))

    def run(x, *parameters):
        return Kernels(parameters[:2]).pull_back(x, cotangent, parameters[2:])

    assert torch.autograd.gradgradcheck(run, (x, *weights, *biases))


def test_a_large_argument_of_softplus_overflows_nowhere():
    x, cotangent, weights, biases = make_case((1, 2, 1))
    value, pulled = Kernels(weights).pull_back(1e4 * x.float().double(), cotangent, biases)
    assert value.isfinite().all() and pulled.isfinite().all()


def test_function_transforms_see_through_it():
    x, cotangent, weights, biases = make_case((1, 2, 1))
    kernels = Kernels([weight.detach() for weight in weights])
    shifts = [bias.detach() for bias in biases]
    one = torch.func.vmap(
        lambda x, cotangent: kernels.pull_back(x[None], cotangent[None], shifts)[1][0]
    )(x.detach(), cotangent)
    together = kernels.pull_back(x.detach(), cotangent, shifts)[1]
    torch.testing.assert_close(one, together, rtol=1e-12, atol=1e-12)
