"""`independent=True`: every sample has its own steps, independent of the rest of the batch."""

import math
from typing import Any

import pytest
import torch
from torch import nn

import bfno
from bfno.ode import METHODS, SolverError, Status, solve
from bfno.ode.solution import SampleStats

EXPLICIT = {name: method for name, method in METHODS.items() if not method.implicit}
ADAPTIVE = [name for name, method in EXPLICIT.items() if method.adaptive]
FIXED = [name for name, method in EXPLICIT.items() if not method.adaptive]
TIMES = torch.linspace(0.0, 1.0, 6, dtype=torch.float64)
# Solutions that differ in the order of additions alone: rounding in a few hundred steps.
ROUNDING: Any = {"rtol": 1e-11, "atol": 1e-11}


def chase(t, y):
    """Numbers that follow the time, each sample at its own rate, which is its first number.

    Only products and sums, which round alike wherever a sample lies in its batch.
    """
    rate, rest = y[:, :1], y[:, 1:]
    return torch.cat((torch.zeros_like(rate), rate * (clock(t, y) - rest)), dim=1)


def clock(t, y):
    return t.reshape(-1, *[1] * (y.dim() - 1))


def states(batch, *shape, dtype=torch.float64, rates=(1.0, 3.0, 40.0)):
    y = torch.rand(batch, *shape, dtype=torch.float64) + 0.5
    y[:, 0] = torch.tensor(rates).repeat(batch)[:batch].view(-1, *[1] * (y.dim() - 2))
    return y.to(dtype)


def settings(method) -> Any:
    return {"method": method} if METHODS[method].adaptive else {"method": method, "step": 0.07}


def alone(field, y0, ts, sample, **options):
    """The solve of one sample."""
    own = ts if ts.dim() == 1 else ts[sample : sample + 1]
    return solve(field, y0[sample : sample + 1].clone(), own, independent=True, **options)


def costs_of(solved: Any) -> SampleStats:
    """What each sample cost in a solution or a block."""
    found = solved.stats.per_sample
    assert found is not None
    return found


# Independence


@pytest.mark.parametrize(
    ("method", "dtype"),
    [
        *((method, torch.float32) for method in EXPLICIT),
        *((method, torch.float64) for method in EXPLICIT),
        ("dopri5", torch.bfloat16),
    ],
)
def test_a_sample_is_the_same_to_the_last_bit_alone_and_in_a_batch(method, dtype):
    y0, options = states(37, 5, dtype=dtype), settings(method) | {"rtol": 1e-2, "atol": 1e-2}
    whole = solve(chase, y0, TIMES, independent=True, **options)
    costs = costs_of(whole)
    for sample in (0, 2, 36):
        one = alone(chase, y0, TIMES, sample, **options)
        assert torch.equal(one.ys[:, 0], whole.ys[:, sample])
        for name in ("evaluations", "accepted", "rejected"):
            assert getattr(costs_of(one), name)[0] == getattr(costs, name)[sample]


@pytest.mark.parametrize(
    "change",
    [
        lambda y: y,
        lambda y: y.flip(2).transpose(1, 2).contiguous().transpose(1, 2).flip(2),
        lambda y: torch.cat((y, y), dim=2)[:, :, : y.shape[2]],
        lambda y: y.transpose(0, 2).contiguous().transpose(0, 2),
    ],
    ids=["contiguous", "transposed", "cut out", "samples last"],
)
@pytest.mark.parametrize("width", [1, 7, 33])
def test_shapes_and_strides_make_no_difference(width, change):
    y0 = states(11, 3, width)
    whole = solve(chase, change(y0), TIMES, independent=True)
    assert torch.equal(whole.ys, solve(chase, y0, TIMES, independent=True).ys)
    for sample in (0, 2, 10):
        assert torch.equal(alone(chase, y0, TIMES, sample).ys[:, 0], whole.ys[:, sample])


def test_nests_and_complex_numbers_are_independent_too():
    def field(t, state):
        rate = state["rate"]
        return {
            "rate": torch.zeros_like(rate),
            "pair": (rate * (clock(t, rate) - state["pair"][0]), 1j * state["pair"][1]),
        }

    def start(chosen):
        pair = (torch.rand(7, 2)[chosen], torch.rand(7, 3, 2, dtype=torch.complex128)[chosen])
        return {"rate": torch.linspace(1, 50, 7)[chosen, None], "pair": pair}

    def found(chosen):
        torch.manual_seed(1)
        return solve(field, start(chosen), TIMES, independent=True)

    whole = found(slice(None))
    evaluations = costs_of(whole).evaluations
    assert evaluations[0] < evaluations[-1]
    for sample in range(7):
        one = found(slice(sample, sample + 1))
        assert torch.equal(one.ys["pair"][0][:, 0], whole.ys["pair"][0][:, sample])
        assert torch.equal(one.ys["pair"][1][:, 0], whole.ys["pair"][1][:, sample])


