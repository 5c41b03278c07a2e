"""A classifier of irregular series in arrays and data frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import issparse
from sklearn.base import ClassifierMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from bfno.lab.data import (
    UNLABELLED,
    Series,
    SeriesTable,
    TableLayout,
    divided_series,
    read_frame,
    series_from_arrays,
)
from bfno.lab.data.series import in_single
from bfno.lab.estimators.labels import encoded_labels
from bfno.lab.estimators.masked import refuse_masked
from bfno.lab.estimators.training import TrainedEstimator, mended, quiet, undisturbed
from bfno.lab.experiments.experiment import explained_failure
from bfno.lab.experiments.memory import fingerprint
from bfno.lab.experiments.series.data import OF_ARRAYS, OF_FRAMES, refuse_endless, scaling_of
from bfno.lab.experiments.series.experiment import SeriesExperiment
from bfno.lab.experiments.series.task import predict_series

__all__ = ["SeriesClassifier"]


class SeriesClassifier(ClassifierMixin, TrainedEstimator):
    """Classifies irregular series with a neural ODE, with scikit-learn's interface.

    Series are one of:

    - a list with a pair `(times, values)` for each series, values of shape `(rows, features)` or
      `(rows,)`; dates of numpy count in seconds;
    - a list of arrays of values, or an array `(n, rows, features)` or `(n, rows)`, at the times
      0, 1, 2, …;
    - a data frame of polars or pandas with a column for the series' names and one for times, read
      as the program reads tables; series are ordered by their first rows.

    NaN means that a value was not observed.

    Args:
        method: A method of `bfno models` for series: `ode-rnn`, `latent-bfno-node`, `gru-d`, ….
        epochs: Passes over the training series.
        batch_size: Series per step; None is the method's own.
        lr: The highest learning rate; None is the method's own.
        validation: Share of the series of each class held out from training to choose the best
            epoch; 0 takes the last epoch.
        patience: Stop after this many epochs in a row without improvement on the validation series.
            None trains all epochs.
        settings: Further settings of the experiment, such as `{"model.latents": 8}` or
            `{"data.columns": ("patient", "day", "ill")}`; `bfno config series/METHOD` prints them
            all.
        checkpoints: Folder in which to keep the run. If it already holds a run on the same series,
            `fit` continues it; None keeps nothing.
        random_state: Seed of all random numbers.
        verbose: 1 prints a line for each epoch, and the notes of the training.

    Attributes:
        classes_: The labels, in order; columns of `predict_proba`.
        features_: Names of the features.
        model_: The trained torch module, a `bfno.SeriesModel` of scaled series.
        history_: Metrics of each epoch.
        n_iter_: Number of epochs trained.

    Example:
        >>> import numpy as np
        >>> draw = np.random.RandomState(0)
        >>> X = [(np.sort(draw.rand(5)), draw.rand(5, 1) + k % 2) for k in range(20)]
        >>> y = ["low", "high"] * 10
        >>> classifier = SeriesClassifier("rnn-d", epochs=1, random_state=0).fit(X, y)
        >>> classifier.predict_proba(X[:3]).shape
        (3, 2)
    """

    _experiment = SeriesExperiment

    # Every parameter is named again; `TrainedEstimator` explains why.
    def __init__(
        self,
        method: str = "ode-rnn",
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

    def fit(self, X: Any, y: Any = None) -> SeriesClassifier:
        """Train on series and their labels.

        Args:
            X: Series.
            y: One label for each series: words, whole numbers or booleans. None takes the label
                column of a data frame, as text.

        Raises:
            ValueError: If series, labels or parameters are not valid.
            NumericalError: If the training reaches numbers that are not finite.
        """
        config = self._config({}, OF_ARRAYS | (OF_FRAMES if is_frame(X) else set()))
        with quiet(not self.verbose):
            series, table = _read(X, config.data.layout)
        if table is not None:
            y = _labels_of(table, y)
        classes, labels = encoded_labels(y, len(series), "series")
        series = replace(series, labels=labels)
        # Kept runs identify their samples by values in single precision, and by further digits
        # that matter.
        parts = (series.times, series.values.float(), series.mask, series.starts, labels)
        rest = _beyond_single(series)
        parts += (rest,) if rest.any() else ()
        about = config.data.model_copy(update={"samples": fingerprint(*parts)})
        config = config.model_copy(update={"data": about})
        names = tuple(f"x{number}" for number in range(series.values.shape[1]))
        features = names if table is None else table.features
        data = divided_series(
            series,
            features,
            tuple(map(str, classes)),
            validation=config.data.validation,
            seed=config.seed,
        )
        layout = None if table is None else table.layout
        self._run = self._train(config, replace(data, layout=layout))
        self.classes_, self.features_, self._layout = classes, features, layout
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probability of each class, `(n, classes)`, columns in the order of `classes_`."""
        check_is_fitted(self)
        scaled = scaling_of(self._run).apply(self._as_in_fit(X))
        config = self._run.config
        with mended():
            refuse_endless(scaled, "X")
        with undisturbed(config.seed, "predictions"), mended(), explained_failure():
            batch, times = config.train.eval_batch, config.data.times
            found = predict_series(self.model_, scaled, batch, times)
        return found.probabilities.mean(0).double().numpy()

    def predict(self, X: Any) -> np.ndarray:
        """The likeliest class of each series."""
        found = self.predict_proba(X).argmax(1)
        return self.classes_[found]

    def _as_in_fit(self, X: Any) -> Series:
        if is_frame(X) != (self._layout is not None):
            kind = "a data frame" if self._layout is not None else "arrays"
            raise ValueError(f"X must be {kind} as in fit, got {type(X).__name__}")
        layout = self._layout
        if layout is not None:
            # Its labels, if any, do not matter here, and may be unknown.
            X = _as_polars(X)
            X = X.drop(layout.label, strict=False) if layout.label else X
            layout = layout.for_file(layout.file)
        with quiet(not self.verbose):
            series, _ = _read(X, layout, self.features_)
        if series.values.shape[1] != len(self.features_):
            raise ValueError(
                f"X must have {len(self.features_)} features as in fit, got "
                f"{series.values.shape[1]}"
            )
        return series

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = tags.input_tags.allow_nan = True
        return tags


