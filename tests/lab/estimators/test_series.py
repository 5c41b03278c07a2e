"""Irregular series in arrays and data frames."""

import pickle

import numpy as np
import polars as pl
import pytest
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.utils.estimator_checks import parametrize_with_checks

from bfno.sklearn import SeriesClassifier
from tests.lab.estimators.small import small_series, waves

SERIES, LABELS = waves(30)
# Checks of scikit-learn that take the columns of an array for features; here they are times.
OF_FEATURES = {
    "check_n_features_in": "series may have any number of rows, so there is no n_features_in_",
    "check_n_features_in_after_fitting": "longer and shorter series than in fit are welcome",
    "check_classifiers_train": "asks for 83 % after a short training, and for one length of series",
    "check_classifier_data_not_an_array": "a data frame is a table with columns for id and time",
    "check_estimators_empty_data_messages": "no columns are a series without rows, and so called",
}


@pytest.mark.slow
@parametrize_with_checks(
    [small_series(random_state=None, epochs=15)], expected_failed_checks=lambda _: OF_FEATURES
)
def test_scikit_learn_takes_it_for_an_estimator(estimator, check):
    check(estimator)


def as_frame(series, labels=None):
    rows = [
        {"id": f"s{number}", "time": time, "x0": row[0], "x1": row[1]}
        | ({} if labels is None else {"label": labels[number]})
        for number, (times, values) in enumerate(series)
        for time, row in zip(times, values, strict=True)
    ]
    return pl.DataFrame(rows, infer_schema_length=None)


@pytest.fixture(scope="module")
def fitted():
    return small_series(epochs=3).fit(SERIES, LABELS)


def test_probabilities_belong_to_the_classes(fitted):
    found = fitted.predict_proba(SERIES)
    assert list(fitted.classes_) == ["fast", "slow"] and fitted.features_ == ("x0", "x1")
    np.testing.assert_allclose(found.sum(1), 1, rtol=1e-6)  # single precision
    assert np.array_equal(fitted.predict(SERIES), fitted.classes_[found.argmax(1)])
    assert 0 <= fitted.score(SERIES, LABELS) <= 1


def test_a_copy_says_the_same(fitted):
    again = pickle.loads(pickle.dumps(fitted))
    assert np.array_equal(again.predict_proba(SERIES), fitted.predict_proba(SERIES))


def test_predictions_keep_the_order_of_the_series(fitted):
    order = np.random.RandomState(0).permutation(len(SERIES))
    shuffled = fitted.predict_proba([SERIES[number] for number in order])
    # Single precision, and other neighbours in a batch.
    np.testing.assert_allclose(shuffled, fitted.predict_proba(SERIES)[order], atol=1e-6)


def test_rows_may_come_in_any_order_and_from_any_time_on(fitted):
    times, values = SERIES[0]
    other = (times[::-1] + 100, values[::-1])
    expected = fitted.predict_proba([(times, values)])
    # Taking 100 away again rounds the times.
    np.testing.assert_allclose(fitted.predict_proba([other]), expected, atol=1e-6)


def test_a_frame_is_the_same_as_the_list(fitted):
    frame = as_frame(SERIES)
    same = small_series(epochs=3).fit(frame, LABELS)
    assert np.array_equal(same.predict_proba(frame), fitted.predict_proba(SERIES))
    labelled = small_series(epochs=3).fit(as_frame(SERIES, LABELS))
    assert list(labelled.classes_) == ["fast", "slow"]
    found = labelled.predict_proba(as_frame(SERIES, ["unknown"] * len(SERIES)))
    assert np.array_equal(found, fitted.predict_proba(SERIES))


def test_a_frame_of_pandas_is_the_same_as_one_of_polars(fitted):
    pandas = pytest.importorskip("pandas", reason="needs pandas, which is not installed")
    rows = as_frame(SERIES, LABELS).to_dict(as_series=False)
    frame = pandas.DataFrame(rows)
    same = small_series(epochs=3).fit(frame)
    assert np.array_equal(same.predict_proba(frame), fitted.predict_proba(SERIES))
    words = frame.assign(
        ward=pandas.Categorical([None if lost else "a" for lost in frame["x0"].isna()])
    )
    words["when"] = pandas.Timestamp("2024-01-01") + pandas.to_timedelta(words.pop("time"), "h")
    named = small_series(settings={"data.columns": ("id", "when", "label")}).fit(words)
    assert named.features_ == ("x0", "x1", "ward=a")


def test_arrays_are_series_at_whole_times():
    cube = np.random.RandomState(0).rand(20, 6, 2)
    labels = np.arange(20) % 2
    given = [cube, list(cube), [(np.arange(6), one) for one in cube]]
    found = [small_series().fit(X, labels).predict_proba(X) for X in given]
    assert np.array_equal(found[0], found[1]) and np.array_equal(found[0], found[2])
    flat = cube[..., 0]
    single = small_series().fit(flat, labels)
    assert np.array_equal(single.predict_proba(flat), single.predict_proba(cube[..., :1]))


def test_nan_is_what_was_not_observed():
    times, values = SERIES[0]
    without = [(np.r_[times, times[-1]], np.r_[values, [[np.nan, np.nan]]]), *SERIES[1:]]
    found = [small_series().fit(X, LABELS).predict_proba(SERIES) for X in (SERIES, without)]
    assert np.array_equal(found[0], found[1])


