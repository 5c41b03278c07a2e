"""A field that fails ends in the right status with every method, and never hangs."""

import subprocess
import sys

import pytest
import torch

from bfno.ode import METHODS, SolverError, solve
from tests.conftest import REPOSITORY
from tests.ode import failing


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", failing.CASES)
def test_field_is_reported(name, method):
    assert failing.mistakes(name, method) == []


@pytest.mark.parametrize("method", ["euler", "dopri5"])
@pytest.mark.parametrize("name", [name for name, case in failing.CASES.items() if case.failing])
def test_returned_status_is_raised_with_its_remedy(name, method):
    status = failing.solve(name, method, throw=False, max_steps=1000).status
    with pytest.raises(SolverError) as raised:
        failing.solve(name, method, max_steps=1000)
    assert raised.value.status is status
    assert status.value in str(raised.value)


@pytest.mark.parametrize(
    ("settings", "where"),
    [
        ({}, r"solve, on a clock from 0 to 1 along each row of ts, stopped at t = 0\.4"),
        # Fixed steps go on to the last time, in case some samples are sound; the first tells most.
        (
            {"method": "rk4", "step": 0.5},
            r"solve, on a clock from 0 to 1 from ts\[:, 1\] to ts\[:, 2\], stopped at t = 1:",
        ),
    ],
)
def test_a_failure_with_rows_of_times_says_on_which_clock_it_was(settings, where):
    rows = torch.tensor([[0.0, 1.0, 2.0, 3.0], [0.0, 0.5, 2.0, 3.0]], dtype=torch.float64)

    def field(t, y):  # ends at 1.2, which is 0.4 of either row
        return torch.where(t < 1.2, 1.0, torch.nan)[:, None].to(y) * torch.ones_like(y)

    with pytest.raises(SolverError, match=where):
        solve(field, torch.ones(2, 1, dtype=torch.float64), rows, **settings)


@pytest.mark.slow
def test_statuses_hold_without_assertions():
    done = subprocess.run(
        [sys.executable, "-O", "-m", "tests.ode.failing"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("optimised: True")


def test_a_wrong_expectation_is_noticed(monkeypatch):
    healthy = failing.Case(lambda t, y: -y, adaptive=failing.CASES["stiff"].adaptive)
    monkeypatch.setitem(failing.CASES, "healthy", healthy)
    assert failing.mistakes("healthy", "dopri5") == [
        "healthy with dopri5: status SUCCESS",
        "healthy with dopri5: returned numbers for a time it did not reach",
    ]
    monkeypatch.setitem(failing.CASES, "healthy", failing.Case(lambda t, y: -y, error=ValueError))
    assert failing.mistakes("healthy", "dopri5") == ["healthy with dopri5: was not refused"]
