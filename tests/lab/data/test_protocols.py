"""What is divided and scaled, and what may not depend on what."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from bfno.lab.data import (
    SeriesSource,
    SeriesSplits,
    divided_series,
    load_series,
    series_from_arrays,
)
from bfno.lab.data.activity import WINDOW, read_activity, windows
from bfno.lab.errors import ConfigError, DataError
from tests.lab.data import test_activity, test_physionet


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def physionet(folder: Path, count: int = 40, change: dict[int, str] | None = None) -> Path:
    """Records of one heart rate each; every fourth patient died."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {
        str(k): f"00:00,Age,{50 + k}\n00:0{k % 9},HR,{60 + k}\n{k % 40:02}:00,K,{1 + k / 10}\n"
        for k in range(10, 10 + count)
    }
    texts = {name: "".join(sorted(text.splitlines(True))) for name, text in texts.items()}
    for number, text in (change or {}).items():
        texts[str(number)] = text
    test_physionet.write(folder, texts, packed=False)
    rows = [f"{name},1,1,5,-1,{int(int(name) % 4 == 0)}\n" for name in texts]
    (folder / "Outcomes-a.txt").write_text(test_physionet.OUTCOMES + "".join(rows))
    return folder


def recording(folder: Path, sequences: int = 6) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    labels = ["lying", "walking", "falling"]
    lines = [
        test_activity.line(f"A0{s}", k % 4, 300_000 * k, (k + s, s, -k), labels[(k // 40) % 3])
        for s in range(sequences)
        for k in range(130 + 10 * s)
    ]
    return test_activity.write(folder, *lines)


def assert_same(one: SeriesSplits, other: SeriesSplits) -> None:
    assert one.scaling == other.scaling
    for first, second in ((one.train, other.train), (one.test, other.test)):
        assert first.ids == second.ids and torch.equal(first.values, second.values)


def test_sound_parts_share_no_patient_and_keep_the_share_of_deaths(tmp_path):
    physionet(tmp_path)
    found = load_series(SeriesSource("physionet", dir=tmp_path), seed=3)
    assert found.validation is not None
    parts = [set(part.ids) for part in (found.train, found.validation, found.test)]
    assert [len(part) for part in parts] == [29, 3, 8]
    assert sum(map(len, parts)) == len(set.union(*parts)) == 40
    assert found.test.labels.sum() == 2 and len(found.test) == 8


def test_the_seed_moves_the_validation_part_only(tmp_path):
    physionet(tmp_path)
    source = SeriesSource("physionet", dir=tmp_path)
    first, again, other = (load_series(source, seed) for seed in (1, 1, 2))
    assert_same(first, again)
    assert first.validation is not None and other.validation is not None
    assert first.test.ids == other.test.ids and first.validation.ids != other.validation.ids


def test_sound_statistics_are_those_of_the_training_values(tmp_path):
    physionet(tmp_path)
    found = load_series(SeriesSource("physionet", dir=tmp_path), seed=0)
    ages = np.array([50.0 + int(name) for name in found.train.ids])
    assert found.scaling.shift[0] == pytest.approx(ages.mean(), rel=1e-12)
    assert found.scaling.scale[0] == pytest.approx(ages.std(), rel=1e-6)
    seen = found.train.values[found.train.mask[:, 0], 0].double()
    assert seen.mean().item() == pytest.approx(0, abs=1e-6)
    assert seen.std(correction=0).item() == pytest.approx(1, abs=1e-6)
    assert found.scaling.limit == 5.0
    hours = [int(name) % 40 for name in found.train.ids]
    assert found.scaling.span == pytest.approx(max(hours), abs=0.016)
    assert found.train.times.max() == 1.0


def test_sound_training_cannot_see_a_change_of_test_or_validation_values(tmp_path):
    physionet(tmp_path / "a")
    source = SeriesSource("physionet", dir=tmp_path / "a")
    before = load_series(source, seed=0)
    assert before.validation is not None
    unseen = [*before.test.ids, *before.validation.ids]
    wild = {int(name): "00:00,Age,999\n00:03,HR,0.5\n47:00,K,1e6\n" for name in unseen}
    physionet(tmp_path / "b", change=wild)
    after = load_series(SeriesSource("physionet", dir=tmp_path / "b"), seed=0)
    assert before.scaling == after.scaling and before.train.ids == after.train.ids
    assert torch.equal(before.train.values, after.train.values)
    assert after.test.values.abs().max() == 5.0


def test_a_training_value_does_change_the_statistics(tmp_path):
    physionet(tmp_path / "a")
    before = load_series(SeriesSource("physionet", dir=tmp_path / "a"), seed=0)
    name = int(before.train.ids[0])
    physionet(tmp_path / "b", change={name: "00:00,Age,5\n"})
    after = load_series(SeriesSource("physionet", dir=tmp_path / "b"), seed=0)
    assert before.scaling != after.scaling


def test_no_validation_part_is_held_back_where_none_is_wanted(tmp_path):
    physionet(tmp_path)
    found = load_series(SeriesSource("physionet", dir=tmp_path, validation=0), seed=0)
    assert found.validation is None and len(found.train) + len(found.test) == 40


@pytest.mark.parametrize("count", [40, 41, 43])
def test_the_published_split_is_scikit_learns(tmp_path, count):
    from sklearn.model_selection import train_test_split

    physionet(tmp_path, count)
    found = load_series(SeriesSource("physionet", "published", dir=tmp_path), seed=7)
    names = [str(k) for k in range(10, 10 + count)]
    train, test = train_test_split(names, train_size=0.8, random_state=42, shuffle=True)
    assert list(found.train.ids) == train and list(found.test.ids) == test
    assert found.validation is None


def test_published_values_are_shifted_by_the_least_and_divided_by_the_largest(tmp_path):
    physionet(tmp_path, change={12: "00:00,Age,99\n00:00,Height,-1\n00:01,MechVent,0\n"})
    found = load_series(SeriesSource("physionet", "published", dir=tmp_path), seed=0)
    ages = [99.0 if k == 12 else 50.0 + k for k in range(10, 50)]
    assert found.scaling.shift[0] == min(ages) and found.scaling.scale[0] == max(ages)
    for part in (found.train, found.test):
        for number, name in enumerate(part.ids):
            raw = 99.0 if name == "12" else 50.0 + int(name)
            value = part.values[part.starts[number], 0].item()
            assert value == pytest.approx((raw - min(ages)) / max(ages), rel=1e-6)
    height, ventilation = found.features.index("Height"), found.features.index("MechVent")
    assert (found.scaling.shift[height], found.scaling.scale[height]) == (-1.0, -1.0)
    assert found.scaling.scale[ventilation] == 1.0
    assert found.scaling.span == pytest.approx(39.0, abs=0.016) and found.scaling.limit is None
    assert found.train.values[~found.train.mask].abs().max() == 0


def test_real_physionet_is_divided_as_published(shared_folder):
    folder = shared_folder / "data"
    if not (folder / "physionet2012").is_dir():
        pytest.skip("needs PhysioNet 2012 in ../shared/data, which is not there")
    found = load_series(SeriesSource("physionet", "published", dir=folder), seed=0)
    assert (len(found.train), len(found.test)) == (3200, 800)
    assert found.train.labels.sum() + found.test.labels.sum() == 554
    assert found.train.values.isfinite().all() and found.scaling.span == 48.0


def test_sound_windows_come_from_sequences_of_one_part_only(tmp_path):
    recording(tmp_path)
    found = load_series(SeriesSource("activity", dir=tmp_path), seed=0)
    assert found.validation is not None
    parts = [set(part.ids) for part in (found.train, found.validation, found.test)]
    assert sum(map(len, parts)) == len(set.union(*parts)) == 6
    assert [len(part) for part in parts] == [4, 1, 1]
    assert len(found.classes) == 7 and found.train.by_row


def test_sound_test_windows_count_every_row_once(tmp_path):
    sequences = read_activity(recording(tmp_path))
    found = load_series(SeriesSource("activity", dir=tmp_path), seed=0)
    assert found.validation is not None
    for part in (found.validation, found.test):
        whole = sequences.take(torch.tensor([sequences.ids.index(part.ids[0])]))
        raw = found.scaling.restore(part.values.double())
        rows = len(part) * WINDOW
        assert len(whole.times) - rows < WINDOW
        torch.testing.assert_close(
            raw[part.mask], whole.values[:rows].double()[whole.mask[:rows]], rtol=1e-5, atol=1e-4
        )
    name = found.train.ids[0]
    length = int(sequences.lengths[sequences.ids.index(name)])
    assert found.train.ids.count(name) == (length - WINDOW) // 25 + 1


def test_published_windows_are_drawn_with_replacement(tmp_path):
    from sklearn.model_selection import train_test_split

    sequences = read_activity(recording(tmp_path))
    found = load_series(SeriesSource("activity", "published", dir=tmp_path), seed=1991)
    whole = windows(sequences, 25, strict=True)
    train, test = train_test_split(np.arange(len(whole)), train_size=0.8, random_state=42)
    np.random.seed(1991)
    train = [train[k] for k in np.random.choice(len(train), len(train))]
    test = [test[k] for k in np.random.choice(len(test), len(test))]
    assert torch.equal(found.train.values, whole.take(torch.tensor(train)).values)
    assert torch.equal(found.test.labels, whole.take(torch.tensor(test)).labels)
    assert len(found.classes) == len(set(found.classes)) == 11 and found.validation is None
    assert found.train.labels.max() < 7
    assert set(found.scaling.shift) == {0.0} and set(found.scaling.scale) == {1.0}
    assert found.train.times.max() <= 1.0 and found.scaling.span == whole.times.max()


def test_what_the_public_code_does_not_know_is_walking_in_training_and_untested(tmp_path):
    labels = ["lying", "standing up from sitting on the ground"]
    lines = [
        test_activity.line("A01", 0, 300_000 * k, (k, 1, -k), labels[k % 2]) for k in range(201)
    ]
    test_activity.write(tmp_path, *lines)
    source = SeriesSource("activity", "published", dir=tmp_path, labels="public_code")
    found = load_series(source, seed=0)
    assert (len(found.train), len(found.test)) == (5, 2)
    assert found.train.labels.view(5, 50)[0].tolist() in ([2, 0] * 25, [0, 2] * 25)
    assert set(found.test.labels.tolist()) == {2, -1}
    plain = load_series(SeriesSource("activity", "published", dir=tmp_path), seed=0)
    assert set(plain.train.labels.tolist()) == set(plain.test.labels.tolist()) == {2, 4}


@pytest.mark.parametrize(
    "source", [("activity", "sound"), ("physionet", "published"), ("series", "sound")]
)
def test_labels_of_the_public_code_are_those_of_the_published_activity(tmp_path, source):
    with pytest.raises(ConfigError, match=r"^labels: .*activity in the protocol published.*auto"):
        load_series(SeriesSource(*source, dir=tmp_path, labels="public_code"), seed=0)


@pytest.mark.parametrize("sequences", [0, 1, 2])
def test_too_few_sequences_for_all_parts_are_refused(tmp_path, sequences):
    recording(tmp_path, max(sequences, 1))
    if not sequences:
        test_activity.write(tmp_path, *test_activity.steady("A01", 3))
    with pytest.raises(DataError, match="too few for all parts"):
        load_series(SeriesSource("activity", dir=tmp_path), seed=0)
    if sequences == 2:
        found = load_series(SeriesSource("activity", dir=tmp_path, validation=0), seed=0)
        assert set(found.train.ids) | set(found.test.ids) == {"A00", "A01"}


def test_the_real_slice_of_activity_gives_every_part_a_sequence(shared_folder):
    folder = shared_folder / "data"
    if not (folder / "human_activity").is_dir():
        pytest.skip("needs HumanActivity in ../shared/data, which is not there")
    for seed in range(3):
        found = load_series(SeriesSource("activity", dir=folder), seed)
        assert found.validation is not None
        parts = [set(part.ids) for part in (found.train, found.validation, found.test)]
        assert [len(part) for part in parts] == [2, 1, 1] and len(set.union(*parts)) == 4


@pytest.mark.parametrize("name", ["physionet", "activity", "series"])
@pytest.mark.parametrize("protocol", ["sound", "published"])
def test_limits_bound_both_parts(tmp_path, name, protocol):
    if (name, protocol) == ("series", "published"):
        return
    physionet(tmp_path)
    recording(tmp_path)
    source = SeriesSource(name, protocol, dir=tmp_path, train_limit=9, test_limit=3)
    found = load_series(source, seed=0)
    held = 0 if found.validation is None else len(found.validation)
    assert len(found.train) + held == 9 and len(found.test) == 3


def test_a_limit_keeps_the_share_of_each_class(tmp_path):
    found = load_series(SeriesSource("series", train_limit=40, validation=0, test_limit=8), seed=0)
    assert found.train.labels.bincount().tolist() == [10, 10, 10, 10]
    assert found.test.labels.bincount().tolist() == [2, 2, 2, 2]


WRONG = {
    "name": {"name": "physionets"},
    "protocol": {"protocol": "best"},
    "validation": {"validation": 1.0},
    "test_fraction": {"test_fraction": 0.0},
    "train_limit": {"train_limit": 0},
    "test_limit": {"test_limit": -1},
    "quantum": {"quantum": 0.0},
    "sets": {"sets": ("c",)},
}


@pytest.mark.parametrize("setting", WRONG)
def test_a_setting_out_of_range_is_named(tmp_path, setting):
    physionet(tmp_path)
    (tmp_path / "Outcomes-c.txt").touch()
    settings = {"name": "physionet", "dir": tmp_path, **WRONG[setting]}
    with pytest.raises(ConfigError, match=rf"^{setting}: "):
        load_series(SeriesSource(**settings), seed=0)


def test_ones_own_series_know_no_published_protocol():
    with pytest.raises(ConfigError, match=r"^protocol: series knows no .*use sound"):
        load_series(SeriesSource("series", "published"), seed=0)


def test_the_bundled_series_need_no_files_and_no_seed():
    first, second = (load_series(SeriesSource("series"), seed) for seed in (0, 1))
    assert first.validation is not None
    assert [len(part) for part in (first.train, first.validation, first.test)] == [432, 48, 120]
    assert first.test.ids == second.test.ids
    with pytest.raises(ConfigError, match="test_path"):
        load_series(SeriesSource("series", test_path=Path("x")), seed=0)


def table(path: Path, rows: list[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("id,time,x,label\n" + "".join(f"{row}\n" for row in rows))
    return path


def test_ones_own_series_are_divided_within_each_class(tmp_path):
    rows = [f"{k},{t},{k * t},{'ab'[k % 2]}" for k in range(20) for t in (1, 2)]
    found = load_series(SeriesSource("series", path=table(tmp_path / "x.csv", rows)), seed=0)
    assert found.classes == ("a", "b") and found.features == ("x",)
    assert found.test.labels.bincount().tolist() == [2, 2]
    assert found.validation is not None and found.validation.labels.bincount().tolist() == [1, 1]


def test_a_test_file_of_its_own_is_read_with_the_training_classes(tmp_path):
    train = table(tmp_path / "a.csv", [f"{k},{t},{k},{k % 3}" for k in range(9) for t in (1, 2)])
    test = table(tmp_path / "b.csv", [f"{k},1,{k},2" for k in range(4)])
    found = load_series(SeriesSource("series", path=train, test_path=test, validation=0), seed=0)
    assert len(found.train) == 9 and found.test.labels.tolist() == [2, 2, 2, 2]
    table(test, ["0,1,1,7"])
    with pytest.raises(DataError, match=r"b\.csv, row 2: the label '7' is unknown"):
        load_series(SeriesSource("series", path=train, test_path=test), seed=0)


def test_series_without_label_are_left_out_with_a_notice(tmp_path, caplog):
    rows = [f"{k},{t},{k},{'' if k == 4 else 'ab'[k % 2]}" for k in range(12) for t in (1, 2)]
    found = load_series(SeriesSource("series", path=table(tmp_path / "x.csv", rows)), seed=0)
    assert found.validation is not None
    ids = [*found.train.ids, *found.validation.ids, *found.test.ids]
    assert sorted(map(int, ids)) == [0, 1, 2, 3, *range(5, 12)]
    assert "left out 1 series without label" in caplog.text


def test_rows_without_label_stay_where_others_of_their_series_have_one(tmp_path, caplog):
    rows = [f"{k},{t},{k},{['a', 'b', ''][t]}" for k in range(10) for t in (0, 1, 2)]
    rows += ["z,0,1,", "z,1,1,"]
    found = load_series(SeriesSource("series", path=table(tmp_path / "x.csv", rows)), seed=0)
    assert found.train.by_row and set(found.train.labels.tolist()) == {-1, 0, 1}
    assert "left out 1 series without label" in caplog.text and "z" not in found.train.ids


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([f"{k},1,2,a" for k in range(9)], "are of a single class"),
        ([f"{k},1,2," for k in range(9)], "no series has a label"),
        (["0,1,2,a", "1,1,2,b"], "2 series of 2 classes are too few to divide"),
        ([f"{k},1,2,{k}.5" for k in range(9)], "9 series of 9 classes .* Fix: .* data.columns"),
    ],
)
def test_what_cannot_be_learnt_from_is_refused(tmp_path, rows, why):
    with pytest.raises(DataError, match=why):
        load_series(SeriesSource("series", path=table(tmp_path / "x.csv", rows)), seed=0)


def test_a_constant_and_a_never_observed_feature_keep_finite_scales(tmp_path):
    path = tmp_path / "x.csv"
    rows = [f"{k},{t},0.1,,{k},{'ab'[k % 2]}" for k in range(20) for t in (1, 2)]
    path.write_text("id,time,same,never,x,label\n" + "\n".join(rows))
    found = load_series(SeriesSource("series", path=path), seed=0)
    assert found.scaling.scale[:2] == (1.0, 1.0) and found.scaling.shift[1] == 0.0
    assert found.train.values.isfinite().all() and found.train.values[:, :2].abs().max() < 1e-6


def _drawn(offset: float, deviation: float) -> list[str]:
    draw = np.random.RandomState(0)
    return [
        f"{k},{t},{offset + deviation * draw.randn()!r},{'ab'[k % 2]}"
        for k in range(20)
        for t in (1, 2)
    ]


@pytest.mark.parametrize(("offset", "deviation"), [(1e8, 1.0), (1e8, 0.1), (-3e4, 1e-2)])
def test_an_offset_costs_no_digits_of_what_varies(tmp_path, offset, deviation):
    plain, moved = (
        load_series(SeriesSource("series", path=table(tmp_path / f"{by}.csv", rows)), seed=0)
        for by, rows in ((0, _drawn(0, 1)), (1, _drawn(offset, deviation)))
    )
    # A hundredth is the most that rounding may take.
    torch.testing.assert_close(moved.train.values, plain.train.values, rtol=0, atol=0.012)
    torch.testing.assert_close(moved.test.values, plain.test.values, rtol=0, atol=0.012)


def test_a_constant_that_single_precision_has_rounded_keeps_its_unit():
    rounding = 7.6e-6 * np.random.default_rng(0).integers(-1, 2, 200)
    values = (98.6 + rounding).astype(np.float32)
    series = series_from_arrays([np.arange(5.0)] * 40, [*values.reshape(40, 5, 1)])
    series = dataclasses.replace(series, labels=torch.arange(40) % 2)
    assert divided_series(series, ("x",), ("a", "b")).scaling.scale == (1.0,)


def test_ordinary_values_are_scaled_as_single_precision_has_them(tmp_path):
    """So were they when the trainings were made that are on record."""
    rows = _drawn(120, 15)
    source = SeriesSource("series", path=table(tmp_path / "x.csv", rows), validation=0)
    found = load_series(source, seed=0)
    values = {row.split(",")[0]: [] for row in rows}
    for row in rows:
        values[row.split(",")[0]].append(np.float32(row.split(",")[2]))
    train = np.array([values[name] for name in found.train.ids], dtype=np.float64)
    assert found.scaling.shift[0] == pytest.approx(train.mean(), rel=1e-14)
    shift, scale = found.scaling.shift[0], found.scaling.scale[0]
    expected = ((train - shift) / scale).astype(np.float32)
    assert np.array_equal(found.train.values.numpy().reshape(expected.shape), expected)


def test_series_for_testing_that_training_has_as_well_are_told(tmp_path, caplog):
    def rows(first: int) -> list[str]:
        return [f"{k},{t},{k},{k % 2}" for k in range(first, first + 20) for t in (1, 2)]

    train, test = table(tmp_path / "a.csv", rows(0)), table(tmp_path / "b.csv", rows(10))
    source = SeriesSource("series", path=train, test_path=test, validation=0)
    load_series(source, seed=0)
    told = f"{test}: 10 of 20 series have the names of training series in {train}; if they are "
    assert f"{told}the same, their scores are no test" in caplog.messages
    caplog.clear()
    table(test, rows(20))
    load_series(source, seed=0)
    assert "have the names" not in caplog.text
