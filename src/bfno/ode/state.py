"""Any state as one tensor: tuples, dicts and nests of tensors are joined and taken apart again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

__all__ = ["Packing", "clock_dtype", "real_dtype", "scale_rows"]


def clock_dtype(device: torch.device) -> torch.dtype:
    """The dtype of the solver's clock: double precision where the device has it."""
    return torch.float32 if device.type == "mps" else torch.float64


def real_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of real and imaginary parts."""
    return dtype.to_real() if dtype.is_complex else dtype


class Packing:
    """How a state, a tensor or a nest of tensors, lies in one tensor.

    A tensor stays as it is. The components of a nest are laid side by side: along one axis, or,
    where the samples keep apart, along the axis after the batch.

    Args:
        example: A state.
        by_sample: Whether to keep the first axis, the samples.

    Attributes:
        is_nest: Whether the state is anything but one tensor.
        slices: Where each component lies along the last axis.
    """

    def __init__(self, example: Any, *, by_sample: bool = False) -> None:
        self.is_nest = not isinstance(example, Tensor)
        parts, self._structure = pytree.tree_flatten(example)
        self._lead = 1 if by_sample else 0
        self._shapes = [part.shape for part in parts]
        self._dtypes = [part.dtype for part in parts]
        self._sizes = [part.shape[self._lead :].numel() for part in parts]
        ends = [sum(self._sizes[: index + 1]) for index in range(len(parts))]
        self.slices = [slice(end - n, end) for end, n in zip(ends, self._sizes, strict=True)]

    def pack(self, state: Any) -> Tensor:
        """Lay a state into one tensor."""
        if not self.is_nest:
            return state
        parts = pytree.tree_leaves(state)
        flat = [part.reshape(*part.shape[: self._lead], -1) for part in parts]
        return torch.cat(flat, dim=-1)

    def unpack(self, packed: Tensor) -> Any:
        """Take the last axis apart; axes before it stay in front of every component."""
        if not self.is_nest:
            return packed
        parts, lead = packed.split(self._sizes, dim=-1), packed.shape[:-1]
        shaped = [
            _like(part.reshape((*lead, *shape[self._lead :])), dtype)
            for part, shape, dtype in zip(parts, self._shapes, self._dtypes, strict=True)
        ]
        return pytree.tree_unflatten(shaped, self._structure)

    def wrap(self, field: Callable[..., Any]) -> Callable[..., Any]:
        """A field on states as a field on packed states."""
        if not self.is_nest:
            return field
        return lambda t, y, *args: self.pack(self.check(field(t, self.unpack(y), *args)))

    def check(self, slopes: Any) -> Any:
        """Refuse a derivative that is not built like the state."""
        parts, structure = pytree.tree_flatten(slopes)
        if len(parts) != len(self._shapes) or not all(isinstance(one, Tensor) for one in parts):
            raise ValueError(
                f"the field must return {len(self._shapes)} tensors, one for each component of the "
                f"state, got {type(slopes).__name__}"
            )
        # A field may return a list for a tuple, but not one key of a dict for another.
        if isinstance(slopes, dict) and structure != self._structure:
            raise ValueError(
                f"the field must return a dict like the state, got the keys {list(slopes)}"
            )
        for index, (part, shape) in enumerate(zip(parts, self._shapes, strict=True)):
            if part.shape != shape:
                raise ValueError(
                    f"the field must return the state's shape {tuple(shape)} as its component "
                    f"{index}, got {tuple(part.shape)}"
                )
        return slopes


def _like(part: Tensor, dtype: torch.dtype) -> Tensor:
    """A component in its own dtype, which joining it with others may have widened."""
    if part.is_complex() and not dtype.is_complex:
        part = part.real
    return part if part.dtype == dtype else part.to(dtype)


def scale_rows(values: Tensor, like: Tensor) -> Tensor:
    """One value per sample in a shape that multiplies `like`, whose first axis is the samples."""
    return values.view(-1, *[1] * (like.dim() - 1))
