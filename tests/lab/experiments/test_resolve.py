"""What makes an experiment another one, and what only tells where it was run."""

import pytest

from bfno.lab.experiments.resolve import changed_settings, resolve


def _changes(experiment, **data):
    return changed_settings(resolve(experiment, scale="smoke", changes={"data": data}))


@pytest.mark.parametrize(
    ("experiment", "data"),
    [
        ("digits/node", {"dir": "/home/ann"}),
        ("folder/node", {"folder": "/home/ann/birds"}),
        ("series/gru-d", {"path": "/home/ann/mine.csv", "test_path": "/home/ann/later.csv"}),
    ],
)
def test_where_files_lie_does_not_change_an_experiment(experiment, data):
    assert _changes(experiment, **data) == []


def test_what_becomes_of_the_files_does():
    assert _changes("series/gru-d", test_fraction=0.5) == ["data.test_fraction=0.5"]
