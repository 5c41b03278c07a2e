"""Fields of points that have no space of their own."""

from __future__ import annotations

from torch import Tensor, nn

from bfno.fields.interface import Time
from bfno.fields.pullback import pull_back

__all__ = ["PointField"]


class PointField(nn.Module):
    """A field of functions in space, applied to points as if each were a grid of one place.

    Args:
        field: Takes states `(batch, channels, space)`.

    Shape:
        `t` a scalar or `(batch,)`, `y` `(batch, channels)` to the same.

    Example:
        >>> import torch
        >>> from bfno.fields.operator import OperatorField
        >>> field = PointField(OperatorField("bfno", channels=2, width=8, depth=1))
        >>> field(0.5, torch.zeros(5, 2)).shape
        torch.Size([5, 2])
    """

    def __init__(self, field: nn.Module) -> None:
        super().__init__()
        self.field = field

    def forward(self, t: Time, y: Tensor) -> Tensor:
        return self.field(t, y.unsqueeze(-1)).squeeze(-1)

    def pull_back(self, t: Time, y: Tensor, cotangent: Tensor) -> tuple[Tensor, Tensor]:
        """The field and `cotangentᵀ ∂f/∂y`; see `bfno.fields.pullback`."""
        found = pull_back(self.field, t, y.unsqueeze(-1), cotangent.unsqueeze(-1))
        return found[0].squeeze(-1), found[1].squeeze(-1)
