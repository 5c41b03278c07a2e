"""Intervals that have the promised coverage for errors of any kind."""

import json
import math

import pytest
import torch

from bfno.models.intervals import LEVELS, PredictiveIntervals


def _zeros(*shape):
    return torch.zeros(1, *shape)


def _coverage(fitted, values, level=0.9, **where):
    low, high = fitted.bounds(_zeros(*values.shape), level=level, **where)
    return ((low <= values) & (values <= high)).double()


@pytest.mark.parametrize("level", LEVELS)
def test_the_wanted_share_of_new_values_is_covered(level):
    torch.manual_seed(0)
    old, new = torch.randn(4000, 2).exp(), torch.randn(4000, 2).exp()  # errors of no normal kind
    fitted = PredictiveIntervals.fit(_zeros(4000, 2), old, old == old)
    assert _coverage(fitted, new, level).mean().item() == pytest.approx(level, abs=0.012)


def test_series_whose_errors_are_alike_count_once():
    """Twenty values of one series say no more than one; plain quantiles would cover 85 %."""
    torch.manual_seed(1)
    covered = []
    for _ in range(300):
        old, new = torch.randn(2, 12, 1).expand(2, 12, 20).unsqueeze(-1)
        series = torch.arange(12)[:, None].expand(12, 20)
        fitted = PredictiveIntervals.fit(_zeros(12, 20, 1), old, old == old, series=series)
        covered.append(_coverage(fitted, new).mean())
    assert 0.895 < torch.stack(covered).mean().item() < 0.94


@pytest.mark.parametrize(("count", "is_finite"), [(8, False), (9, True)])
def test_too_few_series_have_no_interval(count, is_finite):
    old = torch.randn(count, 50, 1)
    series = torch.arange(count)[:, None].expand(count, 50)
    fitted = PredictiveIntervals.fit(_zeros(count, 50, 1), old, old == old, series=series)
    half = fitted.half_width(_zeros(1, 1))
    assert math.isfinite(half.item()) == is_finite


def test_intervals_grow_as_errors_do():
    torch.manual_seed(2)
    horizon = torch.rand(6000)
    values = torch.randn(6000, 1) * (0.1 + horizon[:, None])
    old, new = slice(3000), slice(3000, None)
    fitted = PredictiveIntervals.fit(
        _zeros(3000, 1), values[old], values[old] == values[old], horizon=horizon[old]
    )
    near, far = fitted.half_width(_zeros(2, 1), horizon=torch.tensor([0.05, 0.95])).flatten()
    assert far > 3 * near
    covered = _coverage(fitted, values[new], horizon=horizon[new])[horizon[new].argsort()]
    for part in covered.tensor_split(3):
        assert 0.86 < part.mean().item() < 0.94


def test_a_wider_spread_of_samples_and_a_harder_series_widen_the_interval():
    torch.manual_seed(3)
    samples = torch.randn(3, 500, 1) * 0.1
    values = torch.randn(500, 1)
    fitted = PredictiveIntervals.fit(samples, values, values == values)
    narrow, wide = fitted.half_width(torch.tensor([[[0.0], [-2.0]], [[0.0], [2.0]]])).flatten()
    assert wide > narrow
    hard = fitted.half_width(_zeros(2, 1), difficulty=torch.tensor([1.0, 3.0])).flatten()
    assert hard[1].item() == pytest.approx(3 * hard[0].item())


def test_a_rare_feature_shares_what_the_others_have():
    torch.manual_seed(4)
    values = torch.randn(400, 3) * torch.tensor([1.0, 5.0, 1.0])
    mask = torch.ones(400, 3, dtype=torch.bool)
    mask[:, 2] = False
    fitted = PredictiveIntervals.fit(_zeros(400, 3), values.where(mask, math.nan), mask)
    one, five, never = fitted.half_width(_zeros(1, 3)).flatten().tolist()
    assert five > 3 * one and one < never < five


def test_perfect_predictions_are_covered():
    values = torch.zeros(20, 1)
    fitted = PredictiveIntervals.fit(_zeros(20, 1), values, values == 0)
    assert bool((_coverage(fitted, values) == 1).all())


def test_intervals_survive_json():
    torch.manual_seed(5)
    values = torch.randn(30, 2)  # too few for 99 %
    fitted = PredictiveIntervals.fit(_zeros(30, 2), values, values == values)
    again = PredictiveIntervals.from_dict(json.loads(json.dumps(fitted.as_dict(), allow_nan=False)))
    for level in LEVELS:
        before, after = (one.half_width(_zeros(4, 2), level=level) for one in (fitted, again))
        assert torch.equal(before, after)
    assert math.isinf(again.half_width(_zeros(1, 2), level=0.99)[0, 0])


def test_what_cannot_be_fitted_or_asked_for_is_named():
    values = torch.randn(20, 1)
    with pytest.raises(ValueError, match="at least one observed value"):
        PredictiveIntervals.fit(_zeros(20, 1), values, torch.zeros(20, 1))
    with pytest.raises(ValueError, match="not finite"):
        PredictiveIntervals.fit(_zeros(20, 1) + math.nan, values, values == values)
    with pytest.raises(ValueError, match=r"prediction must have shape \(samples, 20, 1\)"):
        PredictiveIntervals.fit(_zeros(20, 1)[0], values, values == values)
    with pytest.raises(ValueError, match=r"mask \(20, 1\), got \(1, 20, 1\) and \(10, 2\)"):
        PredictiveIntervals.fit(_zeros(20, 1), values, (values == values).view(10, 2))
    fitted = PredictiveIntervals.fit(_zeros(20, 1), values, values == values)
    with pytest.raises(ValueError, match=r"one of 0\.5, 0\.8, 0\.9, 0\.95, 0\.99, got 0\.7"):
        fitted.half_width(_zeros(1, 1), level=0.7)


@pytest.mark.parametrize("level", [0.0, -0.1, 1.5, math.nan])
def test_a_level_that_is_no_share_is_refused(level):
    values = torch.randn(100, 1)
    with pytest.raises(ValueError, match="levels must lie above 0 and be 1 at most, got"):
        PredictiveIntervals.fit(values[None] * 0, values, values == values, levels=(0.5, level))
