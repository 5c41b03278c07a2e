"""Networks with a stem, blocks on a coarse grid and a pooled head."""

import pytest
import torch

from bfno import ConvNet, FirstOrder, NeuralODE, NormedField, ode_net, residual_net


def _net(steps: int = 2, blocks: int = 2) -> ConvNet:
    torch.manual_seed(0)
    odes = [
        NeuralODE(FirstOrder(NormedField("bfno", 8)), method="euler", step=1 / steps)
        for _ in range(blocks)
    ]
    return ode_net(odes, width=4, in_shape=(3, 32, 32), classes=5)


@pytest.mark.parametrize("side", [8, 16, 28, 32, 64, 128])
def test_the_blocks_are_on_a_small_grid_for_any_image(side):
    net, seen = residual_net((1, side, side), classes=3, width=4), []
    net.body.register_forward_hook(lambda _, given, result: seen.append(result.shape[-1]))
    assert net(torch.zeros(2, 1, side, side)).shape == (2, 3)
    assert 4 <= seen[0] <= 8


def test_costs_are_those_of_all_blocks():
    net = _net()
    net(torch.rand(2, 3, 32, 32)).sum().backward()
    assert len(net.blocks) == 2
    assert net.stats.forward_evaluations == 4
    assert net.stats.backward_evaluations == sum(
        one.stats.backward_evaluations for one in net.blocks
    )
    assert residual_net((3, 32, 32), 5, 4).stats.forward_evaluations == 0


def test_the_head_sees_the_mean_so_that_another_grid_will_do():
    net = _net().eval()
    images = torch.rand(2, 3, 48, 40)
    torch.testing.assert_close(net.features(images), net.body(images).flatten(2).mean(2))
    torch.testing.assert_close(net(images), net.head(net.features(images)))
    with pytest.raises(ValueError, match="images must have shape"):
        net(torch.rand(2, 1, 32, 32))


def test_training_reaches_every_parameter():
    net = _net()
    net(torch.rand(4, 3, 32, 32)).square().sum().backward()
    # A new field hardly moves: its time response and all else still get a gradient.
    missing = [name for name, p in net.named_parameters() if p.grad is None or not p.grad.any()]
    assert missing == []


def test_a_prediction_does_not_depend_on_its_neighbours():
    net, images = _net().eval(), torch.rand(4, 3, 32, 32)
    torch.testing.assert_close(net(images)[2:3], net(images[2:3]), rtol=1e-4, atol=1e-5)