@pytest.mark.parametrize("method", ["dopri5", "dopri8", "fehlberg2", "rk4"])
def test_samples_may_have_times_of_their_own(method):
    starts = torch.tensor([0.0, 2.0, 1.0, 0.5])
    spans = torch.tensor([1.0, -1.5, 0.0, 0.1])  # one goes back, one stands still
    ts = starts[:, None] + spans[:, None] * torch.tensor([0.0, 0.3, 0.3, 1.0, 1.0])
    y0 = states(4, 3)
    whole = solve(chase, y0, ts, independent=True, **settings(method))
    assert torch.equal(whole.ys[2], y0[2].expand(5, 3))
    assert costs_of(whole).evaluations[2] == 0
    for sample in range(4):
        one = alone(chase, y0, ts, sample, **settings(method))
        assert torch.equal(one.ys[0], whole.ys[sample])
        if spans[sample]:
            own = ts[sample, [0, 1, 3]]  # without repetitions
            shared = alone(chase, y0, own, sample, **settings(method))
            assert torch.equal(shared.ys[[0, 1, 1, 2, 2], 0], whole.ys[sample])


def test_a_stiff_neighbour_costs_a_sample_nothing_and_changes_nothing():
    def decay(t, y):
        return torch.stack((torch.zeros_like(y[:, 0]), -y[:, 0] * (y[:, 1] - clock(t, y[:, 1]))), 1)

    y0, ts = torch.tensor([[1.0, 2.0], [300.0, 2.0]]), torch.tensor([0.0, 1.0])
    mild = solve(decay, y0[:1], ts, independent=True)
    both = solve(decay, y0, ts, independent=True)
    shared = solve(lambda t, y: decay(t.expand(2), y), y0, ts)
    evaluations = costs_of(both).evaluations
    assert evaluations[0] == mild.stats.forward_evaluations < 50
    # All calls of the field but two, which look at what a square state's time moves.
    assert evaluations[1] == both.stats.forward_evaluations - 2 > 500
    assert shared.stats.forward_evaluations > 500  # which the mild sample had to make as well
    assert torch.equal(both.ys[:, 0], mild.ys[:, 0])
    assert not torch.equal(shared.ys[:, 0], mild.ys[:, 0])


# What a sample's own solve gives


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(
    ("method", "options"),
    [
        *((method, {}) for method in EXPLICIT),
        ("dopri5", {"land": False}),
        ("dopri5", {"stops": (0.33, 0.5)}),
        ("dopri5", {"first_step": 0.2, "max_step": 0.1}),
        ("dopri5", {"min_step": 0.05}),
        ("bosh3", {"rtol": 1e-3, "atol": torch.tensor([1e-2, 1e-5, 1e-3])}),
        ("bosh3", {"norm": lambda y: y.abs().max()}),
    ],
)
def test_it_is_the_solve_of_that_sample(method, options, backward):
    # Backward in time, numbers flee from each other; fixed steps have to be stable.
    mild = backward or not METHODS[method].adaptive
    y0 = states(3, 3, rates=(1.0, 1.5, 2.0) if mild else (1.0, 3.0, 40.0))
    ts = TIMES.flip(0) if backward else TIMES
    options = settings(method) | options
    whole = solve(chase, y0, ts, independent=True, **options)
    for sample in range(3):
        one = solve(chase, y0[sample : sample + 1], ts, **options)
        costs = costs_of(whole)
        torch.testing.assert_close(whole.ys[:, sample], one.ys[:, 0], **ROUNDING)
        assert costs.accepted[sample] == one.stats.accepted
        assert costs.rejected[sample] == one.stats.rejected


