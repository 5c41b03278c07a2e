"""Whether torch compiles, exports or transforms a program, in every version from 2.6 on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import torch
from torch import Tensor
from torch._C._functorch import is_legacy_batchedtensor
from torch.autograd import forward_ad

__all__ = [
    "hide_from_old_compilers",
    "is_exporting",
    "is_followed",
    "is_transformed",
    "traces_without_dynamo",
]

_IS_OLD = not hasattr(torch.compiler, "is_exporting")  # 2.6

_Function = TypeVar("_Function", bound=Callable)


def is_transformed() -> bool:
    """Whether a compiler, a function transform or forward-mode differentiation is at work.

    These follow ordinary operations only, not hand-written backward passes; tensors are stand-ins,
    whose memory and history cannot be looked at.
    """
    return (
        torch.compiler.is_compiling()
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
    )


def is_followed(gradient: Tensor) -> bool:
    """Whether a backward pass can take ordinary operations only.

    That is so under transforms, and with `is_grads_batched=True` of `torch.autograd.grad`.

    Args:
        gradient: What the backward pass was given.
    """
    return is_transformed() or is_legacy_batchedtensor(gradient)


def traces_without_dynamo() -> bool:
    """Whether torch follows operations with tensors that have no values, and runs this Python."""
    return torch.compiler.is_compiling() and not torch.compiler.is_dynamo_compiling()


def is_exporting() -> bool:
    """Whether `torch.export` writes a program down.

    The old torch does not say; there, one that looks at a program with dynamo is taken for a
    compiler.
    """
    return traces_without_dynamo() if _IS_OLD else torch.compiler.is_exporting()


def hide_from_old_compilers(function: _Function) -> _Function:
    """Have a function run as it is under the old compiler, which fails inside it."""
    return cast("_Function", torch.compiler.disable(function)) if _IS_OLD else function
