"""Evaluation of image classifiers that have no answer: on other classes, and with lost weights."""

import math
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from bfno.lab.errors import ConfigError, NumericalError
from bfno.lab.experiments.experiment import TestRequest, TrainedRun
from bfno.lab.experiments.settings import Settings
from bfno.lab.experiments.tasks import FAILURES, Share
from tests.lab.runs.runs import tiny


@pytest.mark.parametrize(("encoding", "told"), [("utf-8", False), ("ascii", True)])
def test_other_classes_are_blamed_on_the_locale_where_it_may_be_the_cause(
    monkeypatch, encoding, told
):
    monkeypatch.setattr(sys, "getfilesystemencoding", lambda: encoding)
    config = tiny()
    run = TrainedRun(config, SimpleNamespace(class_names=("Bär",)), 0, {})
    with pytest.raises(ConfigError, match="has other classes") as error:
        config.evaluate(run, TestRequest())
    assert ("PYTHONUTF8=1: the locale here reads" in str(error.value)) == told


def test_few_other_classes_are_all_named():
    run = TrainedRun(tiny(), SimpleNamespace(class_names=("cat", "dog")), 0, {})
    with pytest.raises(
        ConfigError, match=r"classes \(0, 1, 2, 3, 4, …\) than the run \(cat, dog\)\."
    ):
        run.config.evaluate(run, TestRequest())


def _with_lost_weights() -> tuple[TrainedRun, Any]:
    config = tiny()
    data = config.load()
    model = config.build(config.facts(data))
    model.class_names = data.classes
    torch.nn.init.constant_(model.head.bias, math.nan)
    return TrainedRun(config, model, 0, {}), config.task(data)


def test_an_evaluation_names_scores_that_are_not_finite():
    """The largest of them would be the first, so that they would look like answers."""
    run, task = _with_lost_weights()
    with pytest.raises(FAILURES, match="the model's scores are not finite numbers"):
        task.evaluate(run.model, "validation", 50, Share())


def test_a_run_whose_weights_are_lost_says_so_in_one_line(tmp_path):
    run, _ = _with_lost_weights()
    Image.fromarray(np.zeros((8, 8), dtype=np.uint8)).save(tmp_path / "one.png")
    for ask in (
        lambda: run.config.evaluate(run, TestRequest()),
        lambda: list(run.config.predict(run, [tmp_path / "one.png"])),
        lambda: run.config.exhibit(run),
    ):
        with pytest.raises(NumericalError, match=r"are not finite numbers\. Fix: use another"):
            ask()


def test_a_classifier_needs_no_width():
    class Plain(Settings):
        kind: str = "plain"

    config = tiny()
    plain = config.model_copy(update={"model": Plain()})
    assert plain.numbers_per_layer * config.model.width == config.numbers_per_layer
