"""Fields in space as fields of points."""

import pytest
import torch

from bfno.fields import PointField
from bfno.fields.flow import FlowOperatorField
from bfno.fields.interface import pull_back_by_autograd


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
