"""Dynamics with momentum: heavy ball, Nesterov and Adam."""

import math

import pytest
import torch
from torch.nn import functional as F

from bfno.dynamics import (
    AdamODE,
    GeneralizedHeavyBall,
    GeneralizedNesterov,
    HeavyBall,
    InitialMoments,
    Nesterov,
)
from tests.dynamics.oracle import TOLERANCE, integrate, trajectory

TIMES = (0.0, 0.3, 1.0)
LATER = (1.0, 1.25, 1.7, 2.0)
MATRIX = torch.tensor([[0.3, -1.1], [0.8, 0.2]], dtype=torch.float64)


def wave(t, h):
    """A field that depends on time and mixes channels, with axes like (batch, 2)."""
    return torch.sin(h @ MATRIX + t)


def swap(x):
    return x.flip(1) - 0.3


def growth(t):
    return t**-1.5 * math.exp(t / 2)


def test_friction_starts_at_the_sigmoid_of_minus_three():
    for dynamics in (HeavyBall(wave), GeneralizedHeavyBall(wave)):
        assert dynamics.friction.item() == pytest.approx(0.0474, abs=5e-5)
        assert dynamics.friction_logit.item() == -3


def test_a_heavy_ball_without_force_slows_down_exponentially():
    dynamics = HeavyBall(lambda t, h: torch.zeros_like(h), swap)
    x = torch.randn(3, 2)
    rate = dynamics.friction.item()
    end = dynamics.read_out(trajectory(dynamics, x, TIMES)[-1])
    expected = x + swap(x) * (1 - math.exp(-rate)) / rate
    torch.testing.assert_close(end, expected, rtol=0, atol=TOLERANCE)


def test_heavy_ball_solves_its_equation_of_motion():
    dynamics = HeavyBall(wave, swap)
    x = torch.randn(3, 2)
    y = trajectory(dynamics, x, TIMES)[1]
    h, m = y.chunk(2, dim=1)
    dh, dm = dynamics(0.3, y).chunk(2, dim=1)
    gamma = 1 / (1 + math.exp(3))
    torch.testing.assert_close(dh, m, rtol=0, atol=0)
    torch.testing.assert_close(dm, -gamma * m + wave(0.3, h), rtol=0, atol=1e-14)


@pytest.mark.parametrize("general", [False, True])
def test_the_public_sign_convention_gives_the_same_positions(general):
    """The public code moves `(h, -m)` with the opposite field."""
    xi, squash = (1.5, torch.tanh) if general else (0.0, lambda v: v)
    gamma = 1 / (1 + math.exp(3))

    def public(t, y):
        h, m = y.chunk(2, dim=1)
        return torch.cat((squash(-m), -wave(t, h) - gamma * m + xi * h), dim=1)

    dynamics = GeneralizedHeavyBall(wave, swap) if general else HeavyBall(wave, swap)
    x = torch.randn(3, 2)
    ours = trajectory(dynamics, x, TIMES)
    theirs = integrate(public, torch.cat((x, -swap(x)), dim=1), TIMES)
    torch.testing.assert_close(ours[:, :, :2], theirs[:, :, :2], rtol=0, atol=TOLERANCE)


def test_generalisations_without_bound_and_restoring_force_are_the_plain_dynamics():
    x = torch.randn(3, 2)
    options = {"restoring": 0.0, "activation": "identity"}
    pairs = [
        (HeavyBall(wave, swap), GeneralizedHeavyBall(wave, swap, **options)),
        (Nesterov(wave, swap), GeneralizedNesterov(wave, swap, **options)),
    ]
    for plain, general in pairs:
        y0 = plain.initial(x)
        assert torch.equal(y0, general.initial(x))
        assert torch.equal(plain(1.5, y0), general(1.5, y0))
        assert torch.equal(plain.read_out(y0), general.read_out(y0))


@pytest.mark.parametrize("restoring", [0.7, "learned"])
def test_generalized_heavy_ball_has_bounded_velocity_and_a_restoring_force(restoring):
    dynamics = GeneralizedHeavyBall(wave, swap, restoring=restoring)
    xi = math.log1p(math.exp(2.0)) if restoring == "learned" else 0.7
    gamma = 1 / (1 + math.exp(3))
    h, m = torch.randn(3, 2), 4 * torch.randn(3, 2)
    dh, dm = dynamics(0.4, torch.cat((h, m), dim=1)).chunk(2, dim=1)
    torch.testing.assert_close(dh, m.tanh(), rtol=0, atol=1e-14)
    torch.testing.assert_close(dm, -gamma * m + wave(0.4, h) - xi * h, rtol=0, atol=1e-14)


