"""What a model says about many series: probabilities, errors of its reconstruction, and cost."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bfno.lab.data import Series, SeriesBatch
from bfno.lab.experiments.tasks import Share, solver_stats
from bfno.models import SeriesModel

__all__ = ["SeriesPredictions", "make_batch", "predict_series"]


@dataclass(frozen=True)
class SeriesPredictions:
    """Probabilities of every series, or of every row where rows have labels.

    Attributes:
        probabilities: `(latent samples, count, classes)`.
        labels: `(count,)`; negative where there is none.
        series: `(count,)`: number of the series that each belongs to.
        mse: Mean squared error of the reconstruction over all observed values, in scaled units.
        nfe: Function evaluations a batch.
    """

    probabilities: Tensor
    labels: Tensor
    series: Tensor
    mse: float
    nfe: float

    def judged(self, *, pooled: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Probabilities, labels and series of what has a label.

        Args:
            pooled: Whether every latent sample counts for itself, as in the published code; else
                their mean does.
        """
        known = self.labels >= 0
        chosen = self.probabilities[:, known]
        chosen = chosen if pooled else chosen.mean(0, keepdim=True)
        repeats = len(chosen)
        return (
            chosen.flatten(0, 1).double().numpy(),
            self.labels[known].repeat(repeats).numpy(),
            self.series[known].repeat(repeats).numpy(),
        )


def make_batch(series: Series, samples: Tensor, times: str) -> SeriesBatch:
    """Some series side by side, on their own times or on the union of them."""
    return series.batch(samples) if times == "own" else series.union_batch(samples)


def predict_series(
    model: SeriesModel, series: Series, batch: int, times: str, share: Share | None = None
) -> SeriesPredictions:
    """Run a model over all series without gradients.

    Args:
        model: A `SeriesModel`.
        series: Scaled as in training.
        batch: Series at a time; those of like length go together.
        times: `own` or `union`, see `make_batch`.
        share: This process's part; None is the whole.
    """
    share = share or Share()
    processes, was_training = share.processes, model.training
    model.eval()
    collected = _Collected(model, series)
    order = series.lengths.argsort(stable=True)
    with torch.inference_mode():
        for samples in order.split(batch)[processes.rank :: processes.count]:
            share.pause()
            collected.add(model, make_batch(series, samples, times), samples, processes.device)
    model.train(was_training)
    totals = processes.add_up(collected.sums)
    probabilities = processes.add_up(collected.probabilities)
    error, observed, evaluations, batches = totals.tolist()
    rows = torch.arange(len(series))
    return SeriesPredictions(
        probabilities,
        series.labels,
        rows.repeat_interleave(series.lengths) if series.by_row else rows,
        error / max(observed, 1),
        evaluations / max(batches, 1),
    )


class _Collected:
    """Probabilities in the order of the series, whatever the order of the batches."""

    def __init__(self, model: SeriesModel, series: Series) -> None:
        self._by_row = series.by_row
        count = int(series.starts[-1]) if series.by_row else len(series)
        # Zero for what other processes compute.
        self.probabilities = torch.zeros(model.samples, count, model.classes)
        self.sums = torch.zeros(4, dtype=torch.float64)

    def add(
        self, model: SeriesModel, batch: SeriesBatch, samples: Tensor, device: torch.device
    ) -> None:
        there = batch.to(device, next(model.parameters()).dtype)
        output = model(there.times, there.values, there.mask)
        found = output.scores.softmax(-1).cpu()
        if self._by_row:
            is_row = batch.rows >= 0
            self.probabilities[:, batch.rows[is_row]] = found[:, is_row]
        else:
            self.probabilities[:, samples] = found
        errors = (output.prediction.mean(0) - there.values).square()[there.mask]
        stats = solver_stats(model)
        done = (errors.double().sum().item(), len(errors), stats.forward_evaluations, 1)
        self.sums += torch.tensor(done, dtype=torch.float64)
