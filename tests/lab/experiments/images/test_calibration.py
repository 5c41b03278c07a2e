"""Whether probabilities can be believed, against plain loops and known answers."""

import math

import pytest
import torch

from bfno.lab.experiments.images.calibration import calibration_error, fitted_temperature


def _drawn(count: int, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores, and labels that have just the probabilities of the scores at a temperature."""
    generator = torch.Generator().manual_seed(0)
    scores = 3 * torch.randn(count, 4, dtype=torch.float64, generator=generator)
    shares = (scores / temperature).softmax(1)
    return scores, torch.multinomial(shares, 1, generator=generator).flatten()


def test_the_error_is_that_of_a_plain_loop():
    scores, labels = _drawn(500, 2.0)
    sureness, predicted = scores.softmax(1).max(1)
    expected = 0.0
    for low in range(15):
        inside = (sureness > low / 15) & (sureness <= (low + 1) / 15)
        if inside.any():
            accuracy = (predicted == labels)[inside].double().mean()
            expected += abs(sureness[inside].mean() - accuracy) * inside.sum() / 500
    assert calibration_error(scores, labels) == pytest.approx(float(expected), rel=1e-12)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.5])
def test_the_temperature_of_the_labels_is_found(temperature):
    scores, labels = _drawn(20_000, temperature)
    found = fitted_temperature(scores, labels)
    assert found == pytest.approx(temperature, rel=0.03)
    # What chance alone leaves of the error, where the probabilities are the true ones.
    by_chance = calibration_error(scores / temperature, labels)
    assert calibration_error(scores / found, labels) < by_chance + 0.005


def test_a_few_right_answers_are_not_certainty():
    scores = 5 * torch.eye(4)[torch.arange(8) % 4]
    found = fitted_temperature(scores, torch.arange(8) % 4)
    # As after Laplace's rule of succession: nine in ten, not certainty.
    sureness = (scores / found).softmax(1).max(1).values
    torch.testing.assert_close(sureness, torch.full((8,), 0.9), rtol=1e-4, atol=0)


def test_labels_that_are_never_right_leave_it_finite():
    scores = torch.tensor([[5.0, 0.0], [0.0, 5.0]])
    assert math.isfinite(fitted_temperature(scores, torch.tensor([1, 0])))


@pytest.mark.parametrize("scores", [torch.zeros(4, 3), torch.tensor([[0.3] * 3, [-7.1] * 3])])
def test_scores_that_say_nothing_keep_their_temperature(scores):
    assert fitted_temperature(scores, torch.arange(len(scores)) % 3) == 1
