import math
from typing import Any

import pytest
import torch

from bfno import METHODS, FirstOrder, MLPField, NeuralODE, Status, solve
from bfno.ode import SolverError, replay
from bfno.ode.step import combine_rows
from tests.ode.problems import EQUATIONS, Network

ADAPTIVE = [name for name in sorted(METHODS) if METHODS[name].adaptive]
TIGHT: dict[str, Any] = {"rtol": 1e-8, "atol": 1e-8}


@pytest.mark.parametrize("name", ["dopri5", "tsit5", "bosh3", "dopri8"])
def test_dense_output_is_as_good_as_the_steps(name):
    problem = EQUATIONS["oscillator"]
    ts = torch.linspace(0, problem.end, 101)
    solution = solve(problem.field, problem.solution(ts[0]), ts, method=name, rtol=1e-6, atol=1e-6)
    expected = torch.stack([problem.solution(t) for t in ts])
    assert float((solution.ys - expected).abs().max()) < 1e-4
    if name in ("dopri5", "tsit5"):
        assert solution.stats.accepted < 50  # fewer steps than requested times


@pytest.mark.parametrize("name", sorted(METHODS))
def test_solving_forward_and_back_returns_to_the_start(name):
    problem = EQUATIONS["oscillator"]
    settings: dict[str, Any] = TIGHT if METHODS[name].adaptive else {"step": 0.001}
    start = problem.solution(torch.tensor(0.0))
    there = solve(problem.field, start, torch.tensor([0.0, 1.0]), method=name, **settings).ys[-1]
    back = solve(problem.field, there, torch.tensor([1.0, 0.0]), method=name, **settings).ys[-1]
    # Euler's error after 1,000 steps is of order 1e-3, that of the other methods far smaller.
    torch.testing.assert_close(back, start, rtol=0, atol=2e-3 if "euler" in name else 1e-5)


def test_the_field_is_never_evaluated_outside_the_interval():
    seen = []

    def field(t, y):
        seen.append(float(t))
        return -y

    solve(field, torch.ones(2), torch.tensor([0.2, 0.9]))
    assert 0.2 <= min(seen)
    assert max(seen) <= 0.9


def test_a_tuple_state_equals_the_same_state_in_one_tensor():
    y0 = torch.randn(4, 3)
    ts = torch.tensor([0.0, 0.5, 1.0])

    def split(t, state):
        a, b = state
        return -a * t, a.sum(1) - b

    def joined(t, y):
        return torch.cat((-y[:, :2] * t, (y[:, :2].sum(1) - y[:, 2])[:, None]), dim=1)

    a, b = solve(split, (y0[:, :2], y0[:, 2]), ts, **TIGHT).ys
    expected = solve(joined, y0, ts, **TIGHT).ys
    assert a.shape == (3, 4, 2)
    assert b.shape == (3, 4)
    torch.testing.assert_close(a, expected[..., :2], rtol=0, atol=1e-7)
    torch.testing.assert_close(b, expected[..., 2], rtol=0, atol=1e-7)


def test_ignored_components_do_not_change_the_steps():
    y0, ts = torch.randn(4, 3), torch.tensor([0.0, 2.0])
    plain = solve(lambda t, y: -y, y0, ts, rtol=1e-5, atol=1e-5)
    wild = torch.zeros(4)
    augmented = solve(
        lambda t, state: (-state[0], 1e3 * torch.sin(50 * t).expand(4)),
        (y0, wild), ts, rtol=1e-5, atol=1e-5, ignore=(1,),
    )  # fmt: skip
    assert augmented.stats.accepted == plain.stats.accepted
    torch.testing.assert_close(augmented.ys[0], plain.ys, rtol=0, atol=1e-14)
    steered = solve(
        lambda t, state: (-state[0], 1e3 * torch.sin(50 * t).expand(4)),
        (y0, wild), ts, rtol=1e-5, atol=1e-5,
    )  # fmt: skip
    assert steered.stats.accepted > plain.stats.accepted