def test_trained_scalars_are_those_of_the_public_scripts():
    def scalars(dynamics):
        return [parameter.item() for parameter in dynamics.parameters()]

    assert scalars(HeavyBall(wave)) == [-3]
    assert scalars(GeneralizedHeavyBall(wave)) == [-3]
    assert scalars(GeneralizedHeavyBall(wave, restoring="learned")) == [-3, 2]
    assert scalars(Nesterov(wave)) == []
    assert scalars(GeneralizedNesterov(wave)) == []
    assert scalars(GeneralizedNesterov(wave, restoring="learned")) == [2]
    options = {"restoring": "learned", "restoring_logit": 0.5}
    assert scalars(GeneralizedHeavyBall(wave, **options)) == [-3, 0.5]
    assert scalars(GeneralizedNesterov(wave, **options)) == [0.5]


def test_nesterov_without_force_has_a_closed_form():
    dynamics = Nesterov(lambda t, h: torch.zeros_like(h), swap)
    h1 = torch.randn(3, 2)
    x1, m1 = dynamics.initial(h1).chunk(2, dim=1)
    states = trajectory(dynamics, h1, LATER)
    for t, state in zip(LATER, states, strict=True):
        expected = x1 + m1 * (1 - math.exp(-(t - 1)))
        torch.testing.assert_close(state[:, :2], expected, rtol=0, atol=TOLERANCE)
        position = dynamics.position(t, state)
        torch.testing.assert_close(position, growth(t) * expected, rtol=0, atol=2 * TOLERANCE)
    expected = growth(2.0) * (x1 + m1 * (1 - math.exp(-1)))
    torch.testing.assert_close(dynamics.read_out(states[-1]), expected, rtol=0, atol=TOLERANCE)


def test_nesterov_starts_with_the_given_position_and_velocity():
    dynamics = Nesterov(wave, swap)
    h = torch.randn(3, 2)
    step = 1e-5
    before, at, after = (
        growth(t) * state[:, :2]
        for t, state in zip(
            (1.0, 1.0 + step, 1.0 + 2 * step),
            trajectory(dynamics, h, (1.0, 1.0 + step, 1.0 + 2 * step)),
            strict=True,
        )
    )
    torch.testing.assert_close(before, h, rtol=0, atol=TOLERANCE)
    # One-sided differences of second order: error step², rounding 1e-16 / step.
    slope = (-3 * before + 4 * at - after) / (2 * step)
    torch.testing.assert_close(slope, swap(h), rtol=0, atol=1e-8)


