"""Predictive intervals of runs: fitted on validation series alone, kept, measured, and missed."""

import dataclasses
import json
from typing import Any

import pytest
import torch

from bfno.lab.data import Series
from bfno.lab.errors import ConfigError, NumericalError
from bfno.lab.experiments.experiment import TestRequest
from bfno.lab.experiments.series import experiment as series_experiment
from bfno.lab.experiments.series.holdout import expect_hidden, hidden_rows
from bfno.lab.experiments.series.intervals import (
    FACT,
    Coverage,
    SeriesIntervals,
    fit_intervals,
    hidden_coverage,
    intervals_of,
)
from bfno.lab.runs.folder import RunFolder
from bfno.lab.runs.load import open_run
from bfno.lab.runs.session import resume, start
from tests.lab.experiments.series.runs import tiny


class _Zeros(torch.nn.Module):
    """Expects zero everywhere."""

    couples_series = False
    samples = 1

    def __init__(self, looks_ahead: bool) -> None:
        super().__init__()
        self.looks_ahead = looks_ahead
        self.unused = torch.nn.Parameter(torch.zeros(1))

    def reconstruct(self, times, values, mask, at):
        return torch.zeros(1, *at.shape, values.shape[-1])


def _zero(looks_ahead: bool) -> Any:
    return _Zeros(looks_ahead)


def _noise(count: int, seed: int, rows: int = 20, scale: float = 1.0) -> Series:
    """Series of two features; the second is three times as noisy, and seen half the time."""
    draw = torch.Generator().manual_seed(seed)
    times = torch.rand(count, rows, generator=draw, dtype=torch.float64).sort(dim=1).values
    values = scale * torch.randn(count * rows, 2, generator=draw) * torch.tensor([1.0, 3.0])
    mask = torch.rand(count * rows, 2, generator=draw) < torch.tensor([1.0, 0.5])
    ids = tuple(map(str, range(count)))
    starts = torch.arange(count + 1) * rows
    labels = torch.zeros(count, dtype=torch.long)
    return Series(times.flatten(), values * mask, mask, labels, starts, ids, by_row=False)


@pytest.mark.parametrize("looks_ahead", [False, True])
def test_intervals_cover_nine_in_ten_hidden_values(looks_ahead):
    model = _zero(looks_ahead)
    fitted = fit_intervals(model, _noise(200, 0), 50)
    assert (fitted.between is not None) == looks_ahead and fitted.series == 200
    covered = hidden_coverage(fitted, model, _noise(200, 1), 50)
    assert covered.metrics()["coverage_90"] == pytest.approx(0.9, abs=0.015)
    for feature, deviation in enumerate((1.0, 3.0)):
        half = fitted.after.quantiles[2, feature] * fitted.after.noise[feature]
        width = half * fitted.after.growth.mean()
        assert width.item() == pytest.approx(1.645 * deviation, rel=0.15)


def test_a_series_that_the_model_fits_badly_gets_a_wider_interval():
    fitted = fit_intervals(_zero(True), _noise(50, 0), 50)
    errors = torch.tensor([[0.1, 0.1]] * 10 + [[9.0, 9.0]] * 10)
    owner = torch.tensor([0] * 10 + [1] * 10)
    easy, hard = fitted.difficulty(errors, errors == errors, owner).tolist()
    assert easy < 1 < hard


def test_intervals_survive_the_record():
    fitted = fit_intervals(_zero(True), _noise(30, 0), 50)
    again = SeriesIntervals.from_facts(json.loads(json.dumps(fitted.as_facts())))
    series = _noise(10, 2)
    assert hidden_coverage(again, _zero(True), series, 9) == hidden_coverage(
        fitted, _zero(True), series, 9
    )


def test_eight_series_are_too_few():
    with pytest.raises(ConfigError, match=r"8 validation series .* too few .* takes 9"):
        fit_intervals(_zero(False), _noise(8, 0), 50)


