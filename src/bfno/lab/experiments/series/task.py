"""Classification of irregular series and their reconstruction: loss, predictions, metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from bfno.lab.data import Series, SeriesBatch, SeriesSplits, length_batches
from bfno.lab.experiments.series.data import SeriesDataSettings
from bfno.lab.experiments.series.metrics import classification_metrics
from bfno.lab.experiments.settings import Settings
from bfno.lab.experiments.tasks import (
    Evaluation,
    Found,
    Place,
    Share,
    Sums,
    Task,
    evaluation_mode,
    require_sound,
    solver_stats,
)
from bfno.models import SeriesModel, SeriesOutput
from bfno.models.likelihood import (
    classification_loss,
    evidence_loss,
    gaussian_log_likelihood,
    kl_weight,
)
from bfno.ode.state import clock_dtype

__all__ = [
    "LossSettings",
    "SeriesPredictions",
    "SeriesTask",
    "confusion",
    "headline",
    "make_batch",
    "predict_series",
    "series_loss",
    "summary",
]


class LossSettings(Settings):
    """Weights of reconstruction and classification.

    Attributes:
        reconstruction: Weight of the negative log-likelihood of the observed values.
        classification: Weight of the cross-entropy; the published one is also divided by the
            number of latent samples.
        deviation: Deviation of an observation from the model's prediction, in scaled units.
        kl: Weight of the divergence from the prior, which is phased in after ten epochs.
        kinetic: Weight of half the squared speed of latent states, which keeps the number of
            function evaluations low; only for latent models that do not couple series.
    """

    reconstruction: float = Field(default=1.0, ge=0)
    classification: float = Field(default=100.0, ge=0)
    deviation: float = Field(default=0.01, gt=0)
    kl: float = Field(default=1.0, ge=0)
    kinetic: float = Field(default=0.0, ge=0)


class SeriesTask(Task):
    """Likelihood of the observed values and cross-entropy of the labels.

    Args:
        data: The split series.
        settings: How they are batched and scored.
        weights: Weights of the parts of the loss.
    """

    remedy_for_growth = (
        "`bfno resume` with --set solver.rtol=1e-2 --set solver.atol=1e-3 saves a quarter to a "
        "half of them; a new run with --set loss.kinetic=3 as well keeps them few."
    )

    def __init__(
        self, data: SeriesSplits, settings: SeriesDataSettings, weights: LossSettings
    ) -> None:
        self.data, self.settings, self.weights = data, settings, weights
        self.selection = headline(data.train.by_row, len(data.classes))

    def batches(self, size: int, generator: torch.Generator) -> list[Tensor]:
        if self.settings.order == "public_code":
            return list(torch.arange(len(self.data.train)).split(size))
        return length_batches(self.data.train.lengths, size, generator)

    def loss(self, model: nn.Module, samples: Tensor, place: Place) -> tuple[Tensor, Found]:
        batch = make_batch(self.data.train, samples, self.settings.times)
        batch = batch.to(place.device, next(model.parameters()).dtype)
        output = model(batch.times, batch.values, batch.mask)
        parts = series_loss(self.weights, output, batch, place.epoch)
        known = batch.labels >= 0
        guessed = output.scores.detach().softmax(-1).mean(0).argmax(-1)
        wide = clock_dtype(place.device)
        return parts.total, {
            "correct": ((guessed == batch.labels) & known).sum(),
            "labelled": known.sum(),
            "evidence": parts.evidence.detach().to(wide) * len(samples),
            "cross_entropy": parts.cross_entropy.detach().to(wide) * len(samples),
        }

    def train_metrics(self, sums: Sums) -> dict[str, float]:
        return {
            "loss": sums["loss"] / sums["samples"],
            "accuracy": sums["correct"] / max(sums["labelled"], 1),
            "cross_entropy": sums["cross_entropy"] / sums["samples"],
            "evidence_loss": sums["evidence"] / sums["samples"],
        }

    def evaluate(self, model: Any, split: str, batch: int, share: Share) -> Evaluation:
        series, times = getattr(self.data, split), self.settings.times
        found = predict_series(model, series, batch, times, share)
        pooled = self.settings.is_pooled
        return Evaluation(summary(found, pooled), confusion(found, len(self.data.classes), pooled))


@dataclass(frozen=True)
class SeriesLoss:
    """The loss of a model of series.

    Attributes:
        evidence: Negative bound of the log-likelihood of the observed values.
        cross_entropy: That of the labels.
        total: Their weighted sum.
    """

    evidence: Tensor
    cross_entropy: Tensor
    total: Tensor


def series_loss(
    weights: LossSettings, output: SeriesOutput, batch: SeriesBatch, epoch: int
) -> SeriesLoss:
    """The loss of a model's output.

    Args:
        weights: Weights of its parts.
        output: The model's output for the batch.
        batch: The series.
        epoch: Number of finished epochs, for the weight of the divergence.
    """
    likelihoods = gaussian_log_likelihood(
        output.prediction, batch.values, batch.mask, weights.deviation
    )
    divergence = None if output.kl is None else output.kl.mean()
    evidence = evidence_loss(likelihoods, divergence, weights.kl * kl_weight(epoch))
    cross_entropy = classification_loss(output.scores, batch.labels)
    # A part of no weight stays in the graph, so that every parameter has a gradient, which
    # several processes need to agree on.
    share = weights.classification / len(output.scores)
    total = weights.reconstruction * evidence + share * cross_entropy
    if output.kinetic is not None:
        total = total + weights.kinetic * output.kinetic
    return SeriesLoss(evidence, cross_entropy, total)


def headline(by_row: bool, classes: int) -> str:
    """The metric that chooses epochs: with two classes of series, one is usually rare."""
    return "auroc" if classes == 2 and not by_row else "accuracy"


def summary(found: SeriesPredictions, pooled: bool) -> dict[str, float]:
    """The metrics of a split, each one number."""
    probabilities, labels, _ = found.judged(pooled=pooled)
    metrics = {"mse": found.mse, "nfe": found.nfe}
    if len(labels) == 0:
        return metrics
    # Of a hopeless prediction, the surprise is large but finite.
    surprise = -torch.from_numpy(probabilities).clamp(min=1e-12).log()
    metrics["loss"] = surprise[torch.arange(len(labels)), torch.from_numpy(labels)].mean().item()
    scores = classification_metrics(probabilities, labels)
    return {**{name: float(value[0]) for name, value in scores.items()}, **metrics}


def confusion(found: SeriesPredictions, classes: int, pooled: bool) -> list[list[int]]:
    """Samples by true class (rows) and predicted class."""
    probabilities, labels, _ = found.judged(pooled=pooled)
    places = torch.from_numpy(labels * classes + probabilities.argmax(1))
    return torch.bincount(places, minlength=classes**2).view(classes, classes).tolist()


@dataclass(frozen=True)
class SeriesPredictions:
    """Probabilities of every series, or of every row where rows have labels.

    Attributes:
        probabilities: `(latent samples, count, classes)`.
        labels: `(count,)`; negative where there is none.
        series: `(count,)`: number of the series that each belongs to.
        mse: Mean squared error of the reconstruction over all observed values, in scaled units.
        nfe: Function evaluations per batch.
    """

    probabilities: Tensor
    labels: Tensor
    series: Tensor
    mse: float
    nfe: float

    def judged(self, *, pooled: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Probabilities, labels and series numbers of everything that has a label.

        Args:
            pooled: Whether every latent sample counts separately, as in the published code;
                otherwise their mean counts.
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
    """A batch of some series.

    Args:
        series: The series.
        samples: Numbers of the requested series.
        times: `own` leaves each on its times, `union` puts all on the union of them, and
            `public_code` does so as the published code does, see `Series.public_batch`.
    """
    makers = {"own": series.batch, "union": series.union_batch, "public_code": series.public_batch}
    return makers[times](samples)


def predict_series(
    model: SeriesModel, series: Series, batch: int, times: str, share: Share | None = None
) -> SeriesPredictions:
    """Run a model over all series without gradients.

    Args:
        model: A `SeriesModel`.
        series: Scaled as in training.
        batch: Series at a time; those of like length go together.
        times: `own`, `union` or `public_code`, see `make_batch`.
        share: This process's part; None is the whole.

    Raises:
        ScoresError: If a score is not finite, or the error of the reconstruction is not a number.
    """
    share = share or Share()
    processes = share.processes
    collected = _Collected(model, series)
    order = series.lengths.argsort(stable=True)
    with evaluation_mode(model), torch.inference_mode():
        for samples in order.split(batch)[processes.rank :: processes.count]:
            share.pause()
            collected.add(model, make_batch(series, samples, times), samples, processes.device)
    totals = processes.add_up(collected.sums)
    probabilities = processes.add_up(collected.probabilities)
    # An error may be too large for a finite number, but must not be not-a-number.
    require_sound(probabilities.isfinite())
    require_sound(~totals.isnan())
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
    """Probabilities in the order of the series, independent of the order of the batches."""

    def __init__(self, model: SeriesModel, series: Series) -> None:
        self._by_row = series.by_row
        count = int(series.starts[-1]) if series.by_row else len(series)
        # Zero for series of other processes.
        self.probabilities = torch.zeros(model.samples, count, model.classes)
        self.sums = torch.zeros(4, dtype=torch.float64)

    def add(
        self, model: SeriesModel, batch: SeriesBatch, samples: Tensor, device: torch.device
    ) -> None:
        there = batch.to(device, next(model.parameters()).dtype)
        output = model(there.times, there.values, there.mask)
        # Under a launcher's half precision, outputs have fewer bits than the weights.
        found = output.scores.to(self.probabilities.dtype).softmax(-1).cpu()
        if self._by_row:
            is_row = batch.rows >= 0
            self.probabilities[:, batch.rows[is_row]] = found[:, is_row]
        else:
            self.probabilities[:, samples] = found
        errors = (output.prediction.to(there.values).mean(0) - there.values).square()[there.mask]
        stats = solver_stats(model)
        done = (errors.double().sum().item(), len(errors), stats.forward_evaluations, 1)
        self.sums += torch.tensor(done, dtype=torch.float64)
