"""What an image costs without a model, and its place among held-out images."""

import math
import zlib

import pytest
import torch

from bfno.lab.experiments.density.oddity import Yardstick, plain_bits


def _predicted(plane, row, column):
    left = plane[row][column - 1] if column else 0
    above = plane[row - 1][column] if row else 0
    corner = plane[row - 1][column - 1] if row and column else 0
    return sorted((left, above, left + above - corner))[1]


def test_the_cost_without_a_model_is_that_of_what_cannot_be_predicted():
    images = torch.randint(0, 256, (2, 3, 5, 7), dtype=torch.uint8)
    images[1] //= 64
    for image, cost in zip(images.tolist(), plain_bits(images).tolist(), strict=True):
        rest = bytes(
            (plane[row][column] - _predicted(plane, row, column)) % 256
            for plane in image
            for row in range(5)
            for column in range(7)
        )
        assert cost == 8 * len(zlib.compress(rest, 9)) / 105


def test_blank_images_and_slopes_cost_little_and_noise_costs_most():
    slope = torch.arange(32, dtype=torch.uint8).expand(1, 3, 32, 32)
    blank = torch.full((1, 3, 32, 32), 255, dtype=torch.uint8)
    noise = torch.randint(0, 256, (1, 3, 32, 32), dtype=torch.uint8)
    costs = plain_bits(torch.cat((blank, slope, noise)))
    assert costs[0] < 0.2 and costs[1] < 0.5 and 7.8 < costs[2] < 8.2


def _yardstick(count=100):
    plain = torch.linspace(0, 1, count).mul(997).remainder(1).tolist()
    return Yardstick("validation", torch.linspace(1, 2, count).tolist(), plain)


def test_percentiles_are_the_share_of_images_with_smaller_scores():
    yardstick = _yardstick()
    assert yardstick.scores(1.5, 0.5)["percentile"] == 50
    assert yardstick.scores(0.5, 0.5)["percentile"] == 0
    assert yardstick.scores(2.5, 0.5)["percentile"] == 100
    # One that is equal to another counts half.
    assert yardstick.scores(1.0, 0.5)["percentile"] == 0.5
    for beyond in (math.inf, math.nan):
        assert yardstick.scores(beyond, 0.5) == {"percentile": 100.0, "anomaly": 100.0}


def test_what_is_too_likely_too_unlikely_or_unlikely_for_its_kind_is_an_anomaly():
    yardstick = _yardstick()
    assert yardstick.scores(1.5, 0.5)["anomaly"] < 10
    for odd in ((0.2, 0.5), (2.8, 0.5), (1.5, 2.0)):
        assert yardstick.scores(*odd)["anomaly"] == pytest.approx(100 * 100 / 101)
    # Bits follow busyness: a blank image of middling bits is odd although each number is common.
    together = torch.linspace(1, 2, 50)
    noise = 0.02 * torch.linspace(0, 1, 50).mul(997).remainder(1)
    related = Yardstick("validation", together.tolist(), (together + noise).tolist())
    assert related.scores(1.5, 1.51)["anomaly"] < 20
    assert related.scores(1.5, 1.1)["anomaly"] == pytest.approx(100 * 50 / 51)


def test_images_that_are_all_alike_are_a_measure_too():
    alike = Yardstick("test", [2.0] * 5, [1.0] * 5)
    assert alike.scores(2.0, 1.0)["anomaly"] == 0
    assert alike.scores(2.1, 1.0)["anomaly"] == pytest.approx(100 * 5 / 6)


@pytest.mark.parametrize(
    ("count", "called"), [(5, 1), (96, 1), (99, 1), (150, 1), (198, 1), (199, 2), (500, 5)]
)
def test_as_many_ranks_are_unusual_as_make_one_per_cent(count, called):
    # The references are at 1, 2, 3 ... from the middle: the new one is put between them.
    yardstick = Yardstick("validation", [0.0] * count, [0.0] * count)
    share, most = yardstick.false_alarms()
    assert share == called / (count + 1) and (share <= 0.01 or called == 1)
    assert share < most < 1
    ranks = [100 * (1 - (1 + as_odd) / (count + 1)) for as_odd in range(count)]
    assert sum(anomaly >= yardstick.unusual_from for anomaly in ranks) == called


@pytest.mark.parametrize(("count", "share"), [(96, 1 / 97), (150, 1 / 151), (216, 2 / 217)])
def test_ordinary_images_are_called_unusual_as_rarely_as_is_said(count, share):
    generator, alarms, draws, new = torch.Generator().manual_seed(0), 0, 60, 40
    for _ in range(draws):
        bits = 4 + 0.5 * torch.randn(count + new, generator=generator)
        plain = 0.8 * bits + 0.3 * torch.randn(count + new, generator=generator)
        known = Yardstick("test", bits[:count].tolist(), plain[:count].tolist())
        pairs = zip(bits[count:].tolist(), plain[count:].tolist(), strict=True)
        alarms += sum(known.scores(*pair)["anomaly"] >= known.unusual_from for pair in pairs)
    # At most four deviations of a share of this size in this number of independent draws.
    assert alarms / (draws * new) == pytest.approx(share, abs=4 * math.sqrt(share / draws / new))


def test_scores_that_are_not_finite_are_no_measure():
    images = torch.zeros(3, 1, 4, 4, dtype=torch.uint8)
    assert list(Yardstick.of("test", images, torch.tensor([2.0, math.nan, 1.0])).bits) == [2, 1]


@pytest.mark.parametrize(
    ("count", "told"),
    [
        (20, "takes 99 held-out images; of images like the training images, about 4.8 % are"),
        (96, "odder than all of them, for 1 % of false alarms takes 99 held-out images"),
        (216, "unusual from 99.1 on; of images like the training images, about 0.9 % are called"),
        (500, "at most 1.8 % (19 times in 20)"),
    ],
)
def test_the_note_says_how_often_ordinary_images_are_called_unusual(count, told):
    note = _yardstick(count).note()
    assert f"among {count} validation images" in note and told in note and "\n" not in note


def test_what_is_kept_is_read_again_and_damage_is_nothing():
    yardstick = _yardstick(5)
    assert Yardstick.read(yardstick.facts()) == yardstick
    for damaged in ({}, {"split": "test", "bits": [], "plain": []}, {"bits": 3}, {"bits": ["a"]}):
        assert Yardstick.read(damaged) is None
