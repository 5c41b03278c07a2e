"""One table of activations, with derivatives that are right, and the user's own functions."""

import copy
import pickle

import pytest
import torch
from torch.nn import functional as F

import bfno
from bfno.fields.interface import pull_back, pull_back_by_autograd
from bfno.layers.activation import ACTIVATIONS, InPlaceActivation, find_activation

CLOSE = {"rtol": 0, "atol": 1e-10}  # float64, values of order one


def named(choice):
    return choice if isinstance(choice, str) else choice.__name__


@pytest.mark.parametrize("choice", [*ACTIVATIONS, F.gelu], ids=named)
def test_slopes_are_those_of_autograd(choice):
    found = find_activation(choice)
    x = torch.linspace(-2, 2, 41).add(1e-3).requires_grad_()
    output = found.apply(x)
    (expected,) = torch.autograd.grad(output.sum(), x)
    torch.testing.assert_close(found.slope(x, output), expected, **CLOSE)
    with torch.no_grad():
        torch.testing.assert_close(found.slope(x, output), expected, **CLOSE)
    if isinstance(found, InPlaceActivation):
        value = x.detach().clone()
        torch.testing.assert_close(found.overwrite(value), output.detach())
        pulled = found.pull_back_(torch.full_like(value, 3.0), output.detach())
        torch.testing.assert_close(pulled, 3 * expected, **CLOSE)


def test_small_slopes_of_softplus_keep_their_digits():
    softplus, x = ACTIVATIONS["softplus"], torch.linspace(-80, 5, 100, dtype=torch.float32)
    assert isinstance(softplus, InPlaceActivation)
    found = softplus.pull_back_(torch.ones_like(x), softplus.apply(x))
    torch.testing.assert_close(found.double(), torch.sigmoid(x.double()), rtol=1e-5, atol=0)


@pytest.mark.parametrize("choice", [*ACTIVATIONS, F.silu], ids=named)
def test_a_fresh_value_keeps_its_gradient(choice):
    found, x = find_activation(choice), torch.randn(20, requires_grad=True)
    (expected,) = torch.autograd.grad(found.apply(x * 1.0).sum(), x)
    torch.testing.assert_close(torch.autograd.grad(found.on_fresh(x * 1.0).sum(), x)[0], expected)


def test_slopes_of_ones_own_function_can_be_trained():
    x = torch.randn(7, requires_grad=True)
    slope = find_activation(torch.sin).slope(x, x.sin())
    torch.testing.assert_close(torch.autograd.grad(slope.sum(), x)[0], -x.sin(), **CLOSE)


@pytest.mark.parametrize("bad", ["gelu", 3, None])
def test_anything_else_is_refused_with_the_names(bad):
    with pytest.raises(ValueError, match=r"activation must be one of relu, .*, or a function, got"):
        find_activation(bad)


def gradients(module, inputs):
    result = module(*inputs)
    weight = torch.sin(torch.arange(result.numel(), dtype=result.dtype)).view(result.shape)
    return result, torch.autograd.grad((result * weight).sum(), (inputs[-1], *module.parameters()))


@pytest.mark.parametrize("skip", ["identity", "conv"])
@pytest.mark.parametrize("kernel", ["branch", "gate"])
@pytest.mark.parametrize("outer", ["relu", "softplus", "hardtanh", F.gelu], ids=named)
@pytest.mark.parametrize("inner", ["relu", "sigmoid", F.silu], ids=named)
def test_a_layer_applies_the_activation_of_its_result(inner, outer, kernel, skip):
    torch.manual_seed(0)
    layer = bfno.BFNO(3, kernel=kernel, skip=skip, activation=inner, output_activation=outer)
    torch.manual_seed(0)
    plain = bfno.BFNO(3, kernel=kernel, skip=skip, activation=inner)
    x = torch.randn(4, 3, 5, 6, requires_grad=True)
    expected, wanted = find_activation(outer).apply(plain(x)), (x, *plain.parameters())
    weight = torch.sin(torch.arange(expected.numel(), dtype=x.dtype)).view(expected.shape)
    found = gradients(layer, (x,))
    torch.testing.assert_close(found[0], expected, **CLOSE)
    torch.testing.assert_close(
        found[1], torch.autograd.grad((expected * weight).sum(), wanted), **CLOSE
    )


@pytest.mark.parametrize("layer", ["bfno", lambda width, **options: bfno.BFNO(width, **options)])
def test_a_field_gives_the_same_whether_the_layer_or_the_field_applies_the_activation(layer):
    fields = []
    for made in (layer, bfno.BFNO):
        torch.manual_seed(1)
        fields.append(bfno.OperatorField(made, 2, 4, 3, last_activation=True, branches=3))
    y = torch.randn(3, 2, 5, 5, requires_grad=True)
    torch.testing.assert_close(*[gradients(field, (0.3, y)) for field in fields], **CLOSE)
    cotangent = torch.randn(3, 2, 5, 5)
    torch.testing.assert_close(*[pull_back(field, 0.3, y, cotangent) for field in fields], **CLOSE)


FIELDS = {
    "conv": (lambda choice: bfno.ConvField(2, 4, activation=choice), (3, 2, 4, 4)),
    "mlp": (lambda choice: bfno.MLPField(2, 4, activation=choice), (3, 2)),
    "operator": (lambda choice: bfno.OperatorField("bfno", 2, 4, 2, activation=choice), (3, 2, 4)),
    "fno": (
        lambda choice: bfno.OperatorField("fno", 2, 4, 2, activation=choice, modes=(2,)),
        (3, 2, 4),
    ),
    "inner": (
        lambda choice: bfno.FlowOperatorField("bfno", 2, 4, 2, inner_activation=choice),
        (3, 2, 4),
    ),
    "latent": (lambda choice: bfno.LatentOperatorField(5, 4, activation=choice), (3, 5)),
}


@pytest.mark.parametrize("kind", FIELDS)
@pytest.mark.parametrize(("own", "name"), [(torch.tanh, "tanh"), (F.softplus, "softplus")])
def test_every_field_takes_a_function_as_it_takes_a_name(kind, own, name):
    make, shape = FIELDS[kind]
    torch.manual_seed(2)
    first = make(name)
    torch.manual_seed(2)
    second = make(own)
    y = torch.randn(shape, requires_grad=True)
    torch.testing.assert_close(gradients(first, (0.2, y)), gradients(second, (0.2, y)), **CLOSE)
    cotangent = torch.randn(shape)
    found = pull_back(second, 0.2, y, cotangent)
    torch.testing.assert_close(found, pull_back_by_autograd(second, 0.2, y, cotangent), **CLOSE)
    for clone in (copy.deepcopy(second), pickle.loads(pickle.dumps(second))):
        assert torch.equal(clone(0.2, y), second(0.2, y))


@pytest.mark.parametrize("kind", [bfno.GeneralizedHeavyBall, bfno.GeneralizedNesterov])
def test_dynamics_take_a_function_as_they_take_a_name(kind):
    first, second = (kind(torch.sin, activation=one) for one in ("tanh", torch.tanh))
    first.field = second.field = lambda t, y: y.sin()
    y = first.initial(torch.randn(2, 3))
    torch.testing.assert_close(first.initial(y), second.initial(y), **CLOSE)
    torch.testing.assert_close(first(1.5, y), second(1.5, y), **CLOSE)


def test_adams_root_takes_the_same_functions():
    first, second = (
        bfno.AdamODE(lambda t, y: y.sin(), positive=one) for one in ("softplus", F.softplus)
    )
    y = torch.randn(2, 9)
    assert torch.equal(first(0.0, y), second(0.0, y))
