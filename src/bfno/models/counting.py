"""How the size of a model is counted."""

from __future__ import annotations

from torch import nn

from bfno.layers.fno import FNO

__all__ = ["count_parameters"]


def count_parameters(module: nn.Module) -> int:
    """Number of parameters as the paper counts them, frozen ones included.

    Every stored number counts once, except in the weights of `FNO`. In the publications those are
    complex matrices, where `numel` counts a complex entry once; here they are stored as two reals.
    The maps of BFNO and AFNO are pairs of real matrices in the publications too, and count in full.
    Only this way of counting reproduces all published counts.

    Example:
        >>> count_parameters(FNO(channels=2, modes=(3,)))
        12
    """
    stored = sum(parameter.numel() for parameter in module.parameters())
    pairs = sum(layer.weight.numel() // 2 for layer in module.modules() if isinstance(layer, FNO))
    return stored - pairs
