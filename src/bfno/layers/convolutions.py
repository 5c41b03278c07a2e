"""Convolutions with softplus between them, together with one product with their Jacobian.

With inputs `a_0`, weights `W_i` and biases `m_i`, the layers compute

    h_i = W_i a_{i-1} + m_i,    a_i = softplus(h_i),    value = W_n a_{n-1} + m_n,

and a cotangent ε of the value is pulled back by `c_{n-1} = W_nᵀ ε`, `q_i = c_i softplus'(h_i)`,
`c_{i-1} = W_iᵀ q_i`. Autograd can differentiate the pulled-back cotangent once more, but only by
recording the backward pass; here both directions are one operation with a backward pass of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.grad import conv2d_weight

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
        self.turned = [_turned(weight.detach()) for weight in weights]

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
            cotangent: A tensor like the value. It gets no gradient.
            biases: What is added to each convolution's result.

        Returns:
            The value, and the cotangent times the Jacobian of the value.
        """
        if is_transformed(x) or torch.is_autocast_enabled(x.device.type):
            return _plainly(x, cotangent, self.weights, biases)
        return _ConvolveAndPullBack.apply(x, cotangent, self.turned, *self.weights, *biases)


def _plainly(
    x: Tensor, cotangent: Tensor, weights: _Tensors, biases: _Tensors
) -> tuple[Tensor, Tensor]:
    """The same in differentiable operations, for compilers and higher derivatives."""
    slopes = []
    for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
        before = _convolve(x, weight) + bias
        slopes.append(torch.sigmoid(before))
        x = F.softplus(before)
    value = _convolve(x, weights[-1]) + biases[-1]
    pulled = _convolve(cotangent, _turned(weights[-1]))
    for weight, slope in zip(reversed(weights[:-1]), reversed(slopes), strict=True):
        pulled = _convolve(pulled * slope, _turned(weight))
    return value, pulled


def _convolve(x: Tensor, weight: Tensor) -> Tensor:
    return F.conv2d(x, weight, padding=weight.shape[-1] // 2)


def _turned(weight: Tensor) -> Tensor:
    """The kernel of the transposed convolution, which is a convolution on the same grid."""
    return weight.flip(2, 3).transpose(0, 1).contiguous(memory_format=torch.channels_last)


def _weight_gradient(weight: Tensor, x: Tensor, gradient: Tensor) -> Tensor:
    return conv2d_weight(x, list(weight.shape), gradient, padding=weight.shape[-1] // 2)


def _fast(x: Tensor) -> Tensor:
    """The memory format in which convolutions of a CPU need not reorder their inputs."""
    return x.contiguous(memory_format=torch.channels_last)


class _ConvolveAndPullBack(torch.autograd.Function):
    """Keeps the layers' results and the pulled cotangents; slopes follow from the results."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, cotangent: Tensor, turned: _Tensors, *parameters: Tensor
    ) -> tuple[Any, ...]:
        count = len(turned)
        weights, biases = parameters[:count], parameters[count:]
        results, slopes = [_fast(x)], []
        for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
            before = _convolve(results[-1], weight).add_(bias)
            slopes.append(torch.sigmoid(before))
            results.append(_softplus_(before))
        value = _convolve(results[-1], weights[-1]).add_(biases[-1])
        pulled = [_fast(cotangent)]
        for back, slope in zip(reversed(turned[1:]), reversed(slopes), strict=True):
            pulled.append(_convolve(pulled[-1], back).mul_(slope))
        ctx.turned = turned
        ctx.save_for_backward(*parameters, *results, *reversed(pulled))
        return value, _convolve(pulled[-1], turned[0])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        saved, count = ctx.saved_tensors, len(ctx.turned)
        weights, biases, results, pulled = (
            saved[first : first + count] for first in range(0, 4 * count, count)
        )
        if torch.is_grad_enabled():  # somebody will differentiate this gradient once more
            return _gradient_with_graph(weights, biases, results[0], pulled[-1], gradients)
        found, extras = _pull_through_cotangents(weights, results, pulled, _fast(gradients[1]))
        gradient, shifts = _fast(gradients[0]), []
        for index in reversed(range(count)):
            found[index] += _weight_gradient(weights[index], results[index], gradient)
            shifts.append(gradient.sum_to_size(biases[index].shape))
            if index or ctx.needs_input_grad[0]:
                gradient = _convolve(gradient, ctx.turned[index])
            if index:
                falling, extra = extras[index - 1]
                gradient = gradient.addcmul_(gradient, falling, value=-1).add_(extra)
        first = gradient if ctx.needs_input_grad[0] else None
        return first, None, None, *found, *reversed(shifts)


def _softplus_(x: Tensor) -> Tensor:
    return torch.ops.aten.softplus.out(x, out=x)


def _pull_through_cotangents(
    weights: _Tensors, results: _Tensors, pulled: _Tensors, gradient: Tensor
) -> tuple[list[Tensor], list[tuple[Tensor, Tensor]]]:
    """Undo the way of the cotangents, from the gradient of where they ended.

    Returns:
        The weights' gradients so far and, for each hidden layer, `1 - softplus'` and the gradient
        of what enters its softplus.
    """
    found, extras = [], []
    for weight, result, cotangent in zip(weights, (*results[1:], None), pulled, strict=True):
        found.append(_weight_gradient(weight, gradient, cotangent))
        if result is None:  # the last cotangent is given
            break
        gradient = _convolve(gradient, weight)
        falling = result.neg().exp_()
        product = gradient * falling
        extras.append((falling, product * cotangent))
        gradient = gradient.sub_(product)
    return found, extras


def _gradient_with_graph(
    weights: _Tensors, biases: _Tensors, x: Tensor, cotangent: Tensor, gradients: _Tensors
) -> tuple[Any, ...]:
    again = _plainly(x, cotangent, weights, biases)
    inputs = (x, *weights, *biases)
    wanted = [value for value in inputs if value.requires_grad]
    found = iter(
        torch.autograd.grad(
            again, wanted, gradients, create_graph=True, allow_unused=True, materialize_grads=True
        )
    )
    first, *others = (next(found) if value.requires_grad else None for value in inputs)
    return first, None, None, *others
