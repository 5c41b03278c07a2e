"""RealNVP: couplings, splits and the density of the whole."""

from typing import Any, cast

import pytest
import torch

from bfno.models.flows.factoring import squeeze
from bfno.models.flows.realnvp import (
    ChannelCoupling,
    CheckerboardCoupling,
    CouplingNet,
    DiagonalSplit,
    RealNVP,
    WeightNormConv2d,
)
from tests.models.flows.jacobians import assert_log_det_is_true, disturb, full_jacobians


def make_net(channels, outputs=None, norm: Any = "none"):
    return disturb(CouplingNet(channels, outputs or channels, 4, 1, norm), 0.3).eval()


@pytest.mark.parametrize("white", [True, False])
@pytest.mark.parametrize("shape", [(1, 4, 4), (2, 3, 4), (1, 3, 3)])
def test_a_coupling_of_pixels_gains_the_volume_it_says_and_is_undone(shape, white):
    coupling = CheckerboardCoupling(make_net(shape[0]), shape[1:], white=white)
    x = torch.randn(3, *shape)
    assert_log_det_is_true(coupling, x)
    torch.testing.assert_close(coupling.decode(coupling.encode(x)[0]), x, rtol=1e-10, atol=1e-10)


def test_a_coupling_of_pixels_keeps_one_colour_and_looks_at_no_other():
    coupling = CheckerboardCoupling(make_net(1), (4, 4), white=True)
    x = torch.randn(1, 1, 4, 4)
    white = (torch.arange(4)[:, None] + torch.arange(4)) % 2 == 0
    assert torch.equal(coupling.encode(x)[0][..., white], x[..., white])
    jacobian = full_jacobians(lambda sample: coupling.encode(sample)[0], x)[0]
    black = (~white).flatten()
    among_black = jacobian[black][:, black]
    assert torch.equal(among_black, among_black.diag().diag())
    assert jacobian[black][:, ~black].abs().max() > 1e-3


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("channels", [2, 4])
def test_a_coupling_of_channels_gains_the_volume_it_says_and_is_undone(channels, first):
    half = channels // 2
    coupling = ChannelCoupling(make_net(half), first=first)
    x = torch.randn(3, channels, 2, 2)
    assert_log_det_is_true(coupling, x)
    y = coupling.encode(x)[0]
    torch.testing.assert_close(coupling.decode(y), x, rtol=1e-10, atol=1e-10)
    same = slice(None, half) if first else slice(half, None)
    assert torch.equal(y[:, same], x[:, same])
    assert (y != x).any()


def test_a_coupling_of_channels_is_the_published_formula():
    net = make_net(1)
    x = torch.randn(2, 2, 3, 3)
    shift, log_scale = net(x[:, :1]).split(1, dim=1)
    y, gained = ChannelCoupling(net, first=True).encode(x)
    torch.testing.assert_close(y[:, 1:], x[:, 1:] * log_scale.exp() + shift)
    torch.testing.assert_close(gained, log_scale.flatten(1).sum(1))


def test_log_scales_are_bounded_by_their_learned_factors():
    net = make_net(2, 3)
    with torch.no_grad():
        net.factor.copy_(torch.tensor([0.5, 1.0, 2.0]).view(3, 1, 1))
        log_scales = net(1e4 * torch.randn(8, 2, 4, 4))[:, 1::2]
    largest = log_scales.abs().amax((0, 2, 3))
    assert (largest <= net.factor.flatten()).all() and (largest > 0.9 * net.factor.flatten()).all()


def test_weights_have_the_learned_length_for_any_scale_of_their_direction():
    convolution = WeightNormConv2d(3, 2, 3)
    reference = torch.nn.Conv2d(3, 2, 3, padding=1)
    reference.load_state_dict({"weight": convolution.weight, "bias": cast(Any, convolution.bias)})
    x = torch.randn(2, 3, 4, 4)
    torch.testing.assert_close(convolution(x), reference(x))
    with torch.no_grad():
        convolution.weight.mul_(7)
    torch.testing.assert_close(convolution(x), reference(x))
    with torch.no_grad():
        convolution.length.mul_(2)
        reference.weight.mul_(2)
    torch.testing.assert_close(convolution(x), reference(x))


def test_a_split_keeps_the_diagonal_of_each_block_of_every_colour():
    x = squeeze(torch.arange(8.0).view(1, 2, 2, 2))
    kept, left, gained = DiagonalSplit().encode(x)
    assert kept.flatten().tolist() == [0, 3, 4, 7] and left.flatten().tolist() == [1, 2, 5, 6]
    assert gained == 0 and torch.equal(DiagonalSplit().decode(kept, left), x)


@pytest.mark.parametrize("norm", ["batch", "none"])
@pytest.mark.parametrize("shape", [(1, 4, 4), (2, 4, 4), (3, 4, 4), (1, 3, 3)])
def test_the_whole_flow_gains_the_volume_it_says(shape, norm):
    flow = disturb(RealNVP(shape, width=4, residual_blocks=1, norm=norm))
    flow.encode(torch.randn(8, *shape))
    assert_log_det_is_true(flow.eval(), torch.randn(2, *shape))


def test_a_new_flow_only_reorders_pixels():
    flow = RealNVP((1, 4, 4), width=4, residual_blocks=1)
    x = torch.randn(5, 1, 4, 4)
    found = flow.encode(x)
    assert torch.equal(found.log_det, torch.zeros(5))
    assert torch.equal(found.latent.sort().values, x.flatten(1).sort().values)


def test_the_density_of_two_pixels_integrates_to_one():
    flow = disturb(RealNVP((1, 2, 1), width=4, residual_blocks=1, norm="none"), 0.3)
    axis = torch.linspace(-12, 12, 161)
    points = torch.cartesian_prod(axis, axis).view(-1, 1, 2, 1)
    with torch.no_grad():
        density = flow.log_prob(points).exp()
    assert abs(density.sum().item() * (axis[1] - axis[0]).item() ** 2 - 1) < 1e-3


@pytest.mark.parametrize(
    ("side", "asked", "scales"), [(28, 2, 2), (28, 9, 3), (14, 2, 2), (8, 9, 3), (7, 2, 1)]
)
def test_there_are_no_more_scales_than_sides_can_be_halved(side, asked, scales):
    flow = RealNVP((1, side, side), scales=asked, width=2, residual_blocks=1)
    assert flow.scales == scales == len(flow.stages)


def test_couplings_alternate_and_widths_double_as_published():
    flow = RealNVP((1, 8, 8), width=4, residual_blocks=1)
    first, last = (list(stage.parts) for stage in flow.stages)
    assert [type(part).__name__ for part in first] == [
        *["CheckerboardCoupling"] * 3,
        "Squeeze",
        *["ChannelCoupling"] * 3,
    ]
    corners = [[part.seen[0, 0].item() for part in parts] for parts in (first[:3], last)]
    assert corners == [[1, 0, 1], [1, 0, 1, 0]]
    assert [part.net.first.out_channels for part in (first[0], last[0])] == [4, 8]
    net = first[4].coupling.flows[1].param_map
    assert net.first.out_channels == 8


def test_an_unknown_norm_is_refused():
    with pytest.raises(ValueError, match="norm must be batch or none, got 'layer'"):
        RealNVP((1, 4, 4), norm=cast(Any, "layer"))
