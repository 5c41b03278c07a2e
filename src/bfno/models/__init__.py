"""Models: an encoder, a neural ODE, and a head."""

from bfno.models.classifier import ImageClassifier
from bfno.models.counting import count_parameters

__all__ = ["ImageClassifier", "count_parameters"]
