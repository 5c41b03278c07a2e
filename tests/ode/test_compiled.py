import shutil

import pytest
import torch

from bfno import solve
from tests.ode.problems import Network

pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="compiling needs a C++ compiler"),
    # The compiler warns about its own internals.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning"),
]


@pytest.mark.parametrize("method", ["rk4", pytest.param("dopri5", marks=pytest.mark.slow)])
def test_compiled_steps_give_the_same_solution_steps_and_gradients(method):
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


def test_what_cannot_be_compiled_is_refused_by_name():
    ts = torch.tensor([0.0, 1.0])
    with pytest.raises(ValueError, match="compile=True needs a state that is one tensor"):
        solve(lambda t, y: y, (torch.ones(2), torch.ones(3)), ts, compile=True)
    with pytest.raises(ValueError, match="times that all samples share"):
        solve(lambda t, y: y, torch.ones(2, 1), ts.expand(2, 2), compile=True)
    with pytest.raises(ValueError, match="default norm"):
        solve(lambda t, y: y, torch.ones(2), ts, compile=True, norm=lambda y: y.abs().max())
