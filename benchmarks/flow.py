"""A training step of FFJORD-RNODE on MNIST against the plain formulation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.cases import smooth_images
from benchmarks.plain_flow import with_torchdiffeq
from benchmarks.timing import Line, compare
from bfno.fields.flow import FlowConvField
from bfno.lab.data import load
from bfno.lab.errors import DataError
from bfno.lab.runs.record import peak_memory
from bfno.models.flows import ContinuousFlow, MultiscaleFlow, PixelFlow, bits_per_dim, dequantise

__all__ = ["flow", "flow_memory"]

_SHAPE, _WIDTH, _BATCH, _WEIGHT = (1, 28, 28), 64, 32, 0.01
_TRAINED_STEPS = 10
# The published recipe: four classical steps in training.
_PUBLISHED = {"method": "rk4", "step": 0.25}
# What reaches the loss of the published steps with fewer evaluations (see the note `error`): the
# whole interval is tried first, and divided only where the error asks for it.
_ADAPTIVE = {"method": "dopri5", "rtol": 1e-3, "atol": 1e-3, "first_step": 1.0}
_EXACT = {"method": "dopri5", "rtol": 1e-6, "atol": 1e-6}


def flow(repeats: int, notes: dict[str, Any]) -> Iterator[Line]:
    """One training step, batch 32, width 64, both regularisers, in four ways of ours.

    Args:
        repeats: Pairs of steps; as a peer's step takes ten seconds and more, no more than three.
        notes: What else to report.
    """
    bench = _Bench()
    peer = with_torchdiffeq(bench.flow, method="rk4", options={"step_size": 0.25})
    exact = bench.loss(bench.flow, _EXACT)
    peer_loss = bench.loss(peer)
    for case, solver in (
        ("adaptive", {**_ADAPTIVE, "gradient": "direct"}),
        ("same steps", {**_PUBLISHED, "gradient": "checkpoint"}),
        ("same, 2 GB", {**_PUBLISHED, "gradient": "checkpoint", "memory": "2 GB"}),
        ("same, direct", {**_PUBLISHED, "gradient": "direct"}),
    ):
        loss = bench.loss(bench.flow, solver)
        line = compare(
            ("flow", case, "torchdiffeq adjoint"),
            lambda solver=solver: bench.step(bench.flow, solver),
            lambda: bench.step(peer),
            repeats=min(repeats, 3),
        )
        evaluations = bench.flow.stats
        line.notes = {
            "images": bench.images_from,
            "loss": loss,
            "error": abs(loss - exact),
            "peer_error": abs(peer_loss - exact),
            "nfe": evaluations.forward_evaluations + evaluations.backward_evaluations,
            **notes,
        }
        yield line


def flow_memory(gradient: str) -> float:
    """Peak memory in bytes that a training step adds; run it in a process of its own."""
    bench = _Bench(trained_steps=0)
    before = peak_memory()
    bench.step(bench.flow, {**_PUBLISHED, "gradient": gradient})
    return peak_memory() - before


class _Bench:
    """A flow of the paper's size whose field is no longer a shift, and a batch for it."""

    def __init__(self, trained_steps: int = _TRAINED_STEPS) -> None:
        torch.manual_seed(0)
        self.flow = MultiscaleFlow(
            _SHAPE,
            lambda channels: FlowConvField(channels, _WIDTH),
            penalties=("kinetic", "jacobian"),
        )
        self.pixels, self.images_from = _images()
        optimizer = torch.optim.Adam(self.flow.parameters(), lr=1e-3)
        for _ in range(trained_steps):
            self.step(self.flow, {"method": "midpoint", "gradient": "direct"})
            optimizer.step()

    def step(self, flow: MultiscaleFlow, solver: dict[str, Any] | None = None) -> None:
        """Loss and gradient, with the same noise every time."""
        flow.zero_grad()
        self._total(flow, solver).backward()

    def loss(self, flow: MultiscaleFlow, solver: dict[str, Any] | None = None) -> float:
        with torch.no_grad():
            return self._total(flow, solver).item()

    def _total(self, flow: MultiscaleFlow, solver: dict[str, Any] | None) -> Tensor:
        if solver is not None:
            _solve_with(flow, solver)
        torch.manual_seed(1)
        x = dequantise(self.pixels, "uniform", torch.float32)
        encoding = PixelFlow(flow, 1e-5).encode(x)
        bits = bits_per_dim(encoding.log_prob, flow.dimensions).mean()
        return bits + _WEIGHT * sum(value.mean() for value in encoding.penalties.values())


def _solve_with(flow: nn.Module, solver: dict[str, Any]) -> None:
    for part in flow.modules():
        if isinstance(part, ContinuousFlow):
            part.solve_with(**solver)


def _images() -> tuple[Tensor, str]:
    try:
        return load("mnist").train.images[:_BATCH], "mnist"
    except DataError:
        smooth = smooth_images(_BATCH, _SHAPE[0], _SHAPE[1])
        return smooth.mul(255).to(torch.uint8), "synthetic"
