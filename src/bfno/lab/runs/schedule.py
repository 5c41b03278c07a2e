"""The learning rate of every step."""

from __future__ import annotations

import math

from bfno.lab.experiments.settings import TrainSettings

__all__ = ["learning_rate"]


def learning_rate(settings: TrainSettings, step: int, steps: int) -> float:
    """The rate of a step, a function of nothing but its number.

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
