"""Fixed steps under `torch.export` and `torch.compile` are plain operations, and one graph."""

import itertools
from typing import Any

import pytest
import torch
from torch import nn

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
)
from bfno.fields import ConvField, NormedField, OperatorField
from bfno.layers import AFNO, BFNO, FNO
from bfno.layers.spectral import DFT_LIMIT
from bfno.ode import NeuralODE
from tests.torch_versions import EXPORT_WARNINGS, ONE_GRAPH, newer_torch

pytestmark = EXPORT_WARNINGS
# The same operations in another order of sums: a few roundings of float64.
CLOSE: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-12}
STATE = (2, 5, 4)
FIELDS = {
    "conv": lambda channels: ConvField(channels, 4, 2),
    "bfno": lambda channels: OperatorField("bfno", channels, 3, 1, out_channels=2),
    "fno": lambda channels: OperatorField("fno", channels, 3, 1, out_channels=2, modes=2),
    "afno": lambda channels: OperatorField("afno", channels, 4, 1, out_channels=2, blocks=2),
}
SIMPLE = (HeavyBall, GeneralizedHeavyBall, Nesterov, GeneralizedNesterov)
DYNAMICS = {
    "first": lambda make: FirstOrder(make(2)),
    "second": lambda make: SecondOrder(make(4), InitialVelocity(2, 3, 2)),
    "adam": lambda make: AdamODE(make(2), InitialMoments(2, 3, 2)),
    **{
        kind.__name__: lambda make, kind=kind: kind(make(2), InitialVelocity(2, 3, 2))
        for kind in SIMPLE
    },
}
BATCH = ({0: torch.export.Dim("batch")},)


def block(dynamics="first", field="bfno", method="midpoint", **options):
    made = NeuralODE(DYNAMICS[dynamics](FIELDS[field]), method=method, **options)
    return made.eval()


class Twofold(nn.Module):
    """Dynamics of a nested state."""

    interval = (0.0, 1.0)

    def initial(self, x):
        return x, x.new_zeros(x.shape[0])

    def forward(self, t, y):
        return y[0].sin() * t.view(-1, *[1] * (3 if t.dim() else 0)), y[0].flatten(1).sum(1)

    def read_out(self, y):
        return y[0] + y[1].view(-1, 1, 1, 1)


@pytest.mark.parametrize("options", [{}, {"independent": True}])
def test_nested_states_are_exported(options):
    check_export(NeuralODE(Twofold(), method="rk4", step=0.25, **options))


def exported(module, x, shapes=BATCH):
    with torch.no_grad():
        return torch.export.export(module, (x,), dynamic_shapes=shapes, strict=False)


def check_export(module):
    program = exported(module, torch.randn(3, *STATE)).module()
    for batch in (1, 5):
        x = torch.randn(batch, *STATE)
        torch.testing.assert_close(program(x), module(x), **CLOSE)


PAIRS = list(itertools.product(DYNAMICS, FIELDS))
FAST = [("first", "bfno"), ("adam", "conv")]


@pytest.mark.parametrize(
    ("dynamics", "field"),
    [pytest.param(*one, marks=[] if one in FAST else pytest.mark.slow) for one in PAIRS],
)
def test_every_dynamics_of_every_operator_is_exported_for_any_batch(dynamics, field):
    check_export(block(dynamics, field))


@pytest.mark.slow
@pytest.mark.parametrize("layer", ["conv", "bfno", "fno", "afno"])
def test_normed_fields_are_exported(layer):
    options: dict[str, Any] = {"fno": {"modes": 2}, "afno": {"blocks": 2}}.get(layer, {})
    field = NormedField(layer, 2, **options)
    check_export(NeuralODE(FirstOrder(field), method="rk4", step=0.5).eval())


@pytest.mark.parametrize(
    "options",
    [
        {"method": "dopri5", "step": 0.4},  # whose last stage is the next step's first
        {"method": "rk4", "step": 0.3, "stops": (0.5,)},
        {"method": "heun3", "gradient": "adjoint"},
        {"method": "euler", "step": 0.25, "first_step": "last"},
    ],
)
def test_steps_of_every_kind_are_those_of_the_solver(options):
    made = NeuralODE(FirstOrder(lambda t, y: y * torch.as_tensor(t).sin()), **options).eval()
    x = torch.randn(3, 2)
    program = exported(made, x).module()
    torch.testing.assert_close(program(x), made(x), **CLOSE)


