"""Train a BFNO-NODE and a convolutional NODE on handwritten digits and watch the state move.

Uses the 1,797 images of 8 x 8 that ship with scikit-learn, so that nothing is downloaded. Prints
accuracy, function evaluations and seconds for each epoch, and draws `demo/digits.png`: test
accuracy against epochs, and h(t) of a few digits on their way through the trained BFNO field.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import matplotlib
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

import bfno

matplotlib.use("Agg")  # draws to a file; no screen needed
from matplotlib import pyplot as plt

BATCH = 128
TIMES = torch.linspace(0, 1, 6)


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training images and labels, test images and labels; grey values in [0, 1]."""
    pixels, classes = load_digits(return_X_y=True)
    images = torch.tensor(pixels, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    labels = torch.tensor(classes)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    train, test = order[360:], order[:360]
    return images[train], labels[train], images[test], labels[test]


class Classifier(nn.Module):
    """The image itself is the initial state; a linear map reads the class from the final one."""

    def __init__(self, field: nn.Module) -> None:
        super().__init__()
        self.block = bfno.NeuralODE(bfno.FirstOrder(field), method="dopri5", rtol=1e-3, atol=1e-3)
        self.head = nn.Linear(64, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of the ten classes."""
        return self.head(self.block(images).flatten(1))


def train_epoch(
    model: Classifier, optimizer: torch.optim.Optimizer, images: Tensor, labels: Tensor
) -> tuple[float, float]:
    """One pass over the training set; mean evaluations per batch, forward and backward."""
    model.train()
    forward, backward, batches = 0, 0, 0
    for chosen in torch.randperm(len(images)).split(BATCH):
        loss = F.cross_entropy(model(images[chosen]), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        forward += model.block.stats.forward_evaluations
        backward += model.block.stats.backward_evaluations
        batches += 1
    return forward / batches, backward / batches


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Share of images whose class the model gets right."""
    return (model.eval()(images).argmax(1) == labels).float().mean().item()


def fit(name: str, field: nn.Module, epochs: int) -> list[float]:
    """Train one model, print a line an epoch, and return its test accuracies."""
    torch.manual_seed(0)
    train_images, train_labels, test_images, test_labels = digits()
    model = Classifier(field)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    size = sum(parameter.numel() for parameter in model.parameters())
    print(f"\n{name}: {size:,} parameters\nepoch  accuracy  NFE forward  NFE backward  seconds")
    history = []
    for epoch in range(1, epochs + 1):
        start = time.perf_counter()
        forward, backward = train_epoch(model, optimizer, train_images, train_labels)
        seconds = time.perf_counter() - start
        history.append(accuracy(model, test_images, test_labels))
        line = f"{epoch:5}  {history[-1]:8.1%}  {forward:11.1f}  {backward:12.1f}  {seconds:7.2f}"
        print(line, flush=True)
    return history


def draw(path: Path, histories: dict[str, list[float]], field: nn.Module) -> None:
    """Accuracy curves beside the states h(t) of five test digits."""
    _, _, images, labels = digits()
    chosen = torch.stack([(labels == digit).nonzero()[0, 0] for digit in (0, 1, 3, 6, 8)])
    with torch.no_grad():
        states = bfno.solve(field, images[chosen], TIMES).ys[:, :, 0]
    figure = plt.figure(figsize=(11, 5), layout="constrained")
    grid = figure.add_gridspec(len(chosen), len(TIMES) + 4)
    axes = figure.add_subplot(grid[:, :4])
    for name, history in histories.items():
        axes.plot(range(1, len(history) + 1), history, marker="o", markersize=3, label=name)
    axes.set(xlabel="epoch", ylabel="test accuracy", title="handwritten digits")
    axes.legend()
    for column, time_now in enumerate(TIMES.tolist()):
        for row in range(len(chosen)):
            cell = figure.add_subplot(grid[row, column + 4])
            cell.imshow(states[column, row].numpy(), cmap="gray")
            cell.set(xticks=[], yticks=[])
            if row == 0:
                cell.set_title(f"h({time_now:.1f})", fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main(epochs: int = 8, folder: Path = Path("demo")) -> dict[str, float]:
    """Train both models and return their final accuracies."""
    torch.manual_seed(0)
    fields = {
        "BFNO-NODE": bfno.OperatorField("bfno", channels=1, width=16, depth=2),
        "NODE": bfno.ConvField(channels=1, hidden=32),
    }
    histories = {name: fit(name, field, epochs) for name, field in fields.items()}
    draw(folder / "digits.png", histories, fields["BFNO-NODE"])
    print(f"\nThe picture is in {folder / 'digits.png'}")
    return {name: history[-1] for name, history in histories.items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--folder", type=Path, default=Path("demo"))
    arguments = parser.parse_args()
    main(arguments.epochs, arguments.folder)
