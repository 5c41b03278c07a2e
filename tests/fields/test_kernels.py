"""Convolutions with their Jacobian product, against autograd."""

import itertools

import pytest
import torch
from torch.nn import functional as F

from bfno.fields.flow import Kernels


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
