"""The solver on a small field, beside the solvers of other libraries."""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.cases import SmallField
from benchmarks.timing import Line, compare, peer_library, repeat, summarise
from bfno.ode import odeint_adjoint, solve

__all__ = ["solver"]

TOLERANCE = 1e-6
END = 20.0
Lines = Iterator[Line]


def solver(repeats: int, notes: dict[str, Any]) -> Lines:
    """A 20-dimensional field with batch 64: time outside the field, and in all."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the field is too small to share out
    try:
        yield from _overheads(4 * repeats, notes)
        yield from _training(2 * repeats, notes)
    finally:
        torch.set_num_threads(threads)


def _overheads(repeats: int, notes: dict[str, Any]) -> Lines:
    torchdiffeq = peer_library("torchdiffeq")
    field, y0, ts = SmallField(), torch.randn(64, 20), torch.tensor([0.0, END])
    settings: dict[str, Any] = {"rtol": TOLERANCE, "atol": TOLERANCE}
    with torch.no_grad():
        count = solve(field, y0, ts, **settings).stats.forward_evaluations
        ours = _no_grad(lambda: solve(field, y0, ts, **settings))
        bare = repeat(_no_grad(lambda: [field(ts[0], y0) for _ in range(count)]), repeats) / count
        yield _overhead(
            "torchdiffeq",
            lambda model: solve(model, y0, ts, **settings),
            lambda model: torchdiffeq.odeint(model, y0, ts, **settings),
            repeats,
        )
        fused = _no_grad(lambda: solve(field, y0, ts, compile=True, **settings))
        more = {"bare_s": bare, "compile_s": processor_seconds(fused), **notes}
        names = ("solver", "compiled", "bfno eager")
        yield compare(names, fused, ours, repeats=repeats, per=count, notes=more)
        for name, make in _PEERS.items():
            if importlib.util.find_spec(name) is None:
                continue
            peer, peer_count = make(field, y0, END, graph=False)
            for case, mine in (("total", ours), ("total compiled", fused)):
                pairs = [
                    (repeat(mine, 1) / count, repeat(peer, 1) / peer_count) for _ in range(repeats)
                ]
                more = {"bare_s": bare, "peer_nfe": peer_count, "nfe": count, **notes}
                yield summarise(("solver", case, name), pairs, more)


def processor_seconds(program: Callable[[], Any]) -> float:
    """Seconds that a program's first run keeps the processor busy, compilers that it starts too."""

    def spent() -> float:
        usage = os.times()
        return usage.user + usage.system + usage.children_user + usage.children_system

    began = spent()
    program()
    return spent() - began


Solve = Callable[[Callable[..., Tensor]], Any]


def _overhead(name: str, ours: Solve, peer: Solve, repeats: int) -> Line:
    """Seconds an evaluation outside the field, whose own time is taken while it is solved."""
    watch = StopWatch(SmallField())
    for program in (ours, peer):  # once to warm up
        watch.time_outside(program)
    pairs = [(watch.time_outside(ours), watch.time_outside(peer)) for _ in range(repeats)]
    notes = {"field_s": watch.inside / watch.calls, "nfe": watch.calls}
    return summarise(("solver", "overhead", name), pairs, notes)


class StopWatch:
    """A field whose calls are timed."""

    def __init__(self, field: nn.Module) -> None:
        self._field, self.inside, self.calls = field, 0.0, 0

    def __call__(self, t: Tensor, y: Tensor) -> Tensor:
        """The field."""
        began = time.perf_counter()
        slope = self._field(t, y)
        self.inside += time.perf_counter() - began
        self.calls += 1
        return slope

    def time_outside(self, program: Solve) -> float:
        """Seconds an evaluation that a solve spends outside the field."""
        self.inside, self.calls = 0.0, 0
        began = time.perf_counter()
        with torch.no_grad():
            program(self)
        return (time.perf_counter() - began - self.inside) / self.calls


