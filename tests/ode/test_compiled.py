import functools
import shutil

import pytest
import torch

import bfno
from bfno import solve
from bfno.ode import captured
from tests.ode.problems import Network
from tests.torch_versions import newer_torch

pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="compiling needs a C++ compiler"),
    # The compiler warns about its own internals.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning"),
]


@pytest.fixture
def stepwise(monkeypatch):
    """Solves that would be compiled as a whole go step by step, as on other devices."""
    monkeypatch.setattr("bfno.ode.problem.solve_whole", lambda *_: None)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["rk4", "dopri5"])
def test_compiled_steps_give_the_same_solution_steps_and_gradients(stepwise, method):
    field, y0 = Network(), torch.randn(4, 3, requires_grad=True)
    ts = torch.tensor([0.0, 0.4, 2.0])
    results = []
    for compiled in (False, True):
        solution = solve(field, y0, ts, method=method, rtol=1e-6, atol=1e-6, compile=compiled)
        gradients = torch.autograd.grad(solution.ys.square().sum(), (y0, *field.parameters()))
        results.append((solution.stats.accepted, solution.ys, *gradients))
    assert results[0][0] == results[1][0]
    for one, other in zip(results[0][1:], results[1][1:], strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)  # operations are reordered
    with torch.no_grad():  # without a backward pass the step returns less
        lean = solve(field, y0, ts, method=method, rtol=1e-6, atol=1e-6, compile=True)
    torch.testing.assert_close(lean.ys, results[0][1], rtol=0, atol=1e-10)


def test_an_old_torch_compiles_steps_only_and_says_so(monkeypatch):
    monkeypatch.setattr(captured, "_POLICY", "a_setting_of_later_versions")
    monkeypatch.setattr(torch, "compile", lambda step, **_: step)
    with pytest.warns(UserWarning, match=r"torch \d.* cannot do more; install a newer one"):
        solution = solve(Network(), torch.ones(4, 3), torch.tensor([0.0, 1.0]), compile=True)
    assert str(solution.stats.compiled).startswith(f"step: torch {torch.__version__}")


def test_what_cannot_be_compiled_is_refused_by_name():
    ts = torch.tensor([0.0, 1.0])
    with pytest.raises(ValueError, match="compile=True needs a state that is one tensor"):
        solve(lambda t, y: y, (torch.ones(2), torch.ones(3)), ts, compile=True)
    with pytest.raises(ValueError, match="times that all samples share"):
        solve(lambda t, y: y, torch.ones(2, 1), ts.expand(2, 2), compile=True)
    with pytest.raises(ValueError, match="default norm"):
        solve(lambda t, y: y, torch.ones(2), ts, compile=True, norm=lambda y: y.abs().max())


@pytest.mark.parametrize("settings", [{}, {"method": "rk4"}, {"gradient": "adjoint"}])
def test_complex_states_are_refused_by_name(settings):
    y0, ts = torch.ones(2, dtype=torch.complex64), torch.tensor([0.0, 1.0])
    with pytest.raises(ValueError, match=r"compile=True needs a real state, got torch\.comp"):
        solve(lambda t, y: 1j * y, y0, ts, compile=True, **settings)


@pytest.fixture
def uncompiled(stepwise, monkeypatch):
    """Steps that would be compiled are run as they are, so that their calls can be counted."""
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("method", ["dopri5", "tsit5", "bosh3"])
def test_requested_times_inside_one_step_cost_one_repetition(uncompiled, method, graph):
    network, calls = Network(), []

    def field(t, y):
        calls.append(t)
        return network(t, y)

    y0, ts = torch.randn(4, 3, requires_grad=graph), torch.linspace(0, 2, 41)
    settings = {"method": method, "rtol": 1e-3, "atol": 1e-3}
    solution = solve(field, y0, ts, compile=True, **settings)
    stats, counted = solution.stats, len(calls)
    assert stats.accepted < len(ts) / 4  # many times lie in every step
    assert stats.forward_evaluations == counted
    plain = solve(network, y0, ts, **settings)
    assert stats.accepted == plain.stats.accepted
    repeated = counted - plain.stats.forward_evaluations
    assert repeated <= stats.accepted * (len(bfno.METHODS[method].stages) - 1)
    torch.testing.assert_close(solution.ys, plain.ys, rtol=0, atol=1e-12)


def test_a_number_that_stays_zero_needs_no_absolute_tolerance(uncompiled):
    y0, ts = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    ys = [
        solve(lambda t, y: -y, y0, ts, rtol=1e-6, atol=0.0, compile=one).ys for one in (True, False)
    ]
    torch.testing.assert_close(ys[0], ys[1], rtol=0, atol=1e-14)


@newer_torch("say how many variants of a field its compiler keeps, by the name of today")
def test_every_field_is_compiled_however_many_there_are(stepwise, monkeypatch):
    compiled = []

    def backend(graph, inputs):
        compiled.append(graph)
        return graph.forward

    compile_with = functools.partial(torch.compile, backend=backend, dynamic=False)
    monkeypatch.setattr(torch, "compile", lambda step, **_: compile_with(step))
    limit = torch._dynamo.config.recompile_limit

    def decay(rate):
        return lambda t, y: -rate * y

    y0, ts = torch.ones(2), torch.tensor([0.0, 1.0])
    for count in range(1, limit + 3):
        ys = solve(decay(float(count)), y0, ts, method="euler", compile=True).ys
        torch.testing.assert_close(ys[-1], y0 * (1 - count))
        assert len(compiled) == count


def test_further_arguments_are_not_compiled_again_but_are_differentiated(stepwise, monkeypatch):
    steps = []

    def compiled(function, **_):
        steps.append(function)
        return function

    monkeypatch.setattr(torch, "compile", compiled)
    ts = torch.tensor([0.0, 0.4, 2.0])

    def field(t, y, rate, shift):
        return shift - rate * y

    for number in range(1, 4):
        rate = torch.tensor(float(number), requires_grad=True)
        found = []
        for is_compiled in (True, False):
            given = {"args": (rate, 0.5), "rtol": 1e-6, "compile": is_compiled}
            solution = solve(field, torch.ones(3), ts, **given)
            found += [solution.ys, torch.autograd.grad(solution.ys.sum(), rate)[0]]
        torch.testing.assert_close(found[:2], found[2:], rtol=1e-5, atol=1e-6)
    assert len(steps) == 2  # the step, and the same with its slopes for the time inside one


@pytest.mark.slow
def test_new_arguments_do_not_make_the_compiler_run_again(stepwise):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    ts = torch.tensor([0.0, 1.0])

    def field(t, y, rate):
        return -rate * y

    for number in range(4):
        with torch.no_grad():
            solve(
                field, torch.ones(3), ts, method="rk4", args=(torch.rand(3) + number,), compile=True
            )
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
