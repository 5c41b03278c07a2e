"""Synthetic series: a pure function of the seed, true to the motions behind them."""

import math

import pytest
import torch

from bfno.lab.data.spirals import MOTIONS, draw_motions, observe, synthetic_series
from bfno.lab.errors import ConfigError


def padded(series):
    return series.batch(torch.arange(len(series)))


def test_the_same_seed_gives_the_same_series_whatever_was_drawn_before():
    first, _ = synthetic_series(20, seed=5)
    torch.rand(7)
    torch.set_default_dtype(torch.float32)
    again, _ = synthetic_series(20, seed=5)
    other, _ = synthetic_series(20, seed=6)
    for name in ("times", "values", "mask", "labels", "starts"):
        assert torch.equal(getattr(first, name), getattr(again, name))
    assert not torch.equal(first.labels, other.labels) or len(first.times) != len(other.times)


def test_the_default_is_six_hundred_series_of_four_kinds_and_many_lengths():
    series, motions = synthetic_series()
    assert len(series) == 600 and series.labels.bincount().tolist() == [150] * len(MOTIONS)
    assert torch.equal(series.labels, motions.kinds)
    assert series.lengths.min() == 15 and series.lengths.max() == 40
    assert series.mask.double().mean().item() == pytest.approx(0.8, abs=0.01)
    first = torch.zeros(len(series.times), dtype=torch.bool)
    first[series.starts[:-1]] = True
    assert (series.times.diff()[~first[1:]] > 0).all()
    assert series.times.min() >= 0 and series.times.max() <= 10
    assert series.values[~series.mask].abs().max() == 0


def test_observations_are_the_motions_and_noise_of_known_size():
    series, motions = synthetic_series(200, seed=1)
    batch = padded(series)
    error = (batch.values - motions.at(batch.times))[batch.mask]
    assert error.mean().item() == pytest.approx(0, abs=2e-3)
    assert error.std().item() == pytest.approx(0.05, rel=0.03)


def test_motions_solve_their_differential_equations():
    # Both kinds solve z'' = -2 d z' - (d² + w²) z, and spirals even z' = (-d + i w) z.
    motions = draw_motions(40, torch.Generator().manual_seed(0))
    times = torch.rand(40, 6) * 10
    times.requires_grad_()

    def derivative(places: torch.Tensor) -> torch.Tensor:
        parts = [
            torch.autograd.grad(places[..., k].sum(), times, create_graph=True)[0] for k in (0, 1)
        ]
        return torch.stack(parts, -1)

    z = motions.at(times)
    speed = derivative(z)
    d, w = motions.decay[:, None, None], motions.turn[:, None, None]
    torch.testing.assert_close(derivative(speed), -2 * d * speed - (d**2 + w**2) * z)
    turned = torch.stack((-z[..., 1], z[..., 0]), -1)
    spirals = motions.kinds < 2
    torch.testing.assert_close(speed[spirals], (-d * z + w * turned)[spirals])


def test_the_kind_is_the_sense_of_the_turn_or_the_frequency():
    motions = draw_motions(400, torch.Generator().manual_seed(0))
    turns = {name: motions.turn[motions.kinds == k] for k, name in enumerate(MOTIONS)}
    assert (turns["anticlockwise spiral"] > 0).all() and (turns["clockwise spiral"] < 0).all()
    assert turns["slow oscillator"].max() < turns["fast oscillator"].min()
    places = motions.at(torch.linspace(0, 10, 30))
    across = places[..., 1] * motions.direction.cos()[:, None]
    across = across - places[..., 0] * motions.direction.sin()[:, None]
    assert across[motions.kinds >= 2].abs().max() < 1e-12
    assert across[motions.kinds < 2].abs().amax(1).min() > 0.1


def test_truth_continues_beyond_the_observations():
    motions = draw_motions(4, torch.Generator().manual_seed(0))
    far = motions.at(torch.tensor([10.0, 20.0]))
    radius = motions.size * (-20 * motions.decay).exp()
    spirals = motions.kinds < 2
    torch.testing.assert_close(far[spirals, 1].norm(dim=-1), radius[spirals])
    assert math.isfinite(far.sum().item())


def test_no_series_at_all_are_refused():
    with pytest.raises(ConfigError, match="count"):
        synthetic_series(0)
    assert len(observe(draw_motions(1, torch.Generator()), torch.Generator())) == 1
