import copy
import math
import os
import shutil
import subprocess
import sys
import textwrap
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bfno
from bfno import solve
from bfno.ode import loop, native
from bfno.ode.captured import CannotCompile, capture
from bfno.ode.solution import GradientError, Status
from tests.cotangents import AT_ONCE, one_by_one
from tests.torch_versions import newer_torch

pytestmark = [
    newer_torch("refuse side effects of a field, without which no solve is compiled as a whole"),
    pytest.mark.skipif(shutil.which("g++") is None, reason="compiling needs a C++ compiler"),
    # The compiler warns about its own internals.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
    pytest.mark.filterwarnings("error:compile=True compiles single steps"),
]


class Swing(nn.Module):
    """A field that uses time, weights and a buffer, and whose slope can be made to fail."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.enter, self.leave = nn.Linear(3, 5), nn.Linear(5, 3)
        self.register_buffer("shift", torch.tensor([0.3, -0.2, 0.1]))
        self.double()

    def forward(self, t, y):
        return self.leave(torch.tanh(self.enter(y))) * torch.cos(3 * t) + self.shift - 0.1 * y


def _pair(field, y0, ts, **settings):
    """A solve and its gradients, compiled and not."""
    found = []
    for compiled in (True, False):
        chosen = {"gradient": "direct", "rtol": 1e-7, "atol": 1e-8, **settings}
        solution = solve(field, y0, ts, compile=compiled, **chosen)
        weights = torch.linspace(1, 2, solution.ys.numel(), dtype=y0.dtype)
        loss = (solution.ys * weights.view_as(solution.ys)).square().sum()
        gradients = torch.autograd.grad(loss, (y0, *field.parameters()))
        found.append((solution, gradients))
    return found


def _assert_same(pair):
    (mine, slopes), (plain, expected) = pair
    assert mine.stats.compiled == "solve"
    assert mine.stats.accepted == plain.stats.accepted
    assert mine.stats.rejected == plain.stats.rejected
    assert mine.stats.forward_evaluations == plain.stats.forward_evaluations
    torch.testing.assert_close(mine.ys, plain.ys, rtol=0, atol=1e-11)
    ends = [torch.tensor(one.stats.step_ends) for one in (mine, plain)]
    # An error estimate is a small difference of slopes: few of its digits, and so of a step's size,
    # are beyond rounding.
    torch.testing.assert_close(*ends, rtol=1e-5, atol=0)
    assert mine.stats.first_step == pytest.approx(plain.stats.first_step, rel=1e-5)
    for one, other in zip(slopes, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


TIMES = {
    "ends": torch.tensor([0.0, 2.0], dtype=torch.float64),
    "many": torch.linspace(0, 2, 23, dtype=torch.float64),
    "backward": torch.linspace(1, -1, 7, dtype=torch.float64),
}


@pytest.fixture(scope="module")
def swing():
    return Swing()


@pytest.fixture
def y0():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(4, 3, dtype=torch.float64, generator=generator).requires_grad_()


@pytest.mark.parametrize("times", TIMES)
def test_bosh3_solves_and_differentiates_as_the_engine_does(swing, y0, times):
    _assert_same(_pair(swing, y0, TIMES[times], method="bosh3", rtol=1e-4, atol=1e-5))


def test_options_of_a_solve_are_followed(swing, y0):
    kind = {"method": "bosh3", "rtol": 1e-4, "atol": 1e-5}
    for more in (
        {"first_step": 1.0},  # rejected at first
        {"max_step": 0.05},
        {"min_step": 0.2},
        {"stops": (0.3, 0.31, 1.5)},
        {"land": False},
        {"atol": 0.0},
        {"max_steps": math.inf},
    ):
        pair = _pair(swing, y0, TIMES["many"], **{**kind, **more})
        _assert_same(pair)
        if "first_step" in more:
            assert pair[0][0].stats.rejected > 0


def test_the_first_step_is_estimated_as_by_the_engine(swing, y0):
    # The slope is small and bends: the estimate would look beyond the end, or the largest step.
    calm, start = copy.deepcopy(swing), math.pi / 6
    calm.shift.zero_()
    # The slope is so large that the estimate would be below the resolution of time.
    steep = copy.deepcopy(swing)
    steep.shift.fill_(1e9)
    cases: list[tuple[Swing, float, float, dict[str, Any]]] = [
        (calm, start, start + 0.01, {}),
        (calm, start, start + 1, {"max_step": 0.01}),
        (steep, 1.7e9, 1.7e9 + 1, {}),
    ]
    for field, begin, end, more in cases:
        ts = torch.tensor([begin, end], dtype=torch.float64)
        found = [
            solve(field, y0, ts, method="bosh3", compile=one, **more).stats for one in (True, False)
        ]
        assert found[0].compiled == "solve"
        sizes = [one.step_ends[0] - begin for one in found]
        assert sizes[0] == pytest.approx(sizes[1], rel=1e-6) and sizes[0] > 0
        assert sizes[0] < more.get("max_step", end - begin)


def test_a_block_remembers_the_first_step(swing, y0):
    blocks = [
        bfno.NeuralODE(
            bfno.FirstOrder(swing),
            method="bosh3",
            rtol=1e-4,
            atol=1e-5,
            first_step="last",
            compile=one,
        ).double()
        for one in (True, False)
    ]
    costs = []
    for block in blocks:
        stats = []
        for _ in range(2):
            block(y0)
            stats.append(block.stats)
        costs.append([one.forward_evaluations for one in stats])
    assert blocks[0].stats.compiled == "solve"
    assert costs[0] == costs[1] and costs[0][1] < costs[0][0]
    assert blocks[0].first_step.item() == pytest.approx(blocks[1].first_step.item(), rel=1e-5)


def test_a_gradient_is_that_of_differences(swing, y0):
    ts = TIMES["backward"]

    def ends(y):
        return solve(swing, y, ts, method="bosh3", rtol=1e-4, atol=1e-5, step=None, compile=True).ys

    # Steps that move with the state are held fixed by a gradient, so they are given.
    def steady(y):
        kind: dict[str, Any] = {"min_step": 0.25, "max_step": 0.25, "first_step": 0.25}
        return solve(swing, y, ts, method="bosh3", compile=True, **kind).ys

    assert ends(y0).shape == (7, 4, 3)
    torch.autograd.gradcheck(steady, (y0,))


def test_two_passes_count_alike_and_a_second_derivative_is_refused(swing, y0):
    solution = solve(swing, y0, TIMES["ends"], method="bosh3", compile=True)
    first = torch.autograd.grad(solution.ys.sum(), y0, retain_graph=True)[0]
    cost = solution.stats.backward_evaluations
    assert cost == 3 * solution.stats.accepted + 1
    with pytest.raises(GradientError, match="once, not twice"):  # though the cotangent is constant
        torch.autograd.grad(solution.ys.sum(), y0, create_graph=True)
    assert torch.equal(first, torch.autograd.grad(solution.ys.sum(), y0)[0])
    assert solution.stats.backward_evaluations == 2 * cost


@pytest.mark.parametrize("way", AT_ONCE)
def test_several_gradients_at_once_are_refused(swing, y0, way):
    ys = solve(swing, y0, TIMES["ends"], method="bosh3", compile=True).ys
    pair = torch.randn(2, *ys.shape)
    before = one_by_one(ys, y0, pair)
    with pytest.raises(GradientError, match=r"compile=True .*is_grads_batched=True.*compile=False"):
        AT_ONCE[way](ys, y0, pair)
    assert torch.equal(one_by_one(ys, y0, pair), before)


def test_weights_are_read_again_and_their_change_before_a_gradient_is_noticed(swing, y0):
    before = solve(swing, y0, TIMES["ends"], method="bosh3", compile=True)
    with torch.no_grad():
        swing.enter.weight.mul_(1.5)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        before.ys.sum().backward()
    _assert_same(_pair(swing, y0, TIMES["ends"], method="bosh3", rtol=1e-4, atol=1e-5))


def test_failures_are_told_as_by_the_engine(swing, y0):
    kind: dict[str, Any] = {"method": "bosh3", "throw": False, "rtol": 1e-6, "atol": 1e-6}
    cases: list[tuple[Tensor, dict[str, Any], Status]] = [
        (y0, {"max_steps": 3}, Status.STEP_LIMIT),
        (y0 * torch.inf, {}, Status.NON_FINITE),
    ]
    for y, more, status in cases:
        solutions = [
            solve(swing, y, TIMES["many"], compile=one, **kind, **more) for one in (True, False)
        ]
        assert [one.status for one in solutions] == [status, status]
        steps = [(one.stats.accepted, one.stats.rejected) for one in solutions]
        assert steps[0] == steps[1]
        # The engine does not ask about the first slope alone: on a GPU that would be a wait more.
        evaluations = [one.stats.forward_evaluations for one in solutions]
        assert evaluations[1] - evaluations[0] == (3 if status is Status.NON_FINITE else 0)
        torch.testing.assert_close(
            solutions[0].ys, solutions[1].ys, rtol=0, atol=1e-11, equal_nan=True
        )
    with pytest.raises(bfno.ode.SolverError, match="step limit"):
        solve(swing, y0, TIMES["many"], method="bosh3", compile=True, max_steps=3)


@pytest.mark.slow
def test_a_solution_that_blows_up_is_reported_as_by_the_engine():
    def steep(t, y):
        return y * y

    y0, ts = torch.ones(2, dtype=torch.float64), torch.tensor([0.0, 2.0], dtype=torch.float64)
    found = [solve(steep, y0, ts, compile=one, throw=False) for one in (True, False)]
    assert found[0].stats.compiled == "solve"
    assert found[0].status is found[1].status is not Status.SUCCESS


@pytest.mark.slow
@pytest.mark.parametrize("method", ["dopri5", "tsit5", "adaptive_heun", "fehlberg2", "dopri8"])
def test_adaptive_methods_solve_and_differentiate_as_the_engine_does(swing, y0, method):
    tolerance = 1e-4 if method in ("adaptive_heun", "fehlberg2") else 1e-7
    for ts in TIMES.values():
        _assert_same(_pair(swing, y0, ts, method=method, rtol=tolerance, atol=tolerance))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["rk4", "euler", "heun3", "dopri5"])
def test_fixed_steps_solve_and_differentiate_as_the_engine_does(swing, y0, method):
    for ts in TIMES.values():
        _assert_same(_pair(swing, y0, ts, method=method, step=0.07))


@pytest.mark.slow
def test_single_precision_is_right_to_its_rounding(swing, y0):
    single = Swing().float()
    y = y0.detach().float().requires_grad_()
    ts = TIMES["many"].float()
    (mine, slopes), (plain, expected) = _pair(single, y, ts, rtol=1e-5, atol=1e-5)
    assert mine.stats.compiled == "solve"
    assert mine.stats.accepted == plain.stats.accepted
    torch.testing.assert_close(mine.ys, plain.ys, rtol=0, atol=1e-5)
    for one, other in zip(slopes, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-3)


@pytest.mark.slow
def test_arguments_closures_and_modes_of_a_field_are_followed():
    ts = torch.tensor([0.0, 1.0], dtype=torch.float64)
    y0 = torch.ones(2, 3, dtype=torch.float64)

    class Moody(nn.Module):
        rate = 1.0

        def forward(self, t, y, gain):
            return -self.rate * gain * y if self.training else self.rate * gain * y

    field = Moody()
    for rate, training, number in ((1.0, True, 1.0), (2.0, True, 1.0), (2.0, False, 0.5)):
        field.rate = rate
        field.train(training)
        gain = torch.full((3,), number, dtype=torch.float64, requires_grad=True)
        found = []
        for compiled in (True, False):
            solution = solve(field, y0, ts, args=(gain,), compile=compiled, rtol=1e-8)
            found += [solution.ys, torch.autograd.grad(solution.ys.sum(), gain)[0]]
        torch.testing.assert_close(found[:2], found[2:], rtol=1e-11, atol=1e-11)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Torchinductor does not support code generation for complex")
def test_fields_of_other_operations_are_solved(y0):
    class Convolved(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix = nn.Conv1d(1, 1, 3, padding=1)

        def forward(self, t, y):
            waves = torch.fft.irfft(torch.fft.rfft(self.mix(y[:, None])) * 0.7, n=3)
            return torch.nn.functional.softplus(waves[:, 0]).softmax(-1) - y

    _assert_same(_pair(Convolved().double(), y0, TIMES["many"], method="bosh3", rtol=1e-4))


def test_every_field_is_looked_at_however_many_there_are():
    def decay(rate):
        return lambda t, y: -rate * y

    t, y = torch.zeros(()), torch.ones(2)
    for count in range(torch._dynamo.config.recompile_limit + 3):
        captured, _ = capture(decay(float(count)), t, y)
        assert torch.equal(captured.slope(t, y, []), -count * y)


def test_tanh_is_right_to_a_few_roundings():
    x = torch.cat([torch.linspace(-12, 12, 100_001), torch.logspace(-30, 1, 1000)])
    x = x.float()
    exact = x.double().tanh()
    error = ((native._tanh(x).double() - exact) / exact).nan_to_num().abs()
    assert error.max() < 5e-7
    special = native._tanh(torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0]).float())
    torch.testing.assert_close(
        special, torch.tensor([torch.nan, 1, -1, 0]).float(), rtol=0, atol=3e-7, equal_nan=True
    )


class Counter(nn.Module):
    calls = 0

    def forward(self, t, y):
        self.calls += 1
        return -y


class Buffer(nn.Module):
    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, t, y):
        self.calls.add_(1)
        return -y


WANTING = {
    "a counter": (Counter(), {}, "leaves something behind"),
    "a buffer": (Buffer(), {}, "changes a tensor in place"),
    "random numbers": (lambda t, y: torch.rand_like(y) - y, {}, "random numbers"),
    "a branch": (lambda t, y: -y if y.sum() > 0 else y, {}, "not one graph"),
    "a constant": (lambda t, y: -y * torch.tensor([1.0, 2.0]), {}, "tensors from numbers"),
    "a callback": (lambda t, y: -y, {"on_step": lambda *_: None}, "on_step"),
    "half precision": (lambda t, y: -y, {"y0": torch.ones(2, dtype=torch.bfloat16)}, "bfloat16"),
}


@pytest.mark.filterwarnings("default:compile=True compiles single steps")
@pytest.mark.parametrize("case", WANTING)
def test_what_is_solved_step_by_step_says_why(monkeypatch, case):
    field, settings, reason = WANTING[case]
    compiler = torch.compile
    # The steps need not be compiled to see that they are taken.
    monkeypatch.setattr(
        torch, "compile", lambda f, **kind: compiler(f, **kind) if "fullgraph" in kind else f
    )
    given = {"y0": torch.ones(2), "method": "bosh3", **settings}
    with torch.no_grad(), pytest.warns(UserWarning, match=f"single steps here.*{reason}"):
        solution = solve(field, given.pop("y0"), torch.tensor([0.0, 1.0]), compile=True, **given)
    assert solution.stats.compiled.startswith("step: ")
    assert solution.status is Status.SUCCESS
    if isinstance(field, Counter):
        assert field.calls == solution.stats.forward_evaluations


@pytest.mark.filterwarnings("default:compile=True compiles single steps")
def test_what_cannot_be_built_is_tried_once(monkeypatch):
    tried = []

    def build(source, path):
        tried.append(path)
        raise RuntimeError("no compiler")

    monkeypatch.setattr(native, "_build", build)
    compiler = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda f, **kind: compiler(f, **kind) if "fullgraph" in kind else f
    )

    def field(t, y):
        return 1 - y * 0.37

    for _ in range(2):
        with torch.no_grad(), pytest.warns(UserWarning, match="could not be built.*no compiler"):
            solve(field, torch.ones(5), torch.tensor([0.0, 1.0]), method="euler", compile=True)
    assert len(tried) == 1


def test_libraries_differ_where_anything_does(monkeypatch):
    def fingerprint(field, y, method="euler", bits=512, threads=1):
        captured, tensors = capture(field, torch.zeros(()), y)
        recipe = native.Recipe(captured, bfno.METHODS[method], False, y, tensors, (), False)
        monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
        return native._fingerprint(recipe, {"cpp.simdlen": bits})

    y, decay = torch.ones(3), lambda t, y: -y
    found = [
        fingerprint(decay, y),
        fingerprint(decay, y, method="midpoint"),
        fingerprint(decay, y, bits=256),
        fingerprint(decay, y, threads=2),
        fingerprint(decay, torch.ones(4)),
        fingerprint(lambda t, y: -2 * y, y),
        fingerprint(lambda t, y: -t * y, y),
    ]
    assert len(set(found)) == len(found)
    assert fingerprint(lambda t, y: -y, y) == found[0]


@pytest.mark.slow
def test_another_process_takes_the_library_from_disk(tmp_path):
    program = textwrap.dedent("""
        import torch
        from bfno import solve
        from bfno.ode import native
        build, built = native._build, []
        def counted(source, path):
            built.append(path)
            build(source, path)
        native._build = counted
        y0 = torch.ones(3, requires_grad=True)
        solution = solve(lambda t, y: -y, y0, torch.tensor([0.0, 1.0]), compile=True)
        solution.ys[-1].sum().backward()
        print(len(built), solution.stats.compiled, y0.grad.tolist())
    """)
    lines = []
    for _ in range(2):
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        lines.append(done.stdout.split(maxsplit=1))
    assert [line[0] for line in lines] == ["1", "0"]
    assert lines[0][1] == lines[1][1]
    assert lines[0][1].startswith("solve")


def test_a_state_that_a_transform_holds_is_refused():
    with pytest.raises(CannotCompile, match="transform"):
        plan: Any = None
        torch.func.vmap(lambda y: loop._refuse(bfno.METHODS["euler"], plan, y) or y)(
            torch.ones(2, 2)
        )
