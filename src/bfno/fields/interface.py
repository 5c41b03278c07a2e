"""The interface of vector fields, and the optional methods that make them faster.

Two methods are optional. `pull_back(t, y, cotangent)` returns the field's value together with one
product with its Jacobian, by a faster way than autograd's. `prepare(y)` returns the field made
ready for many evaluations with its present weights on states like `y`.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from bfno.layers.modules import method_of

__all__ = ["Time", "VectorField", "prepared", "pull_back", "pull_back_by_autograd"]

Time = float | Tensor
"""A number, a tensor without axes, or one value per sample."""


class VectorField(Protocol):
    """Anything that maps a time and a state to the state's rate of change.

    A function, a module or any other callable works; a module's parameters get gradients without
    being listed.

    Example:
        >>> def decay(t: Time, y: Tensor) -> Tensor:
        ...     return -y
        >>> field: VectorField = decay
    """

    def __call__(self, t: Time, y: Tensor, /) -> Tensor:
        """Rate of change of the state `y`, batch first, at time `t`."""
        ...


def prepared(field: Any, y: Tensor) -> Any:
    """A field that is ready for many evaluations with its present weights on states like `y`.

    A field may have a method `prepare(y)` that computes what these evaluations have in common; its
    result is called, and pulled back, like the field. Any other field is returned as it is.
    """
    prepare = method_of(field, "prepare")
    return field if prepare is None else prepare(y)


def pull_back(field: VectorField, t: Time, y: Tensor, cotangent: Tensor) -> tuple[Tensor, Tensor]:
    """Evaluate a field once, and pull a cotangent back through that evaluation.

    A field may have a method `pull_back(t, y, cotangent)` that knows a faster way than autograd;
    its results must be differentiable like any other. It is not used where a subclass has another
    forward pass, or hooks watch the field or a part of it.

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
    own = method_of(field, "pull_back")
    if own is not None:
        return own(t, y, cotangent)
    return pull_back_by_autograd(field, t, y, cotangent)


def pull_back_by_autograd(
    field: VectorField, t: Time, y: Tensor, cotangent: Tensor
) -> tuple[Tensor, Tensor]:
    """`pull_back` for any field, by autograd."""
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
