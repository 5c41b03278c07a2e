"""Gaps, times since an observation and imputed values against plain loops."""

import pytest
import torch

from bfno.models.recurrent import DecayImputation, decay_factor, row_gaps, time_since_observed
from tests.models.irregular import gaps_of, irregular_batch

TOLERANCE = 1e-12


def since_by_scanning(gaps, mask):
    """The published recurrence: what is missing hands its time on to the next row."""
    since = gaps.unsqueeze(-1).repeat(1, 1, mask.shape[-1])
    for series, row, feature in (~mask).nonzero().tolist():
        if 0 < row < mask.shape[1] - 1:
            since[series, row + 1, feature] += since[series, row, feature]
    return since


@pytest.mark.parametrize("which", ["previous", "next"])
def test_gaps_belong_to_the_row_after_or_before(which):
    times, _, _ = irregular_batch()
    expected = torch.stack([torch.stack(gaps_of(one, which)) for one in times])
    assert torch.equal(row_gaps(times, which), expected)
    other = row_gaps(times, "next" if which == "previous" else "previous")
    assert torch.equal(row_gaps(times.flip(1), which), other.flip(1))


def test_an_unknown_gap_is_refused():
    with pytest.raises(ValueError, match="previous or next"):
        row_gaps(torch.zeros(1, 2), "both")


@pytest.mark.parametrize("which", ["previous", "next"])
def test_time_since_an_observation_is_that_of_the_published_scan(which):
    times, _, mask = irregular_batch()
    gaps = row_gaps(times, which)
    found = time_since_observed(gaps, mask)
    torch.testing.assert_close(found, since_by_scanning(gaps, mask), rtol=0, atol=TOLERANCE)


def test_time_since_an_observation_is_a_difference_of_times():
    times, _, mask = irregular_batch()
    found = time_since_observed(row_gaps(times), mask)
    for series, row, feature in torch.cartesian_prod(*map(torch.arange, mask.shape)).tolist():
        earlier = [other for other in range(row) if mask[series, other, feature]]
        expected = times[series, row] - times[series, max(earlier, default=0)]
        torch.testing.assert_close(found[series, row, feature], expected, rtol=0, atol=TOLERANCE)


def test_a_decay_neither_grows_nor_overflows():
    exponent = torch.tensor([-5.0, 0.0, 1.0, 1e30])
    expected = torch.tensor([1.0, 1.0, torch.e**-1, 0.0])
    torch.testing.assert_close(decay_factor(exponent), expected, rtol=0, atol=TOLERANCE)


def test_imputed_values_fade_from_the_last_into_the_mean():
    _, values, mask = irregular_batch()
    since = torch.rand(values.shape)
    imputation = DecayImputation(3)
    imputation.weight.data = torch.tensor([0.7, -2.0, 1.5])
    imputation.bias.data = torch.tensor([0.1, 0.5, -0.2])
    found = imputation(values, mask, since)
    assert torch.equal(found[mask], values[mask])
    for series, row, feature in (~mask).nonzero().tolist():
        seen = values[series, mask[series, :, feature], feature]
        mean = seen.mean() if len(seen) else torch.zeros(())
        earlier = values[series, :row, feature][mask[series, :row, feature]]
        last = earlier[-1] if len(earlier) else torch.zeros(())
        exponent = imputation.weight[feature] * since[series, row, feature]
        kept = torch.exp(-(exponent + imputation.bias[feature]).clamp(0, 1000))
        expected = kept * last + (1 - kept) * mean
        torch.testing.assert_close(found[series, row, feature], expected, rtol=0, atol=TOLERANCE)


def test_a_new_imputation_repeats_the_last_value_and_can_learn_to_fade():
    values = torch.tensor([[[2.0], [0.0], [4.0]]])
    mask = values > 0
    imputation = DecayImputation(1)
    found = imputation(values, mask, torch.ones(1, 3, 1))
    assert found.flatten().tolist() == [2.0, 2.0, 4.0]
    found.sum().backward()
    # The missing value moves from 2 towards the mean 3 as the exponent leaves 0.
    assert imputation.weight.grad is not None and imputation.bias.grad is not None
    assert imputation.weight.grad.tolist() == imputation.bias.grad.tolist() == [1.0]
