"""The learning rate of every step."""

import math

import pytest

from bfno.lab.experiments.settings import TrainSettings
from bfno.lab.runs.schedule import learning_rate, rate_of_training


def test_steps_multiply_the_rate_down_to_a_floor():
    settings = TrainSettings(lr=0.1, decay=0.5, decay_every=10, decay_floor=0.2)
    assert [learning_rate(settings, step, 100) for step in (0, 9, 10, 20, 90)] == pytest.approx(
        [0.1, 0.1, 0.05, 0.025, 0.02]
    )


def test_a_cosine_falls_from_the_rate_to_nothing():
    settings = TrainSettings(lr=0.1, schedule="cosine")
    found = [learning_rate(settings, step, 50) for step in range(51)]
    assert found == pytest.approx(
        [0.05 * (1 + math.cos(math.pi * step / 50)) for step in range(51)]
    )
    assert learning_rate(settings, 60, 50) == pytest.approx(0)


def test_a_schedule_that_restarts_is_two_schedules():
    once = TrainSettings(lr=0.1, schedule="cosine", warmup=0.1)
    twice = once.model_copy(update={"restart": 5})
    found = [rate_of_training(twice, step, epochs=8, per_epoch=10) for step in range(80)]
    assert found[:50] == [learning_rate(once, step, 50) for step in range(50)]
    assert found[50:] == [learning_rate(once, step, 30) for step in range(30)]
    whole = [rate_of_training(once, step, epochs=8, per_epoch=10) for step in range(80)]
    assert whole == [learning_rate(once, step, 80) for step in range(80)]


@pytest.mark.parametrize("warmup", [20, 0.2])
def test_a_warm_up_is_a_number_of_steps_or_a_share_of_them(warmup):
    settings = TrainSettings(lr=1.0, decay=1.0, warmup=warmup)
    assert [learning_rate(settings, step, 100) for step in (0, 9, 19, 50)] == pytest.approx(
        [0.05, 0.5, 1, 1]
    )


@pytest.mark.parametrize(
    ("samples", "epochs"), [(1, 200), (480, 183), (5000, 57), (50_000, 18), (10**7, 10)]
)
def test_few_samples_get_many_epochs(samples, epochs):
    assert TrainSettings(epochs="auto").epochs_for(samples) == epochs
    assert TrainSettings(epochs=3).epochs_for(samples) == 3
