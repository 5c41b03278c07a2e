"""Masked arrays: what lies below a mask is never taken for a value."""

from typing import Any

import numpy as np
import pytest

from tests.lab.estimators.small import digits, moons, small_density, small_images, small_series

IMAGES, LABELS = digits(10)
SERIES = np.random.RandomState(0).rand(10, 4, 2)
POINTS = moons(10)


def masked(array: Any) -> np.ma.MaskedArray:
    """An array whose first value is masked."""
    hidden = np.zeros(array.shape, bool)
    hidden.flat[0] = True
    return np.ma.array(array, mask=hidden)


@pytest.mark.parametrize(
    ("estimator", "X", "fix"),
    [
        (small_images, masked(IMAGES), r"X\.filled\(0\)"),
        (small_images, [masked(image) for image in IMAGES], r"X\.filled\(0\)"),
        (small_series, masked(SERIES), r"as NaN: X\.filled\(numpy\.nan\)"),
        (small_series, [(np.arange(4.0), masked(one)) for one in SERIES], "as NaN"),
        (small_series, [(masked(np.arange(4.0)), one) for one in SERIES], "as NaN"),
        (small_series, np.array([masked(SERIES[0]), *SERIES[1:, :3], None], object)[:-1], "as NaN"),
        (small_density, masked(POINTS), "leave such points out"),
        (small_density, [*map(masked, POINTS)], "leave such points out"),
    ],
)
def test_masked_samples_are_refused(estimator, X, fix):
    with pytest.raises(ValueError, match=f"X must hold no masked value; .*{fix}"):
        estimator().fit(X, LABELS)


def test_masked_labels_are_refused():
    with pytest.raises(ValueError, match="y must hold no masked value; leave samples without"):
        small_images().fit(IMAGES, masked(LABELS))


def test_masked_samples_are_refused_after_training_too():
    fitted = small_density().fit(POINTS)
    with pytest.raises(ValueError, match="masked"):
        fitted.score_samples(masked(POINTS))


def test_a_mask_that_hides_nothing_changes_nothing():
    plain, open_mask = small_density().fit(POINTS), small_density().fit(np.ma.array(POINTS))
    assert np.array_equal(plain.score_samples(POINTS), open_mask.score_samples(POINTS))
