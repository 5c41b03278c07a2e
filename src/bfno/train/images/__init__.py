"""Image classification: settings, task, evaluation and prediction."""

from bfno.train.images.family import ImageFamily

__all__ = ["ImageFamily"]
