"""What densities are trained on and judged by, and that training is honest and repeatable."""

import dataclasses
import json
import math
from typing import Any

import pytest
import torch
from torch import nn

from bfno.lab.errors import NumericalError
from bfno.lab.experiments.density.data import DensityData
from bfno.lab.experiments.density.experiment import DensityExperiment
from bfno.lab.experiments.density.task import DensityTask, Noise, costs, score
from bfno.lab.experiments.tasks import FAILURES, Evaluation, Place, Share
from bfno.lab.runs.load import open_run
from bfno.lab.runs.session import resume, start
from bfno.lab.runs.signals import Stopped
from bfno.models.flows import Encoding, Flow, FlowError
from bfno.models.flows.interface import log_normal
from tests.lab.experiments.density.runs import tiny
from tests.lab.runs import runs

CPU = Place(torch.device("cpu"))
IMAGE_METHODS = ("ffjord", "ffjord-rnode", "ffjord-bfno-rnode", "realnvp", "glow", "i-resnet")


class _Uniform(Flow):
    """The density 1 on the unit cube: each number becomes normal by its own quantile."""

    def __init__(self, event_shape: tuple[int, ...]) -> None:
        super().__init__(event_shape)
        self.unused = nn.Parameter(torch.zeros(()))

    def encode(self, x):
        assert x.min() >= 0 and x.max() <= 1
        latent = torch.special.ndtri(x.clamp(1e-6, 1 - 1e-6)).flatten(1)
        return Encoding(latent, -log_normal(latent) + 0 * self.unused)

    def decode(self, latent):
        return torch.special.ndtr(latent).view(-1, *self.event_shape)


class _Standard(Flow):
    """The standard normal density, with penalties that are easy to know."""

    def __init__(self, event_shape: tuple[int, ...]) -> None:
        super().__init__(event_shape)
        self.shift = nn.Parameter(torch.zeros(()))

    def encode(self, x):
        penalties = {"kinetic": x.new_full((len(x),), 3.0), "jacobian": x[:, 0]}
        moved = (x + self.shift).flatten(1)
        return Encoding(moved, x.new_full((len(x),), 0.25), penalties if self.training else {})

    def decode(self, latent):
        return latent - self.shift


def _made(config) -> tuple[DensityTask, Any]:
    data = config.load()
    torch.manual_seed(0)
    return config.task(data), config.build(config.facts(data))


def test_a_uniform_density_costs_exactly_eight_bits():
    config = tiny("digits-density/ffjord")
    task = config.task(config.load())
    flow = _Uniform((1, 8, 8))
    loss, sums = task.loss(flow, torch.arange(12), CPU)
    assert loss.item() == 8 and sums["bits_per_dim"] == 8 * 12
    found = task.evaluate(flow, "test", 7, Share()).metrics
    assert found["bits_per_dim"] == found["bits_per_dim_center"] == 8


def test_the_loss_of_points_is_their_surprise_and_the_weighted_penalties():
    config = tiny("moons/ffjord-rnode", {"loss": {"kinetic": 0.5, "jacobian": 0.125}})
    task = config.task(config.load())
    chosen = torch.arange(5, 25)
    loss, sums = task.loss(_Standard((2,)).train(), chosen, CPU)
    points = task.data.train[chosen]
    surprise = -torch.distributions.Normal(0.0, 1.0).log_prob(points).sum(1) - 0.25
    below = (points[:, 0] < 0).sum()
    assert 0 < below < 20  # squares have no such integrals: they gain nothing, and are reported
    expected = surprise.mean() + 0.5 * 3 + 0.125 * points[:, 0].clamp(min=0).mean()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    assert sums["nll"] == pytest.approx(surprise.sum().item(), rel=1e-5)
    # In nats for points; images have bits per dimension.
    assert sums["log_det"] == pytest.approx(0.25 * 20) and sums["kinetic"] == 60
    averages = task.train_metrics({**sums, "loss": 40.0, "samples": 20, "solves": 2})
    named = {"nll", "log_det", "kinetic", "jacobian", "penalty_below_zero", "loss"}
    assert set(averages) == named and averages["penalty_below_zero"] == below / 20
    assert averages["loss"] == 2 and averages["kinetic"] == 3


