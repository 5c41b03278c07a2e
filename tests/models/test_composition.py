"""Any dynamics moves any field, and training reaches all of both."""

import pytest
import torch

from bfno.dynamics import (
    AdamODE,
    FirstOrder,
    GeneralizedHeavyBall,
    GeneralizedNesterov,
    HeavyBall,
    InitialMoments,
    InitialVelocity,
    Nesterov,
    SecondOrder,
    ZeroStart,
)
from bfno.fields.convolution import ConvField
from bfno.fields.mlp import MLPField
from bfno.fields.operator import OperatorField
from bfno.ode import NeuralODE

CHANNELS = 2

DYNAMICS = {
    "first order": FirstOrder,
    "augmented": lambda field: FirstOrder(field, augment=1),
    "second order": SecondOrder,
    "heavy ball": HeavyBall,
    "generalized heavy ball": lambda field: GeneralizedHeavyBall(field, restoring="learned"),
    "nesterov": Nesterov,
    "public nesterov": lambda field: Nesterov(field, variant="public_code", sign=-1),
    "generalized nesterov": lambda field: GeneralizedNesterov(field, restoring="learned"),
    "adam": AdamODE,
}

# The shrinkage of AFNO removes its small initial values altogether, and with them the gradients.
FIELDS = {
    "convolution": lambda c, out: (ConvField(c, 6, out), (4, 5)),
    "fully connected": lambda c, out: (MLPField(c, 6, out_features=out), ()),
    "bfno": lambda c, out: (OperatorField("bfno", c, 6, 2, out_channels=out), (4, 5)),
    "bfno on a line": lambda c, out: (OperatorField("bfno", c, 6, 2, out_channels=out), (6,)),
    "fno": lambda c, out: (OperatorField("fno", c, 6, 2, out_channels=out, modes=2), (4, 5)),
    "afno": lambda c, out: (
        OperatorField("afno", c, 6, 2, out_channels=out, blocks=2, shrink=0.0),
        (4, 5),
    ),
}


@pytest.mark.parametrize("field_name", FIELDS)
@pytest.mark.parametrize("dynamics_name", DYNAMICS)
def test_any_dynamics_trains_any_field(dynamics_name, field_name):
    out = CHANNELS + (dynamics_name == "augmented")
    seen = 2 * CHANNELS if dynamics_name == "second order" else out
    field, space = FIELDS[field_name](seen, out)
    check_training(
        DYNAMICS[dynamics_name](field),
        torch.randn(3, CHANNELS, *space),
        torch.randn(3, out, *space),
    )


@pytest.mark.parametrize("kind", [SecondOrder, HeavyBall, GeneralizedNesterov, AdamODE])
def test_a_learned_start_is_trained_with_the_field(kind):
    state = 4
    field = ConvField(2 * state if kind is SecondOrder else state, 6, state)
    if kind is AdamODE:
        start = InitialMoments(CHANNELS, 5, state)
    else:
        start = InitialVelocity(CHANNELS, 5, 2 * state - CHANNELS)
    check_training(kind(field, start), torch.randn(3, CHANNELS, 4, 5), torch.randn(3, state, 4, 5))


def test_zero_augmentation_works_with_momentum():
    dynamics = HeavyBall(MLPField(5, 6), ZeroStart(components=2, augment=3))
    check_training(dynamics, torch.randn(3, CHANNELS), torch.randn(3, 5))


def check_training(dynamics, x, target):
    """Every parameter has a gradient, and a short step along it lowers the loss."""
    # Fixed steps, because the loss of an adaptive solution is not quite a smooth function.
    block = NeuralODE(dynamics, method="rk4", step=0.25)

    def loss():
        return (block(x) - target).square().mean()

    before = loss()
    before.backward()
    silent = [
        name
        for name, parameter in block.named_parameters()
        if parameter.grad is None or not parameter.grad.any()
    ]
    assert silent == []
    gradient = [torch.as_tensor(parameter.grad) for parameter in block.parameters()]
    # A thousandth of the loss to first order; what remains is the loss surface's curvature.
    step = 1e-3 * before.item() / sum(part.square().sum() for part in gradient)
    with torch.no_grad():
        for parameter, part in zip(block.parameters(), gradient, strict=True):
            parameter -= step * part
        decrease = before.item() - loss().item()
    assert decrease == pytest.approx(1e-3 * before.item(), rel=0.1)
