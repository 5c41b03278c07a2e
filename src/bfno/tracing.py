"""Whether torch compiles, exports, transforms or casts a program, in every version from 2.6 on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch._C._functorch import is_legacy_batchedtensor
from torch.autograd import forward_ad

__all__ = [
    "hide_from_old_compilers",
    "is_autocast",
    "is_exporting",
    "is_followed",
    "is_functional",
    "is_recorded",
    "is_transformed",
    "traces_without_dynamo",
    "without_autocast",
]

_IS_OLD = not hasattr(torch.compiler, "is_exporting")  # 2.6

_Function = TypeVar("_Function", bound=Callable)


def is_functional() -> bool:
    """Whether a transform of `torch.func` is at work, under which a function changes nothing."""
    return torch._C._are_functorch_transforms_active()


def is_transformed() -> bool:
    """Whether a compiler, a function transform or forward-mode differentiation is active.

    These follow only ordinary operations, not hand-written backward passes; tensors are stand-ins,
    whose memory and history cannot be read.
    """
    return torch.compiler.is_compiling() or is_functional() or forward_ad._current_level >= 0


def is_followed(gradient: Tensor) -> bool:
    """Whether a backward pass may use only ordinary operations.

    That is so under transforms, and with `is_grads_batched=True` of `torch.autograd.grad`.

    Args:
        gradient: What the backward pass was given.
    """
    return is_transformed() or is_legacy_batchedtensor(gradient)


def is_recorded(gradient: Tensor) -> bool:
    """Whether a backward pass is followed, or will itself be differentiated.

    Args:
        gradient: What the backward pass was given.
    """
    return torch.is_grad_enabled() or is_followed(gradient)


def is_autocast(x: Tensor) -> bool:
    """Whether operations on a tensor are cast; those on a device without numbers are not."""
    return not x.is_meta and torch.is_autocast_enabled(x.device.type)


def without_autocast(x: Tensor) -> AbstractContextManager[Any]:
    """Operations on the device of a tensor are not cast inside."""
    return torch.autocast(x.device.type, enabled=False) if is_autocast(x) else nullcontext()


def traces_without_dynamo() -> bool:
    """Whether torch follows operations with tensors that have no values, and runs this Python."""
    return torch.compiler.is_compiling() and not torch.compiler.is_dynamo_compiling()


def is_exporting() -> bool:
    """Whether `torch.export` is tracing a program.

    The old torch does not say; there, one that looks at a program with dynamo is taken for a
    compiler.
    """
    return traces_without_dynamo() if _IS_OLD else torch.compiler.is_exporting()


def hide_from_old_compilers(function: _Function) -> _Function:
    """Run a function uncompiled under the old compiler, which fails inside it."""
    return cast("_Function", torch.compiler.disable(function)) if _IS_OLD else function
