"""Scores of trained flows on test samples, on other data and on files."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from bfno.lab.errors import ConfigError, DataError
from bfno.lab.experiments.density import sampling
from bfno.lab.experiments.experiment import TestRequest
from bfno.lab.experiments.trees import merged
from bfno.lab.runs.folder import RunFolder
from bfno.lab.runs.load import open_run
from bfno.lab.runs.session import resume, start
from bfno.models.flows import FlowError
from tests.lab.experiments.density.runs import tiny


def _write_images(folder: Path, count: int, seed: int = 0, side: int = 9) -> Path:
    """Dark images with a bright corner, so that there is something to learn."""
    folder.mkdir(parents=True)
    generator = np.random.default_rng(seed)
    for number in range(count):
        pixels = generator.integers(0, 40, (side, side, 3), dtype=np.uint8)
        pixels[:3, :3] = 220
        Image.fromarray(pixels).save(folder / f"{number:03}.png")
    return folder


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    folder = tmp_path_factory.mktemp("digits") / "run"
    start(tiny("digits-density/glow"), folder)
    return folder


@pytest.fixture(scope="module")
def moons(tmp_path_factory):
    folder = tmp_path_factory.mktemp("moons") / "run"
    start(tiny("moons/ffjord"), folder)
    return folder


def _evaluate(folder: Path, **request) -> dict:
    run = open_run(folder)
    return run.config.evaluate(run, TestRequest(**request))


def test_an_evaluation_repeats_the_figures_of_the_training(digits):
    found = _evaluate(digits)
    result = json.loads((digits / "record.json").read_text())["result"]
    for name in ("bits_per_dim", "bits_per_dim_center", "nfe"):
        assert found[name] == result[f"test_{name}"]
    assert (found["unit"], found["samples"], found["dimensions"]) == ("images", 20, 64)
    assert 0 < found["standard_errors"]["bits_per_dim"] < 1
    assert "confusion" not in found


def test_points_are_evaluated_in_nats(moons):
    found = _evaluate(moons, limit=50)
    assert (found["unit"], found["samples"], found["dimensions"]) == ("points", 50, 2)
    assert set(found["standard_errors"]) == {"nll"}
    other = _evaluate(moons, data="checkerboard")
    assert other["nll"] != found["nll"]


def test_an_evaluation_tells_how_far_it_has_come(digits):
    told = []
    _evaluate(digits, batch=8, progress=lambda done, total: told.append((done, total)))
    assert told == [(0, 20), (8, 20), (16, 20)]


def test_own_images_need_no_classes(tmp_path):
    folder = _write_images(tmp_path / "mine", 20)
    config = tiny("folder-density/glow", {"data": {"folder": str(folder), "train_limit": None}})
    start(config, tmp_path / "run")
    found = _evaluate(tmp_path / "run")
    assert found["dimensions"] == 3 * 64 and found["samples"] == 4
    # Other images in folders below, at another size.
    _write_images(tmp_path / "others" / "a", 3, seed=1, side=20)
    _write_images(tmp_path / "others" / "b", 4, seed=2, side=30)
    assert _evaluate(tmp_path / "run", data=str(tmp_path / "others"))["samples"] > 0


def test_a_folder_of_one_class_or_of_parts_is_enough(tmp_path):
    _write_images(tmp_path / "mine" / "train" / "only", 12)
    _write_images(tmp_path / "mine" / "test", 5, seed=1)
    changes = {"data": {"folder": str(tmp_path / "mine"), "train_limit": None}}
    start(tiny("folder-density/realnvp", changes), tmp_path / "run")
    assert _evaluate(tmp_path / "run")["samples"] == 5


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda path: None, "is not a folder"),
        (lambda path: path.mkdir(), "holds no images"),
        (lambda path: _write_images(path / ".hidden", 3), "holds no images"),
    ],
)
def test_a_folder_without_images_is_refused(tmp_path, prepare, message):
    prepare(tmp_path / "mine")
    config = tiny("folder-density/glow", {"data": {"folder": str(tmp_path / "mine")}})
    with pytest.raises(DataError, match=message):
        start(config, tmp_path / "run")


def test_files_are_scored_one_by_one_and_a_bad_one_spoils_none(tmp_path, digits):
    good = _write_images(tmp_path / "images", 2)
    bad = tmp_path / "notes.png"
    bad.write_text("no image")
    run = open_run(digits)
    files = [good / "000.png", bad, good / "001.png", good / "000.png"]
    found = list(run.config.predict(run, files))
    assert [one.file for one in found] == files
    assert isinstance(found[1].error, DataError) and not found[1].scores
    scores = {"bits_per_dim_center", "percentile", "anomaly"}
    assert [set(one.scores) for one in found if one.error is None] == [scores] * 3
    assert found[0].scores == found[3].scores != found[2].scores
    assert not any(one.probabilities for one in found)


def test_a_file_of_the_test_images_has_their_score(tmp_path, digits):
    run = open_run(digits)
    image = sampling.test_images(run, 1)
    Image.fromarray(image[0, 0].numpy()).save(tmp_path / "one.png")
    prediction = next(iter(run.config.predict(run, [tmp_path / "one.png"])))
    assert torch.equal(sampling.read_files(run, [tmp_path / "one.png"]), image)
    only = _evaluate(digits, limit=1)["bits_per_dim_center"]
    assert prediction.scores["bits_per_dim_center"] == pytest.approx(only, abs=1e-6)


def test_images_unlike_those_of_the_training_cost_more(tmp_path):
    changes = {"data": {"train_limit": 400}, "train": {"epochs": 4, "batch": 20}}
    start(tiny("digits-density/glow", changes), tmp_path / "run")
    noise = np.random.default_rng(0).integers(0, 256, (8, 8), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "noise.png")
    run = open_run(tmp_path / "run")
    prediction = next(iter(run.config.predict(run, [tmp_path / "noise.png"])))
    assert prediction.scores["bits_per_dim_center"] > _evaluate(tmp_path / "run")["bits_per_dim"]


def test_data_of_another_kind_are_refused(tmp_path, digits, moons):
    with pytest.raises(ConfigError, match=r"^mnist: is not a set of points.*moons"):
        _evaluate(moons, data="mnist")
    with pytest.raises(ConfigError, match="models points, not images"):
        next(iter(open_run(moons).config.predict(open_run(moons), [tmp_path / "a.png"])))
    with pytest.raises(DataError, match="is not a folder"):
        _evaluate(digits, data=str(tmp_path / "missing"))


def _predicted(folder: Path, file: Path):
    run = open_run(folder)
    return next(iter(run.config.predict(run, [file])))


def test_files_are_placed_among_the_held_out_images(tmp_path, digits, caplog):
    record = json.loads((digits / "record.json").read_text())
    kept = record["reference"]
    assert kept["split"] == "validation and test"
    held_out = record["samples"]["validation"] + record["samples"]["test"]
    assert len(kept["bits"]) == len(kept["plain"]) == held_out
    # A validation image itself has the score that was kept.
    run = open_run(digits)
    Image.fromarray(run.config.load().validation[0, 0].numpy()).save(tmp_path / "one.png")
    scores = _predicted(digits, tmp_path / "one.png").scores
    assert round(scores["bits_per_dim_center"], 3) in [round(one, 3) for one in kept["bits"]]
    below = sum(one < scores["bits_per_dim_center"] - 1e-3 for one in kept["bits"])
    assert scores["percentile"] == pytest.approx(100 * (below + 0.5) / len(kept["bits"]))
    assert f"percentiles among {held_out} validation and test images" in caplog.text


def test_test_images_that_a_user_chose_are_no_measure(tmp_path):
    for part, count in (("train", 20), ("test", 6)):
        _write_images(tmp_path / "mine" / part, count)
    changes = {"data": {"folder": str(tmp_path / "mine"), "validation": 0.4}}
    record = start(tiny("folder-density/realnvp", changes), tmp_path / "run")
    assert record.facts["reference"]["split"] == "validation"


def test_blank_images_and_noise_are_unusual_and_held_out_ones_are_not(tmp_path):
    folder = _write_images(tmp_path / "mine", 120)
    changes = {"data": {"folder": str(folder), "train_limit": None, "validation": 0.4}}
    start(tiny("folder-density/glow", merged(changes, {"train": {"epochs": 4}})), tmp_path / "run")
    odd = {"blank": np.zeros((9, 9, 3), dtype=np.uint8)}
    odd["noise"] = np.random.default_rng(5).integers(0, 256, (9, 9, 3), dtype=np.uint8)
    for name, pixels in odd.items():
        Image.fromarray(pixels).save(tmp_path / f"{name}.png")
    blank, noise = (_predicted(tmp_path / "run", tmp_path / f"{name}.png") for name in odd)
    assert noise.label == blank.label == "unusual"
    others = _write_images(tmp_path / "like", 20, seed=9)
    labels = [_predicted(tmp_path / "run", file).label for file in sorted(others.iterdir())]
    assert labels.count("unusual") <= 3


def test_a_run_that_kept_no_scores_says_how_to_get_them(tmp_path, caplog):
    """As runs of earlier releases are."""
    config = tiny("digits-density/realnvp")
    start(config, tmp_path / "run")
    run = RunFolder(tmp_path / "run")
    record = run.record()
    reference = record.facts.pop("reference")
    run.write_record(record)
    Image.fromarray(np.zeros((8, 8), dtype=np.uint8)).save(tmp_path / "one.png")
    found = _predicted(tmp_path / "run", tmp_path / "one.png")
    assert set(found.scores) == {"bits_per_dim_center"} and found.label == ""
    assert "`bfno resume` adds them" in caplog.text
    resume(tmp_path / "run")
    assert run.record().facts["reference"] == reference
    assert set(_predicted(tmp_path / "run", tmp_path / "one.png").scores) > set(found.scores)


def test_scores_that_cannot_be_had_do_not_cost_the_training(tmp_path, monkeypatch, caplog):
    def fail(*_, **__):
        raise FlowError("the series does not converge")

    monkeypatch.setattr("bfno.lab.experiments.density.experiment.costs", fail)
    record = start(tiny("digits-density/realnvp"), tmp_path / "run")
    assert record.is_finished and "reference" not in record.facts
    assert "the flow: the series does not converge" in caplog.text


def test_an_impossible_image_is_the_most_unusual(tmp_path, digits, monkeypatch, caplog):
    Image.fromarray(np.zeros((8, 8), dtype=np.uint8)).save(tmp_path / "one.png")
    monkeypatch.setattr(
        "bfno.lab.experiments.density.experiment.costs", lambda *_: torch.tensor([math.nan])
    )
    found = _predicted(digits, tmp_path / "one.png")
    assert found.label == "unusual" and found.scores["anomaly"] == 100
    assert found.scores["bits_per_dim_center"] == math.inf
    assert "one.png: too unlikely for a finite number of bits" in caplog.text
