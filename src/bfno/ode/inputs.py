"""Checks of what users pass in: one sentence with name, rule, value and remedy."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

__all__ = ["check_inputs", "check_state", "check_times", "check_tolerances"]


def check_inputs(y0: Any, ts: Any, rtol: Any, atol: Any) -> None:
    """Refuse states, times and tolerances that cannot be solved for."""
    check_state(y0)
    check_tolerances(rtol, atol)
    _check_real("ts", ts)
    if ts.dim() not in (1, 2) or ts.shape[-1] < 2:
        raise ValueError(
            "ts must hold at least two times, with shape (time,) or (batch, time), "
            f"got shape {tuple(ts.shape)}"
        )
    if not bool(torch.isfinite(ts).all()):
        raise ValueError(f"ts must be finite, got {ts.detach().flatten().tolist()[:8]}")
    if ts.dim() == 1:
        _check_monotonic("ts", ts)
    else:
        _check_rows(y0, ts)


def check_times(t: Any) -> None:
    """Refuse times that are not one increasing or decreasing row."""
    _check_real("t", t)
    if t.dim() != 1 or len(t) == 0 or not bool(torch.isfinite(t).all()):
        raise ValueError(f"t must be one row of finite times, got shape {tuple(t.shape)}")
    _check_monotonic("t", t)


def check_state(y0: Any) -> None:
    """Refuse states that are not made of tensors of real or complex numbers."""
    parts = tree_leaves(y0)
    if not parts or not all(isinstance(part, Tensor) for part in parts):
        raise ValueError(
            f"y0 must be a tensor, or a tuple, list, dict or nest of tensors, "
            f"got {type(y0).__name__}"
        )
    for part in parts:
        if not (part.is_floating_point() or part.is_complex()):
            raise ValueError(
                f"y0 must hold real floating-point or complex numbers, got {part.dtype}; convert "
                "it, for example with y0.float()"
            )


def check_tolerances(rtol: Any, atol: Any) -> None:
    """Refuse tolerances that are not finite and non-negative, or all zero."""
    for name, value in (("rtol", rtol), ("atol", atol)):
        if isinstance(value, Tensor):
            valid = bool((torch.isfinite(value) & (value >= 0)).all())
        else:
            valid = isinstance(value, (int, float)) and math.isfinite(value) and value >= 0
        if not valid:
            raise ValueError(f"{name} must be a finite number, zero or more, got {value!r}")
    if not bool((torch.as_tensor(rtol) + torch.as_tensor(atol) > 0).all()):
        raise ValueError("rtol and atol must not both be zero: no step could be exact enough")


def _check_real(name: str, value: Any) -> None:
    if not isinstance(value, Tensor) or not value.is_floating_point():
        kind = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"{name} must be a tensor of real numbers, got {kind}")


def _check_monotonic(name: str, ts: Tensor) -> None:
    values = ts.tolist()
    sign = 1 if values[-1] > values[0] else -1
    for index in range(1, len(values)):
        if (values[index] - values[index - 1]) * sign <= 0:
            raise ValueError(
                f"{name} must be strictly increasing or decreasing, got {name}[{index}]="
                f"{values[index]:g} after {name}[{index - 1}]={values[index - 1]:g}"
            )


def _check_rows(y0: Any, ts: Tensor) -> None:
    parts = tree_leaves(y0)
    if any(part.dim() == 0 or len(part) != len(ts) for part in parts):
        raise ValueError(
            f"ts with one row per sample needs {len(ts)} samples along the state's first axis, got "
            f"shapes {[tuple(part.shape) for part in parts]}"
        )
    steps = ts.detach().diff(dim=1)
    turned = ((steps > 0).any(1) & (steps < 0).any(1)).nonzero()
    if len(turned):
        row = int(turned[0])
        raise ValueError(f"every row of ts must be monotonic, got ts[{row}]={ts[row].tolist()[:8]}")
