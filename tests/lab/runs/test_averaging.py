"""The moving average of the weights: what is loaded, what is trained, and what a stop keeps."""

import json
import signal

import pytest
import torch
from safetensors.torch import load

from bfno.lab.experiments.images.task import ImageTask, evaluate_images
from bfno.lab.runs import loop
from bfno.lab.runs.folder import RunFolder
from bfno.lab.runs.load import open_run
from bfno.lab.runs.session import resume, start
from bfno.lab.runs.signals import Stopped
from tests.lab.runs.runs import StopAfter, metrics, result, tiny, weights

AVERAGED = {"train": {"average": 0.8}}


def _recorded(monkeypatch) -> list[dict[str, torch.Tensor]]:
    """The weights of a run before its first step and after each."""
    found = []
    step = loop.Trainer._step

    def recording(self, samples):
        if not found:
            found.append({k: v.clone() for k, v in self._bare_model.state_dict().items()})
        totals = step(self, samples)
        found.append({k: v.clone() for k, v in self._bare_model.state_dict().items()})
        return totals

    monkeypatch.setattr(loop.Trainer, "_step", recording)
    return found


def test_a_run_is_loaded_with_the_average_and_trained_without(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        seen = _recorded(patch)
        record = start(tiny(AVERAGED), tmp_path / "run")
    average = dict(seen[0])
    for step, after in enumerate(seen[1:]):
        keep = min(0.8, (1 + step) / (10 + step))
        average = {k: keep * v + (1 - keep) * after[k] for k, v in average.items()}
    newest = RunFolder(tmp_path / "run").checkpoints.newest()[0]
    assert newest is not None and newest.step == len(seen) - 1 == 12
    for name, value in average.items():
        torch.testing.assert_close(newest.model[name], value)
        assert torch.equal(newest.training[f"raw.{name}"], seen[-1][name])
    # The average takes no part in the training.
    start(tiny(), tmp_path / "plain")
    plain = load(weights(tmp_path / "plain")["model.safetensors"])
    assert all(torch.equal(plain[name], value) for name, value in seen[-1].items())
    # It is what was evaluated.
    run = open_run(tmp_path / "run")
    test = run.config.load().test
    found = evaluate_images(run.model, test, 10, batch=run.config.train.eval_batch).metrics
    assert found["loss"] == record.result["test_loss"]
    assert found["loss"] != json.loads(metrics(tmp_path / "plain")[-1])["test_loss"]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    run = tmp_path_factory.mktemp("run") / "whole"
    assert start(tiny(AVERAGED), run).steps == 12
    return run


@pytest.mark.parametrize("stop", range(1, 13))
def test_a_run_stopped_after_any_step_ends_with_the_same_bytes(tmp_path, uninterrupted, stop):
    with pytest.raises(Stopped):
        start(tiny(AVERAGED), tmp_path / "run", [StopAfter(stop)])
    resume(tmp_path / "run")
    assert weights(tmp_path / "run") == weights(uninterrupted)
    assert metrics(tmp_path / "run") == metrics(uninterrupted)
    assert result(tmp_path / "run") == result(uninterrupted)


def test_a_stop_while_the_average_is_evaluated_keeps_both_weights(
    tmp_path, monkeypatch, uninterrupted
):
    with monkeypatch.context() as patch:
        evaluate = ImageTask.evaluate
        calls = iter(range(100))

        def stop_in_the_second(self, model, split, batch, share):
            if next(calls) == 1:
                signal.raise_signal(signal.SIGTERM)
            return evaluate(self, model, split, batch, share)

        patch.setattr(ImageTask, "evaluate", stop_in_the_second)
        with pytest.raises(Stopped):
            start(tiny(AVERAGED), tmp_path / "run")
    resume(tmp_path / "run")
    assert weights(tmp_path / "run") == weights(uninterrupted)
    assert metrics(tmp_path / "run") == metrics(uninterrupted)


def test_an_average_may_begin_and_end_with_a_later_part_of_a_run(tmp_path):
    start(tiny(), tmp_path / "run")
    resume(tmp_path / "run", {"train": {"epochs": 3, "average": 0.9}})
    newest = RunFolder(tmp_path / "run").checkpoints.newest()[0]
    assert newest is not None
    raw = {name: newest.training[f"raw.{name}"] for name in newest.model}
    assert any(not torch.equal(raw[name], value) for name, value in newest.model.items())
    # The weights themselves went on as if there were none, also after it has ended.
    resume(tmp_path / "run", {"train": {"epochs": 4, "average": None}})
    start(tiny({"train": {"epochs": 4}}), tmp_path / "plain")
    assert weights(tmp_path / "run") == weights(tmp_path / "plain")
