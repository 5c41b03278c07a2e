"""Runs are asked for what a report shows of them, once, and none of them spoils a report."""

import shutil
from typing import get_args

import pytest

from bfno.lab.cli import density, exhibits
from bfno.lab.cli.exhibits import prepare
from bfno.lab.experiments.experiment import Shown
from bfno.lab.experiments.resolve import resolve
from bfno.lab.runs.session import start
from tests.lab.experiments.density.runs import tiny as tiny_density
from tests.lab.runs.runs import tiny


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "classifier"
    start(tiny(), folder)
    return folder


def test_a_classifier_gets_its_exhibit(classifier):
    prepare([classifier])
    assert (classifier / "exhibit.json").stat().st_size > 1000


def test_a_density_of_images_is_drawn_beside_real_ones_once(tmp_path, monkeypatch):
    start(tiny_density("digits-density/realnvp"), tmp_path / "run")
    prepare([tmp_path / "run"])
    assert (tmp_path / "run" / "figures" / "samples.png").stat().st_size > 1000
    monkeypatch.setattr(density, "_columns", lambda *_, **__: pytest.fail("drawn again"))
    prepare([tmp_path / "run"])


def test_points_are_drawn_without_real_ones(tmp_path):
    start(tiny_density("moons/ffjord"), tmp_path / "run")
    prepare([tmp_path / "run"])
    assert (tmp_path / "run" / "figures" / "samples.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("method", "drawn"), [("latent-ode", True), ("gru-d", False), ("ode-rnn", False)]
)
def test_series_are_reconstructed_by_latent_models_alone(tmp_path, method, drawn):
    changes = {"seed": 3, "threads": 1, "train": {"epochs": 1}}
    start(resolve(f"series/{method}", scale="smoke", changes=changes), tmp_path / "run")
    prepare([tmp_path / "run"])
    assert (tmp_path / "run" / "figures" / "reconstruction.svg").exists() is drawn


def test_a_run_without_checkpoints_is_left_alone(classifier, tmp_path):
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("record.json", "metrics.jsonl", "config.yaml"):
        shutil.copy(classifier / name, bare / name)
    prepare([bare])
    assert not (bare / "exhibit.json").exists()


def test_a_run_whose_data_are_gone_is_noted_and_the_others_are_prepared(
    classifier, tmp_path, caplog
):
    lost = tmp_path / "lost"
    shutil.copytree(classifier, lost)
    (lost / "exhibit.json").unlink(missing_ok=True)
    text = (lost / "config.yaml").read_text()
    (lost / "config.yaml").write_text(
        text.replace("name: digits", "name: mnist").replace(
            "dir: null", f"dir: {tmp_path / 'nowhere'}"
        )
    )
    other = tmp_path / "other"
    shutil.copytree(classifier, other)
    (other / "exhibit.json").unlink(missing_ok=True)
    prepare([lost, other])
    assert "shown without pictures of its model" in caplog.text
    assert not (lost / "exhibit.json").exists() and (other / "exhibit.json").exists()


def test_an_untrained_decoder_is_not_drawn():
    assert resolve("activity/latent-ode").shows is None
    assert resolve("physionet/latent-ode").shows == "reconstruction"


def test_whatever_an_experiment_shows_somebody_makes():
    assert set(exhibits._makers()) == set(get_args(Shown))
