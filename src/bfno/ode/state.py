"""Any state as one tensor: tuples, dicts and nests of tensors are joined and split again."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

__all__ = ["Packing", "clock_dtype", "constant", "on_host", "real_dtype", "scale_rows"]


def clock_dtype(device: torch.device) -> torch.dtype:
    """The dtype of the solver's clock: double precision where the device has it."""
    return torch.float32 if device.type == "mps" else torch.float64


def real_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of real and imaginary parts."""
    return dtype.to_real() if dtype.is_complex else dtype


def constant(values: Sequence[Any], like: Tensor) -> Tensor:
    """Constants with the dtype and on the device of another tensor.

    They are sent to a GPU once: the host would wait for every copy.
    """
    if like.device.type == "cpu":
        return like.new_tensor(values)
    return _sent(tuple(values), like.dtype, like.device)


def on_host(values: Any) -> Any:
    """Numbers on the host, so that reading them does not wait for a device each time."""
    if not isinstance(values, Tensor) or values.is_meta or values.device.type == "cpu":
        return values
    return values.detach().cpu()


@functools.lru_cache(maxsize=256)
def _sent(values: tuple[Any, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # kept for training too, which refuses inference tensors
        return torch.tensor(values, dtype=dtype, device=device)


class Packing:
    """How a state, which is a tensor or a nest of tensors, is stored in one tensor.

    A tensor stays as it is. The components of a nest are put side by side along one axis or, if
    samples stay separate, along the axis after the batch.

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
        self._is_tuple = type(example) is tuple and all(isinstance(p, Tensor) for p in example)
        self._lead = 1 if by_sample else 0
        self._shapes = [part.shape for part in parts]
        self._tails = [tuple(shape[self._lead :]) for shape in self._shapes]
        self._dtypes = [part.dtype for part in parts]
        self._are_alike = len(set(self._dtypes)) == 1
        self._sizes = [math.prod(tail) for tail in self._tails]
        ends = [sum(self._sizes[: index + 1]) for index in range(len(parts))]
        self.slices = [slice(end - n, end) for end, n in zip(ends, self._sizes, strict=True)]

    def pack(self, state: Any) -> Tensor:
        """Store a state in one tensor."""
        if not self.is_nest:
            return state
        return self._join(state if self._is_tuple else pytree.tree_leaves(state))

    def unpack(self, packed: Tensor) -> Any:
        """Split the last axis; axes before it stay in front of every component."""
        if not self.is_nest:
            return packed
        lead = tuple(packed.shape[:-1])
        if packed.requires_grad:
            # One by one: autograd refuses writing into pieces of split() with a different message.
            pieces = [packed.narrow(-1, part.start, part.stop - part.start) for part in self.slices]
        else:
            pieces = packed.split(self._sizes, dim=-1)
        parts = [part.reshape(lead + tail) for part, tail in zip(pieces, self._tails, strict=True)]
        if not self._are_alike:
            parts = [_like(part, dtype) for part, dtype in zip(parts, self._dtypes, strict=True)]
        return tuple(parts) if self._is_tuple else pytree.tree_unflatten(parts, self._structure)

    def wrap(self, field: Callable[..., Any]) -> Callable[..., Any]:
        """A field on states as a field on packed states."""
        if not self.is_nest:
            return field
        return lambda t, y, *args: self._join(self.components(field(t, self.unpack(y), *args), y))

    def components(self, slopes: Any, packed: Tensor) -> Sequence[Tensor]:
        """The components of a derivative; raises an error if it is not built like the state.

        Args:
            slopes: The derivative.
            packed: The state, which may have fewer samples than the example.
        """
        if self._is_tuple and type(slopes) is tuple and len(slopes) == len(self._shapes):
            parts, structure = slopes, self._structure
        else:
            parts, structure = pytree.tree_flatten(slopes)
        if structure != self._structure:
            places = pytree.tree_unflatten(range(len(self._shapes)), self._structure)
            parts = _in_places(slopes, places)
        if len(parts) != len(self._shapes) or not all(isinstance(one, Tensor) for one in parts):
            raise ValueError(
                f"the field must return {len(self._shapes)} tensors, one for each component of the "
                f"state, got {type(slopes).__name__}"
            )
        lead = tuple(packed.shape[: self._lead])
        likes = zip(parts, self._tails, self._dtypes, strict=True)
        for index, (part, tail, dtype) in enumerate(likes):
            shape = lead + tail
            if part.shape != shape:
                raise ValueError(
                    f"the field must return the state's shape {shape} as its component "
                    f"{index}, got {tuple(part.shape)}"
                )
            if part.is_complex() and not dtype.is_complex:
                raise ValueError(
                    f"the field must return real numbers as its component {index}, as the state's "
                    f"are, got {part.dtype}"
                )
        return parts

    def _join(self, parts: Sequence[Tensor]) -> Tensor:
        if not self._lead:
            return torch.cat([part.reshape(-1) for part in parts])
        # Sizes instead of -1, which is ambiguous for an empty batch.
        sized = zip(parts, self._sizes, strict=True)
        return torch.cat([part.reshape(part.shape[0], size) for part, size in sized], dim=-1)


def _in_places(found: Any, places: Any) -> list[Any]:
    """The leaves of a nest in the order of another; lists may stand for tuples."""
    if isinstance(places, dict):
        if not isinstance(found, dict) or found.keys() != places.keys():
            got = f"the keys {list(found)}" if isinstance(found, dict) else type(found).__name__
            raise ValueError(
                f"the field must return a dict like the state's, with the keys {list(places)}, "
                f"got {got}"
            )
        return [leaf for key in places for leaf in _in_places(found[key], places[key])]
    if isinstance(places, (tuple, list)) and isinstance(found, (tuple, list)):
        if len(found) != len(places):
            raise ValueError(
                f"the field must return {len(places)} components, as the state has, "
                f"got {len(found)}"
            )
        pairs = zip(found, places, strict=True)
        return [leaf for one, place in pairs for leaf in _in_places(one, place)]
    if isinstance(found, dict):
        raise ValueError(f"the field must return what the state is, got the keys {list(found)}")
    return pytree.tree_leaves(found)


def _like(part: Tensor, dtype: torch.dtype) -> Tensor:
    """A component in its own dtype, which may have been widened by joining it with others."""
    if part.is_complex() and not dtype.is_complex:
        part = part.real
    return part if part.dtype == dtype else part.to(dtype)


def scale_rows(values: Tensor, like: Tensor) -> Tensor:
    """One value per sample in a shape that multiplies `like`, whose first axis is the samples."""
    return values.view(-1, *[1] * (like.dim() - 1))
