"""How reliable a classifier's probabilities are, and how to calibrate them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from bfno.lab.experiments.experiment import TrainedRun, explained_failure
from bfno.lab.experiments.tasks import require_sound

__all__ = ["calibration_error", "fitted_temperature", "probabilities", "temperature_of"]

_BINS = 15
_COLDEST, _HOTTEST, _HALVINGS = 0.05, 20.0, 60


def calibration_error(scores: Tensor, labels: Tensor) -> float:
    """The expected calibration error: the distance between confidence and accuracy.

    Samples are put into 15 bins of equal width by the probability of their predicted class; the
    error is the distance between mean probability and share of right answers in a bin, averaged
    over samples.

    Args:
        scores: Logits, `(samples, classes)`.
        labels: The true classes.

    Example:
        >>> scores = torch.tensor([[2.0, 0.0], [2.0, 0.0]])  # 88 % sure, right every other time
        >>> round(calibration_error(scores, torch.tensor([0, 1])), 2)
        0.38
    """
    sureness, predicted = scores.double().softmax(1).max(1)
    right = (predicted == labels).double()
    bins = (sureness * _BINS).ceil().long().clamp(1, _BINS) - 1
    gaps = torch.zeros(_BINS, dtype=torch.float64).index_add_(0, bins, sureness - right)
    return (gaps.abs().sum() / max(len(labels), 1)).item()


def fitted_temperature(scores: Tensor, labels: Tensor) -> float:
    """The number to divide logits by so that held-out labels become most likely.

    Few samples without an error do not make a classifier certain: as after Laplace's rule of
    succession, each label is taken to be wrong with probability 1 / (samples + 2).

    Args:
        scores: Logits, `(samples, classes)`, of samples that the model was not trained on.
        labels: Their true classes.

    Returns:
        More than 1 for an overconfident model. Between 0.05 and 20; 1 if the scores of each sample
        are all equal, as then no temperature is better than another.

    References:
        Guo et al., On Calibration of Modern Neural Networks, 2017.
    """
    scores, classes = scores.double(), scores.shape[1]
    if (scores == scores[:, :1]).all():
        return 1.0
    doubt = 1 / (len(labels) + 2)
    chosen = functional.one_hot(labels, classes).double()
    wanted = chosen * (1 - doubt) + (1 - chosen) * doubt / max(classes - 1, 1)

    def slope(coldness: float) -> float:
        """Of the cross-entropy, which is convex in the inverse of the temperature."""
        return (((scores * coldness).softmax(1) - wanted) * scores).sum().item()

    low, high = 1 / _HOTTEST, 1 / _COLDEST
    for _ in range(_HALVINGS):
        middle = (low * high) ** 0.5
        low, high = (low, middle) if slope(middle) > 0 else (middle, high)
    return 1 / (low * high) ** 0.5


def temperature_of(run: TrainedRun) -> float | None:
    """The temperature for the epoch whose weights a run has; None if it was not fitted."""
    best = run.facts.get("progress", {}).get("best", {})
    is_this = best.get("step") == run.step
    return best["metrics"].get("validation_temperature") if is_this else None


def probabilities(run: TrainedRun, images: Tensor) -> Tensor:
    """Classify images at the temperature of a trained classifier: `(count, classes)`.

    Args:
        run: The classifier.
        images: Bytes `(count, channels, height, width)`, of the shape that it was trained on.

    Raises:
        NumericalError: If the solver gives up, or scores are not finite.
    """
    with torch.inference_mode(), explained_failure():
        batches = images.float().div(255).split(run.config.train.eval_batch)
        scores = torch.cat([run.model(batch) for batch in batches])
        require_sound(scores.isfinite())
    return (scores / (temperature_of(run) or 1.0)).softmax(1)
