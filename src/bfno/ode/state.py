"""Any state as one tensor: tuples of tensors are concatenated and taken apart again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["Packing", "scale_rows"]


class Packing:
    """How a state, a tensor or a tuple of tensors, lies in one tensor.

    A tensor stays as it is. The components of a tuple are laid side by side: along one axis, or,
    where the samples keep apart, along the axis after the batch.

    Args:
        example: A state.
        by_sample: Whether to keep the first axis, the samples.
    """

    def __init__(self, example: Tensor | tuple[Tensor, ...], *, by_sample: bool = False) -> None:
        self.is_tuple = not isinstance(example, Tensor)
        parts = example if isinstance(example, tuple) else ()
        self._lead = 1 if by_sample else 0
        self._shapes = [part.shape[self._lead :] for part in parts]
        self._sizes = [shape.numel() for shape in self._shapes]

    @property
    def slices(self) -> list[slice]:
        """Where each component lies along the last axis."""
        ends = torch.tensor(self._sizes, device="cpu").cumsum(0).tolist()
        return [slice(end - size, end) for end, size in zip(ends, self._sizes, strict=True)]

    def pack(self, state: Tensor | Sequence[Tensor]) -> Tensor:
        """Lay a state into one tensor."""
        if isinstance(state, Tensor):
            return state
        return torch.cat([part.flatten(self._lead) if part.dim() > self._lead
                          else part.unsqueeze(-1) for part in state], dim=-1)  # fmt: skip

    def unpack(self, packed: Tensor) -> Any:
        """Take the last axis apart; axes before it stay in front of every component."""
        if not self.is_tuple:
            return packed
        parts = packed.split(self._sizes, dim=-1)
        lead = packed.shape[:-1]
        return tuple(
            part.reshape((*lead, *shape)) for part, shape in zip(parts, self._shapes, strict=True)
        )

    def wrap(self, field: Callable[[Any, Any], Any]) -> Callable[[Any, Tensor], Tensor]:
        """A field on states as a field on packed states."""
        if not self.is_tuple:
            return field
        return lambda t, y: self.pack(self.check(field(t, self.unpack(y))))

    def check(self, slopes: Any) -> Any:
        """Refuse a derivative that is not a tuple like the state."""
        if not isinstance(slopes, (tuple, list)) or len(slopes) != len(self._shapes):
            raise ValueError(
                f"the field must return {len(self._shapes)} tensors, one for each component of the "
                f"state, got {type(slopes).__name__}"
            )
        return slopes


def scale_rows(values: Tensor, like: Tensor) -> Tensor:
    """One value a sample in a shape that multiplies `like`, whose first axis is the samples."""
    return values.view(-1, *[1] * (like.dim() - 1))
