"""Lines through series: their numbers, their units, and what is hidden from the model."""

import dataclasses
import math
from types import SimpleNamespace

import pytest
import torch

from bfno.lab.data import synthetic_series
from bfno.lab.errors import ConfigError, DataError
from bfno.lab.experiments.experiment import TrainedRun
from bfno.lab.experiments.resolve import resolve
from bfno.lab.experiments.series.reconstruction import (
    ReconstructionRequest,
    evaluate_hold_out,
    reconstruct,
)
from bfno.models import SeriesModel

UNSCALED = {"span": 1.0, "shift": [0.0, 0.0], "scale": [1.0, 1.0], "limit": None}


def _untrained(experiment: str, **changes) -> TrainedRun:
    config = resolve(experiment, scale="smoke", changes={"threads": 1, **changes})
    facts = config.facts(config.load())
    torch.manual_seed(3)
    return TrainedRun(config, config.build(facts).eval(), 0, facts)


@pytest.fixture(scope="module")
def run() -> TrainedRun:
    return _untrained("series/latent-ode")


def _table(folder, rows: str):
    file = folder / "table.csv"
    file.write_text("id,time,x,y\n" + rows)
    return file


def test_the_lines_are_those_of_the_model_in_the_units_of_the_data(run):
    found = reconstruct(run, ReconstructionRequest(points=7))
    series = run.config.load().test
    scaling = run.facts["scaling"]
    assert [one.series for one in found] == list(series.ids[:3])
    for number, one in enumerate(found):
        batch = series.batch(torch.tensor([number]))
        grid = torch.linspace(float(batch.times[0, 0]), float(batch.times[0, -1]), 7)
        at = torch.cat((grid, batch.times[0].float()))[None]
        with torch.no_grad():
            paths = run.model.reconstruct(batch.times.float(), batch.values, batch.mask, at)[:, 0]
        for place, name in enumerate(("x", "y")):
            restored = paths[..., place] * scaling["scale"][place] + scaling["shift"][place]
            curve = one.curves[name]
            expected = (restored.mean(0), restored.amin(0), restored.amax(0))
            for line, wanted in zip((curve.mean, curve.low, curve.high), expected, strict=True):
                assert line == pytest.approx(wanted[:7].tolist(), abs=1e-4)
            assert curve.at == pytest.approx((grid * scaling["span"]).tolist(), abs=1e-5)
        assert one.curves["x"].low != one.curves["x"].high


def test_features_that_never_change_in_a_series_are_shown_last(tmp_path):
    table = tmp_path / "table.csv"
    head = "id,time,age,height,site,ward,pulse,temp,label"
    rows = [
        f"{one},{row},{one},{170 + one},1,{one % 2},{one + row},{row if row else ''},{one % 2}"
        for one in range(40)
        for row in range(4)
    ]
    table.write_text("\n".join([head, *rows]))
    data = {"path": str(table), "validation": 0.2}
    run = _untrained("series/latent-ode", data=data)
    for one in reconstruct(run, ReconstructionRequest(points=2)):
        assert set(one.curves) == {"age", "height", "pulse", "temp"}
    # A single row of each series cannot change: what is observed most often comes first.
    (one,) = reconstruct(run, ReconstructionRequest(table=_one_row(tmp_path), points=2))
    assert set(one.curves) == {"height", "site", "ward", "temp"}


def _one_row(folder):
    file = folder / "one.csv"
    file.write_text("id,time,age,height,site,ward,pulse,temp\na,0,,1,2,3,,4\n")
    return file


def test_the_error_is_that_at_the_observed_times(run):
    one = reconstruct(run, ReconstructionRequest())[0]
    series = run.config.load().test.batch(torch.tensor([0]))
    with torch.no_grad():
        output = run.model(series.times.float(), series.values, series.mask)
    errors = (output.prediction.mean(0) - series.values)[series.mask]
    assert one.observed == len(errors)
    assert one.rmse == pytest.approx(errors.square().mean().sqrt().item(), rel=1e-3)


