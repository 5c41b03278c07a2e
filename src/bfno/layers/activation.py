"""Activation functions by name, with derivatives that need only their output."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["ACTIVATIONS", "Activation", "activation"]


class Activation(NamedTuple):
    """One elementwise function.

    Attributes:
        apply: The function.
        apply_: The same, overwriting its argument.
        pull_back_: Multiplies a gradient in place by the derivative, taken at an output.
        slope: The derivative, given input and output, in differentiable operations.
    """

    apply: Callable[[Tensor], Tensor]
    apply_: Callable[[Tensor], Tensor]
    pull_back_: Callable[[Tensor, Tensor], Tensor]
    slope: Callable[[Tensor, Tensor], Tensor]


def _relu_pull_back_(gradient: Tensor, output: Tensor) -> Tensor:
    # One fused pass; masking with a Boolean tensor costs eight times as much.
    return torch.ops.aten.threshold_backward.grad_input(gradient, output, 0, grad_input=gradient)


ACTIVATIONS: dict[str, Activation] = {
    "relu": Activation(
        F.relu, torch.relu_, _relu_pull_back_, lambda x, output: (output > 0).to(x.dtype)
    ),
    "softplus": Activation(
        F.softplus,
        lambda x: x.copy_(F.softplus(x)),
        lambda gradient, output: gradient.addcmul_(gradient, output.neg().exp_(), value=-1),
        lambda x, output: torch.sigmoid(x),
    ),
    "tanh": Activation(
        torch.tanh,
        torch.tanh_,
        lambda gradient, output: gradient.addcmul_(gradient, output.square(), value=-1),
        lambda x, output: 1 - output.square(),
    ),
}


def activation(name: str) -> Activation:
    """Look an activation up by name."""
    if name not in ACTIVATIONS:
        raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}, got {name!r}")
    return ACTIVATIONS[name]
