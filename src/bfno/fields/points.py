"""Fields of states that have no space of their own: points, and hidden states of series."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from bfno.fields.interface import Time, pull_back
from bfno.fields.operator import OperatorField
from bfno.layers.activation import ActivationChoice

__all__ = ["GRIDS", "Autonomous", "LatentOperatorField", "PointField"]

GRIDS = ("latent", "point", "batch")
"""The axes that a latent operator field treats as space."""


class PointField(nn.Module):
    """A field of functions in space, applied to points as if each were a grid of one point.

    Args:
        field: Takes states `(batch, channels, space)`.

    Shape:
        `t` a scalar or `(batch,)`, `y` `(batch, channels)` to the same.

    Example:
        >>> import torch
        >>> from bfno.fields import OperatorField
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
        """The field and `cotangentᵀ ∂f/∂y`; see `bfno.fields.interface`."""
        found = pull_back(self.field, t, y.unsqueeze(-1), cotangent.unsqueeze(-1))
        return found[0].squeeze(-1), found[1].squeeze(-1)


class Autonomous(nn.Module):
    """A network as a field that does not depend on time.

    Args:
        network: Maps a state to its rate of change.

    Example:
        >>> import torch
        >>> Autonomous(nn.Identity())(0.5, torch.ones(1, 2))
        tensor([[1., 1.]]...)
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, t: Time, y: Tensor) -> Tensor:
        return self.network(y)


class LatentOperatorField(nn.Module):
    """An operator field on latent states, which have no space of their own.

    The `grid` sets what the layer treats as space:

    - `"latent"`: the latent axis. A state is a function of one channel on as many points as it
      has coordinates.
    - `"point"`: one point, whose channels are the coordinates. The layer then has no space to mix.
    - `"batch"`: latent samples times series, whose channels are the coordinates. The shapes in the
      paper suggest this. Every trajectory then depends on all others in its batch, and on their
      order.

    Args:
        latents: Number of coordinates of a state.
        width: Channels of the layers.
        grid: See above.
        depth: Number of layers.
        activation: Activation after each layer: a name, such as relu, softplus or tanh, or an
            elementwise function.
        layer: Name of the layer, see `OperatorField`.
        **layer_options: Further arguments of the layer.

    Attributes:
        couples_series: Whether trajectories depend on each other.

    Shape:
        `(trajectories, latents)` to the same; `(samples, series, latents)` for the batch grid.

    Example:
        >>> import torch
        >>> field = LatentOperatorField(15, 8)
        >>> field(0.0, torch.zeros(6, 15)).shape
        torch.Size([6, 15])
    """

    def __init__(
        self,
        latents: int,
        width: int,
        *,
        grid: str = "latent",
        depth: int = 1,
        activation: ActivationChoice = "tanh",
        layer: str = "bfno",
        **layer_options: Any,
    ) -> None:
        super().__init__()
        if grid not in GRIDS:
            raise ValueError(f"grid must be one of {', '.join(GRIDS)}, got {grid!r}")
        self.latents, self.grid = latents, grid
        self.couples_series = grid == "batch"
        options = {"branches": 1} if layer == "bfno" else {}
        self.operator = OperatorField(
            layer,
            1 if grid == "latent" else latents,
            width,
            depth,
            activation=activation,
            last_activation=True,
            time=False,
            **{**options, **layer_options},
        )

    def forward(self, t: Time, y: Tensor) -> Tensor:
        if y.dim() != 2 + self.couples_series or y.shape[-1] != self.latents:
            axes = "samples, series" if self.couples_series else "trajectories"
            raise ValueError(
                f"the state must have shape ({axes}, {self.latents}), got {tuple(y.shape)}"
            )
        if self.grid == "latent":
            return self.operator(t, y.unsqueeze(1)).squeeze(1)
        if self.grid == "point":
            return self.operator(t, y.unsqueeze(-1)).squeeze(-1)
        return self.operator(t, y.permute(2, 0, 1).unsqueeze(0)).squeeze(0).permute(1, 2, 0)
