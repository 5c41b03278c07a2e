"""Series side by side: padded, on the union of their times, scaled and back."""

import math
from dataclasses import replace

import pytest
import torch

from bfno.lab.data import UNLABELLED, Scaling, Series


def example(by_row: bool = False) -> Series:
    """Three series of 3, 1 and 2 rows, two features."""
    mask = torch.tensor([[1, 0], [1, 1], [0, 1], [0, 0], [1, 1], [1, 0]]).bool()
    values = torch.arange(1.0, 13.0).view(6, 2).float() * mask
    labels = torch.tensor([0, 1, 0, 2, 1, 1] if by_row else [5, 6, 7])
    times = torch.tensor([0.0, 1.0, 4.0, 2.0, 1.0, 3.0])
    return Series(times, values, mask, labels, torch.tensor([0, 3, 4, 6]), ("a", "b", "c"), by_row)


@pytest.mark.parametrize("by_row", [False, True])
def test_taken_series_keep_their_rows_in_the_new_order(by_row):
    series = example(by_row)
    part = series.take(torch.tensor([2, 0, 2]))
    assert part.ids == ("c", "a", "c") and part.lengths.tolist() == [2, 3, 2]
    rows = torch.tensor([4, 5, 0, 1, 2, 4, 5])
    assert torch.equal(part.times, series.times[rows])
    assert torch.equal(part.values, series.values[rows])
    expected = series.labels[rows] if by_row else torch.tensor([7, 5, 7])
    assert torch.equal(part.labels, expected)
    assert len(series.take(torch.empty(0).long())) == 0


def test_a_batch_repeats_the_last_time_and_observes_nothing_there():
    batch = example().batch(torch.tensor([1, 0]))
    assert batch.times.tolist() == [[2, 2, 2], [0, 1, 4]]
    assert not batch.mask[0].any() and batch.values[0].abs().sum() == 0
    assert torch.equal(batch.values[1], example().values[:3]) and batch.labels.tolist() == [6, 5]


def test_padding_of_labelled_rows_is_unlabelled():
    batch = example(by_row=True).batch(torch.tensor([2, 0]))
    assert batch.labels.tolist() == [[1, 1, UNLABELLED], [0, 1, 0]]


@pytest.mark.parametrize("by_row", [False, True])
def test_the_union_of_times_scatters_each_series_onto_it(by_row):
    series = example(by_row)
    batch = series.union_batch(torch.tensor([0, 2]))
    assert batch.times.tolist() == [[0, 1, 3, 4]] * 2
    assert torch.equal(batch.values[0][[0, 1, 3]], series.values[:3])
    assert torch.equal(batch.mask[1][[1, 2]], series.mask[4:])
    assert not batch.mask[0, 2].any() and not batch.mask[1, [0, 3]].any()
    none = UNLABELLED
    expected = [[0, 1, none, 0], [none, 1, 1, none]] if by_row else [5, 7]
    assert batch.labels.tolist() == expected


def test_the_public_batch_ends_at_one_and_drops_times_whose_values_add_up_to_zero():
    values = torch.tensor(
        [[2.0, 1.0], [3.0, -3.0], [0.0, 0.0], [4.0, 0.0], [-5.0, 0.0], [5.0, 0.0]]
    )
    mask = values != 0
    mask[2] = True  # observed zeros, as every value that is always the same becomes
    times = torch.tensor([0.0, 1.0, 2.0, 5.0, 4.0, 5.0])
    labels, starts = torch.tensor([1, 0]), torch.tensor([0, 4, 6])
    series = Series(times, values, mask, labels, starts, ("a", "b"), by_row=False)
    both = series.public_batch(torch.tensor([0, 1]))
    assert both.times.tolist() == [[0.0, 0.8, 1.0]] * 2
    assert both.values[0].tolist() == [[2, 1], [0, 0], [4, 0]]
    assert both.values[1].tolist() == [[0, 0], [-5, 0], [5, 0]]
    assert both.rows.tolist() == [[0, -1, 3], [-1, 4, 5]] and both.labels.tolist() == [1, 0]
    assert both.mask.sum().item() == 5
    # The first alone ends at the same time, but without its last two rows it ends earlier.
    assert series.public_batch(torch.tensor([0])).times.tolist() == [[0.0, 1.0]]
    short = Series(times[:2], values[:2], mask[:2], labels[:1], torch.tensor([0, 2]), ("a",), False)
    assert short.public_batch(torch.tensor([0])).times.tolist() == [[0.0]]


def test_a_row_with_a_label_is_never_dropped():
    values = torch.tensor([[1.0], [0.0], [2.0]])
    labels = torch.tensor([0, 1, 0])
    series = Series(
        torch.tensor([0.0, 1.0, 4.0]),
        values,
        values > -1,
        labels,
        torch.tensor([0, 3]),
        ("a",),
        True,
    )
    batch = series.public_batch(torch.tensor([0]))
    assert batch.times.tolist() == [[0.0, 0.25, 1.0]] and batch.labels.tolist() == [[0, 1, 0]]


@pytest.mark.parametrize("by_row", [False, True])
def test_a_public_batch_of_nothing_stays_whole(by_row):
    count = 2 if by_row else 1
    series = Series(
        torch.zeros(2),
        torch.zeros(2, 1),
        torch.ones(2, 1).bool(),
        torch.zeros(count).long(),
        torch.tensor([0, 2]),
        ("a",),
        by_row,
    )
    assert series.public_batch(torch.tensor([0])).times.tolist() == [[0.0]]


def test_a_batch_goes_to_another_precision_as_a_whole():
    batch = example().batch(torch.tensor([0])).to(torch.device("cpu"), torch.float16)
    assert batch.times.dtype == batch.values.dtype == torch.float16
    assert batch.mask.dtype == torch.bool and batch.labels.dtype == torch.int64


def test_scaled_values_restore_to_the_raw_ones_and_missing_ones_stay_zero():
    series = example()
    scaling = Scaling(4.0, (1.0, -2.0), (2.0, 0.5))
    scaled = scaling.apply(series)
    assert scaled.times.max() == 1.0 and scaled.values[~series.mask].abs().max() == 0
    back = scaling.restore(scaled.values.double())
    torch.testing.assert_close(back[series.mask], series.values[series.mask].double())


def test_values_are_cut_off_at_the_limit():
    scaled = Scaling(1.0, (0.0, 0.0), (1.0, 1.0), limit=3.0).apply(example())
    assert scaled.values.abs().max() == 3.0 and scaled.values[0, 0] == 1.0


def test_a_large_offset_does_not_cost_the_digits_of_small_values():
    series = example()
    shifted = Series(
        series.times,
        torch.full((6, 2), 1e6 + 0.25, dtype=torch.float32),
        torch.ones(6, 2, dtype=torch.bool),
        series.labels,
        series.starts,
        series.ids,
        by_row=False,
    )
    scaled = Scaling(1.0, (1e6, 1e6), (0.25, 0.25)).apply(shifted)
    assert math.isclose(scaled.values[0, 0].item(), 1.0)


def test_a_single_series_is_scaled_with_all_the_digits_it_has():
    """A prediction may be of rows that do not vary among themselves."""
    series = replace(example(), values=torch.full((6, 2), 1e8 + 0.3, dtype=torch.float64))
    scaled = Scaling(1.0, (1e8, 1e8), (0.3, 0.3)).apply(series)
    assert scaled.values.dtype == torch.float32
    assert scaled.values[series.mask].tolist() == pytest.approx([1.0] * 7, rel=1e-6)