@pytest.mark.parametrize("name", ["euler", "rk4", "dopri5"])
def test_fixed_steps_cost_exactly_what_they_must(name):
    stages = len(METHODS[name].stages)
    ts = torch.tensor([0.0, 1.0, 1.5])
    solution = solve(lambda t, y: -y, torch.ones(1), ts, method=name, step=0.25)
    assert (solution.stats.accepted, solution.stats.rejected) == (6, 0)
    expected = 1 + 6 * (stages - 1) if METHODS[name].reuses_last_stage else 6 * stages
    assert solution.stats.forward_evaluations == expected


def test_statistics_tell_where_steps_ended():
    ts = torch.tensor([0.0, 1.0, 1.5])
    fixed = solve(lambda t, y: -y, torch.ones(1), ts, method="rk4", step=0.4)
    assert fixed.stats.step_ends == pytest.approx([0.4, 0.8, 1.0, 1.4, 1.5])
    adaptive = solve(lambda t, y: torch.cos(9 * t) - y, torch.ones(1), ts)
    ends = adaptive.stats.step_ends
    assert len(ends) == adaptive.stats.accepted and ends[-1] == 1.5
    assert ends == sorted(ends) and ends[0] > 0


def test_adaptive_dopri5_costs_two_evaluations_and_six_a_step():
    solution = solve(lambda t, y: torch.cos(5 * t) - y, torch.ones(3), torch.tensor([0.0, 4.0]))
    attempts = solution.stats.accepted + solution.stats.rejected
    assert solution.stats.forward_evaluations == 2 + 6 * attempts