@pytest.mark.parametrize("unit", ["M8[s]", "M8[ms]", "M8[ns]", "m8[us]"])
def test_dates_count_in_seconds_in_any_stored_unit(unit):
    seconds = [(np.rint(1000 * times), values) for times, values in SERIES]
    expected = small_series().fit(seconds, LABELS).predict_proba(seconds)
    dates = [(times.astype("M8[s]" if unit[0] == "M" else "m8[s]"), v) for times, v in seconds]
    whole = small_series().fit(dates, LABELS)
    assert np.array_equal(whole.predict_proba(dates), expected)
    other = [(times.astype(unit), values) for times, values in dates]
    assert np.array_equal(whole.predict_proba(other), expected)


def test_a_date_that_is_missing_is_refused():
    dates = np.array(["2024-03-04", "NaT"], "M8[s]"), np.zeros(2)
    with pytest.raises(ValueError, match="times of series 0 must be finite"):
        small_series().fit([dates] * 2, ["a", "b"])
    with pytest.raises(ValueError, match="times of series 0 must be finite"):
        small_series().fit([(dates[0] - dates[0][0], dates[1])] * 2, ["a", "b"])


def test_a_neural_ode_is_the_default():
    loose = {"solver.rtol": 0.1, "solver.atol": 0.1}
    fitted = SeriesClassifier(random_state=0, epochs=1, settings=loose)
    assert fitted.fit(SERIES, LABELS).history_[0]["forward_nfe"] > 0


@pytest.mark.parametrize(
    ("series", "said"),
    [
        ([], "at least one series"),
        ("abc", "list of series"),
        (7, "list of series"),
        ([(1, 2, 3)] * 2, r"series 0 must be a pair \(times, values\), got 3 parts"),
        ([np.zeros((3, 2)), np.zeros((3, 1))], "series 1 must have 2 features .* got 1"),
        ([np.zeros((3, 2)), np.zeros((0, 2))], "series 1 must have at least one row"),
        ([(np.zeros(2), np.zeros(3))] * 2, r"series 0 .*\(2,\) and \(3, 1\)"),
        ([(np.array([0, np.nan]), np.zeros(2))] * 2, "times of series 0 must be finite"),
        ([np.array([1.0, np.inf])] * 2, "values of series 0 must be smaller than"),
        ([["a", "b"]] * 2, "series 0 must hold numbers"),
        (np.zeros((2, 3, 4, 5)), r"array of shape \(2, 3, 4, 5\)"),
        (pl.DataFrame({"time": [0, 1], "x": [1, 2]}), "the data frame: has no column 'id'"),
        (pl.DataFrame({"id": [], "time": [], "x": []}), "the data frame: holds no rows"),
    ],
)
def test_what_is_no_series_is_refused(series, said):
    with pytest.raises(ValueError, match=said):
        small_series().fit(series, ["a", "b"])


def test_labels_are_given_once_and_to_all():
    with pytest.raises(ValueError, match="column 'label' of X and in y; leave out one"):
        small_series().fit(as_frame(SERIES, LABELS), LABELS)
    with pytest.raises(ValueError, match="30 of 30 have none"):
        small_series().fit(as_frame(SERIES))
    with pytest.raises(ValueError, match="requires y"):
        small_series().fit(SERIES)
    with pytest.raises(ValueError, match="one label for each of the 30 series, got 29"):
        small_series().fit(SERIES, LABELS[1:])


def test_predictions_are_of_such_series_as_were_learned(fitted):
    with pytest.raises(NotFittedError):
        small_series().predict(SERIES)
    with pytest.raises(ValueError, match="must be arrays as in fit, got DataFrame"):
        fitted.predict(as_frame(SERIES))
    with pytest.raises(ValueError, match="2 features as in fit, got 3"):
        fitted.predict([np.zeros((4, 3))])
    with pytest.raises(ValueError, match=r"X: series '0' lasts .* times as long"):
        fitted.predict([(np.array([0.0, 1e6]), np.zeros((2, 2)))])


@pytest.mark.slow
def test_by_default_it_tells_waves_apart_and_a_search_runs():
    series, labels = waves(200)
    fitted = SeriesClassifier(random_state=0).fit(series[:150], labels[:150])
    assert fitted.score(series[150:], labels[150:]) > 0.7  # chance is 50 %
    search = GridSearchCV(small_series(), {"lr": [1e-30, 1e-2]}, cv=2)
    assert search.fit(series, labels).best_score_ >= 0.4


def test_a_kept_run_tells_samples_apart_that_single_precision_does_not(tmp_path):
    first, other = (
        [(times, np.round(values) + 1e9 + 4 * by * values) for times, values in SERIES]
        for by in (0, 1)
    )
    for (_, one), (_, two) in zip(first, other, strict=True):
        assert np.array_equal(np.float32(one), np.float32(two), equal_nan=True)
    small_series(checkpoints=tmp_path / "run").fit(first, LABELS)
    with pytest.raises(ValueError, match="samples"):
        small_series(checkpoints=tmp_path / "run").fit(other, LABELS)


def test_an_offset_of_the_values_changes_next_to_nothing():
    moved = [(times, values + 1e8) for times, values in SERIES]
    here, there = (small_series().fit(some, LABELS).predict_proba(some) for some in (SERIES, moved))
    # 1e8 leaves eight digits of values around 1, and single precision has no more.
    np.testing.assert_allclose(there, here, atol=1e-5)
