"""Gradients of a layer against finite differences."""

import torch


def gradients_are_finite_differences(layer, x):
    """Whether the gradients of `layer(x)` with respect to `x` and all parameters are right."""
    parameters = dict(layer.named_parameters())

    def run(x, *values):
        return torch.func.functional_call(layer, dict(zip(parameters, values, strict=True)), (x,))

    inputs = (x.clone().requires_grad_(), *parameters.values())
    return torch.autograd.gradcheck(run, inputs, fast_mode=True)
