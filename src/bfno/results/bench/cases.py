"""The layer and a training step on the paper's CIFAR-10 model."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bfno.fields import OperatorField
from bfno.ode import solve
from bfno.results.bench.plain import PlainField, bare_work
from bfno.results.bench.timing import Line, compare, peer_library

__all__ = ["CASES", "SmallField", "memory"]

RELEASED = Path("../shared/released/cifar10_epoch01.pt")
Lines = Iterator[Line]


def cifar_field() -> tuple[OperatorField, bool]:
    """The CIFAR-10 field, with the authors' weights where they are at hand."""
    torch.manual_seed(0)
    field = OperatorField("bfno", channels=3, width=76, depth=3, branches=2)
    if not RELEASED.exists():
        return field, False
    released = torch.load(RELEASED, weights_only=True, map_location="cpu")
    field.load_state_dict(dict(_renamed(released)))
    return field, True


def _renamed(released: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    root = "1.df.df"
    for ours, theirs in (("encoder", "initial"), ("decoder", "final")):
        for part in ("weight", "bias"):
            yield f"{ours}.{part}", released[f"{root}.{theirs}.{part}"]
    for index in range(3):
        theirs, ours = f"{root}.fc{index + 1}", f"layers.{index}"
        blocks = [f"{theirs}.weight_block_{branch}" for branch in (1, 2)]
        yield f"{ours}.weight", torch.stack([released[f"{block}.weights1"] for block in blocks])
        yield f"{ours}.bias", torch.stack([released[f"{block}.bias1"] for block in blocks])
        for part in ("weight", "bias"):
            yield f"{ours}.merge_real.{part}", released[f"{theirs}.concat_real_layer_1.{part}"]
            yield f"{ours}.merge_imag.{part}", released[f"{theirs}.concat_imag_layer_1.{part}"]


def layer(repeats: int, notes: dict[str, Any]) -> Lines:
    """A field of three BFNO layers, 76 channels, two branches, 32×32, batch 64."""
    field, _ = cifar_field()
    plain, y = PlainField(field), torch.rand(64, 3, 32, 32)
    work = bare_work(field, y)

    def without_graph(call: Callable[[], Any]) -> Callable[[], None]:
        def run() -> None:
            with torch.no_grad():
                call()

        return run

    def trained(model: nn.Module) -> Callable[[], None]:
        def run() -> None:
            model.zero_grad()
            model(0.3, y).square().sum().backward()

        return run

    ours = without_graph(lambda: field(0.3, y))
    forward = without_graph(lambda: plain(0.3, y))
    yield compare(("layer", "forward", "plain"), ours, forward, repeats=repeats, notes=notes)
    bare = without_graph(work)
    yield compare(("layer", "forward", "bare FFT+GEMM"), ours, bare, repeats=repeats, notes=notes)
    pair = trained(field), trained(plain)
    yield compare(("layer", "train", "plain"), *pair, repeats=repeats, notes=notes)


def _training_step(
    field: nn.Module, head: nn.Module, solver: Callable[..., Tensor]
) -> Callable[[], None]:
    images, labels, ts = smooth_images(64), torch.arange(64) % 10, torch.tensor([0.0, 1.0])

    def run() -> None:
        field.zero_grad()
        head.zero_grad()
        logits = head(solver(field, images, ts).flatten(1))
        nn.functional.cross_entropy(logits, labels).backward()

    return run


def smooth_images(count: int, side: int = 32) -> Tensor:
    """Random images whose energy falls with frequency as in photographs, between 0 and 1."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(count, 3, side, side, generator=generator)
    grey = torch.randn(count, 1, side, side, generator=generator)
    rows, columns = torch.fft.fftfreq(side) * side, torch.fft.rfftfreq(side) * side
    radius = (rows[:, None].square() + columns.square()).sqrt().clamp(min=1)
    spectrum = torch.fft.rfft2(0.3 * noise + grey) / radius**1.2
    images = torch.fft.irfft2(spectrum, s=(side, side))
    return (0.47 + 0.2 * images / images.std((1, 2, 3), keepdim=True)).clamp(0, 1)


def cifar_head() -> nn.Linear:
    """The linear head of the CIFAR-10 model, likewise."""
    head = nn.Linear(3 * 32 * 32, 10)
    if RELEASED.exists():
        released = torch.load(RELEASED, weights_only=True, map_location="cpu")
        head.load_state_dict({part: released[f"2.dense.{part}"] for part in ("weight", "bias")})
    return head


def _solver(gradient: str, step: float | None = None) -> Callable[..., Tensor]:
    def run(field: nn.Module, y0: Tensor, ts: Tensor) -> Tensor:
        settings: dict[str, Any] = {"rtol": 1e-3, "atol": 1e-3, "gradient": gradient, "step": step}
        return solve(field, y0, ts, **settings).ys[-1]

    return run


def step(repeats: int, notes: dict[str, Any]) -> Lines:
    """One training step of the CIFAR-10 BFNO-NODE, dopri5 at 1e-3, batch 64."""
    torchdiffeq = peer_library("torchdiffeq")
    field, released = cifar_field()
    head = cifar_head()

    def authors(model: nn.Module, y0: Tensor, ts: Tensor) -> Tensor:
        settings = {"rtol": 1e-3, "atol": 1e-3, "method": "dopri5"}
        return torchdiffeq.odeint_adjoint(model, y0, ts, **settings)[-1]

    def gradient(model: nn.Module, solver: Callable[..., Tensor]) -> Tensor:
        _training_step(model, head, solver)()
        return _flat_gradient(field)

    ours = _training_step(field, head, _solver("checkpoint"))
    theirs = _training_step(PlainField(field), head, authors)
    exact = gradient(field, _solver("direct"))
    adjoint = gradient(PlainField(field), authors)
    same_steps = [gradient(field, _solver(kind, step=1 / 3)) for kind in ("checkpoint", "direct")]
    more = {
        "weights": "released" if released else "random",
        "gradient_error": _distance(*same_steps),
        "peer_gradient_error": _distance(adjoint, exact),
        **notes,
    }
    names = ("step", "train", "torchdiffeq adjoint")
    yield compare(names, ours, theirs, repeats=max(1, repeats // 3), notes=more)


def _distance(found: Tensor, exact: Tensor) -> float:
    return float((found - exact).norm() / exact.norm())


def _flat_gradient(field: nn.Module) -> Tensor:
    gradients = [p.grad for p in field.parameters() if p.grad is not None]
    return torch.cat([gradient.flatten().clone() for gradient in gradients])


def memory(gradient: str) -> float:
    """Peak memory in bytes that a training step adds; run it in a process of its own."""
    field, _ = cifar_field()
    head = cifar_head()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    _training_step(field, head, _solver(gradient))()
    return 1024.0 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)


class SmallField(nn.Module):
    """A field of 20 dimensions with one hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 20))

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        return self.net(y)


CASES: dict[str, Callable[[int, dict[str, Any]], Lines]] = {"layer": layer, "step": step}
