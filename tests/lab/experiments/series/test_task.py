"""What series are trained on, and that training is honest and repeatable."""

import dataclasses
import json
import math
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from bfno.lab.errors import ConfigError
from bfno.lab.experiments.series.experiment import SeriesExperiment
from bfno.lab.experiments.series.task import SeriesTask, predict_series
from bfno.lab.experiments.tasks import FAILURES, Place, Share
from bfno.lab.runs.session import resume, start
from bfno.lab.runs.signals import Stopped
from bfno.models.likelihood import kl_weight
from tests.lab.experiments.series.runs import tiny
from tests.lab.runs import runs

CPU = Place(torch.device("cpu"))


def _made(config) -> tuple[SeriesTask, Any]:
    data = config.load()
    torch.manual_seed(0)
    return config.task(data), config.build(config.facts(data))


def test_every_training_series_is_in_one_batch():
    task, _ = _made(tiny("rnn-d"))
    batches = task.batches(16, torch.Generator().manual_seed(0))
    assert torch.cat(batches).sort().values.tolist() == list(range(len(task.data.train)))
    again = task.batches(16, torch.Generator().manual_seed(0))
    assert all(torch.equal(*pair) for pair in zip(batches, again, strict=True))


def test_the_public_code_meets_the_series_in_the_order_of_the_files():
    task, _ = _made(tiny("rnn-d", {"data": {"order": "public_code"}}))
    batches = task.batches(16, torch.Generator().manual_seed(0))
    assert [batch.tolist() for batch in batches[:2]] == [[*range(16)], [*range(16, 32)]]
    assert torch.cat(batches).tolist() == [*range(len(task.data.train))]


@pytest.mark.parametrize(("method", "samples"), [("gru-d", 1), ("latent-ode", 3)])
@pytest.mark.parametrize("epoch", [0, 25])
def test_the_loss_is_the_published_sum(method, samples, epoch):
    """Negative bound of the likelihood plus 100 cross-entropies, divided by the samples once."""
    config = tiny(method, {"loss": {"deviation": 0.3, "classification": 100.0}})
    task, model = _made(config)
    chosen = torch.arange(10)
    torch.manual_seed(1)
    loss, sums = task.loss(model, chosen, Place(CPU.device, epoch))
    torch.manual_seed(1)
    batch = task.data.train.batch(chosen)
    output = model(batch.times.float(), batch.values, batch.mask)
    assert len(output.scores) == samples
    density = torch.distributions.Normal(output.prediction, 0.3).log_prob(batch.values)
    observed = batch.mask.sum(1).clamp(min=1)
    likelihoods = ((density * batch.mask).sum(2) / observed).mean((1, 2))
    if output.kl is None:
        expected = -likelihoods.mean()
    else:
        expected = -(likelihoods - kl_weight(epoch) * output.kl.mean()).logsumexp(0)
    entropy = [F.cross_entropy(scores, batch.labels) for scores in output.scores]
    expected = expected + 100 * torch.stack(entropy).mean() / samples
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert sums["labelled"] == 10


def test_a_part_of_no_weight_has_gradients_of_zero():
    """Several processes can then agree on the gradients of every parameter."""
    task, model = _made(tiny("latent-ode", {"loss": {"reconstruction": 0.0}}))
    loss, _ = task.loss(model, torch.arange(8), CPU)
    loss.backward()
    assert all(one.grad is not None for one in model.parameters())
    assert not any(one.grad.any() for one in model.decoder.parameters())


def test_predictions_do_not_depend_on_the_size_of_a_batch():
    task, model = _made(tiny("ode-rnn"))
    found = [
        predict_series(model, task.data.test, batch, "own").probabilities for batch in (1, 7, 100)
    ]
    for other in found[1:]:
        torch.testing.assert_close(other, found[0])


@pytest.mark.parametrize("method", ["gru-d", "ode-rnn", "latent-ode"])
def test_the_union_of_times_changes_no_prediction_beyond_the_tolerance(method):
    changes = {"solver": {"rtol": 1e-6, "atol": 1e-7}, "data": {"test_limit": 6}}
    task, model = _made(tiny(method, changes))
    own, union = (predict_series(model, task.data.test, 6, times) for times in ("own", "union"))
    # The union makes an ODE-RNN's steps shorter: what differs is the error of the longer ones.
    torch.testing.assert_close(union.probabilities, own.probabilities, atol=2e-4, rtol=0)
    assert union.mse == pytest.approx(own.mse, rel=1e-2)


