"""A field together with one product of a vector and its Jacobian."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bfno.fields.interface import Time

__all__ = ["prepared", "pull_back", "pull_back_by_autograd"]


def prepared(field: Any, y: Tensor) -> Any:
    """A field that is ready for many evaluations with its present weights on states like `y`.

    A field may have a method `prepare(y)` for what these evaluations have in common; what it
    returns is called, and pulled back, like the field. Any other field is returned as it is.
    """
    prepare = getattr(field, "prepare", None)
    return field if prepare is None else prepare(y)


def pull_back(
    field: Callable[[Any, Tensor], Tensor], t: Time, y: Tensor, cotangent: Tensor
) -> tuple[Tensor, Tensor]:
    """Evaluate a field once, and pull a cotangent back through that evaluation.

    A field may have a method `pull_back(t, y, cotangent)` that knows a faster way than autograd;
    its results must be differentiable like any other.

    Args:
        field: The field.
        t: The time.
        y: The state.
        cotangent: A tensor like the field's value.

    Returns:
        The value `f(t, y)` and `cotangentᵀ ∂f/∂y`, both with a graph if autograd is on.

    Example:
        >>> with torch.no_grad():
        ...     pull_back(lambda t, y: y**2, 0.0, torch.tensor([3.0]), torch.ones(1))
        (tensor([9.]), tensor([6.]))
    """
    own = getattr(field, "pull_back", None)
    if own is not None:
        return own(t, y, cotangent)
    return pull_back_by_autograd(field, t, y, cotangent)


def pull_back_by_autograd(
    field: Callable[[Any, Tensor], Tensor], t: Time, y: Tensor, cotangent: Tensor
) -> tuple[Tensor, Tensor]:
    """`pull_back` of any field, which need not know its Jacobian."""
    recorded = torch.is_grad_enabled()
    # Not even the graph of one evaluation exists in inference mode.
    with torch.inference_mode(False), torch.enable_grad():
        if not (recorded and y.requires_grad):
            y = (y.clone() if y.is_inference() else y.detach()).requires_grad_()
        value = field(t, y)
        if not value.requires_grad:
            return value, torch.zeros_like(y)
        (pulled,) = torch.autograd.grad(
            value, y, cotangent, create_graph=recorded, allow_unused=True, materialize_grads=True
        )
    return (value, pulled) if recorded else (value.detach(), pulled)
