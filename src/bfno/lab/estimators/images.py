"""A classifier of images in arrays."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from scipy.sparse import issparse
from sklearn.base import ClassifierMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from bfno.lab.data import Split, divide_drawn
from bfno.lab.estimators.labels import encoded_labels
from bfno.lab.estimators.masked import refuse_masked
from bfno.lab.estimators.training import TrainedEstimator, mended, undisturbed
from bfno.lab.experiments.experiment import explained_failure
from bfno.lab.experiments.images.calibration import temperature_of
from bfno.lab.experiments.images.experiment import ImageExperiment
from bfno.lab.experiments.images.task import image_scores
from bfno.lab.experiments.memory import fingerprint
from bfno.lab.experiments.tasks import Share

__all__ = ["ImageClassifier"]

Channels = Literal["auto", "first", "last"]
# Grey, grey with transparency, colour, colour with transparency.
_USUAL_CHANNELS = (1, 2, 3, 4)


class ImageClassifier(ClassifierMixin, TrainedEstimator):
    """Classifies images in arrays with a neural ODE, with scikit-learn's interface.

    Not to be confused with `bfno.ImageClassifier`, the torch module; the module that `fit` trains
    is `model_`.

    Images are `(n, height, width)`, `(n, height, width, channels)` or `(n, channels, height,
    width)`, bytes (uint8) or floats between 0 and 1, which are rounded to bytes like all images of
    the program. Probabilities are calibrated on the validation images, if there are any.

    Args:
        method: A method of `bfno models` for images: `bfno-net`, `cnn`, `bfno-node`, `node`, ….
        epochs: Passes over the training images.
        batch_size: Images per step; None is the method's own.
        lr: The highest learning rate; None is the method's own.
        validation: Share of the images held out from training to calibrate probabilities and judge
            epochs.
        patience: Stop after this many epochs in a row without improvement on the validation images,
            and take the best epoch. None trains all epochs.
        channels: Where the channels of images with four axes are, `first` or `last`; `auto` finds
            which of the two axes has 1 to 4.
        settings: Further settings of the experiment, such as `{"model.width": 16}`; `bfno config
            folder/METHOD` prints them all.
        checkpoints: Folder in which to keep the run. If it already holds a run on the same images,
            `fit` continues it; None keeps nothing.
        random_state: Seed of all random numbers.
        verbose: 1 prints a line for each epoch, and the notes of the training.

    Attributes:
        classes_: The labels, in order; columns of `predict_proba`.
        image_shape_: Channels, height and width.
        model_: The trained torch module.
        history_: Metrics of each epoch.
        n_iter_: Number of epochs trained.

    Example:
        >>> from sklearn.datasets import load_digits
        >>> X, y = load_digits(return_X_y=True)
        >>> images = X[:60].reshape(-1, 8, 8) / 16
        >>> classifier = ImageClassifier(epochs=1, random_state=0).fit(images, y[:60])
        >>> classifier.predict_proba(images[:2]).shape
        (2, 10)
    """

    _experiment = ImageExperiment

    # Every parameter is named again; `TrainedEstimator` explains why.
    def __init__(
        self,
        method: str = "bfno-net",
        *,
        epochs: int = 20,
        batch_size: int | None = None,
        lr: float | None = None,
        validation: float = 0.1,
        patience: int | None = None,
        channels: Channels = "auto",
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
        self.channels = channels

    def fit(self, X: Any, y: Any) -> ImageClassifier:
        """Train on images and their labels.

        Args:
            X: Images.
            y: One label for each: words, whole numbers or booleans.

        Raises:
            ValueError: If images, labels or parameters are not valid.
            NumericalError: If the training reaches numbers that are not finite.
        """
        images, channels = image_bytes(X, self.channels)
        classes, labels = encoded_labels(y, len(images), "images")
        shape = tuple(images.shape[1:])
        samples = fingerprint(images, labels)
        about = {"in_shape": shape, "colour": shape[0] == 3, "samples": samples}
        config, names = self._config(about), tuple(map(str, classes))
        with mended():
            data = divide_drawn(
                Split(images, labels), names, validation=config.data.validation, seed=config.seed
            )
        self._run = self._train(config, data)
        self.classes_, self.image_shape_, self._channels = classes, shape, channels
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probability of each class, `(n, classes)`, columns in the order of `classes_`."""
        return torch.softmax(self._scores(X), 1).numpy()

    def predict(self, X: Any) -> np.ndarray:
        """The likeliest class of each image."""
        found = self._scores(X).argmax(1).numpy()
        return self.classes_[found]

    def _scores(self, X: Any) -> Tensor:
        check_is_fitted(self)
        images, _ = image_bytes(X, self._channels)
        if tuple(images.shape[1:]) != self.image_shape_:
            channels, height, width = self.image_shape_
            raise ValueError(
                f"X must hold images of {channels} channels on {height}×{width} pixels as in fit, "
                f"got channels, height and width {tuple(images.shape[1:])}"
            )
        split = Split(images, torch.zeros(len(images), dtype=torch.int64))
        batch = self._run.config.train.eval_batch
        with undisturbed(), mended(), explained_failure():
            scores, _ = image_scores(self.model_, split, len(self.classes_), batch, Share())
        return scores / (temperature_of(self._run) or 1.0)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.input_tags.three_d_array = False, True
        return tags


