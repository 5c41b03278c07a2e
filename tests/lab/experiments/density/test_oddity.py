"""What an image costs without a model, and its place among held-out images."""

import math

import pytest
import torch

from bfno.lab.experiments.density.oddity import Yardstick, excess_bits, plain_bits


def _one_by_one(image):
    """The entropy of the residuals of lossless JPEG's prediction, byte by byte."""
    counts = {}
    for plane in image.tolist():
        for row in range(len(plane)):
            for column in range(len(plane[0])):
                left = plane[row][column - 1] if column else 0
                above = plane[row - 1][column] if row else 0
                corner = plane[row - 1][column - 1] if row and column else 0
                expected = sorted((left, above, left + above - corner))[1]
                rest = (plane[row][column] - expected) % 256
                counts[rest] = counts.get(rest, 0) + 1
    total = sum(counts.values())
    return -sum(n / total * math.log2(n / total) for n in counts.values())


def test_the_cost_without_a_model_is_the_entropy_of_what_cannot_be_predicted():
    images = torch.randint(0, 256, (3, 2, 5, 7), dtype=torch.uint8)
    images[1] //= 64
    expected = torch.tensor([_one_by_one(image) for image in images], dtype=torch.float64)
    torch.testing.assert_close(plain_bits(images), expected, rtol=1e-12, atol=1e-12)


def test_blank_images_and_slopes_cost_little_and_noise_costs_most():
    slope = torch.arange(32, dtype=torch.uint8).expand(1, 3, 32, 32)
    blank = torch.full((1, 3, 32, 32), 255, dtype=torch.uint8)
    noise = torch.randint(0, 256, (1, 3, 32, 32), dtype=torch.uint8)
    costs = plain_bits(torch.cat((blank, slope, noise)))
    assert costs[0] < 0.02 and costs[1] < 0.5 and 7.8 < costs[2] <= 8
    assert torch.equal(excess_bits(noise, torch.tensor([9.0])), 9 - costs[2:])


def _yardstick(count=100):
    images = torch.zeros(count, 1, 4, 4, dtype=torch.uint8)
    return Yardstick.of("validation", images, torch.linspace(1, 2, count))


def test_percentiles_are_the_share_of_smaller_scores():
    yardstick = _yardstick()
    scores = yardstick.scores(1.5, 5.0)
    assert scores == {"percentile": 50.0, "anomaly": 100.0}
    assert yardstick.scores(0.5, math.nan) == {"percentile": 0.0, "anomaly": 100.0}
    # One that is equal to another counts half.
    assert yardstick.scores(1.0, 1.0) == {"percentile": 0.5, "anomaly": 0.5}
    assert yardstick.scores(math.inf, math.inf) == {"percentile": 100.0, "anomaly": 100.0}


def test_scores_that_are_not_finite_are_no_measure():
    images = torch.zeros(3, 1, 4, 4, dtype=torch.uint8)
    assert list(Yardstick.of("test", images, torch.tensor([2.0, math.nan, 1.0])).bits) == [1, 2]


@pytest.mark.parametrize(("count", "share"), [(96, "1.0 %"), (400, "1.2 %"), (20, "4.8 %")])
def test_the_note_says_how_often_ordinary_images_are_called_unusual(count, share):
    note = _yardstick(count).note()
    assert f"among {count} validation images" in note and share in note and "\n" not in note


def test_what_is_kept_is_read_again_and_damage_is_nothing():
    yardstick = _yardstick(5)
    assert Yardstick.read(yardstick.facts()) == yardstick
    for damaged in ({}, {"split": "test", "bits": [], "excess": []}, {"bits": 3}, {"bits": ["a"]}):
        assert Yardstick.read(damaged) is None
