"""What latent models learn of series: values between and after those that they saw."""

import pytest

from bfno.lab.experiments.resolve import resolve
from bfno.lab.experiments.series.reconstruction import ReconstructionRequest, evaluate_hold_out
from bfno.lab.runs.load import open_run
from bfno.lab.runs.session import start


def _scores(tmp_path, method, epochs):
    changes = {"threads": 1, "train": {"epochs": epochs}}
    start(resolve(f"series/{method}", changes=changes), tmp_path / "run")
    return evaluate_hold_out(open_run(tmp_path / "run"), ReconstructionRequest(), 0.3)


@pytest.mark.slow
def test_a_latent_model_interpolates_better_than_the_mean(tmp_path):
    """A little training halves the error of the mean at rows that were hidden."""
    found = _scores(tmp_path, "latent-ode", 10)
    assert 2 * found["interpolation"].model < found["interpolation"].series_mean


# How many times smaller than that of the mean the error is, between and after what was seen. A
# recurrent encoder finds the initial state less well than one that follows an equation, and the
# attention between latent dimensions takes longer to learn.
FACTORS = {
    "latent-ode": (3, 2),
    "augmented-ode": (3, 2),
    "latent-bfno-node": (3, 2),
    "ace-latent-ode": (2, 1.5),
    "latent-ode-rnn": (1.5, 1.5),
}


@pytest.mark.slow
@pytest.mark.parametrize("method", FACTORS)
def test_trained_latent_models_beat_the_mean_by_far(tmp_path, method):
    found = _scores(tmp_path, method, 40)
    for name, factor in zip(("interpolation", "extrapolation"), FACTORS[method], strict=True):
        assert factor * found[name].model < found[name].series_mean, name
