"""The density of points: a density indeed, in the units of the data."""

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.exceptions import NotFittedError
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import GridSearchCV
from sklearn.utils.estimator_checks import parametrize_with_checks

from bfno.lab.estimators.density import _standard
from bfno.sklearn import DensityEstimator
from tests.lab.estimators.small import moons, small_density

POINTS = moons(40)


@parametrize_with_checks([small_density(random_state=None)])
def test_scikit_learn_takes_it_for_an_estimator(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def integrated():
    """A density in the units of its data, a grid, and the mass of each of its cells."""
    torch.set_default_dtype(torch.float32)
    fitted = small_density(epochs=3).fit(POINTS * np.array([3.0, 0.01]))
    sides = np.linspace(-8, 8, 81)
    grid = np.stack(np.meshgrid(sides, sides), -1).reshape(-1, 2) * fitted.scale_ + fitted.mean_
    cell = (sides[1] - sides[0]) ** 2 * fitted.scale_.prod()
    return fitted, grid, np.exp(fitted.score_samples(grid)) * cell


def test_scores_are_the_logarithm_of_a_density(integrated):
    # Eight deviations hold all but 1e-6 of the mass; the sum of a smooth density over a fine grid
    # is its integral.
    assert integrated[2].sum() == pytest.approx(1, abs=1e-4)


def test_samples_come_from_the_density(integrated):
    fitted, grid, masses = integrated
    mean = masses @ grid
    deviation = np.sqrt(masses @ (grid - mean) ** 2)
    drawn = fitted.sample(2000, random_state=1)
    # Five standard errors of a mean, and of the deviation of nearly normal numbers.
    assert (np.abs(drawn.mean(0) - mean) < 5 * deviation / 2000**0.5).all()
    assert (np.abs(drawn.std(0) / deviation - 1) < 5 / 4000**0.5).all()
    assert np.array_equal(drawn, fitted.sample(2000, random_state=1))
    assert not np.array_equal(drawn[:5], fitted.sample(5, random_state=2))
    assert fitted.sample().shape == (1, 2)


def test_scores_change_with_the_units_as_densities_do():
    # Powers of two, which change no digit: the standardised points are the same.
    factors = np.array([2.0**20, 2.0**-9])
    plain = small_density().fit(POINTS)
    scaled = small_density().fit(POINTS * factors)
    expected = plain.score_samples(POINTS) - np.log(factors).sum()
    np.testing.assert_allclose(scaled.score_samples(POINTS * factors), expected, rtol=1e-12)
    drawn = plain.sample(5, random_state=0) * factors
    np.testing.assert_allclose(scaled.sample(5, random_state=0), drawn, rtol=1e-12)


def test_a_score_does_not_depend_on_its_neighbours():
    fitted = small_density(epochs=3).fit(POINTS)
    alone = [fitted.score_samples(point[None])[0] for point in POINTS[:5]]
    # The solver's tolerance is 1e-8.
    np.testing.assert_allclose(fitted.score_samples(POINTS)[:5], alone, atol=1e-6)


def test_the_score_is_the_mean_over_points():
    fitted = small_density().fit(POINTS)
    assert fitted.score(POINTS) == pytest.approx(fitted.score_samples(POINTS).mean())


def test_points_of_any_number_of_coordinates_have_a_density():
    draw = np.random.RandomState(0)
    for coordinates in (1, 5):
        points = draw.normal(size=(30, coordinates))
        fitted = small_density().fit(points)
        assert fitted.n_features_in_ == coordinates
        assert fitted.score_samples(points).shape == (30,)


@pytest.mark.parametrize(
    ("points", "said"),
    [
        (np.zeros((9, 2)) + 7, "column 0 of X must vary, got 7 in all 9 points"),
        (np.array([[1.0, 2.0]]), "minimum of 2 is required"),
        (np.full((5, 2), np.nan), "NaN"),
        (np.zeros((5, 4, 4)), "dim 3"),
    ],
)
def test_what_has_no_density_is_refused(points, said):
    with pytest.raises(ValueError, match=said):
        small_density().fit(points)


def test_samples_have_to_be_some_and_only_of_what_is_fitted():
    with pytest.raises(NotFittedError):
        small_density().sample()
    fitted = small_density().fit(POINTS)
    counts: list[Any] = [0, -1, 2.5]
    for count in counts:
        with pytest.raises(ValueError, match="n_samples must be a whole number of at least 1"):
            fitted.sample(count)


@pytest.mark.slow
def test_by_default_it_finds_two_moons():
    train, test = moons(1000)[:500], moons(1000)[500:]
    fitted = DensityEstimator(random_state=0).fit(train)
    # Measured where this was written: -1.2 nats; a normal density has -1.9.
    assert fitted.score(test) > GaussianMixture(1).fit(train).score(test) + 0.3


@pytest.mark.slow
def test_a_search_finds_the_longer_training():
    search = GridSearchCV(small_density(lr=1e-2), {"epochs": [1, 40]}, cv=2)
    assert search.fit(moons(200)).best_params_ == {"epochs": 40}
    assert search.score(POINTS) == search.best_estimator_.score(POINTS)


def _drawn(count=60):
    return np.random.RandomState(0).randn(count, 2)


@pytest.mark.parametrize("unit", [1e155, 1e300, 1e-155, 1e-170, 1e-300])
def test_any_unit_will_do(unit):
    """The square of a deviation may be too large or too small for a number."""
    plain, other = (small_density().fit(points) for points in (_drawn(), unit * _drawn()))
    np.testing.assert_allclose(other.scale_ / unit, plain.scale_, rtol=1e-12)
    found = other.score_samples(unit * _drawn(5)) + 2 * np.log(unit)
    np.testing.assert_allclose(found, plain.score_samples(_drawn(5)), rtol=1e-5)


def test_ordinary_points_are_standardised_as_ever():
    points = _drawn() * [3.7, 1e-4] + [120.3, 0.01]
    mean, scale = _standard(points)
    assert np.array_equal(mean, points.mean(0)) and np.array_equal(scale, points.std(0))


@pytest.mark.parametrize(
    ("points", "said"),
    [
        (
            _drawn() + np.array([1e15, 0]),
            "column 0 of X varies too little around 1e[+]15 to be told from",
        ),
        (np.where(_drawn() > 0, 5e-324, 0), "column 0 of X varies too little around .* to be told"),
        (_drawn() * [1, 0] + [0, 3], "column 1 of X must vary, got 3 in all 60 points"),
        (np.where(_drawn() > 0, 1.7e308, -1.7e308), "column 0 of X is too large"),
    ],
)
def test_columns_that_cannot_be_standardised_are_told_why(points, said):
    with pytest.raises(ValueError, match=said):
        small_density().fit(points)