def test_observations_are_restored_to_what_was_read(run):
    raw, _ = synthetic_series()
    for one in reconstruct(run, ReconstructionRequest()):
        part = raw.take(torch.tensor([raw.ids.index(one.series)]))
        for place, name in enumerate(("x", "y")):
            seen = part.mask[:, place]
            curve = one.curves[name]
            assert curve.times == pytest.approx(part.times[seen].tolist(), rel=1e-12)
            assert curve.values == pytest.approx(part.values[seen, place].tolist(), abs=1e-5)
        last = float(part.times[part.mask.any(-1)][-1])
        assert one.end == pytest.approx(last, rel=1e-12)


def test_without_a_later_time_a_line_ends_with_the_last_observation(run):
    for one in reconstruct(run, ReconstructionRequest(points=50)):
        assert {curve.at[-1] for curve in one.curves.values()} == {one.end}


def test_a_later_time_extends_the_axis_and_leaves_the_rest_as_it_was(run):
    short = reconstruct(run, ReconstructionRequest(points=11))[0]
    first, end = short.curves["x"].at[0], short.end
    # Twice as far with twice the steps, so that the first half is at the same times.
    long = reconstruct(run, ReconstructionRequest(points=21, until=2 * end - first))[0]
    assert long.curves["x"].at[-1] == pytest.approx(2 * end - first)
    assert long.end == end and len(long.curves["x"].at) == 21
    assert long.curves["x"].mean[:11] == pytest.approx(short.curves["x"].mean, abs=1e-3)
    assert long.rmse == pytest.approx(short.rmse, abs=1e-3)


def test_series_that_end_later_than_asked_keep_their_own_end(run, tmp_path):
    rows = "a,0,1,1\na,2,1,1\nb,0,1,1\nb,9,1,1\n"
    request = ReconstructionRequest(table=_table(tmp_path, rows), until=5.0)
    short, long = reconstruct(run, request)
    assert short.curves["x"].at[-1] == pytest.approx(5.0)
    assert long.curves["x"].at[-1] == pytest.approx(9.0)


def test_times_of_a_table_are_those_of_the_file(run, tmp_path):
    table = _table(tmp_path, "a,100,1,2\na,104,3,\na,110,,5\n")
    (one,) = reconstruct(run, ReconstructionRequest(table=table, until=112.0, points=3))
    assert one.curves["x"].times == pytest.approx([100, 104])
    assert one.curves["y"].values == pytest.approx([2, 5], abs=1e-6)
    assert one.end == pytest.approx(110)
    assert one.curves["x"].at == pytest.approx([100, 106, 112])


@pytest.mark.parametrize("rows", ["a,5,1,2\n", "a,5,1,2\na,5.5,,\n"])
def test_a_single_observation_is_enough(run, tmp_path, rows):
    (one,) = reconstruct(run, ReconstructionRequest(table=_table(tmp_path, rows), points=4))
    assert one.curves["x"].at == pytest.approx([5, 5, 5, 5])
    assert all(math.isfinite(value) for value in one.curves["x"].mean)


def test_a_feature_without_observations_has_a_line_but_no_error(run, tmp_path):
    table = _table(tmp_path, "a,0,1,\na,1,2,\n")
    (one,) = reconstruct(run, ReconstructionRequest(table=table, points=2))
    assert one.curves["y"].rmse is None and len(one.curves["y"].mean) == 2
    assert one.observed == 2


def test_chosen_series_and_features_come_in_the_order_of_their_names(run):
    ids = [one.series for one in reconstruct(run, ReconstructionRequest(points=2))]
    request = ReconstructionRequest(series=(ids[2], ids[0]), features=("y",), points=2)
    found = reconstruct(run, request)
    assert [one.series for one in found] == [ids[2], ids[0]]
    assert [list(one.curves) for one in found] == [["y"], ["y"]]


@pytest.mark.parametrize("method", ["latent-ode", "ace-latent-ode"])
def test_a_line_does_not_depend_on_the_other_series(method):
    run = _untrained(f"series/{method}")
    together = reconstruct(run, ReconstructionRequest(points=9))
    alone = reconstruct(run, ReconstructionRequest(series=(together[1].series,), points=9))
    assert alone == together[1:2]


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (ReconstructionRequest(series=("nobody",)), "nobody"),
        (ReconstructionRequest(features=("z",)), "z: does not exist. Fix: the nearest are"),
        (ReconstructionRequest(until=0.1), "is not after the last observation"),
        (ReconstructionRequest(until=math.nan), "is not after the last observation"),
        (ReconstructionRequest(until=math.inf), "is not after the last observation"),
        (ReconstructionRequest(points=1), "points"),
    ],
)
def test_wrong_wishes_are_named(run, request_, message):
    with pytest.raises(ConfigError, match=message):
        reconstruct(run, request_)


