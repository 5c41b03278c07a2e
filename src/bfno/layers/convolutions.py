"""Convolutions with softplus between them, together with one product with their Jacobian.

With inputs `a_0`, weights `W_i` and biases `m_i`, the layers compute

    h_i = W_i a_{i-1} + m_i,    a_i = softplus(h_i),    value = W_n a_{n-1} + m_n,

and a cotangent ε of the value is pulled back by `c_{n-1} = W_nᵀ ε`, `c_{i-1} = W_iᵀ (c_i
softplus'(h_i))`. Said in these operations the product can be trained without differentiating
autograd's backward pass, which would be slower. (A backward pass by hand was tried: slower, too.)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from bfno.layers.pointwise import is_transformed

__all__ = ["Kernels"]

_Tensors = Sequence[Tensor]


class Kernels:
    """Kernels in the forms that convolutions and their transposes want, made once for many uses.

    Args:
        weights: Kernels of odd size, one for each convolution; the grid stays as it is.
    """

    def __init__(self, weights: _Tensors) -> None:
        self.weights = [_fast(weight) for weight in weights]
        # With its kernel turned over, a transpose is itself a convolution on the same grid.
        self.turned = [_fast(weight.flip(2, 3).transpose(0, 1)) for weight in weights]

    def convolve(self, x: Tensor, biases: _Tensors) -> Tensor:
        """Apply convolutions with softplus between them.

        Args:
            x: `(batch, channels, height, width)`.
            biases: What is added to each convolution's result, in any shape that broadcasts to it.
        """
        x = _fast(x)
        for weight, bias in zip(self.weights[:-1], biases[:-1], strict=True):
            x = F.softplus(_convolve(x, weight).add_(bias))
        return _convolve(x, self.weights[-1]).add_(biases[-1])

    def pull_back(self, x: Tensor, cotangent: Tensor, biases: _Tensors) -> tuple[Tensor, Tensor]:
        """Do the same, and pull a cotangent back through the convolutions.

        Args:
            x: `(batch, channels, height, width)`.
            cotangent: A tensor like the value.
            biases: What is added to each convolution's result.

        Returns:
            The value, and the cotangent times the Jacobian of the value.
        """
        x, slopes = _fast(x), []
        for weight, bias in zip(self.weights[:-1], biases[:-1], strict=True):
            before = _convolve(x, weight) + bias
            slopes.append(torch.sigmoid(before))
            x = F.softplus(before)
        value = _convolve(x, self.weights[-1]) + biases[-1]
        pulled = _convolve(_fast(cotangent), self.turned[-1])
        for turned, slope in zip(reversed(self.turned[:-1]), reversed(slopes), strict=True):
            pulled = _convolve(pulled * slope, turned)
        return value, pulled


def _convolve(x: Tensor, weight: Tensor) -> Tensor:
    return F.conv2d(x, weight, padding=weight.shape[-1] // 2)


def _fast(x: Tensor) -> Tensor:
    """The memory format in which convolutions of a CPU need not reorder their inputs."""
    # Function transforms know no formats.
    return x if is_transformed(x) else x.contiguous(memory_format=torch.channels_last)
