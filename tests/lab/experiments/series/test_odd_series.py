"""Thousands of unusual series, through every kind of model."""

import numpy as np
import pytest
import torch

from bfno.lab.data import Series
from bfno.lab.experiments.series.data import scaling_of
from bfno.lab.experiments.series.task import predict_series
from bfno.lab.runs.load import open_run
from bfno.lab.runs.session import start
from tests.lab.experiments.series.runs import tiny


def _odd_series(count: int, seed: int) -> Series:
    """Short and long ones, empty rows, dead features, equal values, times that hardly move."""
    generator = np.random.default_rng(seed)
    lengths = generator.integers(1, 12, count)
    lengths[::50] = 120
    rows = int(lengths.sum())
    gaps = generator.choice([1e-9, 1e-3, 0.1, 1.0, 30.0], rows) * generator.random(rows)
    starts = np.concatenate(([0], lengths.cumsum()))
    times = gaps.cumsum()
    times -= np.repeat(times[starts[:-1]], lengths)
    sizes = generator.choice([0.0, 1e-30, 1.0, 1e3, 1e30], (rows, 2))
    mask = generator.random((rows, 2)) < generator.choice([0.0, 0.3, 1.0], (rows, 1))
    return Series(
        torch.from_numpy(times),
        torch.from_numpy(sizes * generator.standard_normal((rows, 2)) * mask).float(),
        torch.from_numpy(mask),
        torch.from_numpy(generator.integers(0, 4, count)),
        torch.from_numpy(starts),
        tuple(map(str, range(count))),
        by_row=False,
    )


@pytest.mark.parametrize("count", [200, pytest.param(2000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("method", ["gru-d", "rnn-vae", "gnesterovnode-rnn", "latent-bfno-node"])
def test_odd_series_have_finite_answers(tmp_path, method, count):
    start(tiny(method), tmp_path / "run")
    run = open_run(tmp_path / "run")
    series = scaling_of(run).apply(_odd_series(count, seed=1))
    found = predict_series(run.model, series, 100, "own")
    assert found.probabilities.isfinite().all()
    ones = torch.ones(found.probabilities.shape[:-1])
    torch.testing.assert_close(found.probabilities.sum(-1), ones)
    assert np.isfinite(found.mse)
