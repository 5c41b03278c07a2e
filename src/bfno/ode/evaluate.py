"""Calls of the field, and checks of its results."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import TransformType, get_interpreter_stack
from torch.nn.utils import parametrize, stateless

from bfno.ode.dependencies import mark, refuse_recorded_batch_norm
from bfno.ode.replay import Replayer, address

__all__ = [
    "Evaluator",
    "Field",
    "ReplayingEvaluator",
    "TrackingEvaluator",
    "WithArguments",
    "borrows_parameters",
    "is_mapped",
]

Field = Callable[[Any, Tensor], Tensor]


class WithArguments:
    """A field with further arguments, which are not part of the compiled program.

    Args:
        field: The field, called with time, state and the arguments.
        arguments: The arguments.
    """

    def __init__(self, field: Callable[..., Tensor], arguments: tuple[Any, ...]) -> None:
        self.field, self.arguments = field, arguments

    def __call__(self, t: Any, y: Tensor) -> Tensor:
        return self.field(t, y, *self.arguments)


def is_mapped() -> bool:
    """Whether `torch.func.vmap` is active, under which no number can be read."""
    return any(one.key() == TransformType.Vmap for one in get_interpreter_stack() or ())


def borrows_parameters() -> bool:
    """Whether modules hold parameters that will be gone when a backward pass runs.

    `torch.func.functional_call` puts a module's own parameters back when it returns, and
    `parametrize.cached` forgets what it computed when it is left.
    """
    if parametrize._cache_enabled:
        return True
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code is stateless._functional_call.__code__:
            return True
        frame = frame.f_back
    return False


class Evaluator:
    """Calls a field and checks that slopes look like states; works with any kind of tensor."""

    def __init__(self, field: Field) -> None:
        self.field = field

    def __call__(self, t: Tensor, y: Tensor) -> Tensor:
        # Copies: whether a field writes into its input, or into what it returned, cannot be seen.
        return self.check(self.field(t, y.clone()), y).clone()

    def check(self, slope: Any, y: Tensor) -> Tensor:
        """Refuse a derivative whose form differs from the state's."""
        if not isinstance(slope, Tensor):
            raise ValueError(f"the field must return a tensor, got {type(slope).__name__}")
        if slope.shape != y.shape:
            raise ValueError(
                f"the field must return the state's shape {tuple(y.shape)}, "
                f"got {tuple(slope.shape)}"
            )
        if slope.dtype != y.dtype:
            if torch.is_autocast_enabled(y.device.type) and not slope.is_complex():
                return slope.to(y.dtype)
            raise ValueError(
                f"the field must return the state's dtype {y.dtype}, got {slope.dtype}; convert "
                "the field's weights or y0"
            )
        return slope


class TrackingEvaluator(Evaluator):
    """Also refuses fields that write into their input, and copies slopes that may be overwritten.

    A field may return its input or the same buffer every time; a later call would change the slope
    that an earlier one returned.
    """

    def __init__(self, field: Field, y0: Tensor) -> None:
        super().__init__(field)
        self._address, self._is_special = address(y0), True
        # Checked once: a call inside may leave inference mode temporarily, to find a derivative.
        self._is_inference = torch.is_inference_mode_enabled() or y0.is_inference()
        self._since = mark() if torch.is_grad_enabled() else 0

    def __call__(self, t: Tensor, y: Tensor) -> Tensor:
        if self._is_special or y.is_inference():
            return self._call_carefully(t, y)
        version, before = y._version, self._address
        slope = self.field(t, y)
        if y._version != version:
            raise ValueError(_IN_PLACE)
        if type(slope) is not Tensor or slope.shape != y.shape or slope.dtype != y.dtype:
            slope = self.check(slope, y)
        self._address = address(slope)
        is_shared = (
            self._address == before
            or slope._is_view()
            or sys.getrefcount(slope) > _REFERENCES  # one reference is the field's own
            # With autograd on, a tensor unknown to it may share any other tensor's memory.
            or (slope.grad_fn is None and torch.is_grad_enabled())
        )
        return slope.clone() if is_shared else slope

    def _call_carefully(self, t: Tensor, y: Tensor) -> Tensor:
        """The first call, and calls in inference mode, whose tensors do not count their changes."""
        self._is_special = self._is_inference
        version = 0 if self._is_special else y._version
        try:
            slope = self.field(t, y)
        except RuntimeError:
            self._refuse_writing(t, y)
            raise
        if not self._is_special and y._version != version:
            raise ValueError(_IN_PLACE)
        if torch.is_grad_enabled():
            refuse_recorded_batch_norm(slope, self._since)
        slope = self.check(slope, y)
        self._address = address(slope)
        return slope.clone()

    def _refuse_writing(self, t: Tensor, y: Tensor) -> None:
        """Check whether a call failed because autograd forbids writing into a leaf."""
        if y.is_leaf and y.requires_grad:
            copy = y.clone()
            version = copy._version
            self.field(t, copy)
            if copy._version != version:
                raise ValueError(_IN_PLACE)


def _references() -> int:
    """Reference count of a tensor that only one function holds, which depends on Python."""
    alone = torch.empty(0)
    return sys.getrefcount(alone)


_REFERENCES = _references()
_IN_PLACE = (
    "the field must not change its state in place; write y = y * 2 instead of y.mul_(2), and leave "
    "inplace=True out of its first layer"
)


class ReplayingEvaluator(TrackingEvaluator):
    """Records calls, for a backward pass to repeat."""

    def __init__(self, field: Field, y0: Tensor, replayer: Replayer) -> None:
        super().__init__(field, y0)
        self._replayer = replayer

    def __call__(self, t: Tensor, y: Tensor) -> Tensor:
        if not torch.is_grad_enabled() or self._replayer.reserve():
            return super().__call__(t, y)
        with self._replayer.recording(super().__call__, (t, y)) as call:
            slope = call.result = super().__call__(t, y)
        return slope
