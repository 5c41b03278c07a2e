"""Drawing from flows, and ways between samples."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from bfno.lab.errors import ConfigError, NumericalError
from bfno.lab.experiments.density import sampling
from bfno.lab.experiments.experiment import TrainedRun
from bfno.lab.runs.load import open_run
from bfno.lab.runs.session import start
from bfno.models.flows import Encoding, Flow, FlowError, PixelFlow
from bfno.ode import SolverError, Stats, Status
from tests.lab.experiments.density.runs import tiny


class _Scaled(Flow):
    """Latent variables are samples divided by a scale."""

    def __init__(self, event_shape: tuple[int, ...], scale: float = 2.0) -> None:
        super().__init__(event_shape)
        self.scale = nn.Parameter(torch.tensor(scale))

    def encode(self, x):
        return Encoding((x / self.scale).flatten(1), -self.scale.log().expand(len(x)))

    def decode(self, latent):
        return (latent * self.scale).view(-1, *self.event_shape)


def _run(flow: Flow) -> Any:
    config = SimpleNamespace(experiment="moons/ffjord", seed=0)
    return TrainedRun(config, flow.eval(), 1, {})


def test_points_are_drawn_from_the_density_of_the_flow():
    points = sampling.draw(_run(_Scaled((2,))), 20_000, temperature=0.5, seed=1, batch=999)
    assert points.shape == (20_000, 2)
    # Deviation 2 × 0.5; five standard errors of mean and deviation.
    assert points.mean(0).abs().max() < 5 / math.sqrt(20_000)
    assert (points.std(0) - 1).abs().max() < 5 / math.sqrt(40_000)


def test_a_seed_fixes_samples_for_any_batch():
    run = _run(_Scaled((2,)))
    drawn = sampling.draw(run, 10, seed=4)
    assert torch.equal(drawn, sampling.draw(run, 10, seed=4, batch=3))
    assert not torch.equal(drawn, sampling.draw(run, 10, seed=5))
    assert torch.equal(sampling.draw(run, 10, temperature=0.0), torch.zeros(10, 2))


def test_images_are_bytes_each_from_its_own_interval():
    run = _run(PixelFlow(_Scaled((1, 2, 2), 1.0), None))
    levels = torch.tensor([0.0, 0.999 / 256, 1.001 / 256, 254.999 / 256]) - 0.5
    extreme = torch.tensor([-9.0, 0.0, 255.5 / 256 - 0.5, 9.0])
    found = sampling.decode(run, torch.stack((levels, extreme)))
    assert found.dtype == torch.uint8
    assert found.flatten(1).tolist() == [[0, 0, 1, 254], [0, 128, 255, 255]]


def test_images_come_back_from_their_latent_variables():
    run = _run(PixelFlow(_Scaled((1, 16, 16)), 0.05))
    images = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    assert torch.equal(sampling.decode(run, sampling.encode(run, images)), images)


def test_the_way_between_points_is_a_great_circle():
    run = _run(_Scaled((2,), 1.0))
    first, second = torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 4.0]])
    way = sampling.interpolate(run, first, second, steps=5)[0]
    angles = torch.atan2(way[:, 1], way[:, 0]) / math.pi * 180
    torch.testing.assert_close(angles, torch.tensor([0.0, 22.5, 45.0, 67.5, 90.0]))
    torch.testing.assert_close(way.norm(dim=1), torch.tensor([2.0, 2.5, 3.0, 3.5, 4.0]))


def test_a_way_keeps_the_typical_distance_that_a_straight_line_leaves():
    run = _run(_Scaled((500,), 1.0))
    first, second = torch.randn(2, 3, 500)
    way = sampling.interpolate(run, first, second, steps=9)
    assert way.shape == (3, 9, 500)
    typical = math.sqrt(500)
    assert (way.norm(dim=2) - typical).abs().max() < 5
    assert ((first + second) / 2).norm(dim=1).max() < 0.8 * typical


@pytest.mark.parametrize("second", [[3.0, 4.0], [6.0, 8.0], [3.0, 4.000001]])
def test_ways_between_directions_that_agree_are_straight(second):
    run = _run(_Scaled((2,), 1.0))
    way = sampling.interpolate(run, torch.tensor([[3.0, 4.0]]), torch.tensor([second]), 3)[0]
    assert way.isfinite().all()
    torch.testing.assert_close(way[1], (torch.tensor([3.0, 4.0]) + torch.tensor(second)) / 2)


def test_a_way_to_the_origin_is_finite():
    run = _run(_Scaled((2,), 1.0))
    way = sampling.interpolate(run, torch.zeros(1, 2), torch.tensor([[1.0, 0.0]]), 3)
    assert way.isfinite().all() and torch.equal(way[0, -1], torch.tensor([1.0, 0.0]))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda run: sampling.draw(run, 0), "^count: 0 samples are too few"),
        (lambda run: sampling.draw(run, 1, -1.0), "^temperature: -1.0 is not a temperature"),
        (lambda run: sampling.draw(run, 1, math.nan), "^temperature: nan is not a temperature"),
        (
            lambda run: sampling.interpolate(run, torch.zeros(1, 2), torch.zeros(1, 2), 1),
            "^steps: 1 are too few",
        ),
        (
            lambda run: sampling.interpolate(run, torch.zeros(1, 2), torch.zeros(2, 2), 3),
            "^samples: 1 to start from but 2",
        ),
        (lambda run: sampling.encode(run, torch.zeros(1, 3)), r"^samples: have shape \(3,\)"),
        (
            lambda run: sampling.encode(run, torch.zeros(1, 2, dtype=torch.uint8)),
            "^samples: ",
        ),
        (lambda run: sampling.read_files(run, []), "^moons/ffjord: models points, not images"),
    ],
)
def test_senseless_requests_are_refused_in_one_line(call, message):
    with pytest.raises(ConfigError, match=message) as error:
        call(_run(_Scaled((2,))))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        (FlowError("the inverse does not converge"), "^the flow: the inverse does not converge"),
        (
            SolverError(Status.STEP_LIMIT, "t = 0.5", Stats()),
            r"^the solver: .*raise evaluation\.rtol",
        ),
    ],
)
def test_a_flow_that_cannot_be_inverted_is_explained(monkeypatch, failure, message):
    def fail(*_):
        raise failure

    monkeypatch.setattr(_Scaled, "decode", fail)
    with pytest.raises(NumericalError, match=message):
        sampling.draw(_run(_Scaled((2,))), 1)


def test_samples_that_are_no_numbers_are_not_returned():
    with pytest.raises(NumericalError, match="not finite"):
        sampling.draw(_run(_Scaled((2,), math.inf)), 4)


def test_a_rare_sample_beyond_all_bounds_is_drawn_again(caplog):
    class Bursting(_Scaled):
        def decode(self, latent):
            beyond = torch.where(latent > 1, math.inf, 1.0)
            return super().decode(latent * beyond)

    samples = sampling.draw(_run(Bursting((2,))), 200, seed=3)
    assert samples.isfinite().all() and samples.max() <= 2
    kept = sampling.draw(_run(_Scaled((2,))), 200, seed=3)
    same = (kept <= 2).all(1)
    assert torch.equal(samples[same], kept[same]) and not same.all()
    assert f"{(~same).sum()} of 200 samples" in caplog.text


@pytest.mark.parametrize("method", ["ffjord-rnode", "realnvp", "glow", "i-resnet"])
def test_real_images_survive_the_way_through_a_trained_flow(tmp_path, method):
    start(tiny(f"digits-density/{method}"), tmp_path / "run")
    run = open_run(tmp_path / "run")
    real = sampling.test_images(run, 6)
    assert real.shape == (6, 1, 8, 8) and real.dtype == torch.uint8
    way = sampling.interpolate(run, real[:3], real[3:], steps=4)
    assert way.shape == (3, 4, 1, 8, 8)
    # The inverse is exact to a fraction of a byte.
    assert torch.equal(way[:, 0], real[:3]) and torch.equal(way[:, -1], real[3:])
    assert sampling.draw(run, 3, batch=2).shape == (3, 1, 8, 8)


def test_samples_that_become_finite_in_the_last_draw_are_returned(caplog):
    class Late(_Scaled):
        calls = 0

        def decode(self, latent):
            self.calls += 1
            return super().decode(latent) * (math.inf if self.calls <= 10 else 1.0)

    assert sampling.draw(_run(Late((2,))), 4).isfinite().all()
    assert "4 of 4 samples were not finite numbers and are drawn again" in caplog.text


@pytest.mark.parametrize(
    ("model", "remedy"),
    [
        ({"kind": "glow", "bound": None}, "train it again with --set model.bound=1"),
        ({"kind": "glow", "bound": 1.0}, "draw with --temperature 0.7"),
        ({"kind": "realnvp"}, "draw with --temperature 0.7"),
    ],
)
def test_a_flow_that_overflows_says_how_often_and_what_helps(model, remedy):
    run = _run(_Scaled((2,), math.inf))
    run.config.model = SimpleNamespace(**model)
    with pytest.raises(NumericalError, match=rf"^moons/ffjord: 4 of 4 .*Fix: {remedy}") as error:
        sampling.draw(run, 4)
    assert "\n" not in str(error.value)