@pytest.mark.parametrize(
    ("layer", "grid"),
    [
        (BFNO(2), (DFT_LIMIT + 2,)),
        (FNO(2, (3,)), (7,)),
        (FNO(2, (2, 1, 3)), (4, 3, 5)),
        (AFNO(4, blocks=2, kept=0.5), (9,)),
        (AFNO(4, blocks=2, expansion=2), (3, 4, 2)),
    ],
)
def test_layers_are_exported_without_complex_numbers(layer, grid):
    for parameter in layer.double().parameters():
        nn.init.normal_(parameter)  # zeros and tiny weights would hide a wrong formula
    x = torch.randn(2, 2 if not isinstance(layer, AFNO) else 4, *grid)
    program = exported(layer, x, None)
    values = [node.meta.get("val") for node in program.graph.nodes]
    assert not any(isinstance(one, torch.Tensor) and one.is_complex() for one in values)
    torch.testing.assert_close(program.module()(x), layer(x), **CLOSE)


def test_an_export_leaves_nothing_behind_in_the_layers():
    layer, x = BFNO(2), torch.randn(2, 2, 11)  # a grid whose matrices are not known yet
    exported(layer, x, None)
    assert torch.isfinite(layer(x)).all()


@ONE_GRAPH
# The compiler says that it looks through the cache of the transforms' matrices.
@pytest.mark.filterwarnings("ignore:.*lru_cache.*:UserWarning")
@pytest.mark.parametrize(
    ("dynamics", "field", "gradient"),
    [
        ("first", "conv", "checkpoint"),
        pytest.param("HeavyBall", "bfno", "direct", marks=pytest.mark.slow),
        pytest.param("second", "fno", "checkpoint", marks=pytest.mark.slow),
        pytest.param("adam", "afno", "checkpoint", marks=pytest.mark.slow),
    ],
)
def test_a_compiler_sees_one_graph_with_the_right_gradients(dynamics, field, gradient):
    torch.compiler.reset()
    made = block(dynamics, field, gradient=gradient, step=0.5)
    compiled = torch.compile(made, backend="aot_eager", fullgraph=True)
    x, found = torch.randn(2, *STATE, requires_grad=True), []
    for one in (compiled, made):
        value = one(x)
        wanted = (x, *made.parameters())
        found.append((value, *torch.autograd.grad(value.square().sum(), wanted)))
        assert (made.stats.accepted, made.stats.forward_evaluations) == (2, 4)
        assert made.stats.step_ends == [0.5, 1.0]
    torch.testing.assert_close(*found, **CLOSE)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"method": "dopri5"}, "got adaptive ones"),
        ({"method": "rk4", "step": 0.5, "jumps": (0.3,)}, r"got jumps=\(0.3,\)"),
        ({"method": "rk4", "step": 0.5, "on_step": print}, "got on_step=<built-in function print>"),
    ],
)
def test_what_cannot_be_exported_says_so(options, problem):
    made = NeuralODE(FirstOrder(lambda t, y: -y), **options)
    with pytest.raises(ValueError, match=f"torch.export needs fixed steps .* {problem}; make"):
        exported(made, torch.ones(2, 1))


def test_a_wrong_slope_is_refused_in_a_graph_too():
    made = NeuralODE(FirstOrder(lambda t, y: y[:, :1]), method="euler")
    with pytest.raises(ValueError, match="must return the state's shape"):
        exported(made, torch.ones(2, 3))


@newer_torch("make a tensor of as many numbers as a batch has, whatever their number")
def test_a_field_with_a_time_per_sample_is_given_one():
    class Timed(nn.Module):
        def forward(self, t, y):
            return torch.cos(5 * t[:, None, None, None]) * y

    check_export(NeuralODE(FirstOrder(Timed()), method="rk4", step=0.25, independent=True))