def test_nesterov_satisfies_the_accelerated_equation_of_motion():
    """`h'' + 3 h' / t = (x'' + x') k + (1/4 - 3 / (4 t²)) h`, and `x'' + x' = f(t, h)`."""
    dynamics = Nesterov(wave, swap)
    t, step = 1.5, 1e-3
    times = [1.0, *(t + step * i for i in (-2, -1, 0, 1, 2))]
    states = trajectory(dynamics, torch.randn(3, 2), times)[1:]
    h = [growth(s) * state[:, :2] for s, state in zip(times[1:], states, strict=True)]
    # Five-point differences: error step⁴ = 1e-12 times a derivative, rounding 1e-12 / step² = 1e-6.
    first = (h[0] - 8 * h[1] + 8 * h[3] - h[4]) / (12 * step)
    second = (-h[0] + 16 * h[1] - 30 * h[2] + 16 * h[3] - h[4]) / (12 * step**2)
    expected = wave(t, h[2]) * growth(t) + (0.25 - 0.75 / t**2) * h[2]
    torch.testing.assert_close(second + 3 / t * first, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("activation", ["tanh", "hardtanh"])
def test_generalized_nesterov_solves_its_equation_of_motion(activation):
    squash = {"tanh": torch.tanh, "hardtanh": lambda v: F.hardtanh(v, -0.5, 0.5)}[activation]
    dynamics = GeneralizedNesterov(wave, swap, activation=activation, sign=-1)
    h0 = torch.randn(3, 2)
    scale, ahead = (squash(torch.tensor(growth(t))) for t in (1.0, 1.0 + 1e-6))
    x, m = dynamics.initial(h0).chunk(2, dim=1)
    torch.testing.assert_close(scale * x, h0, rtol=0, atol=1e-14)
    # The unbounded velocity is the given one; the slope of the scale is a difference quotient.
    slope = (ahead - scale) / 1e-6
    torch.testing.assert_close(slope * x + scale * m, swap(h0), rtol=0, atol=1e-5)
    dx, dm = dynamics(1.3, torch.cat((x, m), dim=1)).chunk(2, dim=1)
    h = squash(torch.tensor(growth(1.3))) * x
    torch.testing.assert_close(dx, squash(m), rtol=0, atol=1e-14)
    torch.testing.assert_close(dm, -m - squash(wave(1.3, h)) - 1.5 * h, rtol=0, atol=1e-14)
    y = torch.cat((x, m), dim=1)
    expected = squash(torch.tensor(growth(2.0))) * x
    torch.testing.assert_close(dynamics.read_out(y), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("general", [False, True])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_public_variant_does_what_the_public_code_does(general, sign):
    """It moves `(h, h')` by the derivatives of `(x, m)` and reads it out as `(x, m)`."""
    if general:
        dynamics = GeneralizedNesterov(wave, swap, variant="public_code", sign=sign)
        xi, squash = 1.5, torch.tanh
    else:
        dynamics = Nesterov(wave, swap, variant="public_code", sign=sign)
        xi, squash = 0.0, lambda v: v

    def public(t, z):
        first, second = z.chunk(2, dim=1)
        m = first * (1.5 / t - 0.5) / growth(t) + second / growth(t)
        return torch.cat((squash(m), sign * squash(wave(t, first)) - m - xi * first), dim=1)

    h = torch.randn(3, 2)
    ours = trajectory(dynamics, h, LATER)[-1]
    theirs = integrate(public, torch.cat((h, swap(h)), dim=1), LATER)[-1]
    torch.testing.assert_close(ours, theirs, rtol=0, atol=TOLERANCE)
    expected = squash(torch.tensor(growth(2.0))) * theirs[:, :2]
    torch.testing.assert_close(dynamics.read_out(ours), expected, rtol=0, atol=TOLERANCE)


def test_nesterov_accepts_one_time_per_sample():
    times = torch.tensor([1.1, 1.9])
    y = torch.randn(2, 4)

    def pull(t, h):
        return -h

    for variant in ("consistent", "public_code"):
        dynamics = GeneralizedNesterov(pull, variant=variant)
        apart = [dynamics(t, y[i : i + 1]) for i, t in enumerate(times)]
        torch.testing.assert_close(dynamics(times, y), torch.cat(apart), rtol=0, atol=1e-14)


def test_a_double_precision_clock_keeps_the_precision_of_the_state():
    dynamics = Nesterov(lambda t, h: -h)
    y = torch.randn(2, 4, dtype=torch.float32)
    for t in (1.5, torch.tensor(1.5), torch.tensor([1.5, 1.5])):
        assert dynamics(t, y).dtype == torch.float32


@pytest.mark.parametrize(
    "options",
    [{"variant": "public"}, {"sign": 2}, {"activation": "gelu"}, {"restoring": "yes"}],
    ids=str,
)
def test_impossible_options_are_refused(options):
    with pytest.raises(ValueError, match="must"):
        GeneralizedNesterov(wave, **options)


POSITIVE = {
    "sigmoid": lambda v: 1 / (1 + math.exp(-v)),
    "softplus": lambda v: math.log1p(math.exp(v)),
}


@pytest.mark.parametrize("positive", POSITIVE)
def test_a_constant_field_is_followed_at_its_root_mean_square(positive):
    q = torch.tensor([[0.8, -1.3]])
    dynamics = AdamODE(lambda t, h: q.expand_as(h), positive=positive)
    # Slowest rate: sigmoid(3) = 0.95; after 40 units e^-38 of the start is left.
    state = trajectory(dynamics, torch.zeros(1, 2), (0.0, 40.0))[-1]
    _, mean, square = state.chunk(3, dim=1)
    torch.testing.assert_close(mean, -q, rtol=0, atol=TOLERANCE)
    torch.testing.assert_close(square, q.square(), rtol=0, atol=TOLERANCE)
    velocity = dynamics(40.0, state)[:, :2]
    expected = [v / (math.sqrt(POSITIVE[positive](v * v)) + 1e-8) for v in q[0].tolist()]
    torch.testing.assert_close(velocity, torch.tensor([expected]), rtol=0, atol=TOLERANCE)


def test_moments_relax_at_the_trained_rates():
    q = 0.7
    dynamics = AdamODE(lambda t, h: torch.full_like(h, q), rate_logits=(-5.0, 5.0))
    _, mean, square = trajectory(dynamics, torch.zeros(1, 1), (0.0, 1.0))[-1].chunk(3, dim=1)
    slow, fast = (1 / (1 + math.exp(-logit)) for logit in (-5.0, 5.0))
    assert mean.item() == pytest.approx(-q * (1 - math.exp(-slow)), abs=TOLERANCE)
    assert square.item() == pytest.approx(q * q * (1 - math.exp(-fast)), abs=TOLERANCE)


def test_learned_moments_start_with_a_second_moment_that_is_not_negative():
    start = InitialMoments(channels=3, hidden=4, state_channels=5)
    dynamics = AdamODE(lambda t, h: h, start)
    x = torch.randn(2, 3, 6, 6)
    state = dynamics.initial(x)
    moments = start.network(x)
    assert torch.equal(state, torch.cat((x, moments, moments**2), dim=1))
    _, _, square = state.chunk(3, dim=1)
    assert square.min() >= 0 and square.max() > 0


def test_only_the_position_is_read_out():
    y = torch.randn(2, 6, 4)
    assert torch.equal(AdamODE(lambda t, h: h).read_out(y), y[:, :2])


@pytest.mark.parametrize(("channels", "state_channels"), [(3, 4), (3, 1)])
def test_channels_that_cannot_be_split_into_moments_are_refused(channels, state_channels):
    with pytest.raises(ValueError, match="state_channels"):
        InitialMoments(channels, 4, state_channels)


def test_an_unknown_positive_function_is_refused():
    with pytest.raises(ValueError, match="positive"):
        AdamODE(lambda t, h: h, positive="exp")
