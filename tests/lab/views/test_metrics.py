"""What is known of metrics, and whether a lead is chance."""

import math
import random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import mannwhitneyu, ttest_ind

from bfno.lab.runs.folder import read_run
from bfno.lab.views.metrics import LIMIT, chance_of_lead, headline_of, interval_of_lead
from tests.lab.views.runs import write_run


@pytest.mark.parametrize(
    ("ours", "others"),
    [([0.95, 0.96, 0.95], [0.92, 0.93, 0.92]), ([1.0, 5.0], [2.0, 2.1, 2.2, 1.9])],
)
def test_it_is_the_value_of_welchs_test(ours, others):
    _, expected = ttest_ind(ours, others, equal_var=False)
    assert chance_of_lead(ours, others) == pytest.approx(expected, rel=1e-12)
    assert chance_of_lead(others, ours) == pytest.approx(expected, rel=1e-12)


def test_equal_methods_seldom_seem_different_even_from_the_luckiest_of_eight():
    chance, told = random.Random(0), 0
    for _ in range(2000):
        methods = [[chance.gauss(0, 1) for _ in range(3)] for _ in range(9)]
        best = max(methods[1:], key=sum)
        found = chance_of_lead(methods[0], best, rivals=8)
        told += found is not None and found < LIMIT
    assert told / 2000 < LIMIT


def test_without_any_spread_the_order_of_the_seeds_decides():
    # The rank test of five against five that do not overlap: 2 of 252 orders are as extreme.
    orders = mannwhitneyu([14.0] * 5, [20.0] * 5, method="exact")
    assert orders.pvalue == pytest.approx(2 / 252)
    assert chance_of_lead([14.0] * 5, [20.0] * 5) == pytest.approx(2 / 252)
    assert chance_of_lead([14.0] * 5, [20.0] * 5, rivals=8) == pytest.approx(16 / 252)
    assert chance_of_lead([14.0, 14.0], [20.0, 20.0], rivals=8) == 1
    assert chance_of_lead([14.0, 14.0], [14.0, 14.0]) == 1


@pytest.mark.parametrize("few", [[], [0.9], [0.9, None], [0.9, math.nan], [0.9, math.inf]])
def test_without_two_numbers_of_each_nothing_is_said(few):
    assert chance_of_lead(few, [0.1, 0.2]) is None
    assert chance_of_lead([0.1, 0.2], few) is None


def test_a_run_is_judged_by_the_metric_of_its_task(tmp_path):
    series = read_run(write_run(tmp_path, "physionet", result={"test_loss": 0.3, "test_auroc": 1}))
    density = read_run(write_run(tmp_path, "density", result={"test_bits_per_dim": 0.9}))
    other = read_run(write_run(tmp_path, "other", result={"speed": 1.0}))
    one, two = headline_of(series), headline_of(density)
    assert one is not None and two is not None
    assert (one.key, two.key) == ("test_auroc", "test_bits_per_dim")
    assert (one.higher_is_better, two.higher_is_better) == (True, False)
    assert headline_of(other) is None


@given(
    st.lists(st.floats(0.0, 1.0), min_size=2, max_size=5),
    st.lists(st.floats(0.0, 1.0), min_size=2, max_size=5),
    st.integers(1, 9),
)
def test_zero_is_outside_the_interval_exactly_if_chance_is_small(ours, others, rivals):
    assume(len(set(ours)) > 1 or len(set(others)) > 1)
    chance = chance_of_lead(ours, others, rivals)
    interval = interval_of_lead(ours, others, rivals)
    assert chance is not None and interval is not None
    # Numbers that differ in their last bits alone make a test of nothing.
    assume(all(len({round(one, 9) for one in some}) == len(set(some)) for some in (ours, others)))
    assume(abs(chance - LIMIT) > 1e-9)
    low, high = interval
    assert (low > 0 or high < 0) == (chance < LIMIT)


def test_without_two_scores_of_each_or_any_spread_there_is_no_interval():
    assert interval_of_lead([0.1], [0.1, 0.2]) is None
    assert interval_of_lead([0.5, 0.5], [0.25, 0.25]) is None
