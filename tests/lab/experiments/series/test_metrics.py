"""Metrics of many weightings at once, against scikit-learn one at a time."""

import numpy as np
import pytest
from sklearn import metrics as oracle

from bfno.lab.experiments.series.metrics import (
    auprc,
    auroc,
    classification_metrics,
    confidence_intervals,
)


def _sample(seed: int, classes: int = 2, count: int = 60) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, classes, count)
    # Rounded, so that there are ties; shifted, so that the truth is likelier than chance.
    scores = generator.random((count, classes)).round(1) + 0.3 * np.eye(classes)[labels]
    return scores / scores.sum(1, keepdims=True), labels


@pytest.mark.parametrize("seed", range(20))
def test_areas_are_those_of_scikit_learn_for_every_weighting(seed):
    probabilities, labels = _sample(seed)
    weights = np.random.default_rng(seed + 100).integers(0, 4, (5, len(labels))).astype(float)
    scores, positive = probabilities[:, 1].round(2), labels == 1
    for ours, theirs in ((auroc, oracle.roc_auc_score), (auprc, oracle.average_precision_score)):
        expected = [theirs(positive, scores, sample_weight=row) for row in weights]
        np.testing.assert_allclose(ours(scores, positive, weights), expected, rtol=1e-12)


@pytest.mark.parametrize("classes", [2, 4])
def test_all_metrics_are_those_of_scikit_learn(classes):
    probabilities, labels = _sample(3, classes)
    found = {k: float(v[0]) for k, v in classification_metrics(probabilities, labels).items()}
    guessed = probabilities.argmax(1)
    wanted = range(classes) if classes > 2 else (1,)
    expected = {
        "accuracy": oracle.accuracy_score(labels, guessed),
        "macro_f1": oracle.f1_score(labels, guessed, average="macro"),
        "auroc": np.mean(
            [oracle.roc_auc_score(labels == one, probabilities[:, one]) for one in wanted]
        ),
        "auprc": np.mean(
            [oracle.average_precision_score(labels == one, probabilities[:, one]) for one in wanted]
        ),
    }
    assert found == pytest.approx(expected, rel=1e-12)


def test_a_split_of_one_class_has_no_areas():
    found = classification_metrics(np.array([[0.2, 0.8], [0.6, 0.4]]), np.array([1, 1]))
    assert set(found) == {"accuracy", "macro_f1"} and found["accuracy"] == 0.5


def test_a_class_that_never_occurs_does_not_spoil_the_areas():
    probabilities, labels = _sample(5, 3)
    padded = np.concatenate((probabilities, np.zeros((len(labels), 2))), axis=1)
    for name, value in classification_metrics(probabilities, labels).items():
        np.testing.assert_allclose(classification_metrics(padded, labels)[name], value)


def test_an_interval_holds_the_value_and_narrows_with_more_series():
    widths = []
    for count in (100, 1600):
        probabilities, labels = _sample(7, count=count)
        value = classification_metrics(probabilities, labels)["auroc"][0]
        low, high = confidence_intervals(probabilities, labels, np.arange(count))["auroc"]
        assert low < value < high
        widths.append(high - low)
    # Sixteen times the series: a quarter of the width, within the noise of the draws.
    assert widths[1] == pytest.approx(widths[0] / 4, rel=0.25)


def test_intervals_cover_the_truth_as_often_as_they_say():
    generator, truth, hits, trials = np.random.default_rng(1), 0.7, 0, 200
    for _ in range(trials):
        right = generator.random(150) < truth
        probabilities = np.where(right[:, None], [[1.0, 0.0]], [[0.0, 1.0]])
        labels = np.zeros(150, dtype=int)
        low, high = confidence_intervals(probabilities, labels, np.arange(150), resamplings=300)[
            "accuracy"
        ]
        hits += low <= truth <= high
    # Five standard deviations of a share of 200 draws around 0.95 are 0.077.
    assert hits / trials == pytest.approx(0.95, abs=0.077)


def test_rows_of_one_series_are_drawn_together():
    """Ten copies of every row in its own series must not make the interval narrower."""
    probabilities, labels = _sample(9, count=80)
    once = confidence_intervals(probabilities, labels, np.arange(80))
    ten = confidence_intervals(
        probabilities.repeat(10, 0), labels.repeat(10), np.arange(80).repeat(10)
    )
    for name, bounds in once.items():
        assert ten[name] == pytest.approx(bounds, abs=1e-12)


def test_a_draw_without_a_rare_class_is_judged_by_the_classes_that_it_has():
    labels = np.array([0] * 20 + [1] * 9 + [2])  # the third is missing in every third draw
    for name, interval in confidence_intervals(np.eye(3)[labels], labels, np.arange(30)).items():
        assert interval == (1.0, 1.0), name  # of answers that are all right
    probabilities, _ = _sample(11, 3, count=30)
    guessed = probabilities.argmax(1)
    weights = np.ones((2, 30))
    weights[1, (labels == 2) | (guessed == 2)] = 0
    kept = weights[1] > 0
    found = classification_metrics(probabilities, labels, weights)
    expected = oracle.f1_score(labels[kept], guessed[kept], average="macro")
    assert found["macro_f1"][1] == pytest.approx(expected, rel=1e-12)
    areas = [
        oracle.roc_auc_score(labels[kept] == one, probabilities[kept, one]) for one in range(2)
    ]
    assert found["auroc"][1] == pytest.approx(np.mean(areas), rel=1e-12)
