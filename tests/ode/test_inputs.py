"""Wrong input is refused before a solve begins, in one line that says what to do."""

import math
import warnings
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import bfno
from bfno.ode.block import solver_settings
from bfno.ode.solve import Options, read_options
from tests.ode.problems import Network

PAIR = (torch.ones(2), torch.ones(3))
META = torch.ones(2, device="meta")
SPARSE = torch.eye(2).to_sparse()
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # nested tensors are a prototype
    NESTED = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])


def decay(t, y):
    return tuple(-part for part in y) if isinstance(y, tuple) else -y


# What `solve` is called with besides a field, a state of two numbers and two times.
SOLVES: list[tuple[dict[str, Any], str]] = [
    ({"field": None}, "field must be a function of time and state, or a module, got None"),
    ({"field": "decay"}, "field must be a function .* got 'decay'"),
    ({"y0": META}, "y0 must hold numbers, got a tensor on the meta device"),
    ({"y0": SPARSE}, r"y0 must be dense, got torch.sparse_coo; call \.to_dense"),
    ({"y0": NESTED}, "y0 must have one shape, got a nested tensor; pass a tuple"),
    ({"y0": (torch.ones(2), META)}, "y0 must hold numbers"),
    ({"ts": META}, "ts must hold numbers, got a tensor on the meta device"),
    ({"ts": torch.ones(2).to_sparse()}, "ts must be dense"),
    ({"method": None}, "method must be a name in bfno.METHODS.*, got None"),
    ({"method": ["rk4"]}, r"method must be a name in bfno.METHODS.*, got \['rk4'\]"),
    ({"rtol": True}, "rtol must be a finite number, zero or more, got True"),
    ({"atol": "small"}, "atol must be a finite number, zero or more, got 'small'"),
    ({"rtol": None}, "rtol must be a finite number, zero or more, got None"),
    ({"rtol": (1e-3, 1e-4)}, "rtol must be a finite number, zero or more, got "),
    ({"rtol": torch.tensor([1, 2])}, "rtol must be a finite number"),
    ({"rtol": torch.tensor(-1.0)}, r"rtol must be a finite number, zero or more, got tensor\(-1"),
    ({"rtol": torch.ones(3)}, r"rtol must .*broadcast to the state's shape \(2,\), got shape \(3,"),
    ({"atol": torch.ones(1, 2)}, r"atol must .*state's shape \(2,\), got shape \(1, 2\)"),
    ({"atol": torch.ones(5), "y0": PAIR}, "atol must be one number where y0 is not one tensor"),
    ({"rtol": torch.zeros(2), "atol": 0.0}, "rtol and atol must not both be zero"),
    ({"step": "a"}, "step must be a number, got 'a'"),
    ({"step": torch.ones(2)}, r"step must be a number, got a tensor of shape \(2,\)"),
    ({"step": True}, "step must be a number, got True"),
    ({"first_step": -0.1}, "first_step must be positive, got -0.1"),
    ({"first_step": 1j}, "first_step must be a number, got 1j"),
    ({"min_step": None}, "min_step must be a number, got None"),
    ({"min_step": -1.0}, "min_step must be zero or more, got -1.0"),
    ({"max_step": None}, "max_step must be a number, got None"),
    ({"max_step": math.nan}, "max_step must be positive, got nan"),
    ({"max_steps": "9"}, "max_steps must be a number, got '9'"),
    ({"max_steps": 2.5}, "max_steps must be a whole number, got 2.5"),
    ({"max_steps": 0}, "max_steps must be positive, got 0"),
    ({"norm": "max"}, "norm must be a function of a state, or a module, got 'max'"),
    ({"norm": lambda y: None}, "norm must return one number, got None"),
    ({"norm": lambda y: y}, r"norm must return one number, got a tensor of shape \(2,\)"),
    ({"norm": lambda y: y, "y0": PAIR}, "norm must return one number, got "),
    ({"ignore": 1, "y0": PAIR}, r"ignore must hold places .*as in ignore=\(1,\), got 1"),
    ({"ignore": ("a",), "y0": PAIR}, r"ignore must hold places of components, .*got \('a',\)"),
    ({"ignore": (2,), "y0": PAIR}, "ignore must lie between 0 and 1, got 2"),
    ({"ignore": (-1,), "y0": PAIR}, "ignore must lie between 0 and 1, got -1"),
    ({"ignore": (0,)}, "ignore must be empty where y0 is one tensor, got 0"),
    ({"ignore": (1,), "norm": len, "y0": PAIR}, "ignore and norm exclude each other"),
    ({"jumps": 0.5}, r"jumps must hold times, as in jumps=\(0\.5,\), got 0\.5"),
    ({"jumps": None}, "jumps must hold times, .*got None"),
    ({"jumps": "a"}, "jumps must hold times, .*got 'a'"),
    ({"jumps": "12"}, "jumps must hold times, .*got '12'"),
    ({"jumps": (math.nan,)}, "jumps must hold times"),
    ({"jumps": META}, "jumps must hold times"),
    ({"stops": 0.5}, r"stops must hold times, as in stops=\(0\.5,\), got 0\.5"),
    ({"stops": (0.5, None)}, r"stops must hold times, .*got \(0\.5, None\)"),
    ({"args": torch.ones(2)}, r"args must be a tuple, as in args=\(rate,\), got a tensor of shape"),
    ({"args": 0.5}, "args must be a tuple, .*got 0.5"),
    ({"event": 3}, "event must be a function of time and state, or a module, got 3"),
    ({"on_step": 3}, "on_step must be a function of time, state and statistics, .*got 3"),
    ({"adjoint": {}}, "adjoint needs gradient='adjoint', got gradient='checkpoint'"),
    ({"parameters": ()}, "parameters needs gradient='adjoint', got gradient='checkpoint'"),
    ({"parameters": (), "gradient": "direct"}, "parameters needs .* got gradient='direct'"),
    ({"gradient": "foo", "memory": 0}, "gradient must be one of .*, got 'foo'"),
]

