"""The density of points."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import DensityMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from bfno.lab.data.stratify import hold_out_of_each_class
from bfno.lab.estimators.masked import refuse_masked
from bfno.lab.estimators.training import TrainedEstimator, mended, undisturbed
from bfno.lab.experiments.density.data import DensityData
from bfno.lab.experiments.density.experiment import DensityExperiment
from bfno.lab.experiments.density.task import Noise, costs
from bfno.lab.experiments.experiment import explained_failure
from bfno.lab.experiments.memory import fingerprint

__all__ = ["DensityEstimator"]

# Finer than any use of a density needs, so that a score does not depend on its neighbours: the
# solver's steps suit all points of a batch.
_PRECISE = {"rtol": 1e-8, "atol": 1e-8}
_BATCH = 1000
# Of two larger numbers, the difference may be infinite.
_LARGEST = np.finfo(np.float64).max / 2
_WHOLE_POINTS = "fill it in, or leave such points out"


class DensityEstimator(DensityMixin, TrainedEstimator):
    """Density of points from a continuous normalizing flow, with scikit-learn's interface.

    Points are standardised first; scores and samples are in the units of the data. Scores are
    computed in double precision at a tolerance of 1e-8.

    Args:
        method: A method of `bfno models` for points: `ffjord`, `ffjord-rnode` or
            `ffjord-bfno-rnode`.
        epochs: Passes over the training points; each takes at least 8 steps.
        batch_size: Points per step; None is the method's own.
        lr: The highest learning rate; None is the method's own.
        validation: Share of the points held out from training to choose the best epoch; 0 takes the
            last epoch.
        patience: Stop after this many epochs in a row without improvement on the validation points.
            None trains all epochs.
        settings: Further settings of the experiment, such as `{"model.width": 16}`; `bfno config
            moons/METHOD` prints them all.
        checkpoints: Folder in which to keep the run. If it already holds a run on the same points,
            `fit` continues it; None keeps nothing. Its model is for standardised points.
        random_state: Seed of all random numbers.
        verbose: 1 prints a line for each epoch, and the notes of the training.

    Attributes:
        n_features_in_: Number of coordinates.
        mean_, scale_: What is subtracted from each coordinate, and what it is then divided by.
        model_: The trained torch module, a `bfno.Flow` of standardised points.
        history_: Metrics of each epoch.
        n_iter_: Number of epochs trained.

    Example:
        >>> import numpy as np
        >>> points = np.random.RandomState(0).normal(5, 2, (100, 2))
        >>> density = DensityEstimator(epochs=2, random_state=0).fit(points)
        >>> density.score_samples([[5, 5], [50, 5]]).argmax()
        np.int64(0)
        >>> density.sample(3, random_state=0).shape
        (3, 2)
    """

    _experiment = DensityExperiment
    n_features_in_: int

    # Every parameter is named again; `TrainedEstimator` explains why.
    def __init__(
        self,
        method: str = "ffjord-rnode",
        *,
        epochs: int = 20,
        batch_size: int | None = None,
        lr: float | None = None,
        validation: float = 0.1,
        patience: int | None = None,
        settings: Mapping[str, Any] | None = None,
        checkpoints: str | Path | None = None,
        random_state: int | np.random.RandomState | None = None,
        verbose: int = 0,
    ) -> None:
        super().__init__(
            method,
            epochs=epochs,
            batch_size=batch_size,
            lr=lr,
            validation=validation,
            patience=patience,
            settings=settings,
            checkpoints=checkpoints,
            random_state=random_state,
            verbose=verbose,
        )

    def fit(self, X: Any, y: Any = None) -> DensityEstimator:
        """Train on points.

        Args:
            X: Points, `(n, coordinates)`.
            y: Ignored; scikit-learn passes it in searches.

        Raises:
            ValueError: If points or parameters are not valid.
            NumericalError: If the training reaches numbers that are not finite.
        """
        refuse_masked(X, "X", _WHOLE_POINTS)
        points: Any = validate_data(self, X, dtype=np.float64, ensure_min_samples=2)
        mean, scale = _standard(points)
        scaled = torch.from_numpy((points - mean) / scale).float()
        about = {"coordinates": points.shape[1], "samples": fingerprint(torch.tensor(points))}
        config = self._config(about)
        data = _divided(scaled, config.data.validation, config.seed, (mean, scale))
        self._run = self._train(config, data)
        self.model_.double()
        self.model_.solve_with(**config.evaluation.model_dump() | _PRECISE)
        self.mean_, self.scale_ = mean, scale
        return self

    def score_samples(self, X: Any) -> np.ndarray:
        """The logarithm of the density at each point, `(n,)`, in nats."""
        check_is_fitted(self)
        refuse_masked(X, "X", _WHOLE_POINTS)
        points: Any = validate_data(self, X, dtype=np.float64, reset=False)
        scaled = torch.from_numpy((points - self.mean_) / self.scale_)
        noise = Noise(self._run.config.seed, "scores")
        with undisturbed(), mended(), explained_failure("evaluation"):
            found = costs(self.model_, scaled, _BATCH, noise, "nll")
        return -found.numpy() - np.log(self.scale_).sum()

    def score(self, X: Any, y: Any = None) -> float:  # pyright: ignore  # the mixin's does nothing
        """The mean of `score_samples`, which is comparable between sets of different sizes."""
        return float(self.score_samples(X).mean())

    def sample(
        self, n_samples: int = 1, random_state: int | np.random.RandomState | None = None
    ) -> np.ndarray:
        """Draw points from the density.

        Args:
            n_samples: How many.
            random_state: Seed; None draws different points each time.

        Returns:
            Points, `(n_samples, coordinates)`.
        """
        check_is_fitted(self)
        if not isinstance(n_samples, (int, np.integer)) or n_samples < 1:
            raise ValueError(f"n_samples must be a whole number of at least 1, got {n_samples!r}")
        seed = int(check_random_state(random_state).randint(2**31 - 1))
        with (
            undisturbed(seed, "samples"),
            mended(),
            explained_failure("evaluation"),
            torch.no_grad(),
        ):
            drawn = self.model_.sample(int(n_samples)).double().numpy()
        return drawn * self.scale_ + self.mean_


def _standard(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviation of each coordinate.

    Raises:
        ValueError: If a coordinate is the same for all points, so no density is finite, or varies
            too little for double precision.
    """
    size = np.abs(points).max(0)
    # Squares of very large or small numbers are none; powers of two take off no digit.
    _, power = np.frexp(size)
    near_one = np.ldexp(points, -power)
    mean, deviation = np.ldexp(near_one.mean(0), power), np.ldexp(near_one.std(0), power)
    # Rounding alone makes the deviation of equal numbers this large.
    rounding = 10 * np.finfo(np.float64).eps * size
    for number in np.flatnonzero(~(deviation > rounding) | (size > _LARGEST)):
        raise ValueError(f"column {number} of X {_fault(points[:, number], mean[number])}")
    return mean, deviation


def _fault(column: np.ndarray, mean: float) -> str:
    """Why a coordinate cannot be standardised, and what to do."""
    if (column == column[0]).all():
        return (
            f"must vary, got {column[0]:g} in all {len(column)} points, where no density is "
            "finite; leave it out"
        )
    if np.abs(column).max() > _LARGEST:
        return f"is too large, over {_LARGEST:.2g}; divide it by a constant"
    return (
        f"varies too little around {mean:g} to be told from rounding; take off what all points "
        "have in common before they become floating numbers, or leave it out"
    )


def _divided(
    points: Tensor, validation: float, seed: int, scaling: tuple[np.ndarray, np.ndarray]
) -> DensityData:
    """Points for training and for validation, none for testing."""
    kept, held_out = torch.arange(len(points)), torch.arange(0)
    if validation:
        kept, held_out = hold_out_of_each_class(torch.zeros(len(points)), validation, seed)
    chosen = points[held_out] if len(held_out) else None
    mean, scale = (tuple(part.tolist()) for part in scaling)
    return DensityData(points[kept], chosen, points[:0], scaling=(mean, scale))
