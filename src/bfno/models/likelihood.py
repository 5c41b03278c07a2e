"""Losses of models of irregular series, and the likelihoods in them."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = [
    "classification_loss",
    "evidence_loss",
    "gaussian_log_likelihood",
    "kl_to_standard_normal",
    "kl_weight",
]

_UNLABELLED = -1
_EPOCHS_WITHOUT_KL = 10


def gaussian_log_likelihood(
    prediction: Tensor, values: Tensor, mask: Tensor, deviation: float
) -> Tensor:
    """Log-density of the observed values, each normal around its prediction.

    Averaged over the observed values of a feature of a series (zero where there are none), then
    over all features and series: a series counts the same however many rows it has.

    Args:
        prediction: `(samples, batch, time, features)`.
        values: `(batch, time, features)`; entries that were not observed are ignored.
        mask: `(batch, time, features)`; whether the value was observed.
        deviation: Standard deviation of an observation.

    Returns:
        `(samples,)`.

    Raises:
        ValueError: If a prediction has another shape.

    Example:
        >>> values = torch.zeros(2, 5, 3)
        >>> gaussian_log_likelihood(values[None], values, values == 0, deviation=1.0)
        tensor([-0.9189]...)
    """
    if prediction.shape[1:] != values.shape:
        shape = ", ".join(map(str, values.shape))
        raise ValueError(
            f"prediction must have shape (samples, {shape}), got {tuple(prediction.shape)}"
        )
    mask = mask.bool()
    errors = (prediction - values).where(mask, 0.0)
    count = mask.sum(1)
    squares = errors.square().sum(2) / count.clamp(min=1)
    highest = -math.log(deviation) - 0.5 * math.log(2 * math.pi)
    densities = highest * (count > 0) - squares / (2 * deviation**2)
    return densities.mean((1, 2))


def kl_to_standard_normal(mean: Tensor, deviation: Tensor) -> Tensor:
    """Divergence of normal distributions from the standard one, averaged over the dimensions.

    Args:
        mean: `(batch, dimensions)`.
        deviation: Standard deviation, likewise; not negative. A value too small for its precision
            counts as the smallest normal one, so that the divergence is finite.

    Returns:
        `(batch,)`.

    Example:
        >>> kl_to_standard_normal(torch.tensor([[0.0, 2.0]]), torch.ones(1, 2))
        tensor([1.]...)
    """
    deviation = deviation.clamp(min=torch.finfo(deviation.dtype).eps)
    return (0.5 * (mean.square() + deviation.square() - 1) - deviation.log()).mean(-1)


def evidence_loss(likelihoods: Tensor, kl: Tensor | None = None, weight: float = 1.0) -> Tensor:
    """Loss of a model's predictions.

    Args:
        likelihoods: Log-likelihood of the data in each sample, `(samples,)`.
        kl: Divergence of the posterior from the prior, a scalar; None if there is no posterior.
        weight: Weight of the divergence; see `kl_weight`.

    Returns:
        `-logsumexp(likelihoods - weight * kl)`, or `-mean(likelihoods)` without a posterior.

    Example:
        >>> evidence_loss(torch.tensor([-1.0, -3.0]))
        tensor(2.)
        >>> evidence_loss(torch.tensor([-1.0]), kl=torch.tensor(2.0), weight=0.5)
        tensor(2.)
    """
    if kl is None:
        return -likelihoods.mean()
    return -torch.logsumexp(likelihoods - weight * kl, dim=0)


def kl_weight(epoch: int) -> float:
    """Weight of the divergence in an epoch, counted from 0: zero at first, then rising to one.

    Example:
        >>> [round(kl_weight(epoch), 4) for epoch in (0, 10, 11, 12)]
        [0.0, 0.0, 0.01, 0.0199]
    """
    return 1.0 - 0.99 ** max(epoch - _EPOCHS_WITHOUT_KL, 0)


def classification_loss(scores: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy, averaged over samples and over everything that has a label.

    Args:
        scores: `(samples, batch, classes)` or `(samples, batch, time, classes)`.
        labels: `(batch,)` or `(batch, time)`; -1 for none.

    Returns:
        A scalar; zero if nothing has a label.

    Example:
        >>> classification_loss(torch.zeros(1, 3, 2), torch.tensor([0, 1, -1]))  # log(2)
        tensor(0.6931)
    """
    wanted = labels.expand(scores.shape[:-1])
    total = F.cross_entropy(
        scores.flatten(0, -2), wanted.flatten(), ignore_index=_UNLABELLED, reduction="sum"
    )
    return total / (wanted != _UNLABELLED).sum().clamp(min=1)