def test_a_field_may_jump():
    """y' = 1 before 0.4 and 3 after it, times the rate: exact for any method, if it stops there."""

    def field(t, y):
        slope = torch.where(clock(t, y) < 0.4, 1.0, 3.0)
        return torch.cat((torch.zeros_like(y[:, :1]), y[:, :1] * slope), dim=1)

    y0 = torch.tensor([[1.0, 0.0], [20.0, 1.0]])
    for method in ("dopri5", "fehlberg2", "rk4"):
        found = solve(field, y0, TIMES, method=method, independent=True, jumps=(0.4,))
        truth = y0[:, 1] + y0[:, 0] * (TIMES + 2 * (TIMES - 0.4).clamp(min=0))[:, None]
        # A few roundings of numbers up to 45.
        torch.testing.assert_close(found.ys[..., 1], truth, rtol=1e-13, atol=1e-13)
        assert found.stats.rejected == 0
    at_start = solve(field, y0, TIMES[2:], independent=True, jumps=(0.4,))
    torch.testing.assert_close(at_start.ys[-1, :, 1], y0[:, 1] + 1.8 * y0[:, 0])


def test_tolerances_may_be_those_of_single_samples():
    y0 = states(3, 2, rates=(3.0,))
    rtol: Any = torch.tensor([[1e-3], [1e-6], [1e-9]])
    whole = solve(chase, y0, TIMES, rtol=rtol, atol=rtol, independent=True)
    for sample, own in enumerate(rtol[:, 0].tolist()):
        assert torch.equal(
            alone(chase, y0, TIMES, sample, rtol=own, atol=own).ys[:, 0], whole.ys[:, sample]
        )
    evaluations = costs_of(whole).evaluations.tolist()
    assert evaluations == sorted(set(evaluations))


def test_components_may_be_left_out_of_the_error():
    def field(t, state):
        return torch.zeros_like(state[0]), 300.0 * torch.cos(300.0 * clock(t, state[1]))

    y0 = (torch.zeros(2, 3), torch.zeros(2, 1))
    loose, strict = (
        costs_of(solve(field, y0, TIMES, independent=True, ignore=ignore)) for ignore in ((1,), ())
    )
    assert (loose.evaluations < strict.evaluations).all()


# Gradients


class Net(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width + 1, 8), nn.Tanh(), nn.Linear(8, width))

    def forward(self, t, y):
        return self.layers(torch.cat((y, t.expand(len(y))[:, None]), dim=1)) * y[:, :1]


def gradients(net, y0, ts, whole=True, **options) -> tuple[list[Any], Any]:
    """Gradients of the states, of the weights and of the times, and the costs."""
    y0, ts = y0.clone().requires_grad_(), ts.clone().requires_grad_()
    net.zero_grad()
    stats, rows = None, [slice(None)] if whole else [slice(i, i + 1) for i in range(len(y0))]
    for row in rows:
        own = ts if ts.dim() == 1 else ts[row]
        solution = solve(net, y0[row], own, independent=True, **options)
        solution.ys.sin().sum().backward()
        stats = solution.stats
    return [y0.grad, ts.grad, *(one.grad for one in net.parameters())], stats


