"""How fields apply an activation to what they have just computed."""

from __future__ import annotations

from torch import Tensor

from bfno.layers.activation import activation

__all__ = ["activate", "known_activation"]

# Autograd takes the derivative of these from their output, so their input may be overwritten.
_OVERWRITING = {"relu", "tanh"}


def known_activation(name: str) -> str:
    """Return the name if there is such an activation, and raise ValueError otherwise."""
    activation(name)
    return name


def activate(name: str, fresh: Tensor) -> Tensor:
    """Apply the activation `name` to a value that nobody else holds.

    It is overwritten where its derivative allows: on a CPU, fresh memory for a large tensor costs
    more than the activation itself.
    """
    chosen = activation(name)
    return chosen.apply_(fresh) if name in _OVERWRITING else chosen.apply(fresh)
