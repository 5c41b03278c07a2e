"""How many cores other programs leave free."""

import psutil
import pytest

from bfno.lab.runs import cores
from bfno.lab.runs.cores import free_cores


@pytest.fixture
def machine(monkeypatch):
    """Gives this process some cores of a machine, and says how busy all its cores are in turn."""

    def pretend(ours, *readings):
        following = iter(readings)
        monkeypatch.setattr(cores, "own_cores", lambda: ours)
        monkeypatch.setattr(psutil, "cpu_percent", lambda seconds, percpu: next(following))

    return pretend


@pytest.mark.parametrize(
    ("glance", "look", "free"),
    [
        ([0, 0, 0, 0], None, 4),
        ([30, 10, 15, 10], None, 4),  # what a desktop does
        ([100, 0, 0, 0], [100, 0, 0, 0], 3),
        ([100, 0, 0, 0], [55, 45, 0, 0], 3),  # a program that moves
        ([100, 100, 100, 100], [10, 0, 0, 0], 4),  # busy for a moment
        ([100, 100, 50, 0], [100, 100, 50, 0], 2),
        ([100, 100, 100, 100], [100, 100, 100, 100], 1),
    ],
)
def test_taken_cores_do_not_count_unless_it_was_for_a_moment(machine, glance, look, free):
    machine([0, 1, 2, 3], glance, look)
    assert free_cores() == free


@pytest.mark.parametrize(("count", "noise"), [(2, 16), (8, 10), (64, 5)])
def test_a_little_noise_on_many_cores_takes_none_of_them(machine, count, noise):
    machine(list(range(count)), [noise] * count)
    assert free_cores() == count


def test_what_others_do_on_cores_that_are_not_ours_does_not_matter(machine):
    machine([1, 3], [100, 0, 100, 0])
    assert free_cores() == 2


@pytest.mark.parametrize("told", [[], [0], [100]])
def test_all_cores_count_where_the_system_does_not_tell_of_all(machine, told):
    machine([0, 1], told, told)
    assert free_cores() == 2


@pytest.mark.parametrize("error", [PermissionError("/proc/stat"), RuntimeError("no"), ValueError()])
def test_all_cores_count_where_the_system_refuses(monkeypatch, error):
    def refuse(seconds, percpu):
        raise error

    monkeypatch.setattr(cores, "own_cores", lambda: [0, 1, 2])
    monkeypatch.setattr(psutil, "cpu_percent", refuse)
    assert free_cores() == 3
