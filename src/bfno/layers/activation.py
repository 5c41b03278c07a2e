"""Activation functions for layers, fields and dynamics, by name or as a function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bfno.layers.modules import gives_result_away

__all__ = [
    "ACTIVATIONS",
    "Activation",
    "ActivationChoice",
    "InPlaceActivation",
    "find_activation",
    "known_activation",
]

ActivationChoice = str | Callable[[Tensor], Tensor]
"""A name of `ACTIVATIONS`, or any differentiable elementwise function."""


def _slope_by_autograd(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    def slope(x: Tensor, output: Tensor) -> Tensor:
        # Elementwise: the sum over a row of the Jacobian is the one derivative in it.
        return torch.func.vjp(function, x)[1](torch.ones_like(output))[0]

    return slope


@dataclass(frozen=True)
class Activation:
    """An elementwise function and its derivative.

    Attributes:
        apply: The function, in differentiable operations.
        slope: The derivative, given input and output, in differentiable operations.
    """

    apply: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor, Tensor], Tensor]

    def on_fresh(self, value: Tensor) -> Tensor:
        """Apply the function to a value that nothing else uses, and which may be overwritten."""
        return self.apply(value)

    def after(self, module: nn.Module, value: Tensor) -> Tensor:
        """Apply the function to the result of a module, which the module may still need."""
        return self.on_fresh(value) if gives_result_away(module) else self.apply(value)


@dataclass(frozen=True)
class InPlaceActivation(Activation):
    """An activation whose derivative follows from its output, so its input may be overwritten.

    Attributes:
        overwrite: The function, overwriting its argument.
        pull_back_: Multiplies a gradient in place by the derivative, taken at an output.
        tracked: Whether autograd can differentiate `overwrite`.
    """

    overwrite: Callable[[Tensor], Tensor]
    pull_back_: Callable[[Tensor, Tensor], Tensor]
    tracked: bool = False

    def on_fresh(self, value: Tensor) -> Tensor:
        # On a CPU, fresh memory for a large tensor costs more than the activation itself.
        return self.overwrite(value) if self.tracked else self.apply(value)


def _identity(x: Tensor) -> Tensor:
    return x


def _relu_pull_back_(gradient: Tensor, output: Tensor) -> Tensor:
    # One fused pass; masking with a Boolean tensor costs eight times as much.
    return torch.ops.aten.threshold_backward.grad_input(gradient, output, 0, grad_input=gradient)


ACTIVATIONS: dict[str, Activation] = {
    "relu": InPlaceActivation(
        F.relu,
        lambda x, output: (output > 0).to(x.dtype),
        torch.relu_,
        _relu_pull_back_,
        tracked=True,
    ),
    "softplus": InPlaceActivation(
        F.softplus,
        lambda x, output: torch.sigmoid(x),
        lambda x: x.copy_(F.softplus(x)),
        # One minus an exponential of nearly one would lose its digits.
        lambda gradient, output: gradient.mul_(output.neg().expm1_().neg_()),
    ),
    "tanh": InPlaceActivation(
        torch.tanh,
        lambda x, output: 1 - output.square(),
        torch.tanh_,
        lambda gradient, output: gradient.addcmul_(gradient, output.square(), value=-1),
        tracked=True,
    ),
    "sigmoid": InPlaceActivation(
        torch.sigmoid,
        lambda x, output: output * (1 - output),
        torch.sigmoid_,
        lambda gradient, output: gradient.mul_(output * (1 - output)),
        tracked=True,
    ),
    # Clipped to ±0.5, as in the public code of the heavy-ball models, not to ±1 as in PyTorch.
    "hardtanh": Activation(
        lambda x: x.clamp(-0.5, 0.5), lambda x, output: (x.abs() < 0.5).to(x.dtype)
    ),
    "identity": InPlaceActivation(
        _identity, lambda x, output: torch.ones_like(x), _identity, lambda gradient, _: gradient
    ),
}
"""Activations by name; the first ones are those of the paper's models."""


def find_activation(choice: ActivationChoice) -> Activation:
    """The activation that a name or a function stands for.

    Args:
        choice: A name of `ACTIVATIONS`, or a differentiable elementwise function.

    Raises:
        ValueError: If it is neither.

    Example:
        >>> find_activation("tanh").apply(torch.zeros(1)), find_activation(F.gelu).apply is F.gelu
        (tensor([0.]...), True)
    """
    if isinstance(choice, str) and choice in ACTIVATIONS:
        return ACTIVATIONS[choice]
    if callable(choice):
        return Activation(choice, _slope_by_autograd(choice))
    names = ", ".join(ACTIVATIONS)
    raise ValueError(f"activation must be one of {names}, or a function, got {choice!r}")


def known_activation(choice: ActivationChoice) -> ActivationChoice:
    """Return the choice if it is an activation, and raise ValueError otherwise.

    Modules store the choice instead of the function, so that they can be pickled.
    """
    find_activation(choice)
    return choice