def test_a_table_of_other_features_is_refused(run, tmp_path):
    file = tmp_path / "other.csv"
    file.write_text("id,time,x,z\na,0,1,1\n")
    with pytest.raises(DataError, match="'y'"):
        reconstruct(run, ReconstructionRequest(table=file))


@pytest.mark.parametrize("experiment", ["series/gru-d", "series/rnn-vae", "series/ode-rnn"])
def test_models_without_a_trajectory_forecast(experiment):
    run = _untrained(experiment)
    for one in reconstruct(run, ReconstructionRequest(points=5, until=9.0)):
        assert len(one.curves["x"].at) == len(one.curves["x"].mean) == 5
        assert all(map(math.isfinite, one.curves["x"].mean))
    assert _hold_out(run, 0.3)["extrapolation"].values > 100


@pytest.mark.parametrize("name", ["gaps", "reconstruction"])
def test_a_state_that_is_not_at_its_time_is_refused(name):
    run = _untrained("series/ode-rnn", model={name: "public_code"})
    with pytest.raises(ConfigError, match=rf"with model\.{name}=public_code .* model\.{name}=own"):
        reconstruct(run, ReconstructionRequest())


@pytest.mark.parametrize("times", ["own", "public_code"])
def test_predictions_divide_times_as_the_training_did(tmp_path, caplog, times):
    run = _untrained("series/rnn-delta-t", data={"times": times})
    found = []
    for unit in (1, 2):
        table = _table(tmp_path, f"a,0,1,2\na,{unit},2,1\nb,0,1,1\nb,{4 * unit},1,2\n")
        found.append([one.probabilities for one in run.config.predict(run, [table])])
    assert (found[0] == found[1]) == (times == "public_code")
    assert ("depends on the other series" in caplog.text) == (times == "public_code")
    if times == "public_code":
        with pytest.raises(ConfigError, match=r"^--independent: .*divided by the largest"):
            run.config.make_independent(run.model)


def test_a_model_that_never_learned_to_reconstruct_says_so(caplog):
    run = _untrained("series/latent-ode", loss={"reconstruction": 0.0})
    _hold_out(run, 0.3)
    reconstruct(run, ReconstructionRequest(points=2, hold_out=0.3))
    assert caplog.text.count("labels alone") == 1


def test_missing_intervals_are_said_once(run, caplog):
    fresh = dataclasses.replace(run, model=_untrained("series/latent-ode").model)
    _hold_out(fresh, 0.3)
    reconstruct(fresh, ReconstructionRequest(points=2, hold_out=0.3))
    assert caplog.text.count("predictive intervals") == 1


def test_a_table_of_chosen_series_hides_the_rows_that_a_drawing_hides(watched, tmp_path):
    rows = [f"{name},{time},{time},1\n" for name in "abc" for time in range(12)]
    table = _table(tmp_path, "".join(rows))
    request = ReconstructionRequest(table=table, series=("c", "b"), hold_out=0.3, points=2)
    evaluate_hold_out(watched, request, 0.3)
    scored = watched.model.shown[0].times.tolist()
    drawn = [one for one in reconstruct(watched, request) if one.hidden == "interpolation"]
    assert scored == [one.curves["x"].times for one in drawn]


def _hold_out(run, share, **request):
    return evaluate_hold_out(run, ReconstructionRequest(**request), share)


class _Watched(SeriesModel):
    """Guesses zero everywhere and remembers what it was shown."""

    looks_ahead = True
    samples = 2

    def __init__(self) -> None:
        super().__init__(features=2, classes=2, by_row=False)
        self.feature_names = ("x", "y")
        self.unused = torch.nn.Parameter(torch.zeros(1))
        self.shown: list[SimpleNamespace] = []

    def _run(self, times, values, mask):
        raise AssertionError("only reconstructions are asked for")

    def reconstruct(self, times, values, mask, at):
        self.shown.append(SimpleNamespace(times=times, values=values, mask=mask))
        return torch.zeros(2, *at.shape, 2)


