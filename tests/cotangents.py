"""Ways to pull two cotangents back through one graph."""

import torch
from torch import Tensor
from torch.autograd import forward_ad


def _pull(y: Tensor, x: Tensor, cotangent: Tensor, **options: bool) -> Tensor:
    return torch.autograd.grad(y, x, cotangent, retain_graph=True, **options)[0]


def _batched(y: Tensor, x: Tensor, pair: Tensor) -> Tensor:
    return _pull(y, x, pair, is_grads_batched=True)


def _mapped(y: Tensor, x: Tensor, pair: Tensor) -> Tensor:
    return torch.func.vmap(lambda one: _pull(y, x, one))(pair)


def _dual(y: Tensor, x: Tensor, pair: Tensor) -> Tensor:
    with forward_ad.dual_level():
        value, tangent = forward_ad.unpack_dual(_pull(y, x, forward_ad.make_dual(*pair)))
        assert tangent is not None, "the tangent is lost"
        return torch.stack((value, tangent))


AT_ONCE = {"is_grads_batched": _batched, "vmap": _mapped, "dual": _dual}
"""What takes a result, an input and both cotangents, and gives both gradients."""


def one_by_one(y: Tensor, x: Tensor, pair: Tensor) -> Tensor:
    """Both gradients, each by a backward pass of its own.

    Args:
        y: The result.
        x: The input.
        pair: Both cotangents, `(2, *y.shape)`.
    """
    return torch.stack([_pull(y, x, one) for one in pair])