ADJOINTS: list[tuple[dict[str, Any], str]] = [
    ({"adjoint": "x"}, "adjoint must be a dict of settings, .*got 'x'"),
    ({"adjoint": {"rtol": -1.0}}, "adjoint rtol must be a finite number, zero or more, got -1.0"),
    ({"adjoint": {"atol": None}}, "adjoint atol must be a finite number, zero or more, got None"),
    ({"adjoint": {"step": 0.0}}, "adjoint step must be positive, got 0.0"),
    ({"adjoint": {"method": None}}, "method must be a name in bfno.METHODS"),
    ({"adjoint": {"rtol": 0.0, "atol": 0}}, "adjoint rtol and adjoint atol must not both be zero"),
    ({"adjoint": {"seminorm": "no"}}, "adjoint seminorm must be True or False, got 'no'"),
    ({"adjoint": {"seminorm": 1}}, "adjoint seminorm must be True or False, got 1"),
    ({"adjoint": {1: 2}}, "adjoint option 1 does not exist"),
    ({"parameters": ["w"]}, "parameters must hold tensors, got 'w'"),
    ({"parameters": torch.ones(2)}, r"parameters must be a collection .*parameters=\(weight,\)"),
    ({"parameters": 3}, "parameters must be a collection of tensors, .*got 3"),
    ({"rtol": torch.ones(2)}, r"needs one number as rtol .*got shape \(2,\); pass adjoint="),
]