def test_the_log_determinant_of_images_is_counted_in_bits_per_dimension():
    config = tiny("digits-density/ffjord")
    task = config.task(config.load())
    flow = _Standard((1, 8, 8))
    flow.eval()  # no penalties, for which there are no weights here
    _, sums = task.loss(flow, torch.arange(4), CPU)
    assert sums["log_det"] == pytest.approx(4 * 0.25 / (64 * math.log(2)), rel=1e-4)


def test_scores_have_the_mean_and_the_standard_error_of_the_samples():
    points = torch.randn(50, 2)
    found = score(_Standard((2,)), points, 7, Noise(0, "test"))
    values = -torch.distributions.Normal(0.0, 1.0).log_prob(points).sum(1).double() - 0.25
    assert found.metrics["nll"] == pytest.approx(values.mean().item(), rel=1e-6)
    assert found.errors["nll"] == pytest.approx(values.std().item() / math.sqrt(50), rel=1e-5)


def test_uniform_noise_costs_more_than_the_middle_of_bytes_by_its_variance():
    """Under a normal density, noise of variance 1/12 of a byte adds half that to the exponent."""
    images = torch.full((400, 1, 8, 8), 200, dtype=torch.uint8)
    found = score(_Standard((1, 8, 8)), images, 100, Noise(0, "test")).metrics
    added = (found["bits_per_dim"] - found["bits_per_dim_center"]) * 64 * math.log(2)
    # The mean of 25,600 draws: the linear part of the exponent has a deviation of its own.
    deviation = 200.5 / 256 / math.sqrt(12) / 256 * math.sqrt(64 / 400)
    assert added == pytest.approx(64 / 24 / 256**2, abs=5 * deviation)


@pytest.mark.parametrize("method", ["ffjord-rnode", "i-resnet"])
def test_evaluation_is_repeatable_and_leaves_no_trace(method):
    task, model = _made(tiny(f"digits-density/{method}"))
    model.train()
    task.prepare(model, CPU.device)
    before, weights = torch.get_rng_state(), {k: v.clone() for k, v in model.state_dict().items()}
    first = task.evaluate(model, "test", 8, Share()).metrics
    torch.manual_seed(123)
    again = task.evaluate(model, "test", 8, Share()).metrics
    assert first == again
    assert model.training
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    torch.set_rng_state(before)
    task.evaluate(model, "validation", 8, Share())
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("method", ["ffjord-rnode", "glow"])
def test_evaluation_does_not_change_training(tmp_path, monkeypatch, method):
    config = tiny(f"digits-density/{method}", {"data": {"validation": 0.2}})
    start(config, tmp_path / "run")
    monkeypatch.setattr(DensityTask, "splits", ())
    record = start(config, tmp_path / "silent")
    assert not any(name.startswith("test_") for name in record.result)
    assert runs.weights(tmp_path / "run") == runs.weights(tmp_path / "silent")


def test_training_does_not_look_at_the_test_samples(tmp_path, monkeypatch):
    config = tiny("digits-density/glow")
    start(config, tmp_path / "run")

    load = DensityExperiment.load

    def with_other_test(config):
        data = load(config)
        return dataclasses.replace(data, test=255 - data.test)

    monkeypatch.setattr(DensityExperiment, "load", with_other_test)
    start(config, tmp_path / "other")
    assert runs.weights(tmp_path / "run") == runs.weights(tmp_path / "other")
    first, second = (runs.result(tmp_path / name) for name in ("run", "other"))
    assert first["chosen_epoch"] == second["chosen_epoch"]
    assert first["result"]["test_bits_per_dim"] != second["result"]["test_bits_per_dim"]


