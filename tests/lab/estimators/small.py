"""Estimators so small that a fit takes a fraction of a second, and samples for them."""

import numpy as np
from sklearn.datasets import load_digits, make_moons

from bfno.sklearn import DensityEstimator, ImageClassifier, SeriesClassifier

_FLOW = {"model.width": 4, "model.depth": 1, "train.least_steps": 1, "solver.step": 1.0}
_NET = {"model.width": 2}
_RNN = {"model.latents": 3, "model.units": 4, "model.head": (4,)}


def small_density(**changes):
    settings = _FLOW | changes.pop("settings", {})
    return DensityEstimator(**{"epochs": 1, "random_state": 0, **changes}, settings=settings)


def small_images(**changes):
    settings = _NET | changes.pop("settings", {})
    return ImageClassifier(**{"epochs": 1, "random_state": 0, **changes}, settings=settings)


def small_series(**changes):
    settings = _RNN | changes.pop("settings", {})
    given = {"method": "rnn-d", "epochs": 1, "random_state": 0, **changes}
    return SeriesClassifier(**given, settings=settings)


def moons(count):
    return np.asarray(make_moons(count, noise=0.1, random_state=0)[0])


def digits(count, classes=2):
    """Images between 0 and 1 of the first classes, and their labels."""
    images, labels = load_digits(n_class=classes, return_X_y=True)
    return images[:count].reshape(-1, 8, 8) / 16, labels[:count]


def waves(count, seed=0):
    """Slow and fast oscillations, seen at a few times with values missing, and their names."""
    draw = np.random.RandomState(seed)
    series, labels = [], []
    for number in range(count):
        times = np.sort(draw.rand(draw.randint(4, 9)))
        phase = (3 if number % 2 else 9) * times + draw.rand()
        values = np.stack((np.sin(phase), np.cos(phase)), 1)
        values[draw.rand(*values.shape) < 0.2] = np.nan
        series.append((times, values))
        labels.append("slow" if number % 2 else "fast")
    return series, labels