@pytest.mark.parametrize("name", ["rk4", "euler", "bosh3"])
def test_rows_of_times_equal_solving_each_sample_alone_with_the_same_fixed_steps(name):
    field, y0 = Network(), torch.randn(4, 3)
    ts = torch.rand(4, 6).sort(dim=1).values
    together = solve(field, y0, ts, method=name, step=10.0).ys  # one step an interval
    for sample in range(4):
        alone = solve(field, y0[sample : sample + 1], ts[sample], method=name, step=10.0).ys[:, 0]
        torch.testing.assert_close(together[sample], alone, rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", ADAPTIVE)
def test_rows_of_times_equal_each_sample_alone_within_tolerance_and_exactly_for_equal_rows(name):
    field, y0 = Network(), torch.randn(4, 3)
    ts = torch.rand(4, 6).sort(dim=1).values
    settings = {"method": name, "rtol": 1e-6, "atol": 1e-6}
    together = solve(field, y0, ts, **settings).ys
    for sample in range(4):
        alone = solve(field, y0[sample : sample + 1], ts[sample], rtol=1e-9, atol=1e-9).ys[:, 0]
        torch.testing.assert_close(together[sample], alone, rtol=0, atol=1e-4)
    same = ts[:1].expand(4, -1).contiguous()
    rows, shared = solve(field, y0, same, **settings), solve(field, y0, same[0], **settings)
    torch.testing.assert_close(rows.ys.transpose(0, 1), shared.ys, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    "counts",
    [[1], [9], [1, 1, 1], [4, 4, 4], [0, 3, 0, 1], [50, 1, 0, 2], [0, 0, 0, 1, 0], [7, 5, 6, 8]],
)
@pytest.mark.parametrize("shape", [(), (3,), (2, 1, 2)])
def test_rows_of_samples_are_sums_of_their_own_parts(counts, shape):
    generator = torch.Generator().manual_seed(0)
    samples = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    weights = torch.randn(len(samples), 3, dtype=torch.float64, generator=generator)
    parts = torch.randn(3, len(counts), *shape, dtype=torch.float64, generator=generator)
    leaves = [one.requires_grad_() for one in (weights, *parts.clone().unbind(0))]

    def found(weights, *parts):
        return combine_rows(weights, parts, samples)

    expected = torch.einsum("rm,mr...->r...", weights, parts[:, samples])
    torch.testing.assert_close(found(*leaves), expected, rtol=1e-14, atol=1e-14)
    assert torch.autograd.gradcheck(found, leaves)


def test_rows_of_a_sample_are_not_touched_by_others_that_are_not_finite():
    samples = torch.tensor([1, 1, 1, 1, 2])
    parts = [torch.tensor([[math.nan], [1.0], [2.0]], requires_grad=True) for _ in range(2)]
    weights = torch.ones(5, 2, requires_grad=True)
    found = combine_rows(weights, parts, samples)
    assert found.tolist() == [[2.0], [2.0], [2.0], [2.0], [4.0]]
    gradient, *others = torch.autograd.grad(found.sum(), [weights, *parts])
    assert gradient.tolist() == [[1.0, 1.0]] * 4 + [[2.0, 2.0]]
    assert [one.tolist() for one in others] == [[[0.0], [4.0], [1.0]]] * 2


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("cast", [False, True])
def test_states_far_from_zero_are_rounded_once_at_own_times(cast, graph):
    y0, slope = (1000 + torch.randn(50, 3)).float(), torch.randn(50, 3).float()
    ts = torch.rand(50, 7).float().sort(dim=1).values
    with torch.autocast("cpu", torch.bfloat16, enabled=cast), torch.set_grad_enabled(graph):
        found = solve(lambda t, y: slope, y0.clone(), ts, method="dopri5", first_step=1.0).ys
    gone = (ts - ts[:, :1]).double()
    exact = y0[:, None].double() + gone[..., None] * slope[:, None].double()
    ulp = 2.0**-14  # of single precision just below 1024
    assert found.dtype == torch.float32
    assert (found.double() - exact).abs().max() < 0.51 * ulp


@pytest.mark.parametrize(
    "options",
    [
        {"gradient": "direct"},
        {"memory": 0},
        {"memory": "log"},
        {"method": "rk4", "step": 0.1},
        {"method": "kvaerno5"},
        {"independent": True},
    ],
)
@pytest.mark.parametrize("shape", [(), (3,), (2, 1)])
def test_an_empty_batch_has_own_times_and_gradients_of_zero(options, shape):
    weight = torch.ones(shape, requires_grad=True)
    y0, ts = torch.zeros(0, *shape, requires_grad=True), torch.rand(0, 5)

    def field(t, y):
        return -weight * y * t.view(-1, *[1] * len(shape))

    ys = solve(field, y0, ts, **options).ys
    assert ys.shape == (0, 5, *shape)
    ys.sum().backward()
    assert y0.grad is not None and y0.grad.shape == y0.shape
    assert weight.grad is None or not weight.grad.any()


def test_padding_and_opposite_directions_are_allowed_in_rows_of_times():
    field, y0 = Network(), torch.randn(3, 3)
    ts = torch.tensor([[0.0, 0.5, 0.5, 0.5], [1.0, 0.7, 0.2, 0.0], [0.3, 0.3, 0.3, 0.3]])
    ys = solve(field, y0, ts, **TIGHT).ys
    assert torch.equal(ys[0, 1], ys[0, 2])
    assert torch.equal(ys[2], y0[2].expand(4, 3))
    alone = solve(field, y0[1:2], ts[1], **TIGHT).ys[:, 0]
    torch.testing.assert_close(ys[1], alone, rtol=0, atol=1e-6)


def test_jumps_are_landed_on_and_cost_less_than_finding_them():
    def field(t, y):
        return -0.5 * y if t < 0.5 else y**2

    y0, ts = torch.tensor([1.0, 0.7]), torch.tensor([0.0, 1.0])
    blind = solve(field, y0, ts, **TIGHT)
    told = solve(field, y0, ts, jumps=(0.5,), **TIGHT)
    middle = y0 * torch.exp(torch.tensor(-0.25))
    expected = 1 / (1 / middle - 0.5)
    torch.testing.assert_close(told.ys[-1], expected, rtol=0, atol=1e-7)
    assert told.stats.forward_evaluations < blind.stats.forward_evaluations / 2


def test_a_failed_solve_raises_or_returns_its_status_with_what_was_reached():
    ts = torch.tensor([0.0, 0.5, 2.0])
    with pytest.raises(
        SolverError, match=r"solve stopped at t = 1\S*: .*check the field"
    ) as caught:
        solve(lambda t, y: y**2, torch.ones(2), ts)
    assert caught.value.status in (Status.STEP_UNDERFLOW, Status.NON_FINITE)
    assert caught.value.stats.accepted > 0
    solution = solve(lambda t, y: y**2, torch.ones(2), ts, throw=False)
    assert solution.status is caught.value.status
    torch.testing.assert_close(solution.ys[1], torch.full((2,), 2.0), rtol=1e-3, atol=0)
    assert bool(solution.ys[2].isnan().all())


def test_the_step_limit_ends_a_solve_however_many_times_are_requested():
    def fast(t, y):
        return torch.cos(200 * t).expand(1)

    ts = torch.linspace(0, 1, 11)
    needed = solve(fast, torch.zeros(1), ts[[0, -1]], **TIGHT).stats
    limit = needed.accepted // 3
    for times in (ts, ts[[0, -1]]):
        with pytest.raises(SolverError, match="raise max_steps"):
            solve(fast, torch.zeros(1), times, max_steps=limit, **TIGHT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", sorted(METHODS))
def test_the_states_dtype_is_kept_and_time_stays_exact(name, dtype):
    seen = []

    def field(t, y):
        seen.append((t.dtype, y.dtype))
        return -y

    ts = torch.tensor([1e6, 1e6 + 0.5], dtype=torch.float64)  # float32 resolves 0.06 here
    ys = solve(field, torch.ones(2, dtype=dtype), ts, method=name, step=0.01).ys
    assert ys.dtype == dtype
    assert set(seen) == {(dtype, dtype)}
    expected = torch.exp(torch.tensor(-0.5, dtype=dtype)).expand(2)
    torch.testing.assert_close(ys[-1], expected, rtol=0.01, atol=0)


@pytest.mark.parametrize("shape", [(), (0, 3), (1,), (2, 3, 4)])
def test_states_of_any_shape_are_solved(shape):
    ys = solve(lambda t, y: -y, torch.ones(shape), torch.tensor([0.0, 1.0]), **TIGHT).ys
    torch.testing.assert_close(ys[-1], torch.full(shape, 0.36787944117), rtol=1e-6, atol=0)


def test_a_block_carries_its_input_and_counts(monkeypatch):
    monkeypatch.setattr(replay, "KEPT_BYTES", 0)  # to repeat what would be kept, being small
    block = NeuralODE(FirstOrder(MLPField(3, 8)), rtol=1e-4, atol=1e-4)
    x = torch.randn(5, 3)
    y = block(x)
    field = block.dynamics
    torch.testing.assert_close(
        y, solve(field, x, torch.tensor([0.0, 1.0]), rtol=1e-4, atol=1e-4).ys[-1]
    )
    assert block.stats.forward_evaluations % 6 == 2
    assert block.stats.backward_evaluations == 0
    y.sum().backward()
    # Every evaluation of accepted steps once more, but for the trial step and the last stage.
    assert block.stats.backward_evaluations == 6 * block.stats.accepted
    assert all(parameter.grad is not None for parameter in block.parameters())


def test_batch_norm_in_a_field_is_refused_with_the_reason():
    field = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))

    class Timed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = field

        def forward(self, t, y):
            return self.layers(y)

    with pytest.raises(ValueError, match=r"BatchNorm in training mode, got layers\.1: .*GroupNorm"):
        solve(Timed(), torch.randn(4, 3), torch.tensor([0.0, 1.0]))
    solve(Timed().eval(), torch.randn(4, 3), torch.tensor([0.0, 1.0]))


