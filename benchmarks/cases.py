"""The layer and a training step on the paper's models of images."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.plain import PlainField, bare_products, bare_work
from benchmarks.timing import Line, compare, peer_library
from bfno.fields import OperatorField
from bfno.lab.runs.record import peak_memory
from bfno.lab.runs.released import released_weights
from bfno.ode import solve

__all__ = ["CASES", "Case", "SmallField", "cifar_case", "digits_case", "memory", "training_step"]

RELEASED = Path("../shared/released/cifar10_epoch01.pt")
Lines = Iterator[Line]
_TS = torch.tensor([0.0, 1.0])


@dataclass(frozen=True)
class Case:
    """A model of the paper to train a step of.

    Attributes:
        name: What the table calls it.
        field: Its field.
        head: Its classifier.
        images: A batch for it.
        weights: Where its weights come from.
    """

    name: str
    field: OperatorField
    head: nn.Linear
    images: Tensor
    weights: str


def cifar_case(file: Path = RELEASED) -> Case:
    """The CIFAR-10 model, with the authors' weights where they are at hand."""
    case = _untrained_case("train", channels=3, side=32, width=76)
    if not file.exists():
        return case
    weights = released_weights(file)
    for module, prefix in ((case.field, "block.dynamics.field."), (case.head, "head.")):
        names = (name for name in weights if name.startswith(prefix))
        module.load_state_dict({name.removeprefix(prefix): weights[name] for name in names})
    return replace(case, weights="released")


def digits_case() -> Case:
    """The model of the demo's size: 16 channels on a grid of 8×8."""
    return _untrained_case("train digits", channels=1, side=8, width=16)


def _untrained_case(name: str, channels: int, side: int, width: int) -> Case:
    torch.manual_seed(0)
    field = OperatorField("bfno", channels, width, depth=3, branches=2)
    head = nn.Linear(channels * side**2, 10)
    return Case(name, field, head, smooth_images(64, channels, side), "random")


def layer(repeats: int, notes: dict[str, Any]) -> Lines:
    """Fields of three BFNO layers, batch 64: the paper's for CIFAR-10 and MNIST, and the demo's."""
    yield from _compare_field("", cifar_case(), repeats, notes)
    mnist = _untrained_case("mnist", channels=1, side=28, width=47)
    yield from _compare_field("mnist ", mnist, repeats, notes)
    yield from _compare_field("digits ", digits_case(), repeats, notes, calls=20)


def _compare_field(
    name: str, case: Case, repeats: int, notes: dict[str, Any], calls: int = 1
) -> Lines:
    """Compare a field with others; small ones are called several times in a row, as by a solver."""
    field, y = case.field, torch.rand_like(case.images)
    plain = PlainField(field)

    def without_graph(call: Callable[[], Any]) -> Callable[[], None]:
        def run() -> None:
            with torch.no_grad():
                for _ in range(calls):
                    call()

        return run

    def trained(model: nn.Module) -> Callable[[], None]:
        def run() -> None:
            for _ in range(calls):
                model.zero_grad()
                model(0.3, y).square().sum().backward()

        return run

    ours = without_graph(lambda: field(0.3, y))
    products = bare_products(field, y)
    for peer, program, more in (
        ("plain", lambda: plain(0.3, y), {}),
        ("bare FFT+GEMM", bare_work(field, y), {}),
        ("products in cache", products, {"gflop": _operations(products) / 1e9}),
    ):
        names = ("layer", f"{name}forward", peer)
        pair = ours, without_graph(program)
        yield compare(names, *pair, repeats=repeats, per=calls, notes={**notes, **more})
    names, pair = ("layer", f"{name}train", "plain"), (trained(field), trained(plain))
    yield compare(names, *pair, repeats=repeats, per=calls, notes=notes)


def _operations(program: Callable[[], Any]) -> int:
    """Floating-point operations of a program's matrix products."""
    with FlopCounterMode(display=False) as counter:
        program()
    return counter.get_total_flops()


def training_step(
    case: Case, model: nn.Module, solver: Callable[..., Tensor], labels: Tensor | None = None
) -> Callable[[], None]:
    """Makes a function that takes the gradients of one batch.

    Args:
        case: The batch and the head.
        model: The field, or a peer's.
        solver: Solves from a state over times.
        labels: The classes of the images; None takes one after the other.
    """
    wanted = torch.arange(len(case.images)) % 10 if labels is None else labels

    def run() -> None:
        model.zero_grad()
        case.head.zero_grad()
        logits = case.head(solver(model, case.images, _TS).flatten(1))
        nn.functional.cross_entropy(logits, wanted).backward()

    return run


