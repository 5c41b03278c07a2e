"""A density in the plane as arrays."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from bfno.lab.errors import ConfigError
from bfno.lab.experiments.density.sampling import draw, picture_plane
from bfno.lab.experiments.experiment import TrainedRun
from bfno.lab.experiments.resolve import resolve
from bfno.models.flows import ContinuousFlow


class _Growth(nn.Module):
    """A field whose flow is known: noise is shrunk by e**-rate on its way to data."""

    def __init__(self, rate: float = 0.5) -> None:
        super().__init__()
        self.rate = nn.Parameter(torch.tensor(rate))

    def forward(self, t, y):
        return self.rate * y


@pytest.fixture
def run():
    config = resolve("moons/ffjord-rnode", scale="smoke")
    flow = ContinuousFlow(_Growth(), (2,), trace="exact").eval()
    return TrainedRun(config, flow, 0, {"event_shape": [2]})


def test_the_density_is_that_of_the_flow_at_the_centres_of_cells(run):
    """Under z = x·e**0.5 the density of x is normal with deviation e**-0.5."""
    plane = picture_plane(run, 10, temperature=1.0, seed=0)
    low_x, high_x, low_y, high_y = plane.window
    rows, columns = plane.density.shape
    x = low_x + (high_x - low_x) * (np.arange(columns) + 0.5) / columns
    y = low_y + (high_y - low_y) * (np.arange(rows) + 0.5) / rows
    squares = (x**2 + y[:, None] ** 2) * math.e
    assert plane.density == pytest.approx(math.e / (2 * math.pi) * np.exp(-squares / 2), abs=1e-4)
    assert plane.mass == pytest.approx(1, abs=1e-3)


def test_rows_go_up_with_y_and_columns_with_x(run):
    plane = picture_plane(run, 10, temperature=1.0, seed=0)
    low_x, high_x, low_y, high_y = plane.window
    row, column = np.unravel_index(plane.density.argmax(), plane.density.shape)
    # The mode is the origin; the window of these points has another middle in both directions.
    assert (low_x + high_x) * (low_y + high_y) != 0
    rows, columns = plane.density.shape
    assert low_y + (high_y - low_y) * (row + 0.5) / rows == pytest.approx(0, abs=0.1)
    assert low_x + (high_x - low_x) * (column + 0.5) / columns == pytest.approx(0, abs=0.1)


def test_the_window_is_a_square_that_holds_the_data(run):
    plane = picture_plane(run, 10, temperature=1.0, seed=0)
    low_x, high_x, low_y, high_y = plane.window
    assert high_x - low_x == pytest.approx(high_y - low_y)
    assert low_x < plane.data[:, 0].min() and plane.data[:, 0].max() < high_x
    assert low_y < plane.data[:, 1].min() and plane.data[:, 1].max() < high_y


def test_paths_lead_from_noise_to_what_the_flow_makes_of_it(run):
    plane = picture_plane(run, 10, temperature=1.0, seed=0)
    assert plane.paths[-1] == pytest.approx(plane.paths[0] * math.exp(-0.5), rel=1e-4)
    shares = np.linspace(0, 1, len(plane.paths))
    expected = plane.paths[0] * np.exp(-0.5 * shares)[:, None, None]
    assert plane.paths == pytest.approx(expected, rel=1e-3)


def test_temperature_shrinks_samples_and_paths_but_not_the_density(run):
    warm, cool = (picture_plane(run, 500, temperature, seed=0) for temperature in (1.0, 0.5))
    assert cool.samples.std() == pytest.approx(warm.samples.std() / 2, rel=1e-4)
    assert cool.paths[0] == pytest.approx(warm.paths[0] / 2)
    assert np.array_equal(cool.density, warm.density)


def test_samples_are_those_of_the_seed_and_nothing_random_is_left_behind(run):
    state = torch.random.get_rng_state()
    plane = picture_plane(run, 20, temperature=1.0, seed=3)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert plane.samples == pytest.approx(draw(run, 20, seed=3).numpy())
    again = picture_plane(run, 20, temperature=1.0, seed=3)
    assert np.array_equal(plane.paths, again.paths)


def test_only_points_in_the_plane_make_a_picture(run):
    flow = ContinuousFlow(_Growth(), (3,), trace="exact").eval()
    with pytest.raises(ConfigError, match="no points in the plane"):
        picture_plane(TrainedRun(run.config, flow, 0, {}), 10, temperature=1.0, seed=0)
