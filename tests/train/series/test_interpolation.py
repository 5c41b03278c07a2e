"""What latent models learn of series: values between and after those that they saw."""

import pytest

from bfno.train.experiment import resolve
from bfno.train.load import open_run
from bfno.train.series.hold_out import evaluate_hold_out
from bfno.train.series.reconstruction import ReconstructionRequest
from bfno.train.session import start


def _scores(tmp_path, method, epochs):
    changes = {"threads": 1, "train": {"epochs": epochs}}
    start(resolve(f"series/{method}", changes=changes), tmp_path / "run")
    return evaluate_hold_out(open_run(tmp_path / "run"), ReconstructionRequest(), 0.3)


def test_a_latent_model_interpolates_better_than_the_mean(tmp_path):
    """Half a minute of training halves the error of the mean at rows that were hidden."""
    found = _scores(tmp_path, "latent-ode", 14)
    assert 2 * found["interpolation"].model < found["interpolation"].series_mean


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    ["latent-ode", "latent-ode-rnn", "augmented-ode", "ace-latent-ode", "latent-bfno-node"],
)
def test_trained_latent_models_beat_the_mean_by_far(tmp_path, method):
    """A third of its error between the rows that were seen, half of it after them."""
    found = _scores(tmp_path, method, 40)
    interpolation, extrapolation = found["interpolation"], found["extrapolation"]
    assert 3 * interpolation.model < interpolation.series_mean
    assert 2 * extrapolation.model < extrapolation.series_mean
