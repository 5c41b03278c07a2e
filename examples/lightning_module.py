"""Train a neural ODE with Lightning: a LightningModule around a model of the library.

Needs `pip install 'bfno[lightning]'`. Uses the 8 × 8 digits that ship with scikit-learn.
"""

from __future__ import annotations

import argparse

import lightning  # pyright: ignore[reportMissingImports]  # an extra
import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import bfno


class Digits(lightning.LightningModule):
    """A BFNO-NODE that classifies digits."""

    def __init__(self) -> None:
        super().__init__()
        field = bfno.OperatorField("bfno", channels=1, width=8, depth=1)
        block = bfno.NeuralODE(bfno.FirstOrder(field), rtol=1e-2, atol=1e-2)
        self.model = bfno.ImageClassifier(block, (1, 8, 8), 10)

    def training_step(self, batch: tuple[Tensor, Tensor], number: int) -> Tensor:
        """The loss of a batch; the evaluations that it cost go to the progress bar."""
        loss = cross_entropy(self.model(batch[0]), batch[1])
        self.log("nfe", float(self.model.block.stats.forward_evaluations), prog_bar=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam, as for any other model."""
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def main(epochs: int = 5, samples: int = 1797) -> float:
    """Train, and return the accuracy on the training images."""
    lightning.seed_everything(0, verbose=False)
    pixels, classes = load_digits(return_X_y=True)
    images = torch.tensor(pixels[:samples], dtype=torch.float32).view(-1, 1, 8, 8) / 16
    labels, module = torch.tensor(classes[:samples]), Digits()
    batches = DataLoader(TensorDataset(images, labels), batch_size=64, shuffle=True)
    options = {"accelerator": "cpu", "logger": False, "enable_checkpointing": False}
    lightning.Trainer(max_epochs=epochs, **options).fit(module, batches)
    with torch.no_grad():
        accuracy = (module.model(images).argmax(1) == labels).float().mean().item()
    print(f"training accuracy {accuracy:.1%} after {epochs} epochs")
    return accuracy


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=5)
    main(parser.parse_args().epochs)