def is_frame(X: Any) -> bool:
    """Whether this is a data frame, of polars or of pandas."""
    return hasattr(X, "columns") and hasattr(X, "dtypes")


def _read(
    X: Any, layout: TableLayout | None, features: tuple[str, ...] | None = None
) -> tuple[Series, SeriesTable | None]:
    """Series without labels, and what else was in a data frame."""
    if not is_frame(X):
        return series_from_arrays(*_arrays(X)), None
    with mended():
        table = read_frame(_as_polars(X), layout or TableLayout(), features)
    return table.series, table


def _beyond_single(series: Series) -> Tensor:
    """Digits beyond single precision, if they matter beside their feature's deviation."""
    values, seen = series.values.double(), series.mask.double()
    count = seen.sum(0).clamp(min=1)
    mean = (values * seen).sum(0) / count
    deviation = (((values - mean) * seen).square().sum(0) / count).sqrt()
    return in_single(values, deviation) - values.float()


def _labels_of(table: SeriesTable, y: Any) -> Any:
    """The labels of a data frame's series: those that are given, or those of its column."""
    known = table.series.labels != UNLABELLED
    if y is not None:
        if known.any():
            raise ValueError(
                f"labels are in the column {table.layout.label!r} of X and in y; leave out one"
            )
        return y
    if not known.all():
        raise ValueError(
            "fit requires y to be passed, or a data frame with a label for each series; "
            f"{int((~known).sum())} of {len(known)} have none"
        )
    return [table.classes[label] for label in table.series.labels.tolist()]


def _arrays(X: Any) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Times and values of each series.

    Raises:
        ValueError: If these are not series.
    """
    if issparse(X):
        raise TypeError("Sparse input is not supported: X must be a list of series or an array")
    refuse_masked(X, "X", "write what was not observed as NaN: X.filled(numpy.nan)")
    if hasattr(X, "__array__"):
        X = np.asarray(X)
        if X.ndim not in (2, 3) and X.dtype != object:
            raise ValueError(
                "X must be a list of series or an array (n, rows, features) or (n, rows), got an "
                f"array of shape {X.shape}. Reshape your data: X[None] is one series"
            )
    elif not isinstance(X, Sequence) or isinstance(X, str):
        raise ValueError(
            f"X must be a list of series, an array or a data frame, got {type(X).__name__}"
        )
    if len(X) == 0:
        raise ValueError("X must hold at least one series, got none")
    pairs = [_pair(number, one) for number, one in enumerate(X)]
    return [times for times, _ in pairs], [values for _, values in pairs]


def _pair(number: int, one: Any) -> tuple[np.ndarray, np.ndarray]:
    is_pair = isinstance(one, tuple)
    if is_pair and len(one) != 2:
        raise ValueError(f"series {number} must be a pair (times, values), got {len(one)} parts")
    try:
        values = _numbers(one[1] if is_pair else one)
        times = _numbers(one[0]) if is_pair else np.arange(1.0 * len(values))
    except (TypeError, ValueError) as error:
        raise type(error)(f"series {number} must hold numbers: {error}") from None
    return times, values[:, None] if values.ndim == 1 else values


def _numbers(array: Any) -> np.ndarray:
    found = np.asarray(array)
    if found.dtype.kind == "c":
        raise ValueError("Complex data not supported")
    # As mere numbers, dates would depend on their unit, and a missing one would be a very low one.
    if found.dtype.kind == "M":
        found = found - np.datetime64(0, "s")
    if found.dtype.kind == "m":
        found = found / np.timedelta64(1, "s")
    return found.astype(np.float64)


def _as_polars(X: Any) -> Any:
    import polars as pl

    if isinstance(X, pl.DataFrame):
        return X
    return pl.DataFrame([_as_column(str(name), X[name]) for name in X.columns])


def _as_column(name: str, column: Any) -> Any:
    """A column of pandas, which has several representations of missing values."""
    import polars as pl

    values = column.to_numpy()
    if values.dtype.kind in "biufM":
        return pl.Series(name, values)
    missing = column.isna().to_numpy()
    cells = [None if lost else one for one, lost in zip(values.tolist(), missing, strict=True)]
    return pl.Series(name, cells, strict=False)