@pytest.mark.parametrize("own_times", [False, True])
@pytest.mark.parametrize("method", ["dopri5", "dopri8", "bosh3", "rk4"])
def test_checkpoint_and_direct_give_the_same_gradient_as_single_samples(method, own_times):
    net, y0 = Net(), states(5, 4, rates=(1.0, 20.0))
    ts = TIMES * torch.linspace(0.5, 2, 5)[:, None] if own_times else TIMES
    options = settings(method)
    direct, _ = gradients(net, y0, ts, gradient="direct", **options)
    repeated, stats = gradients(net, y0, ts, memory=0, **options)
    kept, _ = gradients(net, y0, ts, **options)
    single, _ = gradients(net, y0, ts, whole=False, **options)
    # All but the first evaluations, which tell how much each would keep, and the error's alone.
    assert stats.backward_evaluations > 0.6 * stats.forward_evaluations
    for one, *others in zip(direct, repeated, kept, single, strict=True):
        for other in others:  # sums over samples are formed in another order
            torch.testing.assert_close(other, one, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(
    ("method", "own_times", "memory"),
    [("dopri5", False, 0), ("dopri5", True, None), ("dopri8", True, 0)],
)
def test_gradients_agree_with_finite_differences(method, own_times, memory):
    y0 = states(2, 2, rates=(1.0, 4.0))
    ts = torch.tensor([0.0, 0.3, 1.0])
    ts = ts * torch.tensor([[1.0], [-0.5]]) if own_times else ts
    weight = torch.tensor([0.5, 1.5])

    def final(y0, ts, weight):
        def field(t, y):
            return torch.cat((y[:, :1] * 0, torch.sin(weight * y).sum(1, True) * clock(t, y)), 1)

        # Adaptive steps that all are as large as they may be do not move with the inputs.
        bounds: Any = {"rtol": 0.1, "first_step": 0.37, "max_step": 0.37}
        return solve(field, y0, ts, independent=True, method=method, memory=memory, **bounds).ys

    leaves = [one.requires_grad_() for one in (y0, ts, weight)]
    assert torch.autograd.gradcheck(final, leaves, atol=1e-6, rtol=1e-5)


def test_rows_that_meet_no_numbers_spoil_no_gradient():
    """Trials of the wild sample leave the domain of the root, where zero gradients turn to NaN."""
    weight = torch.tensor(1.0, requires_grad=True)

    def field(t, y):
        return -weight * y[:, :1] * torch.sqrt(1.0 - y * y) - y[:, :1] * y

    y0 = torch.tensor([[0.1, 0.2], [0.9999, 0.9999], [0.3, 0.1]])
    found = {}
    for gradient in ("checkpoint", "direct"):
        start = y0.clone().requires_grad_()
        options = {"gradient": gradient, "first_step": 30.0, "independent": True}
        solution = solve(field, start, TIMES, **options)
        assert solution.stats.rejected
        loss = solution.ys[-1].sum()
        found[gradient] = torch.autograd.grad(loss, (start, weight))
    single = sum(
        torch.autograd.grad(
            alone(field, y0, TIMES, i, first_step=30.0).ys[-1].sum(), weight, retain_graph=True
        )[0]
        for i in range(3)
    )
    assert torch.isfinite(found["direct"][0]).all()
    torch.testing.assert_close(found["direct"][1], single)
    for one, other in zip(found["checkpoint"], found["direct"], strict=True):
        torch.testing.assert_close(one, other)


def test_function_transforms_can_differentiate_it():
    y0 = states(3, 3, rates=(1.0, 3.0))

    def loss(y0):
        return solve(chase, y0, TIMES, independent=True).ys[-1].sin().sum()

    leaf = y0.clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss(leaf), leaf)
    torch.testing.assert_close(torch.func.grad(loss)(y0), expected)


# Failures


def explode(t, y):
    """y' = rate * y²: y = 1 / (1 - rate t) from y = 1 blows up at 1 / rate."""
    return torch.cat((torch.zeros_like(y[:, :1]), y[:, :1] * y[:, 1:] * y[:, 1:]), dim=1)


FATES = torch.tensor([[0.5, 1.0], [1.6, 1.0], [math.nan, 1.0], [-1.0, 1.0]]).double()


@pytest.mark.parametrize("gradient", ["checkpoint", "direct"])
def test_a_sample_that_fails_spoils_no_other(gradient):
    y0 = FATES.clone().requires_grad_()
    weight = torch.tensor(1.0, requires_grad=True)
    options: Any = {"throw": False, "independent": True, "gradient": gradient, "max_steps": 100}
    found = solve(lambda t, y: weight * explode(t, y), y0, TIMES, rtol=1e-6, **options)
    good = [0, 3]
    truth = 1 / (1 - FATES[good, 0] * TIMES[:, None])
    torch.testing.assert_close(found.ys[:, good, 1], truth, rtol=1e-4, atol=1e-4)
    # 1 / 1.6 lies between two requested times: those before it are right.
    assert torch.isfinite(found.ys[:4, 1]).all() and found.ys[4:, 1].isnan().all()
    assert found.ys[1:, 2].isnan().all()
    statuses = costs_of(found).statuses
    assert statuses[0] is statuses[3] is Status.SUCCESS
    assert statuses[1] is Status.STEP_LIMIT
    assert statuses[2] is Status.NON_FINITE
    assert found.status is statuses[1]
    by_state, by_weight = torch.autograd.grad(found.ys[-1, good, 1].sum(), (y0, weight))
    # d/dw of 1 / (1 - w r t) at w = t = 1 is r / (1 - r)².
    rates = FATES[good, 0]
    torch.testing.assert_close(by_weight, (rates / (1 - rates) ** 2).sum(), rtol=1e-4, atol=0)
    assert torch.isfinite(by_state[good]).all() and not by_state[1:3].any()