ODEINTS: list[tuple[dict[str, Any], str]] = [
    ({"func": None}, "func must be a function of time and state, or a module, got None"),
    ({"y0": META}, "y0 must hold numbers, got a tensor on the meta device"),
    ({"y0": SPARSE}, "y0 must be dense"),
    ({"t": META}, "t must hold numbers, got a tensor on the meta device"),
    ({"rtol": True}, "rtol must be a finite number, zero or more, got True"),
    ({"rtol": ("a", "b")}, r"rtol must hold finite numbers, zero or more, got \('a', 'b'\)"),
    ({"rtol": (1e-3, -1.0)}, "rtol must be a finite number, zero or more"),
    ({"rtol": (1e-3, 1e-3, 1e-3)}, r"rtol must .*state's shape \(2,\), got shape \(3,\)"),
    ({"atol": (1e-3,), "y0": PAIR}, "atol must be a number, or one for each of the 2 comp.*got 1"),
    ({"atol": (1.0, torch.ones(2)), "y0": PAIR}, "atol of a component of 3 .*as many, got 2"),
    ({"options": 3}, "options must be a dict of settings by name, got 3"),
    ({"event_fn": 3}, "event_fn must be a function of time and state, or a module, got 3"),
    ({"method": 3}, "method must be a name in bfno.METHODS.*got 3"),
    ({"method": ["rk4"]}, r"method must be a name in bfno.METHODS.*got \['rk4'\]"),
    ({"method": "explicit_adams", "options": {"implicit": True}}, "'implicit' does not exist"),
    ({"method": "rk4", "options": {"step_size": "a"}}, "step_size must be a number, got 'a'"),
    ({"method": "rk4", "options": {"grid_constructor": 3}}, "grid_constructor must be a function"),
    (
        {"method": "rk4", "options": {"grid_constructor": lambda f, y, t: [0.0, 1.0]}},
        r"grid_constructor must return one row of times as a tensor, got \[0\.0, 1\.0\]",
    ),
    ({"method": "explicit_adams", "options": {"max_order": 13}}, "max_order must lie between"),
    ({"method": "explicit_adams", "options": {"max_iters": 1.5}}, "max_iters must be a whole"),
    ({"options": {"jump_t": "a"}}, "jump_t must hold times, .*got 'a'"),
    ({"options": {"max_num_steps": -1}}, "max_num_steps must be positive, got -1"),
    ({"options": {"first_step": "a"}}, "first_step must be a number, got 'a'"),
    ({"options": {"min_step": -1}}, "min_step must be zero or more, got -1"),
    ({"options": {"norm": "max"}}, "norm must be a function of a state, or a module, got 'max'"),
    ({"options": {"norm": "seminorm"}}, "norm must be a function of a state, .*got 'seminorm'"),
    ({"options": {"norm": lambda y: y}}, "norm must return one number, got a tensor of shape"),
]

ODEINT_ADJOINTS: list[tuple[dict[str, Any], str]] = [
    ({"func": None}, "func must be a function of time and state, or a module, got None"),
    ({"adjoint_rtol": -1.0}, "adjoint_rtol must be a finite number, zero or more, got -1.0"),
    ({"adjoint_atol": "a"}, "adjoint_atol must be a finite number, zero or more, got 'a'"),
    ({"adjoint_rtol": ("a",)}, "adjoint_rtol must hold finite numbers"),
    ({"adjoint_options": 3}, "options must be a dict of settings by name, got 3"),
    ({"adjoint_params": ["w"]}, "adjoint_params must hold tensors, got 'w'"),
    ({"adjoint_params": torch.ones(2)}, "adjoint_params must be a collection of tensors"),
    ({"adjoint_method": 3}, "method must be a name in bfno.METHODS"),
]

TIMES: list[tuple[dict[str, Any], str]] = [
    ({"t0": "now"}, "t0 must be one time, a number or a tensor, got 'now'"),
    ({"t0": torch.ones(2)}, r"t0 must be one time, .*got a tensor of shape \(2,\)"),
    ({"t0": None}, "t0 must be one time, a number or a tensor, got None"),
    ({"event_fn": 3}, "event_fn must be a function of time and state, or a module, got 3"),
]

