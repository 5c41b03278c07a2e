"""A field that fails ends in the right status with every method, and never hangs."""

import subprocess
import sys

import pytest

from bfno.ode import METHODS, SolverError
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
