"""A vector field made of neural-operator layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from torch import Tensor, nn

from bfno.fields.interface import Time, pull_back_by_autograd
from bfno.layers.activation import ActivationChoice, find_activation, known_activation
from bfno.layers.afno import AFNO
from bfno.layers.bfno import BFNO
from bfno.layers.fno import FNO
from bfno.layers.modules import known_method, speaks_of_forward
from bfno.layers.pointwise import Pointwise

__all__ = ["LAYERS", "OperatorField", "find_layer"]

LAYERS: dict[str, Callable[..., nn.Module]] = {"bfno": BFNO, "fno": FNO, "afno": AFNO}
"""Operator layers by name; each takes the width first."""


def find_layer(name: str) -> Callable[..., nn.Module]:
    """Find an operator layer by name, and raise ValueError if there is none."""
    if name not in LAYERS:
        raise ValueError(f"layer must be one of {', '.join(LAYERS)} or a callable, got {name!r}")
    return LAYERS[name]


class OperatorField(nn.Module):
    """Encoder, operator layers and decoder: `dy/dt = decode(layers(encode(y, t)))`.

    Encoder and decoder act on channels, in the same way at every grid point; time is one more
    channel of the encoder.

    Args:
        layer: `"bfno"`, `"fno"`, `"afno"`, or a callable that makes a layer of a given width: any
            module that maps `(batch, width, *space)` to the same shape.
        channels: Channels of the state.
        width: Channels of the layers.
        depth: Number of layers.
        out_channels: Channels of the result; those of the state if None.
        activation: Activation after each layer: a name, such as relu, softplus or tanh, or an
            elementwise function.
        last_activation: Whether it also follows the last layer.
        inner_activation: The layers' own activation; None leaves them their default.
        time: Whether the field depends on time.
        **layer_options: Further arguments of the layer.

    Shape:
        `t` a scalar or `(batch,)`, `y` `(batch, channels, *space)` to
        `(batch, out_channels, *space)`.

    Example:
        >>> import torch
        >>> field = OperatorField("bfno", channels=3, width=8, depth=2, branches=2)
        >>> field(0.5, torch.zeros(2, 3, 6, 6)).shape
        torch.Size([2, 3, 6, 6])
    """

    def __init__(
        self,
        layer: str | Callable[..., nn.Module],
        channels: int,
        width: int,
        depth: int,
        *,
        out_channels: int | None = None,
        activation: ActivationChoice = "relu",
        last_activation: bool = False,
        inner_activation: ActivationChoice | None = None,
        time: bool = True,
        **layer_options: Any,
    ) -> None:
        super().__init__()
        make = find_layer(layer) if isinstance(layer, str) else layer
        own = {} if inner_activation is None else {"activation": inner_activation}
        self.channels, self.time = channels, time
        self.activation, self.last_activation = known_activation(activation), last_activation
        self.encoder = Pointwise(channels, width, time=time)
        # A layer that can apply the activation itself does so, in one pass over memory.
        self._seals = speaks_of_forward(make, "takes_output_activation")
        self.layers = nn.ModuleList(
            make(width, **own, **self._sealed(index, depth), **layer_options)
            for index in range(depth)
        )
        self.decoder = Pointwise(width, channels if out_channels is None else out_channels)

    def _sealed(self, index: int, depth: int) -> dict[str, ActivationChoice]:
        """The activation as an option of the layer, if the layer takes one."""
        if self._seals and self._is_activated(index, depth):
            return {"output_activation": self.activation}
        return {}

    def _is_activated(self, index: int, depth: int) -> bool:
        return index < depth - 1 or self.last_activation

    def _activates(self, index: int, layer: nn.Module) -> bool:
        """Whether an activation has to follow a layer that does not apply it itself."""
        # A different layer may have replaced the one that was made with the activation.
        if self._seals and getattr(layer, "output_activation", None) is not None:
            return False
        return self._is_activated(index, len(self.layers))

    def forward(self, t: Time, y: Tensor) -> Tensor:
        if y.dim() < 3 or y.shape[1] != self.channels:
            raise ValueError(
                f"the state must have shape (batch, {self.channels}, *space), got {tuple(y.shape)}"
            )
        hidden, activation = self._encode(t, y), find_activation(self.activation)
        for index, layer in enumerate(self.layers):
            hidden = layer(hidden)
            if self._activates(index, layer):
                hidden = activation.after(layer, hidden)
        return self.decoder(hidden)

    def pull_back(self, t: Time, y: Tensor, cotangent: Tensor) -> tuple[Tensor, Tensor]:
        """The field and `cotangentᵀ ∂f/∂y`; see `bfno.fields.interface`."""
        if not self._knows_jacobian():
            return pull_back_by_autograd(self, t, y, cotangent)
        hidden, pulls = self._encode(t, y), []
        for layer in self.layers:
            hidden, pull = cast(Any, layer).linearise(hidden)
            pulls.append(pull)
        cotangent = self.decoder.transposed(cotangent)
        for pull in reversed(pulls):
            cotangent = pull(cotangent)
        return self.decoder(hidden), self.encoder.transposed(cotangent)

    def _knows_jacobian(self) -> bool:
        """Whether every part has its own pull-back, and the field does nothing else.

        All parts were checked for hooks before the field's own `pull_back` was called.
        """
        return (
            all(getattr(layer, "can_linearise", False) for layer in self.layers)
            and not any(self._activates(*one) for one in enumerate(self.layers))
            and all(known_method(layer, "linearise") for layer in self.layers)
            and all(known_method(end, "transposed") for end in (self.encoder, self.decoder))
        )

    def _encode(self, t: Time, y: Tensor) -> Tensor:
        return self.encoder(y, t) if self.time else self.encoder(y)