def test_series_of_one_row_cover_nothing():
    fitted = fit_intervals(_zero(True), _noise(30, 0), 50)
    covered = hidden_coverage(fitted, _zero(True), _noise(4, 1, rows=1), 50)
    assert covered == Coverage() and covered.metrics() == {}


def test_the_horizon_is_the_time_since_the_last_row_shown():
    series = _noise(1, 3, rows=6)
    hidden = torch.tensor([False, False, True, False, True, True])
    found = expect_hidden(_zero(True), series, hidden, 5)
    times = series.times
    expected = torch.stack((times[2] - times[1], times[4] - times[3], times[5] - times[3]))
    assert torch.equal(found.horizon, expected)
    assert found.between.tolist() == [True, False, False]
    assert torch.equal(found.values, series.values[hidden].double())


def test_what_a_model_is_shown_does_not_depend_on_hidden_values():
    run = tiny("latent-ode")
    data = run.load()
    torch.manual_seed(0)
    model = run.build(run.facts(data)).eval()
    hidden = hidden_rows(data.test, "extrapolation", 0.3)
    other = dataclasses.replace(
        data.test, values=data.test.values.where(~hidden[:, None], 1e3 * data.test.mask)
    )
    one, two = (expect_hidden(model, series, hidden, 10) for series in (data.test, other))
    assert torch.equal(one.prediction, two.prediction)
    assert not torch.equal(one.values, two.values)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "gru-d"
    start(tiny("gru-d"), folder)
    return folder


def test_a_run_keeps_its_intervals_and_their_coverage(run):
    opened = open_run(run)
    found = opened.config.evaluate(opened, TestRequest())
    record = RunFolder(run).finished_record()
    assert record is not None
    for name in ("coverage_90", "width_90"):
        assert record.result[f"test_{name}"] == pytest.approx(found[name])
    assert found["hidden_values"] > 100
    assert intervals_of(opened).series == 10


def test_only_validation_series_decide(monkeypatch, tmp_path):
    shown = []
    fit = series_experiment.fit_intervals
    monkeypatch.setattr(
        series_experiment,
        "fit_intervals",
        lambda model, series, batch: shown.append(series) or fit(model, series, batch),
    )
    config = tiny("gru-d")
    start(config, tmp_path / "run")
    (series,) = shown
    assert series.ids == config.load().validation.ids


def test_an_old_run_says_that_it_has_none_and_resume_adds_them(run, tmp_path, caplog):
    folder = RunFolder(run)
    record = folder.finished_record()
    assert record is not None
    new = intervals_of(open_run(run)).as_facts()
    facts = {name: value for name, value in record.facts.items() if name != FACT}
    result = {name: value for name, value in record.result.items() if "_90" not in name}
    folder.write_record(dataclasses.replace(record, facts=facts, result=result))
    old = open_run(run)
    with pytest.raises(ConfigError, match="bfno resume"):
        intervals_of(old)
    assert "coverage_90" not in old.config.evaluate(old, TestRequest())
    assert "bfno resume" in caplog.text
    resume(run)
    assert intervals_of(open_run(run)).as_facts() == new


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": {"train_limit": 20}}, "too few"),
        ({"data": {"validation": 0.0}}, "no validation series"),
        ({"loss": {"reconstruction": 0.0}}, "labels alone"),
    ],
)
def test_a_run_without_intervals_says_why(tmp_path, changes, message):
    start(tiny("gru-d", {**changes, "train": {"epochs": 1}}), tmp_path / "run")
    with pytest.raises(ConfigError, match=message):
        intervals_of(open_run(tmp_path / "run"))


def test_a_solver_that_gives_up_after_the_training_does_not_lose_the_run(
    monkeypatch, tmp_path, caplog
):
    def give_up(*_):
        raise NumericalError("the solver", "gave up", "raise solver.rtol")

    monkeypatch.setattr(series_experiment, "fit_intervals", give_up)
    record = start(tiny("gru-d"), tmp_path / "run")
    assert record.is_finished and "test_accuracy" in record.result
    assert "gave up" in caplog.text
