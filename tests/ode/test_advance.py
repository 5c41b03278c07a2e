"""Steps over a different interval for every sample."""

import pytest
import torch

from bfno.ode import METHODS, advance, solve
from bfno.ode.step import RowSums, take_stages
from tests.ode.problems import Network

FIXED = ["euler", "midpoint", "heun", "rk4"]


@pytest.mark.parametrize("method", FIXED)
def test_every_sample_moves_as_the_engine_moves_it_alone(method):
    field, y = Network(), torch.randn(5, 3)
    start, gap = torch.rand(5), torch.randn(5)
    steps = torch.tensor([1, 4, 2, 3, 1])
    together = advance(field, y, start, gap, method=method, steps=steps)
    for i in range(5):
        ts = torch.linspace(0, 1, int(steps[i]) + 1) * gap[i] + start[i]
        alone = solve(field, y[i : i + 1], ts, method=method).ys[-1]
        torch.testing.assert_close(together[i : i + 1], alone, rtol=0, atol=1e-14)


@pytest.mark.parametrize("method", FIXED)
def test_the_error_falls_with_the_order_of_the_method(method):
    y, start, gap = torch.ones(2, 1), torch.zeros(2), torch.tensor([0.5, 1.0])

    def error(steps):
        rates = lambda t, y: y + t[:, None]  # noqa: E731
        end = advance(rates, y, start, gap, method=method, steps=steps)
        return (end[:, 0] - (2 * gap.exp() - 1 - gap)).abs()

    observed = torch.log2(error(40) / error(80))
    # The next power of the step changes the order seen at this size by less than a tenth.
    assert ((observed - METHODS[method].order).abs() < 0.1).all()


def test_a_sample_does_not_depend_on_the_steps_of_the_others():
    field, y, gap = Network(), torch.randn(3, 3), torch.rand(3)
    few = advance(field, y, torch.zeros(3), gap, steps=torch.tensor([2, 1, 1]))
    many = advance(field, y, torch.zeros(3), gap, steps=torch.tensor([2, 9, 5]))
    assert torch.equal(few[0], many[0])
    assert not torch.equal(few[1], many[1])


def test_a_gap_of_zero_changes_nothing():
    y = torch.randn(3, 2, 4)
    still = advance(lambda t, y: y + 1, y, torch.ones(3), torch.zeros(3), steps=3)
    assert torch.equal(still, y)
    none = torch.zeros(3, dtype=torch.long)
    assert torch.equal(advance(lambda t, y: y, y, torch.ones(3), torch.zeros(3), steps=none), y)


@pytest.mark.parametrize(("method", "calls"), [("bosh3", 9), ("dopri5", 18), ("rk4", 12)])
def test_no_slope_is_computed_that_only_an_error_estimate_needs(method, calls):
    field, y, gap = Network(), torch.randn(4, 3), torch.rand(4)
    times = []

    def counted(t, y):
        times.append(t)
        return field(t, y)

    found = advance(counted, y, torch.zeros(4), gap, method=method, steps=3)
    assert len(times) == calls
    expected = y
    for number in range(3):  # with all stages
        tableau, sums = METHODS[method], RowSums(METHODS[method])
        sums.begin(expected, gap / 3)
        start = torch.add(torch.zeros(4), gap / 3, alpha=number)
        moments = [torch.add(start, gap / 3, alpha=c) if c else start for c in tableau.nodes]
        expected = take_stages(field, moments, sums)
    assert torch.equal(found, expected)


def test_gradients_reach_states_times_gaps_and_parameters():
    field, steps = Network(), torch.tensor([1, 3])
    inputs = (torch.randn(2, 3), torch.rand(2), torch.randn(2))

    def run(y, start, gap, *_):
        return advance(field, y, start, gap, method="heun", steps=steps)

    wanted = (*(one.requires_grad_() for one in inputs), *field.parameters())
    assert torch.autograd.gradcheck(run, wanted)


def test_single_precision_states_stay_single():
    y, start, gap = torch.ones(2, 3, dtype=torch.float32), torch.zeros(2), torch.ones(2)
    assert advance(lambda t, y: -y * t[:, None], y, start, gap).dtype == torch.float32


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"start": torch.zeros(3)}, "one value per sample"),
        ({"gap": torch.zeros(())}, "one value per sample"),
        ({"steps": torch.tensor([1, 0])}, "at least 1"),
        ({"steps": 0}, "at least 1"),
        ({"method": "midpoit"}, "midpoint"),
    ],
)
def test_impossible_intervals_are_refused(change, words):
    arguments = {"y": torch.ones(2, 1), "start": torch.zeros(2), "gap": torch.ones(2)} | change
    with pytest.raises(ValueError, match=words):
        advance(lambda t, y: y, **arguments)


def test_complex_states_have_real_times():
    def turning(t, y):
        return 1j * torch.where(t < 0, 0.0, t)[:, None] * y  # complex numbers have no order

    y0, gap = torch.ones(2, 3, dtype=torch.complex128), torch.tensor([0.5, 1.0])
    found = advance(turning, y0, torch.zeros(2), gap, method="rk4", steps=20)
    exact = torch.exp(0.5j * gap.square())[:, None].expand(2, 3)
    torch.testing.assert_close(found, exact, rtol=0, atol=1e-6)  # 20 steps of 1/20, of order four
