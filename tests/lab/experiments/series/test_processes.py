"""Several processes that train models of series together."""

import json
import math

import pytest
import torch
from safetensors.torch import load

from bfno.lab.experiments.experiment import TestRequest
from bfno.lab.runs.load import open_run
from bfno.lab.runs.session import start
from tests.lab.experiments.series.runs import tiny
from tests.lab.runs import launch, runs


def _epochs(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("method", ["ode-rnn", "gru-d"])
def test_two_processes_learn_what_one_learns(tmp_path, method):
    # A last batch of one: the other process has none. 49 series of which a fifth validates. Both
    # processes evaluate.
    changes = {"data": {"train_limit": 49}, "train": {"batch": 19, "eval_batch": 6}}
    config = tiny(method, changes)
    together = launch.fork_several(launch.words(config, tmp_path / "two"), tmp_path / "log")
    start(config, tmp_path / "one")
    assert launch.codes(together) == [0, 0], (tmp_path / "log0.err").read_text()
    for ours, theirs in zip(_epochs(tmp_path / "two"), _epochs(tmp_path / "one"), strict=True):
        for name in ("train_loss", "train_accuracy", "test_accuracy", "test_loss", "test_mse"):
            assert math.isclose(ours[name], theirs[name], rel_tol=1e-4, abs_tol=1e-5), name
    # The scores of some series are a few roundings apart, and areas count their order: what two
    # processes find is therefore compared with what one finds in the same weights.
    run = open_run(tmp_path / "two")
    found = run.config.evaluate(run, TestRequest())
    result = json.loads((tmp_path / "two" / "record.json").read_text())["result"]
    for name in ("accuracy", "macro_f1", "auroc", "auprc", "loss", "mse"):
        assert found[name] == pytest.approx(result[f"test_{name}"], rel=1e-5), name
    found = (load(runs.weights(tmp_path / name)["model.safetensors"]) for name in ("one", "two"))
    ours, theirs = found
    for name, value in ours.items():
        torch.testing.assert_close(value, theirs[name], rtol=0, atol=1e-4)


def test_several_processes_agree_on_parameters_that_no_loss_needs(tmp_path):
    """The decoder of a model that learns labels alone, with noise of each process's own."""
    config = tiny("latent-bfno-node", {"loss": {"reconstruction": 0.0}})
    together = launch.fork_several(launch.words(config, tmp_path / "run"), tmp_path / "log")
    assert launch.codes(together) == [0, 0], (tmp_path / "log0.err").read_text()
    record = json.loads((tmp_path / "run" / "record.json").read_text())
    assert record["processes"] == 2 and record["status"] == "finished"
