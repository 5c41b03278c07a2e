"""Oracles of flows: full Jacobians by autograd, and weights away from their start."""

from typing import TypeVar

import torch
from torch import nn

AnyModule = TypeVar("AnyModule", bound=nn.Module)


def full_jacobians(function, x):
    """Jacobian of each sample, `(batch, dimensions, dimensions)`, one sample at a time."""

    def flat(sample):
        return function(sample.view(1, *x.shape[1:])).flatten()

    return torch.stack([torch.autograd.functional.jacobian(flat, row) for row in x.flatten(1)])


def true_log_det(function, x):
    """Logarithm of the volume that a function gains at each sample."""
    return torch.linalg.slogdet(full_jacobians(function, x)).logabsdet


def assert_log_det_is_true(flow, x, tolerance=1e-8):
    """Compare what a flow or a part of one says with its Jacobian."""
    log_det = flow.encode(x)[1].expand(len(x))
    expected = true_log_det(lambda sample: flow.encode(sample)[0], x)
    assert expected.abs().max() > 1e-3  # else a map that changes nothing would pass
    torch.testing.assert_close(log_det, expected, rtol=tolerance, atol=tolerance)


def disturb(module: AnyModule, size=0.1) -> AnyModule:
    """Move all parameters off their start, where much is zero."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(size * torch.randn_like(parameter))
    return module


def parameters_without_gradient(flow, x):
    """Names of parameters that the log-likelihood does not depend on."""
    flow.train()
    flow.encode(x)
    disturb(flow)
    flow.zero_grad()
    flow.log_prob(x).mean().backward()
    return [
        name
        for name, parameter in flow.named_parameters()
        if parameter.grad is None or not parameter.grad.any() or not parameter.grad.isfinite().all()
    ]
