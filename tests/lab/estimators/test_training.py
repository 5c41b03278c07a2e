"""What all estimators share: parameters, seeds, runs that are kept, and no traces elsewhere."""

import os
import re
import signal
import tempfile
import threading
from typing import Any

import joblib
import numpy as np
import polars as pl
import pytest
import torch
from sklearn.base import clone

import bfno
from bfno.lab.cli import main
from bfno.lab.errors import ConfigError, NumericalError
from bfno.lab.estimators.training import mended, undisturbed
from bfno.lab.runs.loop import Trainer
from tests.lab.estimators.small import (
    digits,
    moons,
    small_density,
    small_images,
    small_series,
    waves,
)

POINTS = moons(40)


def scores(**changes):
    return small_density(**changes).fit(POINTS).score_samples(POINTS)


def test_a_random_state_decides_everything():
    first = scores(random_state=1)
    torch.manual_seed(5)  # which is of no importance
    assert np.array_equal(first, scores(random_state=1))
    assert np.array_equal(first, scores(random_state=np.int64(1)))
    assert not np.array_equal(first, scores(random_state=2))
    drawn = [scores(random_state=np.random.RandomState(3)) for _ in range(2)]
    assert np.array_equal(drawn[0], drawn[1])


def test_a_random_state_that_is_not_given_is_drawn_from_that_of_numpy():
    np.random.seed(4)
    first, second = scores(random_state=None), scores(random_state=None)
    assert not np.array_equal(first, second)
    np.random.seed(4)
    assert np.array_equal(first, scores(random_state=None))


def test_a_fit_leaves_no_trace(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    torch.set_num_threads(2)
    try:
        fitted = small_density().fit(POINTS)
        fitted.score(POINTS)
        fitted.sample(3)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(torch.get_rng_state(), state)
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")


def test_a_fit_that_fails_leaves_no_trace_either(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    state = torch.get_rng_state()
    with pytest.raises(ValueError, match=r"train\.batch"):
        small_density(batch_size=0).fit(POINTS)
    with pytest.raises(ValueError, match=r"model\.field_options\.no: FNO has no such option"):
        small_density(settings={"model.field": "fno", "model.field_options": {"no": 1}}).fit(POINTS)
    assert torch.equal(torch.get_rng_state(), state) and list(tmp_path.iterdir()) == []


def test_progress_is_reported_if_requested(capsys):
    small_density(epochs=2, verbose=1).fit(POINTS)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines] == ["epoch 1/2", "epoch 2/2"]
    assert "train_nll" in lines[0] and "validation_nll" in lines[0]


def test_parameters_are_those_of_the_constructor():
    estimator = small_density(lr=0.1, patience=3)
    copy: Any = clone(estimator)
    assert copy.get_params() == estimator.get_params()
    assert estimator.set_params(epochs=5).epochs == 5
    with pytest.raises(ValueError, match="Invalid parameter 'width'"):
        estimator.set_params(width=5)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"settings": {"train.epochs": 2}}, "must not hold 'train.epochs'; use the parameter epo"),
        ({"settings": {"train": {"lr": 2}}}, "must not hold 'train.lr'; use the parameter lr"),
        ({"settings": {"model.wdth": 2}}, "model.wdth: is not a setting .* did you mean model.wid"),
        ({"epochs": 0}, "train.epochs"),
        ({"validation": 1.5}, "data.validation"),
        ({"method": "glow"}, "glow"),
        ({"method": "fjord"}, "^fjord: there is no such experiment. .* are ffjord, ffjord-"),
        ({"validation": 0, "patience": 2}, "train.patience: needs validation samples"),
        ({"patience": 2, "settings": {"train.select": "last"}}, "train.patience: .* select=last"),
    ],
)
def test_wrong_parameters_are_refused_when_fit_meets_them(changes, said):
    with pytest.raises(ValueError, match=said):
        small_density(**changes).fit(POINTS)


@pytest.mark.parametrize(
    ("small", "setting"),
    [
        (small_images, {"data.size": 4}),
        (small_images, {"data": {"train_limit": 5}}),
        (small_images, {"data.colour": True}),  # which the images say
        (small_density, {"data.coordinates": 3}),
        (small_series, {"data.test_fraction": 0.5}),
        (small_series, {"data.unit": "days"}),  # of a data frame, but these are arrays
    ],
)
def test_settings_that_do_nothing_for_samples_in_memory_are_refused(small, setting):
    samples = {small_images: digits(20), small_density: (POINTS,), small_series: waves(20)}
    with pytest.raises(ValueError, match=r"must not hold 'data\.\w+': it has no effect"):
        small(settings=setting).fit(*samples[small])