@pytest.fixture
def watched(run) -> TrainedRun:
    facts = {**run.facts, "scaling": UNSCALED}
    return dataclasses.replace(run, model=_Watched(), facts=facts)


@pytest.fixture
def ramp(tmp_path):
    """Ten rows; x counts them, y is seen at the last one only."""
    rows = [f"a,{time},{time},{7 if time == 9 else ''}\n" for time in range(10)]
    return _table(tmp_path, "".join(rows))


def test_extrapolation_is_judged_against_baselines_of_what_was_left(watched, ramp):
    score = _hold_out(watched, 0.3, table=ramp)["extrapolation"]
    # 7, 8 and 9 are hidden; the mean of 0 to 6 is 3, the last of them 6. No y was seen before.
    assert score.values == 3
    assert score.model == pytest.approx((49 + 64 + 81) / 3)
    assert score.series_mean == pytest.approx((16 + 25 + 36) / 3)
    assert score.last_value == pytest.approx((1 + 4 + 9) / 3)


def test_interpolation_is_judged_against_baselines_of_what_was_left(watched, ramp):
    score = _hold_out(watched, 0.3, table=ramp)["interpolation"]
    kept = watched.model.shown[0].values[0, :, 0].double()  # x counts the rows
    hidden = torch.tensor([row for row in range(10) if row not in kept.tolist()]).double()
    assert score.values == len(hidden) == 3 and kept[0] == 0 and kept[-1] == 9
    last = torch.stack([kept[kept < row].max() for row in hidden])
    assert score.model == pytest.approx(hidden.square().mean().item())
    assert score.series_mean == pytest.approx((hidden - kept.mean()).square().mean().item())
    assert score.last_value == pytest.approx((hidden - last).square().mean().item())


def test_hidden_values_are_not_shown_to_the_model(watched, ramp):
    _hold_out(watched, 0.5, table=ramp)
    between, after = (shown.times[0].tolist() for shown in watched.model.shown)
    assert after == [0, 1, 2, 3, 4]
    assert len(between) == 5 and between[0] == 0 and between[-1] == 9
    for shown in watched.model.shown:
        assert not shown.values[~shown.mask].any()


def test_the_hidden_rows_are_always_the_same(run):
    assert _hold_out(run, 0.3) == _hold_out(run, 0.3)
    assert _hold_out(run, 0.3) != _hold_out(run, 0.4)


def test_a_constant_series_leaves_the_baselines_no_error(watched, tmp_path):
    table = _table(tmp_path, "".join(f"a,{time},2,\n" for time in range(8)))
    for score in _hold_out(watched, 0.25, table=table).values():
        assert (score.values, score.model) == (2, 4.0)
        assert score.series_mean == score.last_value == 0


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, math.nan])
def test_a_share_lies_between_nothing_and_all(run, share):
    with pytest.raises(ConfigError, match="is not a share of rows"):
        _hold_out(run, share)


def test_series_of_one_row_have_nothing_to_hide(watched, tmp_path):
    with pytest.raises(ConfigError, match="too few rows"):
        _hold_out(watched, 0.3, table=_table(tmp_path, "a,0,1,1\n"))


@pytest.mark.parametrize("names_its_series", [True, False])
def test_the_first_table_of_a_folder_is_reported_once(run, tmp_path, caplog, names_its_series):
    for name in "ab":
        rows = "time,x,y\n0,1,1\n1,2,1\n"
        if names_its_series:
            rows = f"id,time,x,y\n{name},0,1,1\n{name},1,2,1\n"
        (tmp_path / f"{name}.csv").write_text(rows)
    files = run.config.files_in(run, tmp_path)
    assert files == ([tmp_path / "a.csv", tmp_path / "b.csv"] if names_its_series else [tmp_path])
    found = list(run.config.predict(run, files))
    assert [one.place["id"] for one in found] == ["a", "b"]
    assert caplog.text.count("a.csv: 1 series") == int(names_its_series)