def test_the_epoch_of_the_smallest_validation_cost_is_chosen(tmp_path, monkeypatch):
    # The costs are given: which epoch of a real training is the best is a matter of rounding. The
    # test points prefer another epoch.
    validation, test = iter((2.0, 1.0, 1.5, 1.25)), iter((2.0, 3.0, 1.0, 4.0))

    def evaluate(self, model, split, batch, share):
        cost = next(validation if split == "validation" else test)
        return Evaluation({"nll": cost, "nfe": 1.0}, [])

    monkeypatch.setattr(DensityTask, "evaluate", evaluate)
    changes = {"train": {"epochs": 4}, "solver": {"method": "rk4", "step": 0.5}}
    record = start(tiny("moons/ffjord", changes), tmp_path / "run")
    lines = [json.loads(line) for line in runs.metrics(tmp_path / "run")]
    assert record.chosen_by == "validation_nll" and record.judged_by == "test_nll"
    assert record.chosen_epoch == 2 and record.result["test_nll"] == 3.0
    assert open_run(tmp_path / "run").step == lines[1]["step"]


@pytest.mark.parametrize("method", IMAGE_METHODS)
def test_every_method_learns_images(tmp_path, method):
    changes = {"train": {"epochs": 3}, "solver": {"method": "rk4", "step": 0.5}}
    config = tiny(f"digits-density/{method}", changes)
    start(config, tmp_path / "run")
    lines = [json.loads(line) for line in runs.metrics(tmp_path / "run")]
    losses = [line["train_bits_per_dim"] for line in lines]
    assert losses[2] < losses[0]
    assert {"test_bits_per_dim", "test_bits_per_dim_center", "test_nfe"} <= set(lines[0])
    is_regular = method.endswith("rnode")
    assert ("train_kinetic" in lines[0]) == ("train_jacobian" in lines[0]) == is_regular
    run = open_run(tmp_path / "run")
    assert run.facts["event_shape"] == [1, 8, 8]


def test_points_are_learned_beyond_the_best_normal_density(tmp_path):
    changes = {
        "data": {"points": 1024, "held_out": 500},
        "model": {"width": 32, "depth": 2},
        "solver": {"method": "rk4", "step": 0.5},
        "train": {"epochs": 14, "batch": 128, "lr": 0.02, "warmup": 5},
    }
    record = start(tiny("moons/ffjord", changes), tmp_path / "run")
    points = tiny("moons/ffjord", changes).load().train
    normal = torch.distributions.MultivariateNormal(points.mean(0), points.T.cov())
    best_normal = -normal.log_prob(points).mean().item()
    assert record.result["test_nll"] < best_normal - 0.3


@pytest.mark.parametrize(
    "experiment",
    [
        "digits-density/ffjord-rnode",
        "digits-density/glow",  # scales taken from the first batch
        "digits-density/i-resnet",  # vectors of power iterations
        "digits-density/realnvp",  # running statistics
        "moons/ffjord-bfno-rnode",
    ],
)
def test_a_run_that_was_stopped_continues_bit_for_bit(tmp_path, experiment):
    config = tiny(experiment, {"train": {"average": 0.9}})
    start(config, tmp_path / "whole")
    with pytest.raises(Stopped):
        start(config, tmp_path / "parts", [runs.StopAfter(1)])
    with pytest.raises(Stopped):
        resume(tmp_path / "parts", watchers=[runs.StopAfter(4)])
    resume(tmp_path / "parts")
    assert runs.weights(tmp_path / "parts") == runs.weights(tmp_path / "whole")
    assert runs.metrics(tmp_path / "parts") == runs.metrics(tmp_path / "whole")


def test_mirrored_images_are_drawn_afresh_and_only_in_training():
    config = tiny("digits-density/ffjord", {"data": {"flip": True}})
    left = torch.zeros(200, 1, 8, 8, dtype=torch.uint8)
    left[..., :4] = 255
    task = config.task(DensityData(left, None, left))
    seen = []

    class Watching(_Uniform):
        def encode(self, x):
            seen.append(x.clone())
            return super().encode(x)

    task.loss(Watching((1, 8, 8)), torch.arange(200), CPU)
    is_left = seen[0][:, 0, 0, 0] > 0.5
    assert 60 < is_left.sum() < 140
    assert (is_left == (seen[0][:, 0, 0, 7] < 0.5)).all()
    task.evaluate(Watching((1, 8, 8)), "test", 200, Share())
    assert (seen[1][..., :4] > 0.5).all() and (seen[2][..., 4:] < 0.5).all()


