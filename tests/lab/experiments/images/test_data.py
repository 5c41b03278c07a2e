"""Which images are read, and which of them a limit leaves."""

import shutil

import pytest
import torch
from PIL import Image

from bfno.lab.data import load
from bfno.lab.errors import ConfigError
from bfno.lab.experiments.density.data import held_out_samples
from bfno.lab.experiments.experiment import TestRequest, TrainedRun
from bfno.lab.experiments.images.data import divided_images, held_out_images, other_images
from bfno.lab.experiments.resolve import read_experiment, read_written, resolve

CLASSES = ("airplane", "cat", "frog", "horse")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Four classes of 40 images, whose grey tells the class; some in nested folders."""
    folder = tmp_path_factory.mktemp("data") / "photos"
    for label, name in enumerate(CLASSES):
        for k in range(40):
            place = folder / name / ("2023/may" if k % 8 == 0 else "")
            place.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (5, 5), (60 * label, k, 0)).save(place / f"{k:03}.png")
    return folder


def untrained(config) -> TrainedRun:
    facts = config.facts(config.load())
    return TrainedRun(config, config.build(facts).eval(), 0, facts)


def classes_of(images: torch.Tensor) -> list[int]:
    return (images[:, 0, 0, 0].long() // 60).bincount(minlength=4).tolist()


def test_smoke_scale_and_limits_see_every_class(photos):
    config = resolve("folder/bfno-node", scale="smoke", data=photos)
    splits = config.load()
    assert len(splits.test) == 32 and splits.test.labels.bincount().tolist() == [8, 8, 8, 8]
    limited = resolve(
        "folder/node", data=photos, changes={"data": {"test_limit": 8, "train_limit": 40}}
    )
    splits = limited.load()
    assert splits.test.labels.bincount().tolist() == [2, 2, 2, 2]
    assert min(splits.train.labels.bincount() + splits.validation.labels.bincount()) == 10


def test_eval_with_a_limit_sees_every_class_and_without_one_what_training_saw(photos):
    changes = {"model": {"width": 2}, "data": {"size": 4, "test_limit": 12}}
    run = untrained(resolve("folder/node", scale="smoke", data=photos, changes=changes))
    found = run.config.evaluate(run, TestRequest(limit=27))
    counts = [scores["samples"] for scores in found["per_class"]]
    assert sum(counts) == 27 and max(counts) - min(counts) <= 1
    seen = held_out_images(run.config.data, run.config.seed)[0]
    assert seen.images.equal(run.config.load().test.images) and len(seen) == 12


def test_a_density_draws_from_the_whole_folder(photos):
    changes = {"data": {"train_limit": 60, "test_limit": None, "size": 4}}
    config = resolve("folder-density/ffjord-rnode", scale="smoke", data=photos, changes=changes)
    data = config.load()
    assert min(classes_of(data.train)) > 5 and min(classes_of(data.train[:30])) > 1
    run = TrainedRun(config, type("Flow", (), {"event_shape": (3, 4, 4)}), 0, {})
    assert len(held_out_samples(run)) == 32
    assert min(classes_of(held_out_samples(run, limit=16))) > 0


def test_the_first_images_of_known_data_sets_are_kept_for_the_sake_of_recorded_results():
    config = resolve("digits/node", scale="smoke", changes={"data": {"size": None}})
    whole = load("digits").test
    limited, _ = held_out_images(config.data, 7)
    assert limited.images.equal(whole.images[:80])
    assert held_out_images(config.data, 7, 11)[0].images.equal(whole.images[:11])
    assert limited.labels.bincount().min() >= 5  # files whose order is random


def test_runs_of_earlier_releases_keep_their_rules_and_new_ones_get_those_of_today(photos):
    for name in ("folder/bfno-node", "folder-density/glow"):
        config = resolve(name, data=photos)
        assert config.data.rules == 2
        written = config.as_dict()
        del written["data"]["rules"]
        assert read_experiment(written, "an old run").data.rules == 1
    assert resolve("cifar10/node").data.rules == 1
    old = read_experiment(written, "an old run")
    other = other_images(old.data, str(photos / "elsewhere"), None)
    assert other.rules == 2 and other_images(old.data, str(photos), None).rules == 1


def test_the_config_of_an_old_run_is_not_filled_with_the_presets_of_today(photos, tmp_path):
    config = resolve("folder/node", data=photos)
    file = tmp_path / "config.yaml"
    file.write_text(config.as_yaml().replace("  rules: 2\n", ""))
    assert read_written(file).data.rules == 1 and resolve(str(file)).data.rules == 2
    file.write_text("experiment: folder/node\n")  # somebody has shortened it
    assert read_written(file) == resolve("folder/node")


def test_an_old_run_counts_the_images_it_was_trained_on(photos, caplog):
    written = resolve("folder/node", data=photos, changes={"data": {"size": 4}}).as_dict()
    del written["data"]["rules"]
    old = read_experiment(written, "an old run").data.model_copy(update={"test_limit": 9})
    assert len(divided_images(old, 7).test) == 9
    assert held_out_images(old, 7)[0].labels.tolist() == [0] * 7 + [1] * 2
    assert f"{photos}: no test image is of the classes frog, horse" in caplog.messages
    assert held_out_images(old, 7, 8)[0].labels.bincount().tolist() == [2, 2, 2, 2]


def test_own_data_have_one_word_and_known_data_sets_none(photos):
    assert resolve("series/rnn-d", data="patients.csv").data.path.name == "patients.csv"
    assert resolve("folder-density/glow", data=photos).data.folder == photos
    with pytest.raises(ConfigError, match=r"--data: the data of mnist/node are known\. Fix: leave"):
        resolve("mnist/node", data=photos)


@pytest.mark.parametrize("colour", [True, False])
@pytest.mark.parametrize("method", ["bfno", "nodee", "bfno-node-budgett", "resnet"])
def test_errors_about_folders_speak_of_folders(colour, method):
    with pytest.raises(ConfigError) as caught:
        resolve(f"folder/{method}", changes={"data": {"colour": colour}})
    text = str(caught.value)
    assert text.startswith(f"folder/{method}: there is no such experiment")
    assert "folder/bfno-node" in text or "folder/node" in text or "folder/" in text
    assert "cifar" not in text and "mnist" not in text


def test_of_another_folder_it_is_said_that_a_part_is_tested(photos, tmp_path, caplog):
    settings = resolve("folder/node", data=photos).data
    (tmp_path / "test").mkdir()
    for folder in (photos, tmp_path):
        other_images(settings, str(folder), None)
    assert caplog.messages == []
    other_images(settings, str(tmp_path / "test"), None)
    told = "has no folder test; only the 20 % that a training would hold out are tested"
    assert caplog.messages == [f"{tmp_path / 'test'}: {told}"]


@pytest.mark.parametrize("name", ["folder/node", "folder-density/ffjord-rnode"])
def test_a_folder_that_has_changed_gives_no_test_images_drawn_among_those_of_the_training(
    photos, tmp_path, name
):
    folder = tmp_path / "photos"
    shutil.copytree(photos, folder)
    changes = {"data": {"size": 4}} | ({"model": {"width": 2}} if name == "folder/node" else {})
    run = untrained(resolve(name, scale="smoke", data=folder, changes=changes))
    assert run.config.evaluate(run, TestRequest(limit=20))["samples"] == 20
    added = folder / "cat" / "new.png"
    shutil.copy(folder / "cat" / "001.png", added)
    for data in (None, str(folder)):
        with pytest.raises(ConfigError, match="other samples than when the run was trained"):
            run.config.evaluate(run, TestRequest(data, limit=20))
    before = {fact: value for fact, value in run.facts.items() if fact != "division"}
    old = TrainedRun(run.config, run.model, 0, before)  # of an earlier release
    assert run.config.evaluate(old, TestRequest(limit=20))["samples"] == 20
    assert run.config.evaluate(run, TestRequest(str(photos), limit=20))["samples"] == 20
    added.unlink()
    assert run.config.evaluate(run, TestRequest(limit=20))["samples"] == 20


def test_the_users_test_images_are_tested_even_if_the_others_changed(photos, tmp_path):
    for part in ("train", "test"):
        shutil.copytree(photos, tmp_path / part)
    changes = {"model": {"width": 2}, "data": {"size": 4}}
    run = untrained(resolve("folder/node", scale="smoke", data=tmp_path, changes=changes))
    for part in ("train", "test"):
        shutil.copy(photos / "cat" / "001.png", tmp_path / part / "cat" / "new.png")
    assert run.config.evaluate(run, TestRequest(limit=30))["samples"] == 30


def test_images_that_were_all_learned_are_not_tested_once_the_test_part_is_gone(photos, tmp_path):
    for part in ("train", "test"):
        shutil.copytree(photos, tmp_path / part)
    changes = {"model": {"width": 2}, "data": {"size": 4}}
    run = untrained(resolve("folder/node", scale="smoke", data=tmp_path, changes=changes))
    shutil.rmtree(tmp_path / "test")
    with pytest.raises(ConfigError, match="other samples than when the run was trained"):
        run.config.evaluate(run, TestRequest())
