"""Fields of states that have no space."""

from typing import Any

import pytest
import torch

from bfno.fields import PointField
from bfno.fields.flow import FlowOperatorField
from bfno.fields.interface import pull_back_by_autograd
from bfno.fields.operator import OperatorField
from bfno.fields.points import GRIDS, LatentOperatorField


def _made(layer: str, **options) -> PointField:
    torch.manual_seed(0)
    inside = FlowOperatorField(layer, 2, 8, 2, **options)
    torch.nn.init.normal_(inside.decoder.weight)
    return PointField(inside)


FIELDS = [
    ("bfno", {"branches": 2, "skip": "linear", "inner_activation": "softplus"}),
    ("fno", {"modes": 1, "axes": 1}),
    ("afno", {"blocks": 2}),
]


@pytest.mark.parametrize(("layer", "options"), FIELDS)
def test_points_do_not_see_each_other(layer, options):
    field, points = _made(layer, **options), torch.randn(6, 2)
    whole = field(0.3, points)
    for number in range(6):
        alone = field(0.3, points[number : number + 1])
        torch.testing.assert_close(alone[0], whole[number])


@pytest.mark.parametrize(("layer", "options"), FIELDS)
def test_cotangents_are_pulled_back_as_autograd_does(layer, options):
    field, points, cotangent = _made(layer, **options), torch.randn(6, 2), torch.randn(6, 2)
    value, pulled = field.pull_back(0.3, points, cotangent)
    expected = pull_back_by_autograd(field, 0.3, points, cotangent)
    torch.testing.assert_close(value, expected[0])
    torch.testing.assert_close(pulled, expected[1])
    assert pulled.abs().max() > 0 and value.shape == points.shape


@pytest.mark.parametrize("grid", ["point", "batch"])
def test_the_fields_of_the_paper_have_its_numbers_of_parameters(grid):
    for width, expected in ((500, 1_017_515), (50, 11_765)):
        field = LatentOperatorField(15, width, grid=grid)
        assert sum(one.numel() for one in field.parameters()) == expected


def test_the_latent_grid_is_a_line_of_one_channel():
    field, y = LatentOperatorField(5, 6), torch.randn(4, 5)
    expected = OperatorField("bfno", 1, 6, 1, time=False, branches=1, activation="tanh",
                             last_activation=True)  # fmt: skip
    expected.load_state_dict(field.operator.state_dict())
    torch.testing.assert_close(field(0.0, y), expected(0.0, y[:, None, :])[:, 0])


def test_on_one_point_the_layer_is_two_linear_maps_around_an_activation():
    """A spectrum of one number is real, and the imaginary part of the result is dropped."""
    field, y = LatentOperatorField(5, 6, grid="point"), torch.randn(4, 5)
    operator: Any = field.operator
    (layer,) = operator.layers
    encoder, decoder = operator.encoder, operator.decoder
    x = y @ encoder.weight.T + encoder.bias
    inner = torch.relu(x @ layer.weight[0, 0] + layer.bias[0, 0])
    hidden = torch.tanh(x + inner @ layer.merge_real.weight.T + layer.merge_real.bias)
    expected = hidden @ decoder.weight.T + decoder.bias
    torch.testing.assert_close(field(0.0, y), expected, rtol=0, atol=1e-13)


def test_the_batch_grid_takes_samples_and_series_for_space():
    field, y = LatentOperatorField(5, 6, grid="batch"), torch.randn(3, 4, 5)
    expected = field.operator(0.0, y.permute(2, 0, 1)[None])[0].permute(1, 2, 0)
    assert torch.equal(field(0.0, y), expected)
    other = y.clone()
    other[0, 0] += 1
    assert not torch.allclose(field(0.0, y)[1, 2], field(0.0, other)[1, 2])
    assert field.couples_series


@pytest.mark.parametrize("grid", ["latent", "point"])
def test_other_grids_keep_trajectories_apart(grid):
    field, y = LatentOperatorField(5, 6, grid=grid), torch.randn(4, 5)
    together = field(0.0, y)
    assert not field.couples_series
    for number in range(4):
        alone = field(0.0, y[number : number + 1])
        torch.testing.assert_close(together[number : number + 1], alone, rtol=0, atol=1e-14)


@pytest.mark.parametrize("grid", GRIDS)
def test_states_of_another_shape_are_refused(grid):
    with pytest.raises(ValueError, match="must have shape"):
        LatentOperatorField(5, 6, grid=grid)(0.0, torch.zeros(2, 2, 2, 5))


def test_an_unknown_grid_is_refused():
    with pytest.raises(ValueError, match="latent, point, batch"):
        LatentOperatorField(5, 6, grid="line")