def test_the_error_says_how_many_samples_failed_and_which():
    with pytest.raises(SolverError, match=r"2 of 4 samples failed \(1, 2\): sample 1 stopped at"):
        solve(explode, FATES, TIMES, independent=True)
    with pytest.raises(SolverError, match=r"1 of 3 .*sample 2 .*the step limit") as caught:
        solve(chase, states(3, 2), TIMES, independent=True, max_steps=20)
    assert caught.value.status is Status.STEP_LIMIT
    many = torch.full((9, 2), math.inf)
    with pytest.raises(SolverError, match=r"9 of 9 samples failed \(0, 1, 2, 3, 4, …\)"):
        solve(explode, many, TIMES, independent=True, method="euler", step=0.1)


@pytest.mark.parametrize("method", ["euler", "rk4"])
def test_fixed_steps_that_blow_up_end_one_sample(method):
    y0 = torch.tensor([[0.5, 1.0], [500.0, 1.0]])
    fixed = {"method": method, "step": 0.05, "independent": True}
    found = solve(explode, y0, TIMES, throw=False, **fixed)
    assert costs_of(found).statuses == (Status.SUCCESS, Status.NON_FINITE)
    one = alone(explode, y0, TIMES, 0, method=method, step=0.05)
    assert torch.equal(found.ys[:, 0], one.ys[:, 0])


@pytest.mark.parametrize("nested", [False, True])
def test_a_field_with_values_of_its_own_is_told_what_to_do(nested):
    rates = torch.tensor([[1.0], [1.0], [400.0]])

    def field(t, y):
        return (-rates * y[0],) if nested else -rates * y

    y0 = torch.ones(3, 2)
    with pytest.raises(ValueError, match=r"asked the field for 1 of 3 .*a component of the state"):
        solve(field, (y0,) if nested else y0, TIMES, independent=True)


def test_a_field_that_takes_one_time_only_is_told_what_to_do():
    with pytest.raises(ValueError, match=r"one time per sample, t of shape \(3,\)"):
        solve(lambda t, y: t * y, torch.ones(3, 2), TIMES, independent=True)


def test_an_error_of_the_field_is_passed_on():
    def field(t, y):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        solve(field, torch.ones(2, 1), TIMES, independent=True)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"gradient": "adjoint"}, "needs gradient='checkpoint' or 'direct'"),
        ({"compile": True}, "compile needs steps that all samples share"),
        ({"event": lambda t, y: y[:, 0]}, "event needs steps"),
        ({"dense": True}, "dense needs steps"),
        ({"on_step": print}, "on_step needs steps"),
        ({"independent": 1}, "independent must be True or False, got 1"),
    ],
)
def test_what_needs_shared_steps_is_refused(options, words):
    with pytest.raises(ValueError, match=words):
        solve(chase, states(2, 2), TIMES, **({"independent": True} | options))


@pytest.mark.parametrize("y0", [torch.tensor(1.0), (torch.ones(2), torch.ones(3))])
def test_states_without_samples_are_refused(y0):
    with pytest.raises(ValueError, match="needs samples along the first axis"):
        solve(lambda t, y: y, y0, TIMES, independent=True)


def test_vmap_is_refused():
    with pytest.raises(ValueError, match="vmap"):
        torch.func.vmap(lambda y: solve(chase, y, TIMES, independent=True).ys)(states(2, 3, 2))


def test_nothing_is_solved_for_no_samples():
    found = solve(chase, torch.ones(0, 3), TIMES, independent=True)
    assert found.ys.shape == (6, 0, 3)
    assert found.stats.forward_evaluations == 0


# Modules


FIELDS = {
    "bfno": lambda: bfno.OperatorField("bfno", 2, 4, 1),
    "fno": lambda: bfno.OperatorField("fno", 2, 4, 1, modes=(2, 2)),
    "afno": lambda: bfno.OperatorField("afno", 2, 8, 1),
    "conv": lambda: bfno.fields.ConvField(2, hidden=4),
    "flow conv": lambda: bfno.fields.FlowConvField(2, width=4),
    "flow operator": lambda: bfno.fields.FlowOperatorField("bfno", 2, width=4, depth=1),
    "normed": lambda: bfno.fields.NormedField("bfno", 2),
    "autonomous": lambda: bfno.fields.Autonomous(nn.Conv2d(2, 2, 3, padding=1)),
}
POINT_FIELDS = {
    "mlp": lambda: bfno.fields.MLPField(2, hidden=8),
    "point": lambda: bfno.fields.PointField(bfno.OperatorField("bfno", 2, 8, 1)),
    "latent": lambda: bfno.fields.LatentOperatorField(2, 8),
    "latent point": lambda: bfno.fields.LatentOperatorField(2, 8, grid="point"),
}


