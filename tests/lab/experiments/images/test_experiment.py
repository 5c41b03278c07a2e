"""Evaluation of image classifiers on data of other classes."""

import sys
from types import SimpleNamespace

import pytest

from bfno.lab.errors import ConfigError
from bfno.lab.experiments.experiment import TestRequest, TrainedRun
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