def image_bytes(X: Any, channels: str) -> tuple[Tensor, str]:
    """Images as bytes `(n, channels, height, width)`, and where the channels were.

    Raises:
        TypeError: If they are a sparse matrix.
        ValueError: If these are not images, some of their pixels are masked, or it is not clear
            where their channels are.

    Example:
        >>> images, channels = image_bytes(np.zeros((5, 8, 9, 3)), "auto")
        >>> images.shape, channels
        (torch.Size([5, 3, 8, 9]), 'last')
    """
    if channels not in ("auto", "first", "last"):
        raise ValueError(f"channels must be 'auto', 'first' or 'last', got {channels!r}")
    if issparse(X):
        raise TypeError("Sparse input is not supported: X must be an array of images")
    refuse_masked(X, "X", "fill in its pixels: X.filled(0)")
    images = np.asarray(X)
    if images.dtype == object:
        raise ValueError("X must be one array; images of several sizes have to be resized first")
    if images.ndim == 3:
        return torch.from_numpy(_as_bytes(images)[:, None].copy()), channels
    if images.ndim != 4:
        raise ValueError(_not_images(images))
    where = _place_of_channels(images.shape, channels)
    moved = np.moveaxis(_as_bytes(images), -1, 1) if where == "last" else _as_bytes(images)
    return torch.from_numpy(np.ascontiguousarray(moved).copy()), where


def _not_images(images: np.ndarray) -> str:
    wanted = "X must be images (n, height, width), (n, height, width, channels) or (n, channels, "
    fix = ""
    if images.ndim == 2:
        side = math.isqrt(images.shape[1])
        shape = f"{side}, {side}" if side**2 == images.shape[1] else "height, width"
        fix = f"; unflatten images: X.reshape(len(X), {shape})"
    return f"{wanted}height, width), got an array of shape {images.shape}{fix}"


def _place_of_channels(shape: tuple[int, ...], channels: str) -> str:
    if channels != "auto":
        return channels
    first, last = shape[1] in _USUAL_CHANNELS, shape[3] in _USUAL_CHANNELS
    if first == last:
        raise ValueError(
            f"the channels of X, of shape {shape}, may be its second or its last axis; say "
            "channels='first' or channels='last'"
        )
    return "first" if first else "last"


def _as_bytes(images: np.ndarray) -> np.ndarray:
    if images.size == 0:
        raise ValueError(f"X must hold at least one image, got an array of shape {images.shape}")
    if images.dtype == np.uint8:
        return images
    if images.dtype.kind == "f":
        if not np.isfinite(images).all():
            raise ValueError("X must hold finite numbers; fill what is NaN or infinite")
        low, high = images.min(), images.max()
        if 0 <= low and high <= 1:
            return np.rint(images * 255).astype(np.uint8)
        fix = f"divide by {high:g}" if low >= 0 else "bring them there"
        raise ValueError(f"floats in X must be between 0 and 1, got {low:g} to {high:g}; {fix}")
    fix = ""
    if images.dtype.kind in "iu" and 0 <= images.min() and images.max() <= 255:
        fix = "; X.astype('uint8') if they are bytes, X / 255 if these are shares of 255"
    raise ValueError(f"X must be uint8, or floats between 0 and 1, got {images.dtype}{fix}")
