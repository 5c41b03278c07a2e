"""Train a continuous normalizing flow on two moons and watch noise become moons.

Prints the negative log-likelihood of new points as training goes on, checks that the density
integrates to one, and draws `demo/moons.png`: data, density, samples and their paths from noise.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from torch import Tensor

import bfno
from bfno.lab.data import toy_points
from bfno.lab.views.figures.densities import PlanePicture, density_figure, write_picture

BATCH, SIDE, CELLS = 256, 4.0, 100


def moons_flow() -> bfno.ContinuousFlow:
    """A small network as the field; its trace costs two Jacobian products, so it is exact."""
    field = bfno.MLPField(features=2, hidden=64, depth=3)
    torch.nn.init.zeros_(field.leave.weight)  # starts as the identity
    torch.nn.init.zeros_(field.leave.bias)
    solver = {"method": "rk4", "step": 0.25}
    penalties = ("kinetic", "jacobian")
    return bfno.ContinuousFlow(field, (2,), trace="exact", penalties=penalties, solver=solver)


def train(flow: bfno.ContinuousFlow, steps: int) -> float:
    """Fit the flow and return the mean negative log-likelihood of new points, in nats."""
    optimizer = torch.optim.Adam(flow.parameters(), lr=5e-3)
    test, started, found = toy_points("moons", 1000, seed=-1), time.perf_counter(), 0.0
    print(" step     NLL  NFE  seconds")
    for step in range(1, steps + 1):
        encoding = flow.train().encode(toy_points("moons", BATCH, seed=step))
        # Integrals of squares: below zero is the solver's error, which a field must not live on.
        penalty = sum(value.clamp(min=0).mean() for value in encoding.penalties.values())
        loss = -encoding.log_prob.mean() + 0.01 * penalty
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % max(1, steps // 10) == 0:
            with torch.no_grad():
                found = -flow.eval().log_prob(test).mean().item()
            nfe, seconds = flow.stats.forward_evaluations, time.perf_counter() - started
            print(f"{step:5}  {found:6.3f}  {nfe:3}  {seconds:7.1f}", flush=True)
    return found


@torch.no_grad()
def density(flow: bfno.ContinuousFlow) -> Tensor:
    """The density on a grid, rows going up with y."""
    centres = SIDE * ((2 * torch.arange(CELLS) + 1) / CELLS - 1)
    points = torch.cartesian_prod(centres, centres).flip(1)
    return flow.eval().log_prob(points).exp().view(CELLS, CELLS)


@torch.no_grad()
def draw(flow: bfno.ContinuousFlow, grid: Tensor, path: Path) -> None:
    """Data, density, samples and paths beside each other."""
    ways = flow.trajectory(torch.randn(60, 2), torch.linspace(0, 1, 30))
    data, samples = toy_points("moons", 1000, seed=0), flow.sample(1000)
    window = (-SIDE, SIDE, -SIDE, SIDE)
    arrays = [tensor.numpy() for tensor in (grid, data, samples, ways)]
    write_picture(density_figure(PlanePicture(window, *arrays)), path, force=True)


def main(steps: int = 500, folder: Path = Path("demo")) -> tuple[float, float]:
    """Train, draw, and return negative log-likelihood and integral of the density."""
    torch.manual_seed(0)
    flow = moons_flow()
    found = train(flow, steps)
    grid = density(flow)
    mass = grid.sum().item() * (2 * SIDE / CELLS) ** 2
    print(f"The density integrates to {mass:.4f} over the window.")
    draw(flow, grid, folder / "moons.png")
    print(f"The picture is in {folder / 'moons.png'}")
    return found, mass


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--folder", type=Path, default=Path("demo"))
    arguments = parser.parse_args()
    main(arguments.steps, arguments.folder)
