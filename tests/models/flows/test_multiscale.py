"""FFJORD's architecture: its grids, its sizes, its density."""

from typing import Any

import pytest
import torch

from bfno.fields.flow import FlowConvField, FlowOperatorField
from bfno.models import count_parameters
from bfno.models.flows import MultiscaleFlow
from bfno.models.flows.multiscale import flow_shapes
from bfno.ode import replay
from tests.models.flows.jacobians import assert_log_det_is_true, disturb

STEPS = {"method": "rk4", "step": 0.5, "gradient": "direct"}


def make(shape=(1, 8, 8), **options: Any):
    flow = MultiscaleFlow(
        shape,
        lambda channels: FlowConvField(channels, 3, hidden_layers=1),
        **{"solver": STEPS, "test_solver": STEPS, **options},
    )
    return disturb(flow, 0.05)


def published_operator(channels):
    return FlowOperatorField("bfno", channels, 100, 3, branches=3, skip="conv")


@pytest.mark.parametrize(
    ("shape", "field", "size"),
    [
        ((1, 28, 28), lambda channels: FlowConvField(channels, 64), 800_636),
        ((3, 32, 32), lambda channels: FlowConvField(channels, 64), 1_358_868),
        ((1, 28, 28), published_operator, 6_336_638),
        ((3, 32, 32), published_operator, 8_912_458),
    ],
)
def test_the_published_sizes_are_exact(shape, field, size):
    with torch.device("meta"):
        flow = MultiscaleFlow(shape, field)
    assert count_parameters(flow) == size


def test_the_grids_are_the_published_ones():
    assert [shape for scale in flow_shapes((3, 32, 32)) for shape in scale] == [
        (3, 32, 32), (12, 16, 16), (6, 16, 16), (24, 8, 8), (12, 8, 8), (48, 4, 4), (24, 4, 4),
    ]  # fmt: skip
    assert flow_shapes((1, 7, 7)) == [[(1, 7, 7)]]
    assert flow_shapes((2, 8, 14)) == [[(2, 8, 14), (8, 4, 7)], [(4, 4, 7)]]


@pytest.mark.parametrize("shape", [(1, 8, 8), (2, 8, 10), (1, 5, 5)])
def test_the_latent_variable_has_the_size_of_the_image_and_leads_back_to_it(shape):
    flow = make(shape, blocks=1, test_solver={"rtol": 1e-5, "atol": 1e-5}).eval()
    x = torch.randn(2, *shape)
    with torch.no_grad():
        latent = flow.encode(x).latent
        assert latent.shape == (2, flow.dimensions)
        error = (flow.decode(latent) - x).abs().max()
    assert error < 1e-4


def test_the_density_gains_the_volume_that_the_full_jacobian_says():
    fine = {"method": "dopri8", "step": 0.5, "gradient": "direct"}
    flow = make(trace="exact", blocks=1, solver=fine)
    assert_log_det_is_true(flow, torch.randn(1, 1, 8, 8), tolerance=1e-8)


def test_costs_and_penalties_are_sums_over_all_flows(monkeypatch):
    monkeypatch.setattr(replay, "KEPT_BYTES", 0)  # to repeat what would be kept, being small
    steps = {**STEPS, "gradient": "checkpoint"}
    flow = make(solver=steps, penalties=("kinetic", "jacobian"))
    encoding = flow.encode(torch.randn(2, 1, 8, 8))
    assert flow.stats.forward_evaluations == 6 * 8  # three grids with two flows each
    (encoding.log_prob.sum() + encoding.penalties["kinetic"].sum()).backward()
    assert flow.stats.backward_evaluations == 6 * 8
    torch.manual_seed(1)
    x, total = torch.randn(2, 1, 8, 8), 0.0
    encoding = flow.encode(x)
    for scale in flow.scales:
        for chain in scale:
            for one in chain:
                total += one.solved.forward_evaluations
    assert total == flow.stats.forward_evaluations
    assert set(encoding.penalties) == {"kinetic", "jacobian"}


def test_what_leaves_early_is_not_touched_by_later_scales():
    flow = make(blocks=1).eval()
    x = torch.randn(1, 1, 8, 8)
    with torch.no_grad():
        before = flow.encode(x).latent
        disturb(flow.scales[-1], 0.5)
        after = flow.encode(x).latent
    assert torch.equal(before[:, :32], after[:, :32])
    assert (before[:, 32:] != after[:, 32:]).all()


def test_a_flow_needs_at_least_one_block():
    with pytest.raises(ValueError, match="blocks must be at least 1"):
        make(blocks=0)
