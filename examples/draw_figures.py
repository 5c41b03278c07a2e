"""Draw the figures of the documents: how points flow, what a layer reaches, what gradients cost.

Everything is computed here from small models and fixed seeds; nothing is downloaded. It takes about
half a minute on one core. The pages that show the figures say what they mean.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bfno

matplotlib.use("Agg")  # draws to a file; no screen needed
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Of Okabe and Ito's colours, which people with any colour vision can tell apart.
BLUE, RED, GREEN, GREY = "#0072b2", "#d55e00", "#009e73", "#6b6b6b"
STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "savefig.dpi": 110,
    "figure.constrained_layout.use": True,
}


def two_moons(count: int) -> tuple[Tensor, Tensor]:
    """Points of two interleaved half circles, and which of them each belongs to."""
    angle = torch.rand(count) * torch.pi
    label = torch.arange(count) % 2
    side = 1 - 2 * label
    points = torch.stack((angle.cos() + label - 0.5, side * angle.sin() + label / 2 - 0.25), 1)
    return points + 0.08 * torch.randn(count, 2), label


def fit_moons(steps: int) -> tuple[bfno.NeuralODE, nn.Linear]:
    """A neural ODE that moves the points until a straight line divides them."""
    block = bfno.NeuralODE(bfno.FirstOrder(bfno.MLPField(2, 32)), rtol=1e-3, atol=1e-3)
    head = nn.Linear(2, 2)
    optimizer = torch.optim.Adam([*block.parameters(), *head.parameters()], lr=2e-2)
    for _ in range(steps):
        points, labels = two_moons(128)
        loss = F.cross_entropy(head(block(points)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return block, head


@torch.no_grad()
def draw_flow(file: Path, block: bfno.NeuralODE, head: nn.Linear) -> float:
    """Points before, on their way, and after; return the share on the right side at the end."""
    points, labels = two_moons(200)
    paths = block.trajectory(points, torch.linspace(0, 1, 41)).ys
    figure, axes = plt.subplots(1, 3, figsize=(9.6, 3.3), sharex=True, sharey=True)
    colours = [BLUE if label else RED for label in labels]
    for axis, state in ((axes[0], paths[0]), (axes[2], paths[-1])):
        axis.scatter(*state.T.numpy(), s=9, c=colours)
    for path, colour in zip(paths.transpose(0, 1)[:80], colours, strict=False):
        axes[1].plot(*path.T.numpy(), color=colour, linewidth=0.7)
        axes[1].scatter(*path[0].tolist(), s=5, color=colour)
    draw_border(axes[2], head)
    low, high = paths.amin((0, 1)).tolist(), paths.amax((0, 1)).tolist()
    axes[0].set(xlim=(low[0] - 0.3, high[0] + 0.3), ylim=(low[1] - 0.3, high[1] + 0.3))
    titles = ("h(0): the data", "h(t): paths of the ODE", "h(1): a line divides them")
    for axis, title in zip(axes, titles, strict=True):
        axis.set(title=title, xticks=[], yticks=[])
    save(figure, file)
    return (head(paths[-1]).argmax(1) == labels).float().mean().item()


def draw_border(axis: Axes, head: nn.Linear) -> None:
    """The line on which both classes have the same score."""
    a, b = (head.weight[1] - head.weight[0]).tolist()
    c = (head.bias[1] - head.bias[0]).item()
    # Any point of the line with the slope of the line, whichever of its two numbers is small.
    foot = (-a * c / (a * a + b * b), -b * c / (a * a + b * b))
    axis.axline(foot, (foot[0] + b, foot[1] - a), color=GREY, linewidth=1, linestyle="--")


@torch.no_grad()
def draw_reach(file: Path) -> dict[str, int]:
    """What one pixel and which frequencies layers reach; return how many points the pixel does."""
    side, width = 32, 16
    layers = {
        "convolution, 3×3": nn.Conv2d(width, width, 3, padding=1, padding_mode="circular"),
        "FNO, 8 modes": bfno.FNO(width, modes=8),
        "BFNO, two branches": bfno.BFNO(width, branches=2),
    }
    image = slow_waves(width, side)
    poked = image.clone()
    poked[..., 11, 20] += 1
    changes, added = {"input": poked - image}, {"input": image}
    for name, layer in layers.items():
        changes[name] = layer(poked) - layer(image)
        added[name] = layer(image) - (0 if isinstance(layer, nn.Conv2d) else image)
    figure, axes = plt.subplots(2, 4, figsize=(9.6, 4.9), height_ratios=(3, 2), sharey="row")
    for name, column in zip(changes, axes.T, strict=True):
        size = changes[name][0].square().mean(0).sqrt()
        column[0].imshow((size / size.max()).clamp(1e-6).log10().numpy(), vmin=-4, vmax=0)
        column[0].set(title=name, xticks=[], yticks=[])
        energy = energy_by_frequency(added[name][0])
        column[1].semilogy(energy.clamp(1e-13).numpy(), color=BLUE, marker="o", markersize=2.5)
        column[1].set(xlabel="frequency")
    figure.colorbar(
        axes[0, 0].images[0], ax=axes[0], label="change, powers of 10", ticks=range(-4, 1)
    )
    axes[1, 0].set_ylabel("energy")
    save(figure, file)
    return {name: int((change.abs().sum(1) > 1e-7).sum()) for name, change in changes.items()}


def slow_waves(channels: int, side: int) -> Tensor:
    """A random image without any frequency above three."""
    spectrum = torch.zeros(1, channels, side, side // 2 + 1, dtype=torch.complex64)
    spectrum[..., :3, :3] = torch.randn(1, channels, 3, 3, dtype=torch.complex64)
    return torch.fft.irfft2(spectrum, norm="forward")


def energy_by_frequency(image: Tensor) -> Tensor:
    """Mean squared amplitude of an image, of shape `(channels, side, side)`, for each frequency."""
    side = image.shape[-1]
    energy = torch.fft.fft2(image, norm="forward").abs().square().mean(0)
    turns = torch.fft.fftfreq(side, 1 / side)
    length = (turns[:, None].square() + turns.square()).sqrt().round().long().flatten()
    sums = torch.zeros(side).index_add(0, length, energy.flatten())
    counts = torch.zeros(side).index_add(0, length, torch.ones(side * side))
    return (sums / counts)[: side // 2 + 1]


def training_step(gradient: str, tolerance: float) -> tuple[Tensor, bfno.Stats]:
    """The gradient of a fixed field and fixed images, and what it cost."""
    torch.manual_seed(3)
    field = bfno.OperatorField("bfno", channels=1, width=8, depth=2).double()
    images = 3 * torch.randn(4, 1, 8, 8, dtype=torch.float64)
    settings = {"rtol": tolerance, "atol": tolerance, "gradient": gradient}
    block = bfno.NeuralODE(bfno.FirstOrder(field), **settings)
    loss = block(images).square().mean()
    parts = torch.autograd.grad(loss, [*field.parameters()])
    return torch.cat([part.flatten() for part in parts]), block.stats


def draw_gradients(file: Path) -> dict[str, list[tuple[float, int]]]:
    """How far gradients are from autograd's, and what they cost; return both for each."""
    tolerances = [1e-2, 1e-3, 1e-4, 1e-5, 1e-6]
    exact = [training_step("direct", tolerance)[0] for tolerance in tolerances]
    forward = [training_step("direct", one)[1].forward_evaluations for one in tolerances]
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.6, 3.4))
    right.semilogx(tolerances, forward, marker="o", color=GREY, label="forward pass")
    found = {}
    for mode, colour in (("checkpoint", BLUE), ("adjoint", GREEN)):
        steps = [training_step(mode, tolerance) for tolerance in tolerances]
        errors = [
            ((gradient - truth).norm() / truth.norm()).item()
            for (gradient, _), truth in zip(steps, exact, strict=True)
        ]
        costs = [stats.backward_evaluations for _, stats in steps]
        left.loglog(tolerances, errors, marker="o", color=colour, label=mode)
        right.semilogx(tolerances, costs, marker="o", color=colour, label=f"{mode}, backward pass")
        found[mode] = list(zip(errors, costs, strict=True))
    left.set(xlabel="tolerance", ylabel="relative error", title="Gradient against autograd's")
    right.set(xlabel="tolerance", title="Evaluations of the field", ylim=0)
    for axis in (left, right):
        axis.legend()
    save(figure, file)
    return found


def save(figure: Figure, file: Path) -> None:
    """Write a figure without the date and the version that would change its bytes."""
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, metadata={"Software": None})
    plt.close(figure)


def main(folder: Path = Path("docs/figures"), steps: int = 300) -> None:
    """Draw all figures into a folder."""
    pictures: dict[str, Callable[[Path], object]] = {
        "points-on-their-way.png": lambda file: draw_flow(file, *fit_moons(steps)),
        "what-a-pixel-reaches.png": draw_reach,
        "error-and-cost-of-gradients.png": draw_gradients,
    }
    with plt.rc_context(STYLE):
        for name, draw in pictures.items():
            torch.manual_seed(0)
            print(name, draw(folder / name), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path("docs/figures"))
    parser.add_argument("--steps", type=int, default=300)
    arguments = parser.parse_args()
    main(arguments.folder, arguments.steps)
