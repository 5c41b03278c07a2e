"""The continuous flow of images as one writes it with autograd and torchdiffeq's adjoint.

It shares its weights with one of our models. One vector-Jacobian product serves trace and
regulariser here too, and noise is drawn once a solve; what differs is that autograd records every
evaluation, that time is a channel in memory, and the solver.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.timing import peer_library
from bfno.models.flows import ContinuousFlow, Encoding, MultiscaleFlow

__all__ = ["with_torchdiffeq"]


class _PlainMotion(nn.Module):
    """Derivatives of sample, log-density and regularisers by autograd."""

    def __init__(self, field: Any, noise: Tensor) -> None:
        super().__init__()
        self.field, self.noise = field, noise

    def forward(self, t: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            z = state[0].requires_grad_()
            t = t.requires_grad_()
            slope = self._slope(t, z)
            (pulled,) = torch.autograd.grad(slope, z, self.noise, create_graph=True)
            divergence = (pulled * self.noise).flatten(1).sum(1)
            kinetic = 0.5 * slope.square().flatten(1).mean(1)
            return slope, divergence, kinetic, pulled.square().flatten(1).mean(1)

    def _slope(self, t: Tensor, x: Tensor) -> Tensor:
        last = len(self.field.layers) - 1
        for index, layer in enumerate(self.field.layers):
            time = torch.ones_like(x[:, :1]) * t
            x = F.conv2d(torch.cat((x, time), dim=1), layer.weight, layer.bias, padding=1)
            if index < last:
                x = F.softplus(x)
        return x


class _PlainFlow(nn.Module):
    """One continuous flow, with the interface of ours."""

    def __init__(self, flow: ContinuousFlow, settings: Mapping[str, Any]) -> None:
        super().__init__()
        self.flow, self.settings = flow, dict(settings)

    def encode(self, x: Tensor) -> Encoding:
        zero = x.new_zeros(len(x))
        motion = _PlainMotion(self.flow.field, torch.randn_like(x))
        solve = peer_library("torchdiffeq").odeint_adjoint
        found = solve(motion, (x, zero, zero, zero), torch.tensor([0.0, 1.0]), **self.settings)
        z, log_det, kinetic, jacobian = (part[-1] for part in found)
        return Encoding(z.flatten(1), log_det, {"kinetic": kinetic, "jacobian": jacobian})


def with_torchdiffeq(flow: MultiscaleFlow, **settings: Any) -> MultiscaleFlow:
    """The same flow, its weights shared, with torchdiffeq's adjoint and plain fields inside.

    Args:
        flow: Our flow, whose fields are `FlowConvField`.
        **settings: Arguments of `odeint_adjoint`.
    """
    channels, height, width = flow.event_shape
    plain = MultiscaleFlow((channels, height, width), lambda channels: nn.Identity())
    plain.scales = nn.ModuleList(
        nn.ModuleList(nn.ModuleList(_PlainFlow(one, settings) for one in chain) for chain in scale)
        for scale in flow.scales
    )
    return plain
