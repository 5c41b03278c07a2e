"""How many cores other programs leave free."""

import psutil
import pytest

from bfno.lab.runs import cores
from bfno.lab.runs.cores import free_cores


@pytest.mark.parametrize(
    ("glance", "look", "free"),
    [
        ([0, 0, 0, 0], None, 4),
        ([20, 0, 5, 0], None, 4),  # what a desktop does
        ([100, 0, 0, 0], [100, 0, 0, 0], 3),
        ([100, 100, 100, 100], [10, 0, 0, 0], 4),  # busy for a moment
        ([100, 100, 50, 0], [100, 100, 50, 0], 1),
        ([100, 100, 100, 100], [100, 100, 100, 100], 1),
    ],
)
def test_taken_cores_do_not_count_unless_it_was_for_a_moment(monkeypatch, glance, look, free):
    readings = iter([glance, look])
    monkeypatch.setattr(cores, "_cores", lambda: [0, 1, 2, 3])
    monkeypatch.setattr(psutil, "cpu_percent", lambda seconds, percpu: next(readings))
    assert free_cores() == free


def test_what_others_do_on_cores_that_are_not_ours_does_not_matter(monkeypatch):
    monkeypatch.setattr(cores, "_cores", lambda: [1, 3])
    monkeypatch.setattr(psutil, "cpu_percent", lambda seconds, percpu: [100, 0, 100, 0])
    assert free_cores() == 2


def test_all_cores_count_where_the_system_does_not_tell(monkeypatch):
    def refuse(seconds, percpu):
        raise PermissionError("/proc/stat")

    monkeypatch.setattr(cores, "_cores", lambda: [0, 1, 2])
    monkeypatch.setattr(psutil, "cpu_percent", refuse)
    assert free_cores() == 3
