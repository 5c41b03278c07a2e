"""i-ResNet: bounded convolutions, the series of the log-determinant and its inverse."""

import copy
import math

import pytest
import torch
from torch.nn import functional as F

from bfno.models.flows.interface import FlowError, log_normal
from bfno.models.flows.iresnet import (
    DiagonalNormal,
    FixedPoint,
    IResNet,
    LipschitzConv2d,
    ResidualBlock,
    ResidualSettings,
    log_det_series,
)
from tests.models.flows.jacobians import disturb, full_jacobians, true_log_det

SHAPE = (2, 3, 3)


def make_block(activate=True, **options):
    """A block that is as steep as its bound allows.

    Positive weights of all layers enlarge the same direction.
    """
    block = ResidualBlock(SHAPE, ResidualSettings(6, **options), activate=activate)
    for parameter in block.parameters():
        parameter.data.add_(torch.rand_like(parameter)).abs_()
    return block.eval()


def exact_log_det(block, x):
    """The truncated series with exact traces: unit vectors as noise, added up."""
    dimensions = x[0].numel()
    units = torch.eye(dimensions).view(dimensions, *x.shape[1:])
    rows = [block.encode_with(units, sample.expand_as(units))[1].sum() for sample in x]
    return torch.stack(rows)


@pytest.mark.parametrize("side", [1, 3])
def test_convolutions_have_at_most_the_norm_of_their_bound(side):
    layer = disturb(LipschitzConv2d(3, 5, side, (4, 5), coefficient=0.9, power_iterations=5), 1)
    layer.eval()
    bias = layer.bias
    assert bias is not None
    x = torch.zeros(1, 3, 4, 5)
    operator = full_jacobians(lambda y: layer(y) - bias.view(-1, 1, 1), x)[0]
    assert torch.linalg.matrix_norm(operator, ord=2).item() == pytest.approx(0.9, abs=2e-3)
    unbounded = full_jacobians(lambda y: F.conv2d(y, layer.weight, padding=side // 2), x)[0]
    assert torch.linalg.matrix_norm(unbounded, ord=2) > 2


def test_small_weights_are_left_as_they_are():
    layer = LipschitzConv2d(2, 2, 3, (4, 4), coefficient=0.9, power_iterations=5)
    with torch.no_grad():
        layer.weight.mul_(0.01)
    assert torch.equal(layer.bounded_weight(update=True), layer.weight)


def test_zero_weights_do_not_destroy_the_direction():
    layer = LipschitzConv2d(2, 2, 3, (4, 4), coefficient=0.9, power_iterations=5)
    before = layer.direction.clone()
    with torch.no_grad():
        layer.weight.zero_()
        layer(torch.randn(1, 2, 4, 4))
    assert torch.equal(layer.direction, before)


def test_only_encoding_in_training_improves_the_norm():
    layer = LipschitzConv2d(2, 2, 3, (4, 4), coefficient=0.9, power_iterations=5)
    start = layer.direction.clone()
    layer.bounded_weight(update=False)
    layer.eval()(torch.randn(1, 2, 4, 4))
    assert torch.equal(layer.direction, start)
    layer.train()(torch.randn(1, 2, 4, 4))
    assert not torch.equal(layer.direction, start)


def test_the_gradient_of_bounded_weights_is_that_of_dividing_by_their_norm():
    layer = disturb(LipschitzConv2d(3, 4, 1, (2, 2), coefficient=0.9, power_iterations=300), 1)
    probe = torch.randn(4, 3)

    def reference(weight):
        return (probe * weight / (torch.linalg.matrix_norm(weight, ord=2) / 0.9)).sum()

    (probe * layer.bounded_weight(update=True)[..., 0, 0]).sum().backward()
    weight = layer.weight.detach()[..., 0, 0].requires_grad_()
    (expected,) = torch.autograd.grad(reference(weight), weight)
    assert layer.weight.grad is not None
    torch.testing.assert_close(layer.weight.grad[..., 0, 0], expected)


@pytest.mark.parametrize("activate", [True, False])
def test_no_block_brings_images_closer_than_it_can_undo(activate):
    block, x = make_block(activate), torch.randn(8, *SHAPE)
    added = full_jacobians(block.branch(update=False), x)
    norms = torch.linalg.matrix_norm(added, ord=2)
    assert norms.max() < 0.9**3 + 1e-6
    assert norms.max() > 0.9**3 - 0.15  # else nothing would have been tested


def test_the_series_with_exact_traces_converges_to_the_log_determinant():
    x, errors = torch.randn(3, *SHAPE), []
    torch.manual_seed(1)
    block = make_block()
    expected = true_log_det(lambda sample: block.encode(sample)[0], x)
    for terms in (1, 2, 4, 8, 16, 32, 64):
        torch.manual_seed(1)
        block = make_block(test_terms=terms)
        errors.append((exact_log_det(block, x) - expected).abs().max().item())
    assert errors[0] > 1e-2 and errors[-1] < 1e-9
    assert errors == sorted(errors, reverse=True)


def test_the_mean_of_estimates_is_the_truncated_series():
    block, x = make_block(test_terms=3), torch.randn(1, *SHAPE)
    with torch.no_grad():
        expected = exact_log_det(block, x)
        estimates = block.encode(x.expand(20_000, *SHAPE))[1]
    error = estimates.std().item() / math.sqrt(len(estimates))
    assert error < 0.01
    assert abs(estimates.mean().item() - expected.item()) < 4 * error


def test_with_exact_traces_the_gradient_is_that_of_the_truncated_series():
    x, matrix = torch.randn(1, 3), (0.3 * torch.randn(3, 3)).requires_grad_()
    terms, units = 4, torch.eye(3)
    points = x.expand(3, 3).clone().requires_grad_()
    output = (points @ matrix.T).tanh()
    found = log_det_series(output, points, units, terms, differentiable=True).sum()
    slopes = torch.autograd.grad(found, [matrix, points])

    y = x.clone().requires_grad_()
    jacobian = (1 - (y @ matrix.T).tanh().square()).T * matrix
    powers = [torch.linalg.matrix_power(jacobian, k).trace() for k in range(1, terms + 1)]
    expected = sum((-1) ** (k + 1) / k * power for k, power in enumerate(powers, 1))
    assert isinstance(expected, torch.Tensor)
    torch.testing.assert_close(found, expected)
    by_matrix, by_point = torch.autograd.grad(expected, [matrix, y])
    torch.testing.assert_close(slopes[0], by_matrix)
    torch.testing.assert_close(slopes[1].sum(0, keepdim=True), by_point)


def test_values_with_and_without_gradients_are_the_same():
    block, x, noise = make_block(), torch.randn(2, *SHAPE), torch.randn(2, *SHAPE)
    y, log_det = block.encode_with(noise, x)
    with torch.no_grad():
        again, log_det_again = block.encode_with(noise, x)
    assert log_det.requires_grad and not log_det_again.requires_grad and not again.requires_grad
    assert torch.equal(y, again) and torch.equal(log_det, log_det_again)


@pytest.mark.parametrize("shape", [(1, 4, 4), (2, 4, 4), (3, 4, 4), (1, 3, 3)])
def test_the_whole_flow_gains_on_average_the_volume_it_says(shape):
    flow = IResNet(shape, blocks=1, width=4, test_terms=25)
    flow.encode(torch.randn(8, *shape))
    disturb(flow, 0.2).eval()
    x = torch.randn(1, *shape)
    expected = true_log_det(lambda sample: flow.encode(sample).latent, x)
    with torch.no_grad():
        estimates = flow.encode(x.expand(1500, *shape)).log_det
    error = estimates.std().item() / math.sqrt(len(estimates))
    assert error < 0.05
    assert abs(estimates.mean().item() - expected.item()) < 4 * error


@pytest.mark.parametrize("is_training", [True, False])
def test_inference_mode_changes_nothing(is_training):
    flow, x = disturb(IResNet((2, 4, 4), blocks=1, width=4), 0.1), torch.rand(3, 2, 4, 4)
    flow(x)  # which the first norms take their scale from
    found = []
    for mode in (torch.no_grad, torch.inference_mode):
        again = copy.deepcopy(flow).train(is_training)
        with mode():
            torch.manual_seed(0)
            found.append((*again.encode(2 * x)[:2], again.decode(again.encode(x).latent)))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_the_prior_has_the_density_of_a_diagonal_gaussian():
    prior, x = disturb(DiagonalNormal(5)), torch.randn(3, 5)
    latent, gained = prior.encode(x)
    expected = torch.distributions.Normal(prior.mean, prior.log_scale.exp()).log_prob(x).sum(1)
    torch.testing.assert_close(log_normal(latent) + gained, expected)
    torch.testing.assert_close(prior.decode(latent), x)


def test_blocks_are_inverted_in_both_modes():
    block, x = make_block(), torch.randn(4, *SHAPE)
    for training in (True, False):
        block.train(training)
        with torch.no_grad():
            back = block.decode(block.encode(x)[0])
        torch.testing.assert_close(back, x, rtol=1e-9, atol=1e-9)


def test_single_precision_is_inverted_to_its_own_tolerance():
    block, x = make_block().float(), 100 * torch.randn(4, *SHAPE, dtype=torch.float32)
    with torch.no_grad():
        back = block.decode(block.encode(x)[0])
    assert (back - x).abs().max() < 1e-4 * x.abs().max()


def test_autocast_leaves_inverses_their_digits():
    """In half precision no number would come to rest."""
    block, y = make_block().float(), torch.randn(5, *SHAPE, dtype=torch.float32)
    with torch.no_grad():
        expected = block.decode(y)
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(block.decode(y), expected)


def test_an_inverse_that_does_not_converge_says_so():
    with pytest.raises(FlowError, match=r"in the last of 30 iterations.*raise max_iterations"):
        FixedPoint(max_iterations=30).solve(lambda x: -2 * x, torch.ones(1, 2))
    flow = IResNet((1, 4, 4), blocks=1, width=4, max_iterations=1).eval()
    with pytest.raises(FlowError, match="raise max_iterations"):
        flow.sample(2)


def test_values_that_are_not_finite_do_not_pass_as_converged():
    with pytest.raises(FlowError):
        FixedPoint(max_iterations=3).solve(lambda x: x * torch.nan, torch.ones(1, 2))


@pytest.mark.parametrize("coefficient", [0.0, 1.0, -0.5, 1.5])
def test_coefficients_that_bound_nothing_are_refused(coefficient):
    with pytest.raises(ValueError, match="coefficient must lie between 0 and 1"):
        IResNet((1, 4, 4), coefficient=coefficient)


def test_a_tolerance_of_zero_is_refused():
    with pytest.raises(ValueError, match="tolerance must be positive"):
        IResNet((1, 4, 4), tolerance=0)


def test_squeezes_stop_at_odd_sides_and_a_single_channel_is_not_divided():
    def kept(shape):
        return IResNet(shape, blocks=1, width=2)._shapes

    assert kept((1, 28, 28)) == ((2, 14, 14), (4, 7, 7), (4, 7, 7))
    assert kept((1, 14, 14)) == ((2, 7, 7), (1, 7, 7), (1, 7, 7))
    assert kept((1, 7, 7)) == ((1, 7, 7),)
    assert kept((3, 32, 32)) == ((6, 16, 16), (12, 8, 8), (48, 4, 4))