BLOCKS: list[tuple[dict[str, Any], str]] = [
    ({"dynamics": None}, "dynamics must be a module that has interval, .* got None; .*FirstOrder"),
    ({"dynamics": decay}, r"dynamics must .*got <function decay .*make one .*FirstOrder\(field\)"),
    ({"dynamics": Network()}, r"dynamics must .*got Network; make .*FirstOrder\(field\)"),
    ({"rtol": -1.0}, "rtol must be a finite number, zero or more, got -1.0"),
    ({"rtol": 0.0, "atol": 0.0}, "rtol and atol must not both be zero"),
    ({"max_steps": 2.5}, "max_steps must be a whole number, got 2.5"),
    ({"adjoint": {"rtol": 1e-3}}, "adjoint needs gradient='adjoint'"),
    ({"adjoint": {"rtol": -1.0}, "gradient": "adjoint"}, "adjoint rtol must be a finite number"),
    ({"gradient": None}, "gradient must be one of checkpoint, direct, adjoint, got None"),
    ({"gradient": "foo", "memory": 0}, "gradient must be one of .*, got 'foo'"),
    ({"method": None}, "method must be a name in bfno.METHODS"),
]


def call_solve(**change):
    call = {"field": decay, "y0": torch.ones(2), "ts": torch.tensor([0.0, 1.0])}
    bfno.solve(**{**call, **change})


def call_adjoint(**change):
    call_solve(gradient="adjoint", **change)


def call_odeint(**change):
    call = {"func": decay, "y0": torch.ones(2), "t": torch.tensor([0.0, 1.0])}
    bfno.odeint(**{**call, **change})


def call_odeint_adjoint(**change):
    call = {"func": decay, "y0": torch.ones(2), "t": torch.tensor([0.0, 1.0])}
    bfno.odeint_adjoint(**{**call, **change})


def call_odeint_event(**change):
    call = {"func": decay, "y0": torch.ones(2), "t0": 0.0, "event_fn": lambda t, y: y[0] - 0.5}
    bfno.odeint_event(**{**call, **change})


def call_block(**change):
    bfno.NeuralODE(**{"dynamics": bfno.FirstOrder(bfno.MLPField(2, 4)), **change})


TABLES = [
    (call_solve, SOLVES),
    (call_adjoint, ADJOINTS),
    (call_odeint, ODEINTS),
    (call_odeint_adjoint, ODEINT_ADJOINTS),
    (call_odeint_event, TIMES),
    (call_block, BLOCKS),
]
ROWS = [
    pytest.param(call, change, message, id=f"{call.__name__}-{'-'.join(change)}-{index}")
    for call, rows in TABLES
    for index, (change, message) in enumerate(rows)
]


@pytest.mark.parametrize(("call", "change", "message"), ROWS)
def test_bad_input_is_refused_in_one_short_line(call, change, message):
    with pytest.raises(ValueError, match=f"^.*{message}") as caught:
        call(**change)
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 200


@pytest.mark.parametrize(
    "change",
    [
        {"rtol": np.float32(1e-3), "atol": np.float64(1e-3)},
        {"rtol": torch.tensor(1e-3), "atol": Fraction(1, 1000)},
        {"rtol": torch.full((2,), 1e-3), "atol": torch.full((1,), 1e-3)},
        {"step": np.float32(0.25), "max_step": np.int64(3)},
        {"step": torch.tensor([0.25])},
        {"first_step": torch.tensor(0.1), "min_step": np.float32(0)},
        {"max_steps": np.int32(50)},
        {"max_steps": 1e4},
        {"max_steps": math.inf},
        {"jumps": torch.tensor([0.25, 0.5]), "stops": np.array([0.75])},
        {"jumps": (time for time in (torch.tensor(0.5), 1)), "stops": range(3)},
        {"norm": lambda y: y.abs().max()},
        {"norm": lambda y: float(y.abs().max())},
        {"norm": lambda y: np.float32(y.abs().max())},
        {"y0": PAIR, "ignore": [np.int64(1)]},
        {"gradient": "adjoint", "adjoint": {"rtol": np.float32(1e-3), "step": None}},
        {"field": lambda t, y, rate: -rate * y, "args": [1.0]},
    ],
    ids=lambda change: "-".join(change),
)
def test_numbers_and_collections_of_any_kind_are_taken(change):
    call: dict[str, Any] = {"rtol": 1e-3, "atol": 1e-3, "field": decay, "y0": torch.ones(2)}
    ys = bfno.solve(ts=torch.tensor([0.0, 1.0]), **{**call, **change}).ys
    last = (ys[0] if isinstance(ys, tuple) else ys)[-1]
    torch.testing.assert_close(last, torch.exp(-torch.ones_like(last)), rtol=0, atol=5e-3)