def _training(repeats: int, notes: dict[str, Any]) -> Lines:
    torchdiffeq = peer_library("torchdiffeq")
    field, y0, ts = SmallField(), torch.randn(64, 20), torch.tensor([0.0, 1.0])
    settings: dict[str, Any] = {"rtol": TOLERANCE, "atol": TOLERANCE}

    def trained(call: Callable[[], Tensor]) -> Callable[[], None]:
        def run() -> None:
            field.zero_grad()
            call().square().sum().backward()

        return run

    peer = trained(lambda: torchdiffeq.odeint_adjoint(field, y0, ts, **settings)[-1])
    for gradient in ("checkpoint", "direct"):
        chosen = {**settings, "gradient": gradient}
        ours = trained(lambda chosen=chosen: solve(field, y0, ts, **chosen).ys[-1])
        case = "train" if gradient == "checkpoint" else "train direct"
        names = ("solver", case, "torchdiffeq adjoint")
        yield compare(names, ours, peer, repeats=repeats, notes=notes)
    fused = trained(lambda: solve(field, y0, ts, compile=True, **settings).ys[-1])
    more = {"compile_s": processor_seconds(fused), **notes}
    eager = trained(lambda: solve(field, y0, ts, **settings).ys[-1])
    names = ("solver", "train compiled", "bfno eager")
    yield compare(names, fused, eager, repeats=repeats, notes=more)
    for name, make in _PEERS.items():
        if importlib.util.find_spec(name) is not None:
            other, _ = make(field, y0, 1.0, graph=True)
            names = ("solver", "train compiled", name)
            yield compare(names, fused, other, repeats=repeats, notes=notes)
    drop_in = trained(lambda: odeint_adjoint(field, y0, ts, **settings)[-1])
    names = ("solver", "train adjoint", "torchdiffeq adjoint")
    yield compare(names, drop_in, peer, repeats=repeats, notes=notes)


def _no_grad(call: Callable[[], Any]) -> Callable[[], None]:
    def run() -> None:
        with torch.no_grad():
            call()

    return run


def _torchode(
    field: SmallField, y0: Tensor, end: float, *, graph: bool
) -> tuple[Callable[[], None], int]:
    torchode = peer_library("torchode")
    term = torchode.ODETerm(field)
    method = torchode.Dopri5(term=term)
    control = torchode.IntegralController(atol=TOLERANCE, rtol=TOLERANCE, term=term)
    parallel = torchode.AutoDiffAdjoint(method, control)
    problem = torchode.InitialValueProblem(
        y0=y0, t_start=torch.zeros(len(y0)), t_end=torch.full((len(y0),), end)
    )
    with torch.no_grad():
        count = int(parallel.solve(problem).stats["n_f_evals"].max())

    def trained() -> None:
        field.zero_grad()
        parallel.solve(problem).ys[:, -1].square().sum().backward()

    return trained if graph else _no_grad(lambda: parallel.solve(problem)), count


def _diffrax(
    field: SmallField, y0: Tensor, end: float, *, graph: bool
) -> tuple[Callable[[], None], int]:
    diffrax, jax = peer_library("diffrax"), peer_library("jax")
    jnp = jax.numpy
    enter, leave = field.net[0], field.net[2]
    weights = [jnp.asarray(p.detach().numpy()) for p in (*enter.parameters(), *leave.parameters())]

    def slope(t: Any, y: Any, args: Any) -> Any:
        w1, b1, w2, b2 = args
        return jnp.tanh(y @ w1.T + b1) @ w2.T + b2

    control = diffrax.PIDController(rtol=TOLERANCE, atol=TOLERANCE)
    term = diffrax.ODETerm(slope)

    def solved(y: Any, args: Any) -> Any:
        solution = diffrax.diffeqsolve(
            term, diffrax.Dopri5(), 0.0, end, None, y, args, stepsize_controller=control
        )
        return solution.ys, solution.stats["num_steps"]

    def loss(args: Any, y: Any) -> Any:
        return jnp.square(solved(y, args)[0]).sum()

    start = jnp.asarray(y0.numpy())
    count = 2 + 6 * int(jax.jit(solved)(start, weights)[1])
    program = jax.jit(jax.grad(loss) if graph else lambda args, y: solved(y, args)[0])
    return lambda: jax.block_until_ready(program(weights, start)), count


_PEERS = {"torchode": _torchode, "diffrax": _diffrax}