BAD_INPUTS = [
    ({"ts": torch.tensor([0.0])}, r"ts must hold at least two times, .*got shape \(1,\)"),
    ({"ts": torch.tensor([0.0, 1.0, 0.5])}, r"got ts\[2\]=0.5 after ts\[1\]=1"),
    ({"ts": torch.tensor([0.0, 0.0])}, r"strictly increasing or decreasing, got ts\[1\]=0"),
    ({"ts": torch.tensor([0, 1])}, "ts must be a tensor of real numbers, got torch.int64"),
    ({"ts": [0.0, 1.0]}, "ts must be a tensor of real numbers, got list"),
    ({"ts": torch.tensor([0.0, float("nan")])}, "ts must be finite"),
    ({"ts": torch.zeros(2, 2, 2)}, r"got shape \(2, 2, 2\)"),
    ({"ts": torch.tensor([[0.0, 1.0]] * 2)}, "needs 2 samples along the state's first axis"),
    (
        {"ts": torch.tensor([[0.0, 1.0, 0.5]] * 3)},
        r"every row of ts must be monotonic, got ts\[0\]",
    ),
    ({"y0": torch.zeros(3, dtype=torch.int64)}, "y0 must hold real .* got torch.int64"),
    (
        {"y0": [0.0, 1.0]},
        "y0 must be a tensor, or a tuple, list, dict or nest of tensors, got list",
    ),
    ({"y0": ()}, "y0 must be a tensor, or a tuple, list, dict or nest of tensors, got tuple"),
    ({"rtol": 0.0, "atol": 0.0}, "rtol and atol must not both be zero"),
    ({"rtol": float("nan")}, "rtol must be a finite number, zero or more, got nan"),
    ({"atol": -1.0}, "atol must be a finite number, zero or more, got -1.0"),
    ({"method": "dopri"}, "method must be a name in .*did you mean dopri"),
    ({"gradient": "backsolve"}, "gradient must be one of checkpoint, direct, adjoint"),
    ({"max_stesp": 3}, "option 'max_stesp' does not exist; did you mean max_step"),
    ({"step": 0.0}, "step must be positive, got 0.0"),
    ({"min_step": 2.0, "max_step": 1.0}, "min_step must lie between 0 and max_step=1.0"),
    ({"gradient": "adjoint", "adjoint": {"tol": 1}}, "adjoint option 'tol' does not exist"),
    ({"field": lambda t, y: y[:2]}, r"the state's shape \(3,\), got \(2,\)"),
    ({"field": lambda t, y: y.float()}, "the state's dtype torch.float64, got torch.float32"),
    ({"field": lambda t, y: 1.0}, "the field must return a tensor, got float"),
]


@pytest.mark.parametrize(("change", "message"), BAD_INPUTS)
def test_bad_input_is_refused_in_one_sentence(change, message):
    call = {"field": lambda t, y: -y, "y0": torch.zeros(3), "ts": torch.tensor([0.0, 1.0])}
    with pytest.raises(ValueError, match=message) as caught:
        solve(**{**call, **change})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_field_may_return_its_input_or_the_same_buffer_every_time(name):
    buffer, y0, ts = torch.empty(3), torch.tensor([1.0, 2.0, 3.0]), torch.linspace(0, 1, 4)
    settings: dict[str, Any] = {"method": name, "rtol": 1e-6, "atol": 1e-6}
    expected = solve(lambda t, y: 1.0 * y, y0, ts, **settings)
    for field in (lambda t, y: y, lambda t, y: torch.mul(y, 1.0, out=buffer)):
        found = solve(field, y0, ts, **settings)
        # Implicit methods form the Jacobian of such a field from differences.
        implicit = METHODS[name].implicit
        assert implicit or found.stats == expected.stats
        torch.testing.assert_close(found.ys, expected.ys, rtol=0, atol=1e-5 if implicit else 1e-13)