def test_the_interfaces_of_torchdiffeq_take_numbers_of_numpy():
    settings: dict[str, Any] = {"rtol": np.float32(1e-3), "atol": np.array([1e-3, 1e-4])}
    ys = bfno.odeint(decay, torch.ones(2), torch.tensor([0.0, 1.0]), **settings)
    torch.testing.assert_close(ys[-1], torch.exp(-torch.ones(2)), rtol=0, atol=5e-3)


class Tied(nn.Module):
    """A field that has one weight in two places."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)
        self.second.weight = self.first.weight

    def forward(self, t, y):
        return torch.tanh(self.second(torch.tanh(self.first(y))))

    def twice(self):
        """All parameters, the tied one twice, as long as they are asked for once."""
        yield from (self.first.weight, self.first.bias, self.second.weight, self.second.bias)


def test_parameters_are_read_once_and_each_is_kept_once():
    field = Tied()
    read = read_options({"parameters": field.twice()}).parameters
    assert isinstance(read, tuple)
    expected = [field.first.weight, field.first.bias, field.second.bias]
    assert [id(one) for one in read] == [id(one) for one in expected]
    assert Options(parameters=()).parameters == ()
    assert Options().parameters is None


@pytest.mark.parametrize("interface", ["solve", "odeint_adjoint"])
def test_tied_parameters_from_a_generator_get_their_gradient_once(interface):
    field, y0, ts = Tied(), torch.ones(3, 2), torch.tensor([0.0, 1.0])
    exact = bfno.solve(field, y0, ts, rtol=1e-9, atol=1e-9).ys[-1].square().sum()
    wanted = (field.first.weight, field.first.bias, field.second.bias)
    expected = torch.autograd.grad(exact, wanted)
    settings: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-9}
    if interface == "solve":
        settings |= {"gradient": "adjoint", "parameters": field.twice()}
        ys = bfno.solve(field, y0, ts, **settings).ys
    else:
        ys = bfno.odeint_adjoint(field, y0, ts, adjoint_params=field.twice(), **settings)
    found = torch.autograd.grad(ys[-1].square().sum(), wanted)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)


def test_a_module_keeps_its_settings_as_they_were_read():
    field = bfno.MLPField(2, 4)
    settings: dict[str, Any] = {
        "rtol": np.float32(1e-3),
        "gradient": "adjoint",
        "parameters": field.parameters(),
        "jumps": (time for time in (0.5,)),
    }
    block = bfno.NeuralODE(bfno.FirstOrder(field), **settings)
    assert type(block.settings["rtol"]) is float
    assert block.settings["jumps"] == (0.5,)
    for _ in range(2):  # a generator would be used up by the second call
        field.zero_grad()
        block(torch.ones(3, 2)).square().sum().backward()
        assert all(parameter.grad is not None for parameter in field.parameters())
    assert solver_settings("rk4", "direct", step=0.5).keys() == {
        "method", "gradient", "rtol", "atol", "step",
    }  # fmt: skip
