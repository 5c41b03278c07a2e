"""Quality of probabilities, with the uncertainty of a finite test split.

Everything is computed for many weightings of the samples at once: one for the value itself, and one
per resampling of the series for its confidence interval.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

__all__ = ["auprc", "auroc", "classification_metrics", "confidence_intervals"]

_Array = np.ndarray
# Numbers in the largest array of a piece of the work.
_MOST_NUMBERS = 4_000_000


def classification_metrics(
    probabilities: _Array, labels: _Array, weights: _Array | None = None
) -> dict[str, _Array]:
    """Accuracy, macro-F1, AUROC and AUPRC for each of several weightings.

    With two classes, the second is the one to detect; with more, areas are averaged over the
    classes that occur. Metrics that are undefined for a single class are left out.

    Args:
        probabilities: `(samples, classes)`.
        labels: `(samples,)`, from zero.
        weights: `(weightings, samples)`; None weights all samples equally.

    Returns:
        An array `(weightings,)` for each name.
    """
    weights = np.ones((1, len(labels))) if weights is None else weights
    right = (probabilities.argmax(1) == labels).astype(float)
    total = weights.sum(1)
    found = {"accuracy": weights @ right / total}
    found["macro_f1"] = _macro_f1(probabilities.argmax(1), labels, weights)
    present = np.unique(labels)
    wanted = [1] if probabilities.shape[1] == 2 else list(present)
    if len(present) > 1:
        for name, area in (("auroc", auroc), ("auprc", auprc)):
            areas = [area(probabilities[:, one], labels == one, weights) for one in wanted]
            found[name] = _mean_where_known(areas)
    return found


def confidence_intervals(
    probabilities: _Array,
    labels: _Array,
    series: _Array,
    *,
    resamplings: int = 1000,
    level: float = 0.95,
) -> dict[str, tuple[float, float]]:
    """Percentile bootstrap intervals of `classification_metrics`.

    Whole series are drawn, because rows of one series are not independent samples. The draw is
    always the same.

    Args:
        probabilities: `(samples, classes)`.
        labels: `(samples,)`.
        series: `(samples,)`: number of the series that a sample belongs to, from zero.
        resamplings: Number of draws.
        level: Probability that an interval should cover.
    """
    generator = np.random.default_rng(0)
    count = int(series.max()) + 1
    chunk = max(1, min(resamplings, _MOST_NUMBERS // max(len(labels), 1)))
    drawn: dict[str, list[_Array]] = {}
    for start in range(0, resamplings, chunk):
        size = min(chunk, resamplings - start)
        times = generator.multinomial(count, np.full(count, 1 / count), size=size)
        # A draw that misses every labelled sample has no accuracy.
        weights = times[:, series].astype(float)
        weights = weights[weights.sum(1) > 0]
        for name, values in classification_metrics(probabilities, labels, weights).items():
            drawn.setdefault(name, []).append(values)
    tails = (50 * (1 - level), 50 * (1 + level))
    return {name: _bounds(np.concatenate(values), tails) for name, values in drawn.items()}


def auroc(scores: _Array, positive: _Array, weights: _Array) -> _Array:
    """Area under the receiver operating characteristic: how often a positive outranks a negative.

    Args:
        scores: `(samples,)`.
        positive: `(samples,)`, boolean.
        weights: `(weightings, samples)`.

    Example:
        >>> auroc(np.array([0.1, 0.4, 0.4]), np.array([False, False, True]), np.ones((1, 3)))
        array([0.75])
    """
    hits, misses = _cumulative(scores, positive, weights)
    steps = np.diff(misses, prepend=0, axis=1)
    before = np.concatenate((np.zeros_like(hits[:, :1]), hits[:, :-1]), axis=1)
    area = (steps * (hits + before) / 2).sum(1)
    return _ratio(area, hits[:, -1] * misses[:, -1])


def auprc(scores: _Array, positive: _Array, weights: _Array) -> _Array:
    """Average precision: the precision at every threshold, weighted by the recall it adds.

    Args:
        scores: `(samples,)`.
        positive: `(samples,)`, boolean.
        weights: `(weightings, samples)`.
    """
    hits, misses = _cumulative(scores, positive, weights)
    found = np.diff(hits, prepend=0, axis=1)
    precision = _ratio(hits, hits + misses, 0.0)
    return _ratio((found * precision).sum(1), hits[:, -1])


def _cumulative(scores: _Array, positive: _Array, weights: _Array) -> tuple[_Array, _Array]:
    """Weight of the positives and of the negatives above each distinct score, from the highest."""
    order = np.argsort(-scores, kind="stable")
    last_of_ties = np.append(np.diff(scores[order]) != 0, True)
    weights, positive = weights[:, order], positive[order]
    hits = np.cumsum(weights * positive, axis=1)[:, last_of_ties]
    misses = np.cumsum(weights * ~positive, axis=1)[:, last_of_ties]
    return hits, misses


def _macro_f1(predicted: _Array, labels: _Array, weights: _Array) -> _Array:
    """Mean F1 over the classes that occur or are predicted."""
    return _mean_where_known([*_f1_of_classes(predicted, labels, weights)])


def _f1_of_classes(predicted: _Array, labels: _Array, weights: _Array) -> Iterator[_Array]:
    weigh: Callable[[_Array], _Array] = lambda which: weights @ which.astype(float)  # noqa: E731
    for one in np.union1d(predicted, labels):
        hits = weigh((predicted == one) & (labels == one))
        yield _ratio(2 * hits, weigh(predicted == one) + weigh(labels == one))


def _mean_where_known(values: list[_Array]) -> _Array:
    """Mean over the classes that a weighting leaves, which a draw of few samples may miss."""
    known = np.isfinite(values)
    return _ratio(np.where(known, values, 0.0).sum(0), known.sum(0).astype(float))


def _ratio(above: _Array, below: _Array, otherwise: float = np.nan) -> _Array:
    return np.divide(above, below, out=np.full_like(above, otherwise), where=below > 0)


def _bounds(values: _Array, tails: tuple[float, float]) -> tuple[float, float]:
    low, high = np.nanpercentile(values, tails)
    return float(low), float(high)