def test_training_does_not_look_at_the_test_series(tmp_path, monkeypatch):
    config = tiny("latent-bfno-node")
    start(config, tmp_path / "run")

    load = SeriesExperiment.load

    def with_other_test(config):
        data = load(config)
        test = dataclasses.replace(
            data.test, values=-2 * data.test.values, labels=data.test.labels.flip(0)
        )
        return dataclasses.replace(data, test=test)

    monkeypatch.setattr(SeriesExperiment, "load", with_other_test)
    start(config, tmp_path / "other")
    assert runs.weights(tmp_path / "run") == runs.weights(tmp_path / "other")
    first, second = (runs.result(tmp_path / name) for name in ("run", "other"))
    assert first["chosen_epoch"] == second["chosen_epoch"]
    assert first["result"]["test_mse"] != second["result"]["test_mse"]


@pytest.mark.parametrize("method", ["latent-bfno-node", "rnn-vae", "ghbnode-rnn"])
def test_a_run_that_was_stopped_continues_bit_for_bit(tmp_path, method):
    config = tiny(method)
    start(config, tmp_path / "whole")
    with pytest.raises(Stopped):
        start(config, tmp_path / "parts", [runs.StopAfter(2)])
    with pytest.raises(Stopped):
        resume(tmp_path / "parts", watchers=[runs.StopAfter(4)])
    resume(tmp_path / "parts")
    assert runs.weights(tmp_path / "parts") == runs.weights(tmp_path / "whole")
    assert runs.metrics(tmp_path / "parts") == runs.metrics(tmp_path / "whole")


def test_the_learning_rate_falls_to_its_floor_and_no_further(tmp_path):
    changes = {"train": {"lr": 1.0e-3, "decay": 0.1, "decay_every": 1, "decay_floor": 0.05}}
    start(tiny("rnn-delta-t", changes), tmp_path / "run")
    line = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1]
    assert math.isclose(json.loads(line)["lr"], 5e-5)


def test_a_weight_of_speed_is_part_of_the_training_loss_alone():
    def loss(weight):
        config = tiny("latent-ode", {"loss": {"kinetic": weight}})
        data = config.load()
        torch.manual_seed(0)
        model, task = config.build(config.facts(data)), config.task(data)
        torch.manual_seed(1)
        found, _ = task.loss(model.train(), torch.arange(5), Place(torch.device("cpu")))
        batch = data.test.batch(torch.arange(3))
        output = model.eval()(batch.times.float(), batch.values, batch.mask)
        assert output.kinetic is None
        return found.item()

    # The same noise: without a weight nothing is drawn for it.
    none, some, more = loss(0.0), loss(1e4), loss(3e4)
    assert some > none and more - none == pytest.approx(3 * (some - none), rel=1e-3)


@pytest.mark.parametrize("method", ["gru-d", "ace-latent-ode"])
def test_speed_is_weighed_only_where_each_series_has_one(method):
    config = tiny(method, {"loss": {"kinetic": 1.0}})
    with pytest.raises(ConfigError, match=r"loss\.kinetic"):
        config.build(config.facts(config.load()))


@pytest.mark.parametrize("part", ["classifier", "decoder"])
def test_an_evaluation_names_what_is_not_a_number(part):
    task, model = _made(tiny("rnn-d"))
    torch.nn.init.constant_(getattr(model, part)[-1].bias, math.nan)
    with pytest.raises(FAILURES, match="the model's scores are not finite numbers"):
        task.evaluate(model, "validation", 50, Share())


@pytest.mark.parametrize("method", ["gru-d", "ode-rnn", "latent-bfno-node"])
def test_a_model_that_runs_in_half_precision_is_evaluated_too(method):
    task, model = _made(tiny(method))
    whole = predict_series(model, task.data.test, 10, "own")
    with torch.autocast("cpu", torch.bfloat16):
        half = predict_series(model, task.data.test, 10, "own")
    assert half.probabilities.dtype == torch.float32
    # Numbers of eight bits, through some layers.
    torch.testing.assert_close(half.probabilities, whole.probabilities, atol=0.03, rtol=0)
    torch.testing.assert_close(
        half.probabilities.sum(-1), torch.ones_like(whole.probabilities[..., 0])
    )
    assert half.mse == pytest.approx(whole.mse, rel=0.03)
