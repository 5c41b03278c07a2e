"""Memory and time of a training step against the number of steps of its solve."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.timing import Line, peer_library
from bfno.lab.runs.record import peak_memory
from bfno.ode import solve

__all__ = ["steps"]

COUNTS = (10, 30, 100, 300, 1000)
KINDS = ("unlimited", "stages", "steps", "log", "diffrax", "zuko")
BATCH, WIDTH, TOLERANCE, STEP = 256, 64, 1e-4, 0.58
"""A state takes 64 KiB; a step of ours is so long."""

Program = Callable[[float], int]
"""A training step on an interval of a length; tells its number of steps."""


def steps(notes: dict[str, Any]) -> Iterator[Line]:
    """A training step of a small field, dopri5 at 1e-4, by what the solve keeps.

    Beside diffrax's recursive adjoint, which is given as many checkpoints as `memory="log"` keeps
    states, and zuko's, which keeps a state per step. Seconds are of the processor.
    """
    for count in COUNTS:
        direct = None
        for kind in KINDS:
            command = [sys.executable, "-m", "benchmarks.steps", kind, str(count)]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:  # a peer that is not installed, for example
                continue
            found = json.loads(done.stdout)
            seconds = found.pop("seconds")
            direct = seconds if direct is None else direct
            names = ("memory", f"{count} steps {kind}", "unlimited")
            yield Line(*names, seconds, direct, direct / seconds, (0.0, 0.0), {**found, **notes})


class _Turning(nn.Module):
    """A field that turns its states for ever, so that all steps are about equally long."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / 8)

    def forward(self, t: Any, y: Tensor) -> Tensor:
        return torch.tanh(y @ (self.weight - self.weight.T))


def _ours(kind: str, field: _Turning, y0: Tensor) -> Program:
    def run(length: float) -> int:
        field.zero_grad()
        ts = torch.tensor([0.0, length])
        settings: dict[str, Any] = {"rtol": TOLERANCE, "atol": TOLERANCE, "memory": kind}
        solution = solve(field, y0, ts, **settings)
        solution.ys[-1].square().sum().backward()
        return solution.stats.accepted

    return run


def _zuko(kind: str, field: _Turning, y0: Tensor) -> Program:
    odeint = peer_library("zuko.utils").odeint

    def run(length: float) -> int:
        calls = 0

        def counted(t: Tensor, y: Tensor) -> Tensor:
            nonlocal calls
            calls += 1
            return field(t, y)

        field.zero_grad()
        settings = {"rtol": TOLERANCE, "atol": TOLERANCE, "phi": tuple(field.parameters())}
        end = odeint(counted, y0, 0.0, length, **settings)
        taken = calls // 6
        end.square().sum().backward()
        return taken

    return run


def _diffrax(field: _Turning, y0: Tensor, count: int) -> tuple[Program, Callable[[], int]]:
    """The program, and how many bytes it allocates by its compiler's own account."""
    diffrax, jax = peer_library("diffrax"), peer_library("jax")
    jnp = jax.numpy
    control = diffrax.PIDController(rtol=TOLERANCE, atol=TOLERANCE)
    adjoint = diffrax.RecursiveCheckpointAdjoint(checkpoints=2 + 2 * count.bit_length())
    term = diffrax.ODETerm(lambda t, y, weight: jnp.tanh(y @ (weight - weight.T)))

    def loss(weight: Any, y: Any, length: Any) -> Any:
        solution = diffrax.diffeqsolve(
            term, diffrax.Dopri5(), 0.0, length, None, y, weight,
            stepsize_controller=control, adjoint=adjoint, max_steps=4 * count + 64,
        )  # fmt: skip
        return jnp.square(solution.ys).sum(), solution.stats["num_accepted_steps"]

    start, weight = jnp.asarray(y0.numpy()), jnp.asarray(field.weight.detach().numpy())
    program = jax.jit(jax.grad(loss, has_aux=True)).lower(weight, start, 1.0).compile()
    return (
        lambda length: int(jax.block_until_ready(program(weight, start, length))[1]),
        lambda: program.memory_analysis().temp_size_in_bytes,
    )


def _measure(kind: str, count: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    field, y0, length = _Turning(), torch.randn(BATCH, WIDTH), count * STEP
    allocated = None
    if kind == "diffrax":
        program, allocated = _diffrax(field, y0, count)
    else:
        program = (_zuko if kind == "zuko" else _ours)(kind, field, y0)
    program(STEP)  # what only the first solve of a process takes
    before, times, taken = peak_memory(), [], 0
    for _ in range(3 if count < 300 else 1):
        began = time.process_time()
        taken = program(length)
        times.append(time.process_time() - began)
    peak = peak_memory() - before if allocated is None else allocated()
    return {"seconds": min(times), "peak_mib": round(peak / 2**20, 1), "steps": taken}


if __name__ == "__main__":
    print(json.dumps(_measure(sys.argv[1], int(sys.argv[2]))))