def test_every_epoch_is_reported_and_patience_ends_a_training_that_does_not_improve():
    # A rate at which no weight changes: no epoch is better than the first.
    fitted = small_density(epochs=9, patience=2, lr=1e-30).fit(POINTS)
    assert fitted.n_iter_ == 3
    assert [epoch["epoch"] for epoch in fitted.history_] == [1, 2, 3]
    assert all("validation_nll" in epoch for epoch in fitted.history_)
    assert not any(name.startswith("test_") for name in fitted.history_[0])


def test_without_validation_all_samples_are_for_training():
    fitted = small_density(validation=0).fit(POINTS)
    assert fitted.n_iter_ == 1 and "validation_nll" not in fitted.history_[0]


def test_a_fitted_estimator_survives_joblib(tmp_path):
    fitted = small_density().fit(POINTS)
    joblib.dump(fitted, tmp_path / "density.joblib")
    again = joblib.load(tmp_path / "density.joblib")
    assert np.array_equal(again.score_samples(POINTS), fitted.score_samples(POINTS))


# A schedule that does not depend on the number of epochs, so that more of them begin the same.
STEPS = {"settings": {"train.schedule": "steps", "train.warmup": 0}}


def test_a_run_that_is_kept_continues(tmp_path):
    folder = tmp_path / "run"
    first = small_density(epochs=1, checkpoints=folder, **STEPS).fit(POINTS)
    assert isinstance(bfno.load(folder), bfno.Flow)
    more = small_density(epochs=3, checkpoints=str(folder), **STEPS).fit(POINTS)
    assert more.n_iter_ == 3 and more.history_[:1] == first.history_
    at_once = small_density(epochs=3, **STEPS).fit(POINTS)
    assert np.array_equal(more.score_samples(POINTS), at_once.score_samples(POINTS))


def test_a_finished_run_is_only_read_again(tmp_path):
    given = {"checkpoints": tmp_path / "run", "random_state": None}
    first = small_density(**given).fit(POINTS)
    again = small_density(**given).fit(POINTS)  # the seed is that of the run
    assert again.history_ == first.history_
    assert np.array_equal(first.score_samples(POINTS), again.score_samples(POINTS))


def test_an_interrupted_fit_continues_bit_for_bit(tmp_path, monkeypatch):
    step, taken = Trainer._step, []

    def interrupted(self, samples):
        if len(taken) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        taken.append(samples)
        return step(self, samples)

    given = {"epochs": 2, "batch_size": 10}
    with (
        monkeypatch.context() as patch,
        pytest.raises(KeyboardInterrupt, match="fit continues from"),
    ):
        patch.setattr(Trainer, "_step", interrupted)
        small_density(checkpoints=tmp_path / "run", **given).fit(POINTS)
    assert len(taken) == 4
    after = small_density(checkpoints=tmp_path / "run", **given).fit(POINTS)
    never = small_density(**given).fit(POINTS)
    assert np.array_equal(after.score_samples(POINTS), never.score_samples(POINTS))


def test_a_run_of_other_samples_or_another_model_is_refused(tmp_path):
    folder = tmp_path / "run"
    small_density(checkpoints=folder).fit(POINTS)
    with pytest.raises(ValueError, match="run: holds a run on other samples"):
        small_density(checkpoints=folder).fit(POINTS + 1)
    with pytest.raises(ValueError, match=r"model\.width"):
        small_density(checkpoints=folder, settings={"model.width": 5}).fit(POINTS)
    with pytest.raises(ValueError, match="seed"):
        small_density(checkpoints=folder, random_state=8).fit(POINTS)
    images, labels = digits(20)
    with pytest.raises(ValueError, match="run: holds a run on other samples"):
        small_images(checkpoints=folder).fit(images, labels)


