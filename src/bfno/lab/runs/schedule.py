"""The learning rate of every step."""

from __future__ import annotations

import math

from bfno.lab.experiments.settings import TrainSettings

__all__ = ["learning_rate", "rate_of_training"]


def rate_of_training(settings: TrainSettings, step: int, epochs: int, per_epoch: int) -> float:
    """The rate of a step of a training whose schedule may restart.

    Args:
        settings: The recipe.
        step: Number of the step, from zero.
        epochs: How many there are in all.
        per_epoch: Steps of an epoch.

    Example:
        >>> twice = TrainSettings(lr=1.0, schedule="cosine", restart=2)
        >>> [round(rate_of_training(twice, step, 4, 2), 2) for step in range(8)]
        [1.0, 0.85, 0.5, 0.15, 1.0, 0.85, 0.5, 0.15]
    """
    begin = settings.restart * per_epoch
    if step < begin:
        return learning_rate(settings, step, min(begin, epochs * per_epoch))
    return learning_rate(settings, step - begin, epochs * per_epoch - begin)


def learning_rate(settings: TrainSettings, step: int, steps: int) -> float:
    """The rate of a step, which depends only on its number.

    Args:
        settings: The recipe.
        step: Number of the step, from zero.
        steps: How many there are in all.

    Example:
        >>> cosine = TrainSettings(lr=1.0, schedule="cosine", warmup=0.1)
        >>> [round(learning_rate(cosine, step, 100), 3) for step in (0, 9, 50, 99)]
        [0.1, 0.98, 0.5, 0.0]
    """
    warmup = settings.warmup if settings.warmup >= 1 else settings.warmup * steps
    if settings.schedule == "cosine":
        share = (1 + math.cos(math.pi * min(step / max(steps, 1), 1.0))) / 2
    else:
        share = settings.decay ** (step // settings.decay_every)
    return settings.lr * max(share, settings.decay_floor) * min(1.0, (step + 1) / max(warmup, 1))
