"""Put a latent BFNO-NODE together from its parts and train it on irregular series.

The series are the synthetic ones that come with the library: spirals and oscillators, seen now and
then, with values missing. Prints accuracy and error of the reconstruction for each epoch.
"""

from __future__ import annotations

import argparse

import torch

import bfno
from bfno.lab.data import Series, SeriesSource, length_batches, load_series

LATENTS, DEVIATION = 8, 0.1


def latent_bfno_node(features: int, classes: int) -> bfno.LatentODE:
    """A series' initial state from an ODE-RNN that goes back in time, then an operator's flow."""
    encoder = bfno.ODERNNEncoder(bfno.make_ode_rnn(features, 40, backward=True), LATENTS)
    generator = bfno.LatentGenerator(
        bfno.LatentOperatorField(LATENTS, width=16), rtol=1e-3, atol=1e-4
    )
    return bfno.LatentODE(features, classes, encoder, generator, by_row=False, head=(64,))


def train_epoch(
    model: bfno.LatentODE, optimizer: torch.optim.Optimizer, series: Series, seed: int
) -> None:
    """One pass over the training series, those of like length together."""
    model.train()
    for chosen in length_batches(series.lengths, 25, torch.Generator().manual_seed(seed)):
        batch = series.batch(chosen)
        output = model(batch.times, batch.values, batch.mask)
        fit = bfno.gaussian_log_likelihood(output.prediction, batch.values, batch.mask, DEVIATION)
        divergence = None if output.kl is None else output.kl.mean()
        loss = bfno.evidence_loss(fit, divergence, weight=0.01)
        loss = loss + 10 * bfno.classification_loss(output.scores, batch.labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@torch.no_grad()
def evaluate(model: bfno.LatentODE, series: Series) -> tuple[float, float]:
    """Share of series whose kind of motion is right, and mean squared error of their values."""
    batch = series.batch(torch.arange(len(series)))
    output = model.eval()(batch.times, batch.values, batch.mask)
    right = output.scores.softmax(-1).mean(0).argmax(-1) == batch.labels
    errors = (output.prediction.mean(0) - batch.values)[batch.mask]
    return right.float().mean().item(), errors.square().mean().item()


def main(epochs: int = 10) -> tuple[float, float]:
    """Train, and return accuracy and error on the test series."""
    torch.manual_seed(0)
    splits = load_series(SeriesSource("series"), seed=0)
    model = latent_bfno_node(len(splits.features), len(splits.classes)).float()
    optimizer = torch.optim.Adamax(model.parameters(), lr=1e-2)
    print(f"{len(splits.train)} series, {len(splits.classes)} classes\nepoch  accuracy    MSE")
    found = (0.0, 0.0)
    for epoch in range(1, epochs + 1):
        train_epoch(model, optimizer, splits.train, seed=epoch)
        found = evaluate(model, splits.test)
        print(f"{epoch:5}  {found[0]:8.1%}  {found[1]:.3f}", flush=True)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--epochs", type=int, default=10)
    main(parser.parse_args().epochs)