def test_a_run_whose_classes_or_features_had_other_names_is_refused(tmp_path):
    images, labels = digits(20)
    before, after = np.where(labels, "yes", "no"), np.where(labels, "spam", "ham")
    small_images(checkpoints=tmp_path / "run").fit(images, before)
    for epochs in (1, 2):  # of which one is read again and the other would be trained on
        with pytest.raises(ValueError, match=r"holds other classes .ham, spam. .* .no, yes"):
            small_images(checkpoints=tmp_path / "run", epochs=epochs).fit(images, after)
    series, labels = waves(20)
    columns = np.concatenate([np.column_stack(one) for one in series]).T
    names = np.repeat(np.arange(20), [len(times) for times, _ in series])
    columns = dict(zip(("time", "height", "depth"), columns, strict=True))
    frame = pl.DataFrame({"id": names, **columns}, nan_to_null=True)
    small_series(checkpoints=tmp_path / "series").fit(frame, labels)
    with pytest.raises(ValueError, match=r"holds other features .height, width. .* .height, depth"):
        small_series(checkpoints=tmp_path / "series").fit(frame.rename({"depth": "width"}), labels)


def test_commands_that_need_the_samples_of_a_kept_run_say_where_they_were(tmp_path, capsys):
    small_density(checkpoints=tmp_path / "run").fit(POINTS)
    for command in ("resume", "eval"):
        assert main([command, str(tmp_path / "run")]) == 2
        assert "were in the memory of the program" in capsys.readouterr().err


def test_threads_of_a_process_do_not_disturb_each_other():
    alone = [scores(random_state=seed) for seed in range(2)]
    found = {}

    def fit(seed):
        found[seed] = scores(random_state=seed)

    threads = [threading.Thread(target=fit, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.array_equal(found[seed], alone[seed]) for seed in range(2))


def test_a_purpose_has_random_numbers_of_its_own():
    drawn = []
    for seed, purpose in ((0, "a"), (0, "a"), (0, "b"), (1, "a")):
        with undisturbed(seed, purpose):
            drawn.append(torch.rand(()).item())
    assert drawn[0] == drawn[1] and len(set(drawn)) == 3


# The weights are lost in the first step, which only the evaluation can tell.
DIVERGING = {"method": "cnn", "lr": 1e6, "batch_size": 100}
DIVERGING |= {"settings": {"train.clip": None, "train.warmup": 0}}


def test_advice_after_a_divergence_is_for_who_holds_the_estimator():
    """The run is gone with its temporary folder, and cannot be resumed."""
    with pytest.raises(NumericalError) as error:
        small_images(**DIVERGING).fit(*digits(40))
    told = str(error.value)
    assert "Fix: pass lr=0.01, or" in told
    assert not any(word in told for word in ("bfno resume", "bfno-", "--set", "saved", "/run"))


def test_a_kept_run_continues_from_the_state_before_the_divergence(tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(NumericalError) as error:
        small_images(checkpoints=folder, **DIVERGING).fit(*digits(40))
    told = str(error.value)
    assert "the state after step 0" in told and "Fix: fit again with lr=0.01, or" in told
    assert "--set" not in told and "bfno resume" not in told
    again = small_images(checkpoints=folder, **DIVERGING | {"lr": 0.01}).fit(*digits(40))
    assert again.n_iter_ == 1


@pytest.mark.parametrize(
    ("text", "own"),
    [
        ("keep some with --set data.validation=0.1", "keep some with validation=0.1"),
        ("--set train.lr=1e-05, or less", "lr=1e-05, or less"),
        ("--set model.NAME=VALUE", "settings={'model.NAME': VALUE}"),
        ("say --set data.dates=day-first", "say settings={'data.dates': 'day-first'}"),
        (
            "name it: --set data.columns='[id, days, label]'",
            "name it: settings={'data.columns': ['id', 'days', 'label']}",
        ),
        ("--set \"data.missing=['no data']\"", "settings={'data.missing': ['no data']}"),
        ("leave it 0", "leave it 0"),
    ],
)
def test_advice_of_the_program_is_said_in_the_words_of_an_estimator(text, own):
    with pytest.raises(ValueError, match=re.escape(f"it: is wrong. Fix: {own}")), mended():
        raise ConfigError("it", "is wrong", text)


def test_a_prediction_that_fails_gives_advice_for_the_next_fit():
    fitted = small_images(method="node").fit(*digits(40))
    torch.nn.init.constant_(next(fitted.model_.parameters()), np.nan)
    with pytest.raises(NumericalError, match=r"raise solver\.rtol and .*atol in settings= and"):
        fitted.predict(digits(40)[0])
