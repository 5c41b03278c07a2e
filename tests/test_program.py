"""The program from Python: train, continue, load."""

import re

import pytest
import torch

import bfno
from bfno.lab.errors import ConfigError

TINY = {"train.epochs": 1, "data": {"train_limit": 40, "test_limit": 20}}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run of a small classifier, with what was told of its epochs."""
    told, folder = [], tmp_path_factory.mktemp("runs") / "mine"
    torch.set_default_dtype(torch.float32)  # what a reader has
    found = bfno.train(
        "digits/node", scale="smoke", seed=3, out=folder, settings=TINY, on_epoch=told.append
    )
    assert [epoch["epoch"] for epoch in told] == [1]
    return found


@pytest.fixture(autouse=True)
def _single_precision():
    torch.set_default_dtype(torch.float32)


def test_a_run_tells_its_metrics_its_folder_and_its_settings(run):
    assert 0 <= run.metrics["test_accuracy"] <= 1
    assert (run.folder / "record.json").is_file()
    assert run.record.seed == 3 and len(run.record.epochs) == 1
    assert run.record.config["data"]["train_limit"] == 40


def test_a_run_and_its_folder_give_the_same_model(run):
    images = torch.rand(2, 1, 8, 8)
    models = [run.model(), bfno.load(run), bfno.load(str(run.folder), bfno.ImageClassifier)]
    scores = [model(images) for model in models]
    assert all(torch.equal(one, scores[0]) for one in scores)
    assert scores[0].shape == (2, len(models[2].class_names)) == (2, 10)


def test_a_model_of_another_kind_is_refused(run):
    with pytest.raises(TypeError, match="model of the class ImageClassifier, not Flow"):
        bfno.load(run, bfno.Flow)


def test_a_run_continues_with_other_settings(run):
    told = []
    more = bfno.resume(run, settings={"train.epochs": 2}, on_epoch=told.append)
    assert more.folder == run.folder and len(more.record.epochs) == 2
    assert [epoch["epoch"] for epoch in told] == [2]


def test_a_taken_folder_and_unknown_settings_are_refused(run, tmp_path):
    with pytest.raises(ConfigError, match=re.escape(str(run.folder))):
        bfno.train("digits/node", scale="smoke", out=run.folder)
    with pytest.raises(ConfigError, match=r"train\.epoch"):
        bfno.train("digits/node", settings={"train.epoch": 2}, out=tmp_path / "new")
    with pytest.raises(ConfigError):
        bfno.load(tmp_path)


def test_a_file_names_the_experiment_and_the_default_folder_is_that_of_the_program(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "mine.yaml"
    file.write_text("experiment: digits/node\nscale: smoke\ntrain: {epochs: 1}\n")
    found = bfno.train(file, settings={"data": {"train_limit": 40}, "data.test_limit": 20})
    assert str(found.folder) == "runs/digits-node-s7"
    assert found.record.samples["test"] == 20


def test_own_data_are_named_as_on_the_command_line(tmp_path):
    table = tmp_path / "mine.csv"
    rows = [f"s{k},{t},{(-1) ** k * t},{'ab'[k % 2]}\n" for k in range(30) for t in range(3)]
    table.write_text("id,time,x,label\n" + "".join(rows))
    found = bfno.train(
        "series/rnn-d", data=table, scale="smoke", out=tmp_path / "run", settings={"threads": 1}
    )
    assert found.record.config["data"]["path"] == str(table)
    assert found.record.command.endswith("--data mine.csv")
    with pytest.raises(ConfigError, match="--data: the data of digits/node are known"):
        bfno.train("digits/node", data=tmp_path)