def smooth_images(count: int, channels: int, side: int) -> Tensor:
    """Random images whose energy falls with frequency as in photographs, between 0 and 1."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(count, channels, side, side, generator=generator)
    grey = torch.randn(count, 1, side, side, generator=generator)
    rows, columns = torch.fft.fftfreq(side) * side, torch.fft.rfftfreq(side) * side
    radius = (rows[:, None].square() + columns.square()).sqrt().clamp(min=1)
    spectrum = torch.fft.rfft2(0.3 * noise + grey) / radius**1.2
    images = torch.fft.irfft2(spectrum, s=(side, side))
    return (0.47 + 0.2 * images / images.std((1, 2, 3), keepdim=True)).clamp(0, 1)


class _Solver:
    """Our solver, at the tolerance of the paper's experiments.

    Args:
        warm: Whether a solve starts with the step that the one before it had better started with.
        **settings: Its other settings.
    """

    def __init__(self, *, warm: bool = False, **settings: Any) -> None:
        self._settings = {"rtol": 1e-3, "atol": 1e-3, **settings}
        self._warm, self._first_step, self.evaluations = warm, None, 0

    def __call__(self, field: nn.Module, y0: Tensor, ts: Tensor) -> Tensor:
        solution = solve(field, y0, ts, first_step=self._first_step, **self._settings)
        if self._warm and solution.stats.first_step:
            self._first_step = min(1.0, solution.stats.first_step)
        self.evaluations = solution.stats.forward_evaluations
        return solution.ys[-1]


def step(repeats: int, notes: dict[str, Any]) -> Lines:
    """One training step of the paper's CIFAR-10 and MNIST models at 1e-3, batch 64.

    First with the paper's solver, then with the one that we recommend: bosh3, steps that begin as
    the batch before them suggests, and 2 GB for graphs.
    """
    mnist = _untrained_case("train mnist", channels=1, side=28, width=47)
    for case in (cifar_case(), mnist):
        yield _compare_step(case, _Solver(), max(1, repeats // 3), notes)
        lean = _Solver(method="bosh3", warm=True, memory="2 GB")
        yield _compare_step(replace(case, name=f"{case.name} lean"), lean, repeats // 3, notes)


def _compare_step(case: Case, solver: _Solver, repeats: int, notes: dict[str, Any]) -> Line:
    torchdiffeq = peer_library("torchdiffeq")
    plain = PlainField(case.field)

    def authors(model: nn.Module, y0: Tensor, ts: Tensor) -> Tensor:
        settings = {"rtol": 1e-3, "atol": 1e-3, "method": "dopri5"}
        return torchdiffeq.odeint_adjoint(model, y0, ts, **settings)[-1]

    names = ("step", case.name, "torchdiffeq adjoint")
    ours, theirs = training_step(case, case.field, solver), training_step(case, plain, authors)
    line = compare(names, ours, theirs, repeats=max(1, repeats))
    few = replace(case, images=case.images[:8])
    exact = _Solver(rtol=1e-6, atol=1e-6)
    states = {
        name: one(case.field, few.images, _TS).detach()
        for name, one in (("ours", solver), ("theirs", authors), ("exact", exact))
    }
    true = _gradient(few, case.field, exact)
    more = {
        "weights": case.weights,
        "images_per_s": len(case.images) / line.ours_s,
        "peer_images_per_s": len(case.images) / line.peer_s,
        "evaluations": solver.evaluations,
        "error": _distance(states["ours"], states["exact"]),
        "peer_error": _distance(states["theirs"], states["exact"]),
        "gradient_error": _distance(_gradient(few, case.field, solver), true),
        "peer_gradient_error": _distance(_gradient(few, plain, authors), true),
        "against_same_steps": _against_same_steps(few),
    }
    return replace(line, notes={**more, **notes})


def _gradient(case: Case, model: nn.Module, solver: Callable[..., Tensor]) -> Tensor:
    training_step(case, model, solver)()
    return _flat_gradient(case.field)


def _against_same_steps(case: Case) -> float:
    """How far checkpoint gradients are from those that autograd takes through the same steps."""
    solvers = (_Solver(gradient=gradient, step=1 / 3) for gradient in ("checkpoint", "direct"))
    return _distance(*(_gradient(case, case.field, solver) for solver in solvers))


def _distance(found: Tensor, exact: Tensor) -> float:
    return float((found - exact).norm() / exact.norm())


def _flat_gradient(field: nn.Module) -> Tensor:
    gradients = [p.grad for p in field.parameters() if p.grad is not None]
    return torch.cat([gradient.flatten().clone() for gradient in gradients])


def memory(gradient: str) -> float:
    """Peak memory in bytes that a training step adds; run it in a process of its own."""
    case = cifar_case()
    before = peak_memory()
    training_step(case, case.field, _Solver(gradient=gradient))()
    return peak_memory() - before


class SmallField(nn.Module):
    """A field of 20 dimensions with one hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 20))

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        return self.net(y)


CASES: dict[str, Callable[[int, dict[str, Any]], Lines]] = {"layer": layer, "step": step}
