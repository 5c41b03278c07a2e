"""The field for the inside of a network is what its formula says."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from bfno import FirstOrder, NeuralODE, NormedField

LAYERS = {"conv": {}, "bfno": {"skip": "conv"}, "fno": {"modes": 2}, "afno": {"blocks": 2}}


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def _randomised(field: NormedField) -> NormedField:
    for parameter in field.parameters():
        nn.init.normal_(parameter, std=0.3)
    return field.double()


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("time", [0.3, torch.tensor([0.1, 0.5, 0.9])])
def test_it_normalises_adds_the_time_activates_and_mixes(layer, time):
    field = _randomised(NormedField(layer, 16, depth=2, **LAYERS[layer]))
    y = torch.randn(3, 16, 6, 5, dtype=torch.float64)
    hidden = y
    for norm, mix, response in zip(field.norms, field.layers, field.time, strict=True):
        assert isinstance(norm, nn.GroupNorm)
        scaled = F.group_norm(hidden, 2, norm.weight, norm.bias)
        times = torch.as_tensor(time, dtype=torch.float64).reshape(-1, 1, 1, 1)
        hidden = mix((scaled + times * response[:, None, None]).relu())
    torch.testing.assert_close(field(time, y), hidden * field.gain)


def test_a_sample_does_not_see_its_neighbours():
    field = _randomised(NormedField("bfno", 8))
    y = torch.randn(4, 8, 5, 5, dtype=torch.float64)
    torch.testing.assert_close(field(0.2, y)[1:2], field(0.2, y[1:2]))


@pytest.mark.parametrize("layer", LAYERS)
def test_a_solve_has_the_gradient_of_finite_differences(layer):
    field = _randomised(NormedField(layer, 4, **LAYERS[layer]))
    field.activation = "tanh"
    block = NeuralODE(FirstOrder(field), method="midpoint", step=1.0)
    y = torch.randn(2, 4, 4, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(block, (y,))


def test_one_euler_step_is_a_residual_block():
    field = _randomised(NormedField("conv", 8))
    block = NeuralODE(FirstOrder(field), method="euler", step=1.0)
    y = torch.randn(2, 8, 4, 4, dtype=torch.float64)
    torch.testing.assert_close(block(y), y + field(0.0, y))


def test_channels_that_no_group_divides_are_normalised_all_the_same():
    groups = {width: NormedField("conv", width).norms[0].num_groups for width in (7, 8, 24, 48)}
    assert groups == {7: 1, 8: 1, 24: 3, 48: 6}


def test_a_state_of_other_channels_is_refused():
    with pytest.raises(ValueError, match=r"shape \(batch, 8, height, width\)"):
        NormedField("conv", 8)(0.0, torch.zeros(1, 4, 3, 3))