def restless(module):
    """Weights from a larger range, zeros included, so that samples take different steps."""
    with torch.no_grad():
        for weight in module.parameters():
            weight.uniform_(-0.5, 0.5)
    return module


def samples_like(*shape):
    """Five samples of very different sizes."""
    return torch.randn(5, *shape) * torch.tensor([0.01, 0.1, 1.0, 3.0, 9.0]).view(
        -1, *[1] * len(shape)
    )


def check_block(dynamics, x):
    """A block gives each sample what it gives that sample alone, and shared steps nearly."""
    options: Any = {"rtol": 1e-4, "atol": 1e-4}
    block = bfno.NeuralODE(dynamics, independent=True, **options)
    together = block(x)
    evaluations = costs_of(block).evaluations
    for sample in range(len(x)):
        # Layers may sum in another order. Where a field has kinks, the sizes of steps, and so the
        # errors of the method, feel that, but nothing beyond the tolerance.
        one = block(x[sample : sample + 1])[0]
        torch.testing.assert_close(one, together[sample], rtol=1e-4, atol=1e-4)
        assert costs_of(block).evaluations[0] == evaluations[sample]
    shared = bfno.NeuralODE(dynamics, **options)(x)
    # Errors of 1e-4 a step, of a batch whose largest samples count most.
    torch.testing.assert_close(shared, together, rtol=2e-2, atol=2e-2)
    return evaluations


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_copes_with_own_times_and_fewer_samples(name):
    check_block(bfno.FirstOrder(restless(FIELDS[name]())), samples_like(2, 4, 4))


@pytest.mark.parametrize("name", POINT_FIELDS)
def test_every_field_of_points_does_too(name):
    check_block(bfno.FirstOrder(restless(POINT_FIELDS[name]())), samples_like(2))


@pytest.mark.parametrize(
    "kind", ["AdamODE", "GeneralizedHeavyBall", "GeneralizedNesterov", "HeavyBall", "Nesterov"]
)
def test_every_dynamics_does_too(kind):
    field = restless(bfno.fields.MLPField(2, hidden=8))
    evaluations = check_block(getattr(bfno.dynamics, kind)(field), samples_like(2).abs())
    assert len(set(evaluations.tolist())) > 1


def test_second_order_dynamics_do_too():
    field = restless(bfno.fields.MLPField(4, hidden=8, out_features=2))
    check_block(bfno.SecondOrder(field), samples_like(2))


def test_a_block_trains_and_remembers_a_step_for_all():
    field = bfno.OperatorField("bfno", 1, 8, 2)
    block = bfno.NeuralODE(bfno.FirstOrder(field), independent=True, first_step="last")
    for batch in torch.rand(2, 4, 1, 6, 6):
        block(batch).square().mean().backward()
    assert 0 < block.first_step.item() <= 1
    assert costs_of(block).evaluations.max() <= block.stats.forward_evaluations
    assert "independent=True" in repr(block)
    block.eval()
    x = torch.rand(3, 1, 6, 6)
    torch.testing.assert_close(block(x)[:1], block(x[:1]), **ROUNDING)


def test_a_time_that_lies_along_another_axis_is_refused():
    """Where a state is square, a field that forgets the axes of time raises no error by itself."""
    ts, y0 = torch.tensor([0.0, 1.0]), torch.rand(3, 3)
    tight: Any = {"rtol": 1e-8, "atol": 1e-8}
    for field in (lambda t, y: -y * t, lambda t, y: -y * t[0]):
        with pytest.raises(ValueError, match=r"one sample move others; give t .*view"):
            bfno.solve(field, y0, ts, independent=True)
    nest = lambda t, y: (-y[0], y[1] * t)  # noqa: E731
    with pytest.raises(ValueError, match="one sample move others"):
        bfno.solve(nest, (torch.ones(2, 5), torch.ones(2, 4, 2)), ts, independent=True)
    torch.manual_seed(0)
    drawn = torch.rand(1)
    torch.manual_seed(0)
    solution = bfno.solve(lambda t, y: -y * t.view(-1, 1), y0, ts, independent=True, **tight)
    torch.testing.assert_close(solution.ys[-1], y0 * math.exp(-0.5), rtol=1e-6, atol=0)
    assert torch.equal(drawn, torch.rand(1))
    noisy = lambda t, y: torch.rand_like(y) * 1e-9 - y  # noqa: E731
    assert bfno.solve(noisy, y0, ts, independent=True).status is bfno.Status.SUCCESS
