"""What works together and what does not: own steps, controllers, implicit methods, memory."""

import pytest
import torch

import bfno
from tests.torch_versions import newer_torch

METHODS_WITH_EQUATIONS = ("kvaerno5", "rodas5p", "auto")


def _decay(t, y):
    time = t.view(-1, 1) if t.dim() else t
    return -y * torch.tensor([1.0, 5.0], dtype=y.dtype) + time


@pytest.mark.parametrize("controller", ["I", "PI", "PID"])
def test_every_sample_has_a_controller_of_its_own(controller):
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(5, 2, dtype=torch.float64, generator=generator)
    ts = torch.linspace(0, 3, 4, dtype=torch.float64)
    settings = {"controller": controller, "rtol": 1e-6, "atol": 1e-8}
    together = bfno.solve(_decay, start, ts, independent=True, **settings)
    for sample in range(len(start)):
        alone = bfno.solve(_decay, start[sample : sample + 1], ts, independent=True, **settings)
        assert torch.equal(together.ys[:, sample], alone.ys[:, 0])
        shared = bfno.solve(_decay, start[sample : sample + 1], ts, **settings)
        assert alone.stats.accepted == shared.stats.accepted
        # The same steps; sums are in another order.
        torch.testing.assert_close(alone.ys, shared.ys, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("method", METHODS_WITH_EQUATIONS)
@pytest.mark.parametrize(
    "settings", [{"independent": True}, {"memory": "steps"}, {"memory": "log"}, {"compile": True}]
)
def test_what_needs_explicit_stages_refuses_equations(method, settings):
    start = torch.ones(2, 2, requires_grad=True)
    with pytest.raises(ValueError, match=f"explicit method such as dopri5, got '{method}'"):
        bfno.solve(_decay, start, torch.tensor([0.0, 1.0]), method=method, **settings)


@newer_torch("say that it is exporting while dynamo looks at a program")
def test_export_refuses_equations():
    block = bfno.NeuralODE(bfno.FirstOrder(bfno.MLPField(2, 4)), method="implicit_euler", step=0.5)
    with pytest.raises(ValueError, match="explicit method such as rk4, got 'implicit_euler'"):
        torch.export.export(block, (torch.ones(3, 2),))


def test_costs_of_several_solves_add_up():
    one = bfno.solve(_decay, torch.ones(2, 2), torch.tensor([0.0, 1.0]), independent=True).stats
    total = bfno.Stats.together([one, one])
    assert total.forward_evaluations == 2 * one.forward_evaluations
    assert total.per_sample is None


def test_a_step_that_a_stop_cut_short_is_not_remembered_for_the_next_sizes():
    start = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    ts = torch.tensor([0.0, 3.0], dtype=torch.float64)
    settings = {"controller": "PI", "stops": (0.31, 0.9), "rtol": 1e-6, "atol": 1e-8}
    own = bfno.solve(_decay, start, ts, independent=True, **settings)
    shared = bfno.solve(_decay, start, ts, **settings)
    assert own.stats.accepted == shared.stats.accepted
    torch.testing.assert_close(own.ys, shared.ys, rtol=1e-12, atol=1e-12)


def test_a_gradient_is_checked_with_one_time_per_sample():
    rate = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    start, ts = torch.ones(3, 2, dtype=torch.float64), torch.tensor([0.0, 1.0], dtype=torch.float64)
    found = bfno.check_gradient(
        lambda t, y: -rate * y + t[:, None], start, ts, independent=True, rtol=1e-4, atol=1e-4
    )
    assert 0 < found.error < 1e-2  # a tolerance's worth, and not nothing
