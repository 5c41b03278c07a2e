"""Image classification: settings, task, evaluation and prediction."""

from bfno.lab.experiments.images.family import ImageFamily

__all__ = ["ImageFamily"]
