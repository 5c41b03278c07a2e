"""The fully connected vector field."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bfno.fields.interface import Time, pull_back_by_autograd
from bfno.layers.activation import ActivationChoice, find_activation, known_activation
from bfno.layers.modules import is_plain
from bfno.layers.pointwise import time_column

__all__ = ["MLPField"]


class MLPField(nn.Module):
    """Fully connected network on the last axis of the state and, optionally, the time.

    Args:
        features: Size of the state's last axis.
        hidden: Size of every hidden layer.
        depth: Number of hidden layers.
        out_features: Size of the result's last axis; that of the state if not given.
        activation: Activation after every hidden layer: a name, such as relu, softplus or tanh, or
            an elementwise function.
        time: Whether the first layer sees the time, as its last input.

    Shape:
        `t` a scalar or `(batch,)`, `y` `(batch, ..., features)` to `(batch, ..., out_features)`.

    Example:
        >>> import torch
        >>> field = MLPField(features=2, hidden=16)
        >>> field(0.5, torch.zeros(4, 2)).shape
        torch.Size([4, 2])
    """

    def __init__(
        self,
        features: int,
        hidden: int,
        depth: int = 2,
        out_features: int | None = None,
        activation: ActivationChoice = "tanh",
        time: bool = True,
    ) -> None:
        super().__init__()
        if depth < 1:
            raise ValueError(f"depth must be at least 1, got {depth}; pass 1 for one hidden layer")
        self.time = time
        self.activation = known_activation(activation)
        self.enter = nn.Linear(features + time, hidden)
        self.inner = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(depth - 1))
        self.leave = nn.Linear(hidden, features if out_features is None else out_features)

    def forward(self, t: Time, y: Tensor) -> Tensor:
        activation = find_activation(self.activation)
        hidden = activation.after(self.enter, self._enter(t, y))
        for layer in self.inner:
            hidden = activation.after(layer, layer(hidden))
        return self.leave(hidden)

    def pull_back(self, t: Time, y: Tensor, cotangent: Tensor) -> tuple[Tensor, Tensor]:
        """The field and `cotangentᵀ ∂f/∂y`; see `bfno.fields.interface`."""
        if not all(is_plain(layer, nn.Linear) for layer in (self.enter, *self.inner, self.leave)):
            return pull_back_by_autograd(self, t, y, cotangent)
        chosen, before, pairs = find_activation(self.activation), self._enter(t, y), []
        weights = [self.enter.weight[:, : y.shape[-1]]]
        for layer in self.inner:
            pairs.append((before, chosen.apply(before)))
            before = layer(pairs[-1][1])
            weights.append(cast(nn.Linear, layer).weight)
        pairs.append((before, chosen.apply(before)))
        pulled = cotangent @ self.leave.weight
        for weight, pair in zip(reversed(weights), reversed(pairs), strict=True):
            pulled = (pulled * chosen.slope(*pair)) @ weight
        return self.leave(pairs[-1][1]), pulled

    def _enter(self, t: Time, y: Tensor) -> Tensor:
        if not self.time:
            return self.enter(y)
        time = time_column(t, y)
        if not is_plain(self.enter, nn.Linear) or self.enter.bias is None:
            time = torch.as_tensor(time, dtype=y.dtype, device=y.device)
            column = time.reshape(-1, *[1] * (y.dim() - 1)).expand(*y.shape[:-1], 1)
            return self.enter(torch.cat((y, column), dim=-1))
        # The time's product with its weights is the same along the state: part of the bias.
        weight = self.enter.weight
        bias = self.enter.bias + time * weight[:, -1]
        if bias.dim() == 1:
            return F.linear(y, weight[:, :-1], bias)
        return F.linear(y, weight[:, :-1]) + bias.view(len(y), *[1] * (y.dim() - 2), len(weight))