def test_a_flow_that_fails_stops_with_one_line(tmp_path, monkeypatch):
    def fail(*_):
        raise FlowError("the inverse does not converge")

    monkeypatch.setattr(DensityTask, "loss", fail)
    with pytest.raises(NumericalError, match=r"step 1 .*the inverse does not converge") as error:
        start(tiny("digits-density/glow"), tmp_path / "run")
    assert "\n" not in str(error.value)


def test_a_new_flow_is_shown_samples_from_everywhere():
    """Files come in the order of their folders, so the first ones are all of one class."""
    images = torch.zeros(200, 1, 8, 8, dtype=torch.uint8)
    images[100:] = 200
    seen = []

    class Watching(_Uniform):
        def encode(self, x):
            seen.append(x.clone())
            return super().encode(x)

    task = tiny("digits-density/glow").task(DensityData(images, None, images))
    torch.manual_seed(0)
    task.prepare(Watching((1, 8, 8)), CPU.device)
    bright = (seen[0] > 0.5).double().mean().item()
    assert len(seen[0]) == 16 and 0.2 < bright < 0.8


def test_an_epoch_of_few_samples_passes_over_them_as_often_as_it_takes():
    images = torch.zeros(50, 1, 8, 8, dtype=torch.uint8)
    batches = {}
    for least in (1, 4, 5, 9):
        config = tiny("digits-density/glow", {"train": {"least_steps": least}})
        task = config.task(DensityData(images, None, images))
        batches[least] = task.batches(16, torch.Generator().manual_seed(1))
    assert [len(found) for found in batches.values()] == [4, 4, 8, 12]
    for found in batches.values():
        passes = torch.cat(found).view(-1, 50)
        assert torch.equal(passes.sort(1).values, torch.arange(50).expand(len(passes), 50))
    first, second, _ = torch.cat(batches[9]).view(-1, 50)
    assert not torch.equal(first, second)
    assert torch.equal(first, torch.cat(batches[1]))


def _curved(solver):
    """A task and a flow whose paths are far from straight."""
    task, flow = _made(tiny("moons/ffjord", {"solver": solver}))
    with torch.no_grad():
        for weights in flow.parameters():
            weights.normal_()
    return task, flow


def test_what_coarse_steps_of_the_training_gain_is_reported():
    task, flow = _curved({"method": "euler", "step": 0.5})
    coarse = task.evaluate(flow, "validation", 200, Share()).metrics["solver_error"]
    costs = []
    for training in (True, False):
        with torch.no_grad():
            found = flow.train(training)(task.data.validation[:64])
        costs.append(found.log_prob.double().mean().item())
    assert coarse == pytest.approx(abs(costs[0] - costs[1]), rel=1e-9) and coarse > 0.1
    assert "solver_error" not in task.evaluate(flow, "test", 200, Share()).metrics
    few = task.evaluate(flow, "validation", 3, Share()).metrics["solver_error"]  # of three samples
    assert few != pytest.approx(coarse, rel=1e-3)
    task.data = dataclasses.replace(task.data, validation=None)
    assert task.evaluate(flow, "test", 200, Share()).metrics["solver_error"] > 0.1
    task, flow = _curved({"method": "rk4", "step": 0.02})
    assert task.evaluate(flow, "validation", 200, Share()).metrics["solver_error"] < 0.01 * coarse


def test_a_point_may_be_impossible_but_its_score_must_be_a_number():
    points = torch.zeros(5, 2)
    points[3, 1] = math.inf  # whose square is infinite too, so that the density there is 0
    found = score(_Standard((2,)), points, 2, Noise(0, "test"))
    assert found.metrics["nll"] == math.inf
    points[3, 1] = math.nan
    with pytest.raises(FAILURES, match="the model's scores are not finite numbers"):
        score(_Standard((2,)), points, 2, Noise(0, "test"))
    with pytest.raises(FAILURES, match="the model's scores are not finite numbers"):
        costs(_Standard((2,)), points, 2, Noise(0, "test"), "nll")
