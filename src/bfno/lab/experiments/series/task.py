"""Classification of irregular series, and their reconstruction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bfno.lab.data import SeriesBatch, SeriesSplits, length_batches
from bfno.lab.experiments.series.metrics import classification_metrics
from bfno.lab.experiments.series.predictions import SeriesPredictions, make_batch, predict_series
from bfno.lab.experiments.series.settings import LossSettings, SeriesConfig
from bfno.lab.experiments.tasks import Evaluation, Place, Share, Sums, Task
from bfno.models import (
    SeriesOutput,
    classification_loss,
    evidence_loss,
    gaussian_log_likelihood,
    kl_weight,
)

__all__ = ["SeriesTask", "confusion", "headline", "is_pooled", "series_loss", "summary"]


class SeriesTask(Task):
    """Likelihood of the observed values and cross-entropy of the labels.

    Args:
        config: The settings.
        data: The divided series.
    """

    def __init__(self, config: SeriesConfig, data: SeriesSplits) -> None:
        self.config, self.data = config, data
        self.selection = headline(data.train.by_row, len(data.classes))

    @property
    def splits(self) -> tuple[str, ...]:
        return ("test",) if self.data.validation is None else ("validation", "test")

    def batches(self, size: int, generator: torch.Generator) -> list[Tensor]:
        return length_batches(self.data.train.lengths, size, generator)

    def loss(self, model: nn.Module, samples: Tensor, place: Place) -> tuple[Tensor, Sums]:
        batch = make_batch(self.data.train, samples, self.config.data.times)
        batch = batch.to(place.device, next(model.parameters()).dtype)
        output = model(batch.times, batch.values, batch.mask)
        parts = series_loss(self.config.loss, output, batch, place.epoch)
        known = batch.labels >= 0
        guessed = output.scores.detach().softmax(-1).mean(0).argmax(-1)
        correct = (guessed == batch.labels)[known].sum().item()
        return parts.total, {
            "correct": correct,
            "labelled": known.sum().item(),
            "evidence": parts.evidence.item() * len(samples),
            "cross_entropy": parts.cross_entropy.item() * len(samples),
        }

    def train_metrics(self, sums: Sums) -> dict[str, float]:
        return {
            "loss": sums["loss"] / sums["samples"],
            "accuracy": sums["correct"] / max(sums["labelled"], 1),
            "cross_entropy": sums["cross_entropy"] / sums["samples"],
            "evidence_loss": sums["evidence"] / sums["samples"],
        }

    def evaluate(self, model: Any, split: str, batch: int, share: Share) -> Evaluation:
        series, times = getattr(self.data, split), self.config.data.times
        found = predict_series(model, series, batch, times, share)
        pooled = is_pooled(self.config)
        return Evaluation(summary(found, pooled), confusion(found, len(self.data.classes), pooled))


@dataclass(frozen=True)
class SeriesLoss:
    """What a model of series is trained to make small.

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
        weights: How its parts are weighed.
        output: What the model says about the batch.
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
    return SeriesLoss(evidence, cross_entropy, total)


def headline(by_row: bool, classes: int) -> str:
    """The metric that decides: with two classes of series, one is usually rare."""
    return "auroc" if classes == 2 and not by_row else "accuracy"


def is_pooled(config: Any) -> bool:
    """Whether every latent sample is judged for itself, as in the published code."""
    return config.data.protocol == "published"


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
