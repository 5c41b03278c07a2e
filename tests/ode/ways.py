"""Ways to write a field, and the expected result of each gradient for them.

A way is a function that gets a `Trial`, which fixes gradient, steps and times, and returns the
states of a solve with the leaves whose gradients are asked for. What it does around the solve, a
context, a hook, a change before the backward pass, is part of the way. One that has to take its
gradients itself returns them by name instead.
"""

import collections
import contextlib
import contextvars
import copy
import functools
import itertools
import math
import random
import threading
import types
import warnings
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy
import torch
import torch.distributed
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize
from torch.utils.checkpoint import checkpoint

import bfno
import bfno.ode

with warnings.catch_warnings():
    # The first use of forward mode makes PyTorch itself use something that it has deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    torch.func.jvp(torch.sin, (torch.zeros(()),), (torch.ones(()),))


class _Missing(RuntimeError):
    """Stands for an error that the engine does not define yet; nothing raises it."""


GradientError: type[RuntimeError] = getattr(bfno.ode, "GradientError", _Missing)


@dataclass(frozen=True)
class Expected:
    """What a solve and its backward pass may do: give the gradient, raise an error, or either.

    Attributes:
        exact: Whether gradients are right answers.
        words: What the error's message must match; empty if an error is no right answer.
        errors: Types of the error.
    """

    exact: bool = True
    words: str = ""
    errors: tuple[type[Exception], ...] = (GradientError,)


EXACT = Expected()


def refused(words: str, *errors: type[Exception]) -> Expected:
    """An error that names the cause is the only right answer."""
    return Expected(False, words, errors or (GradientError,))


def either(words: str) -> Expected:
    """The exact gradient is right, and so is an error that names the cause."""
    return Expected(True, words)


# Causes, as an error has to name them.
IN_PLACE = r"in[ -]?place"
CHANGED = r"chang|replaced"
NOT_REPEATED = r"random|repeat|counter|generator"
TWICE = r"twice|second derivative|higher derivative"
TRANSFORM = r"torch\.func|transform|vmap|forward.mode"
BORROWED = r"functional_call|parametrize"
LATER = r"did not use"
CACHED = rf"cache|kept|keeps|{LATER}"

# Under torch.func all gradients are compared with a method written by hand.
TRANSFORMED = either(TRANSFORM)


@dataclass(frozen=True)
class Way:
    """One way to write a field.

    Attributes:
        name: Sentence-like name.
        build: Runs a trial.
        checkpoint: What is expected of gradient="checkpoint".
        adjoint: The same of gradient="adjoint".
        direct: The same of gradient="direct", which the two are compared with.
        steps: "fixed" and "adaptive", where they make sense.
        times: "shared" and "rows", where they make sense.
        gradients: Gradients that the way is tried with.
        tolerance: Largest difference of checkpoint from direct, relative to the largest entry.
        idle: Asked tensors whose gradient is zero or None.
        by_hand: Whether a Runge–Kutta method written by hand can stand in for `solve`.
    """

    name: str
    build: Callable[["Trial"], Any]
    checkpoint: Expected = EXACT
    adjoint: Expected = EXACT
    direct: Expected = EXACT
    steps: tuple[str, ...] = ("fixed", "adaptive")
    times: tuple[str, ...] = ("shared", "rows")
    gradients: tuple[str, ...] = ("checkpoint", "adjoint")
    tolerance: float = 1e-10
    idle: tuple[str, ...] = ()
    by_hand: bool = True

    def __str__(self) -> str:
        return self.name


WAYS: dict[str, Way] = {}


def way(**expectations: Any) -> Callable[[Callable[["Trial"], Any]], Callable[["Trial"], Any]]:
    """Put a way into the catalogue under its function's name."""

    def register(build: Callable[["Trial"], Any]) -> Callable[["Trial"], Any]:
        name = build.__name__.replace("_", " ").strip()
        if name in WAYS:
            raise ValueError(f"there are two ways with the name {name!r}; rename one")
        WAYS[name] = Way(name, build, **expectations)
        return build

    return register


@dataclass
class Trial:
    """How the solves of one way are run.

    Attributes:
        gradient: One of `bfno.ode.GRADIENTS`, or "by hand".
        steps: "fixed" or "adaptive".
        times: "shared" or "rows".
        tight: Whether solves are so exact that discrete and continuous gradients agree.
        options: More options of `solve`.
        seed: Seed of the numbers that fields draw.
    """

    gradient: str
    steps: str = "fixed"
    times: str = "shared"
    tight: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    seed: int = 7

    def settings(self) -> dict[str, Any]:
        """Keywords of `solve`."""
        if self.steps == "fixed":
            chosen = {"method": "rk4", "step": 0.02 if self.tight else 0.2}
        else:
            tolerance = 1e-8 if self.tight else 1e-3
            chosen = {"method": "dopri5", "rtol": tolerance, "atol": tolerance}
        return {"gradient": self.gradient, **chosen, **self.options}

    def ts(self, samples: int = 2) -> Tensor:
        """Times of a solve: uneven, and different for each sample where they come in rows."""
        shared = torch.tensor([0.0, 0.2, 0.5])
        if self.times == "shared":
            return shared
        shift = torch.arange(samples, dtype=shared.dtype)[:, None]
        return shared * (1 - 0.2 * shift) + 0.1 * shift

    def start(self, *shape: int) -> Tensor:
        """A leaf to start from."""
        return torch.randn(shape or (2, 3)).requires_grad_()

    def solve(self, field: Callable, y0: Any, ts: Tensor | None = None) -> Any:
        """The states at the times."""
        first = y0[0] if isinstance(y0, tuple) else y0
        ts = self.ts(len(first) if first.dim() else 1) if ts is None else ts
        torch.manual_seed(self.seed)  # whatever the field draws, every gradient sees the same
        if self.gradient == "by hand":
            return rk4_by_hand(field, y0, ts, self.settings()["step"])
        return bfno.solve(field, y0, ts, **self.settings()).ys

    def inner(self) -> "Trial":
        """Of a solve inside a field: fixed steps, differentiated as the discrete method is."""
        gradient = "checkpoint" if self.gradient == "adjoint" else self.gradient
        return Trial(gradient, options={"step": 0.1})

    def block(self, dynamics: nn.Module) -> Any:
        """A `NeuralODE` with the settings of this trial."""
        return bfno.NeuralODE(dynamics, **self.settings())  # pyright: ignore[reportArgumentType]


def rk4_by_hand(field: Callable, y0: Any, ts: Tensor, step: float) -> Any:
    """The 3/8 rule with equal steps between requested times, recorded by autograd."""
    is_tuple, y = isinstance(y0, tuple), y0 if isinstance(y0, tuple) else (y0,)

    def slope(t, y):
        # A copy, since a field may return one and the same tensor every time.
        found = field(t, y) if is_tuple else (field(t, y[0]),)
        return tuple(part.clone() for part in found)

    def move(y, size, *pairs):
        weigh = [size.reshape(-1, *[1] * (part.dim() - 1)) if ts.dim() == 2 else size for part in y]
        return tuple(
            part + h * sum(weight * k[i] for weight, k in pairs)
            for i, (part, h) in enumerate(zip(y, weigh, strict=True))
        )

    states, axis = [y], ts.dim() - 1
    for begin, end in itertools.pairwise(ts.unbind(-1)):
        span = (end - begin).detach()
        count = max(1, math.ceil(float(span.abs().max()) / step - 1e-9))
        # Steps that all samples share have the given size, and the last one takes what is left.
        size = (end - begin) / count if ts.dim() == 2 else math.copysign(step, float(span))
        for part in range(count):
            t = begin + part * size
            h = (end if part == count - 1 else begin + (part + 1) * size) - t
            k1 = slope(t, y)
            k2 = slope(t + h / 3, move(y, h, (1 / 3, k1)))
            k3 = slope(t + 2 * h / 3, move(y, h, (-1 / 3, k1), (1, k2)))
            k4 = slope(t + h, move(y, h, (1, k1), (-1, k2), (1, k3)))
            y = move(y, h, (1 / 8, k1), (3 / 8, k2), (3 / 8, k3), (1 / 8, k4))
        states.append(y)
    stacked = tuple(torch.stack(parts, dim=axis) for parts in zip(*states, strict=True))
    return stacked if is_tuple else stacked[0]


def loss_of(ys: Any) -> Tensor:
    """A number that weighs every entry of the states differently, and not linearly."""
    parts = ys if isinstance(ys, tuple) else (ys,)
    weights = [torch.cos(torch.arange(part.numel())).view(part.shape) for part in parts]
    return sum(
        ((part * weight).sum() + part.square().sum() / 2).double()
        for part, weight in zip(parts, weights, strict=True)
    )  # pyright: ignore[reportReturnType]


def gradients_of(loss: Tensor, leaves: dict[str, Tensor], *, backward: bool) -> dict[str, Any]:
    """Gradients by name, by either of autograd's two entrances; None where there is none."""
    if backward:
        loss.backward()
        return {name: leaf.grad for name, leaf in leaves.items()}
    found = torch.autograd.grad(loss, tuple(leaves.values()), allow_unused=True)
    for name, leaf in leaves.items():
        if leaf.grad is not None:
            raise AssertionError(f"autograd.grad has put a gradient into {name}.grad as well")
    return dict(zip(leaves, found, strict=True))


@contextlib.contextmanager
def _double_precision():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.random.fork_rng():
            yield
    finally:
        torch.set_default_dtype(before)


def run(chosen: Way, trial: Trial) -> dict[str, Any]:
    """States and gradients of a way by name."""
    with _double_precision():
        torch.manual_seed(0)
        result = chosen.build(trial)
        if isinstance(result, dict):
            return result
        ys, leaves = result
        values = ys if isinstance(ys, tuple) else (ys,)
        # Fixed steps go through backward(), adaptive ones through autograd.grad.
        found = gradients_of(loss_of(ys), leaves, backward=trial.steps == "fixed")
        return {f"ys[{i}]": part.detach().clone() for i, part in enumerate(values)} | found


# ---------------------------------------------------------------------------------------------
# Small things to build fields of.


def column(t: Tensor, y: Tensor) -> Tensor:
    """Time as a factor of a state, whether it is shared or one value per sample."""
    return t.reshape(-1, *[1] * (y.dim() - 1)) if y.dim() else t


def layers(inputs: int = 3, outputs: int = 3) -> Any:
    """A small smooth network of a state."""
    return nn.Sequential(nn.Linear(inputs, 4), nn.Tanh(), nn.Linear(4, outputs))


class Timed(nn.Module):
    """A small smooth network of time and state."""

    def __init__(self):
        super().__init__()
        self.net: Any = layers()

    def forward(self, t, y):
        return self.net(y) * (1 + column(t, y))


class Own(nn.Module):
    """A module with a matrix `W` and a forward that is given; attributes may be added."""

    A: Any
    B: Any
    ctx: Any
    gain: Any
    row: Any
    scale: Any
    start: Any

    def __init__(self, forward: Callable, **attributes: Any) -> None:
        super().__init__()
        self.W = nn.Parameter(torch.randn(3, 3) / 2)
        self.rule = types.MethodType(forward, self)
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, t, y):
        return self.rule(t, y)


def named(module: nn.Module, *others: Tensor, **more: Tensor) -> dict[str, Tensor]:
    """A module's parameters by name, and other tensors; the first unnamed one is y0."""
    unnamed = {"y0" if i == 0 else f"other {i}": tensor for i, tensor in enumerate(others)}
    return {**dict(module.named_parameters()), **unnamed, **more}


def prefixed(prefix: str, module: nn.Module) -> dict[str, Tensor]:
    """The parameters of a second module by name."""
    return {f"{prefix} {name}": value for name, value in module.named_parameters()}


# ---------------------------------------------------------------------------------------------
# Where a part of a field hides: each turns a part into a field that reaches it in some way.

HIDING: dict[str, Callable[[Callable], Callable]] = {}
GLOBAL: dict[str, Any] = {"part": None}
global_part: Any = None
LOCAL, CONTEXT = threading.local(), contextvars.ContextVar("part")


def hiding(hide: Callable[[Callable], Callable]) -> Callable[[Callable], Callable]:
    """Put a hiding place into the catalogue, as a way of its own too."""
    name = hide.__name__.replace("_", " ").strip()
    HIDING[name] = hide

    def build(trial: Trial) -> Any:
        net, y0 = Timed(), trial.start()
        return trial.solve(hide(net), y0), named(net, y0)

    WAYS[f"hidden in {name}"] = Way(f"hidden in {name}", build, by_hand=False)
    return hide


@hiding
def a_closure(part):
    return lambda t, y: part(t, y)


@hiding
def six_nested_lambdas(part):
    for _ in range(6):
        part = (lambda inner: lambda t, y: inner(t, y))(part)
    return part


@hiding
def a_default(part):
    def field(t, y, part=part):
        return part(t, y)

    return field


@hiding
def a_keyword_only_default(part):
    def field(t, y, *, part=part):
        return part(t, y)

    return field


@hiding
def a_partial(part):
    return functools.partial(lambda part, t, y: part(t, y), part)


@hiding
def nested_partials(part):
    inner = functools.partial(lambda t, y, *, part: part(t, y), part=part)
    return functools.partial(functools.partial(functools.partial(lambda f, t, y: f(t, y)), inner))


class Carrier:
    """Keeps a part where a subclass says."""

    def __init__(self, part):
        self.part = part

    def __call__(self, t, y):
        return self.part(t, y)

    def move(self, t, y):
        return self.part(t, y)


@hiding
def a_bound_method(part):
    return Carrier(part).move


@hiding
def a_callable_object(part):
    return Carrier(part)


@hiding
def a_slot(part):
    class Slotted:
        __slots__ = ("inner",)

        def __call__(self, t, y):
            return self.inner(t, y)

    slotted = Slotted()
    slotted.inner = part
    return slotted


@hiding
def a_class_attribute(part):
    class Holder:
        shared = (part,)

        def __call__(self, t, y):
            return type(self).shared[0](t, y)

    return Holder()


@hiding
def an_inherited_class_attribute_of_a_module(part):
    class Above(nn.Module):
        shared = (part,)

    class Field(Above):
        def forward(self, t, y):
            return self.shared[0](t, y)

    return Field()


@hiding
def a_property(part):
    class Holder(nn.Module):
        @property
        def inner(self):
            return part

        def forward(self, t, y):
            return self.inner(t, y)

    return Holder()


@hiding
def a_descriptor(part):
    kept = weakref.WeakKeyDictionary()

    class Kept:
        def __get__(self, owner, kind):
            return kept[owner]

    class Holder:
        inner = Kept()

        def __call__(self, t, y):
            return self.inner(t, y)

    holder = Holder()
    kept[holder] = part
    return holder


@hiding
def attributes_made_up_on_demand(part):
    class Proxy:
        def __init__(self):
            self.__dict__["_Proxy__parts"] = {"inner": part}

        def __getattr__(self, name):
            return self.__parts[name]

        def __call__(self, t, y):
            return self.inner(t, y)

    return Proxy()


@hiding
def a_private_list_of_a_module(part):
    class Field(nn.Module):
        def __init__(self):
            super().__init__()
            self._n = [part]

        def forward(self, t, y):
            return self._n[0](t, y)

    return Field()


@hiding
def a_deque(part):
    parts = collections.deque([part])
    return lambda t, y: parts[-1](t, y)


@hiding
def nested_dicts(part):
    tree = {"a": {"b": {"c": {"d": {"e": [part]}}}}}
    return lambda t, y: tree["a"]["b"]["c"]["d"]["e"][0](t, y)


@hiding
def a_mapping_proxy(part):
    view = types.MappingProxyType({"inner": part})
    return lambda t, y: view["inner"](t, y)


@hiding
def the_key_of_a_dict(part):
    weights = {part: 1.0}
    return lambda t, y: sum(weight * key(t, y) for key, weight in weights.items())


@hiding
def a_global_container(part):
    GLOBAL["part"] = part

    def field(t, y):
        return GLOBAL["part"](t, y)

    return field


class UsesGlobal(nn.Module):
    """A module whose network is no attribute of it."""

    def forward(self, t, y):
        return global_part(t, y)


@hiding
def a_global_that_a_module_uses(part):
    global global_part
    global_part = part
    return UsesGlobal()


@hiding
def a_closure_of_a_forward(part):
    class Field(nn.Module):
        def forward(self, t, y):
            return part(t, y)

    return Field()


@hiding
def a_forward_that_was_replaced(part):
    field = nn.Identity()
    field.forward = lambda t, y: part(t, y)  # pyright: ignore[reportAttributeAccessIssue]
    return field


@hiding
def a_thread_local(part):
    LOCAL.part = part
    return lambda t, y: LOCAL.part(t, y)


@hiding
def a_context_variable(part):
    CONTEXT.set(part)
    return lambda t, y: CONTEXT.get()(t, y)


@hiding
def a_weak_reference(part):
    GLOBAL["part"] = part  # keeps it alive
    reference = weakref.ref(part)
    return lambda t, y: reference()(t, y)  # pyright: ignore[reportOptionalCall]


@hiding
def an_iterator(part):
    endless = itertools.cycle([part])
    return lambda t, y: next(endless)(t, y)


@hiding
def the_frame_of_a_generator(part):
    def serve(part):
        answer = None
        while True:
            t, y = yield answer
            answer = part(t, y)

    server = serve(part)
    next(server)
    return lambda t, y: server.send((t, y))


@hiding
def a_memoised_function(part):
    @functools.lru_cache
    def find():
        return part

    return lambda t, y: find()(t, y)


@hiding
def a_decorated_function(part):
    def decorate(function):
        @functools.wraps(function)
        def wrapped(*args, **keywords):
            return function(part, *args, **keywords)

        return wrapped

    @decorate
    def field(inner, t, y):
        return inner(t, y)

    return field


@hiding
def evaluated_text(part):
    names = {"part": part}
    return lambda t, y: eval("part(t, y)", names, {"t": t, "y": y})


@hiding
def a_frozen_dataclass(part):
    @dataclass(frozen=True)
    class Recipe:
        inner: Callable

    recipe = Recipe(part)
    return lambda t, y: recipe.inner(t, y)


# ---------------------------------------------------------------------------------------------
# Plain modules.


@way()
def plain_module(trial):
    net, y0 = Timed(), trial.start()
    return trial.solve(net, y0), named(net, y0)


@way()
def module_in_eval_mode(trial):
    net, y0 = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5), nn.BatchNorm1d(3)), trial.start()
    net.eval()
    return trial.solve(Own(lambda self, t, y: self.net(y), net=net), y0), named(net, y0)


@way()
def lists_and_dicts_of_modules(trial):
    class Field(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts: Any = nn.ModuleList([layers(), nn.ModuleDict({"inner": layers()})])

        def forward(self, t, y):
            return self.parts[0](y) + self.parts[1]["inner"](y)

    field, y0 = Field(), trial.start()
    return trial.solve(field, y0), named(field, y0)


@way()
def shared_parameters(trial):
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = first.weight
    field, y0 = nn.Sequential(first, nn.Tanh(), second), trial.start()
    return trial.solve(lambda t, y: field(y), y0), named(field, y0)


@way()
def frozen_parameters(trial):
    net, y0 = layers(), trial.start()
    net[0].requires_grad_(False)
    return trial.solve(lambda t, y: net(y), y0), {**dict(net[2].named_parameters()), "y0": y0}


@way()
def low_rank_adapters_of_a_frozen_layer(trial):
    frozen, y0 = nn.Linear(3, 3).requires_grad_(False), trial.start()
    down, up = torch.randn(1, 3, requires_grad=True), torch.randn(3, 1, requires_grad=True)

    def field(t, y):
        return torch.tanh(F.linear(y, frozen.weight + up @ down, frozen.bias))

    return trial.solve(field, y0), {"down": down, "up": up, "y0": y0}


@way(idle=("unused",))
def a_parameter_that_is_not_used(trial):
    field = Own(lambda self, t, y: y @ self.W, unused=nn.Parameter(torch.ones(2)))
    y0 = trial.start()
    return trial.solve(field, y0), named(field, y0)


@way()
def no_parameters_at_all(trial):
    y0 = trial.start()
    return trial.solve(lambda t, y: torch.sin(y) * (1 + column(t, y)), y0), {"y0": y0}


@way()
def gradient_of_the_start_only(trial):
    net, y0 = Timed(), trial.start()
    return trial.solve(net, y0), {"y0": y0}


@way()
def gradient_of_the_parameters_only(trial):
    net = Timed()
    return trial.solve(net, trial.start().detach()), named(net)


@way()
def gradient_of_some_of_the_parameters(trial):
    net, y0 = Timed(), trial.start()
    return trial.solve(net, y0), {"bias": net.net[2].bias}


@way()
def a_field_that_ignores_the_state(trial):
    speed, y0 = torch.randn(3, requires_grad=True), trial.start()
    return (
        trial.solve(lambda t, y: (speed * column(t, y)).expand(y.shape), y0),
        {"speed": speed, "y0": y0},
    )


@way()
def a_constant_field(trial):
    y0 = trial.start()
    return trial.solve(lambda t, y: torch.ones_like(y), y0), {"y0": y0}


# Tight steps would see the rounding of single precision as an error of theirs.
@way(gradients=("checkpoint",), tolerance=1e-6)
def parameters_of_another_precision(trial):
    net, y0 = layers().float(), trial.start()
    return trial.solve(lambda t, y: net(y.float()).double(), y0), named(net, y0)


@way()
def buffers_that_require_gradients(trial):
    class Field(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale: Tensor
            self.shift: Tensor
            self.register_buffer("scale", torch.randn(3).requires_grad_())
            self.register_buffer("shift", torch.randn(3).requires_grad_(), persistent=False)

        def forward(self, t, y):
            return torch.sin(y * self.scale) + self.shift

    field, y0 = Field(), trial.start()
    return trial.solve(field, y0), {**dict(field.named_buffers()), "y0": y0}


@way()
def quantised_buffers(trial):
    class Field(nn.Module):
        def __init__(self):
            super().__init__()
            self.codes: Tensor
            self.mask: Tensor
            self.register_buffer("codes", torch.randint(-9, 9, (3, 3), dtype=torch.int8))
            self.register_buffer("mask", torch.tensor([True, False, True]))
            self.scale = nn.Parameter(torch.tensor(0.1))

        def forward(self, t, y):
            return torch.tanh(y @ (self.codes * self.scale)).masked_fill(~self.mask, 0.5)

    field, y0 = Field(), trial.start()
    return trial.solve(field, y0), named(field, y0)


@way()
def complex_parameters(trial):
    filters, y0 = torch.randn(3, dtype=torch.complex128, requires_grad=True), trial.start(2, 4)

    def field(t, y):
        return torch.fft.irfft(torch.fft.rfft(y) * filters, n=4)

    return trial.solve(field, y0), {"filters": filters, "y0": y0}


# ---------------------------------------------------------------------------------------------
# Layers of all sorts.


@way()
def gated_recurrent_cell(trial):
    cell, x, y0 = nn.GRUCell(2, 3), torch.randn(2, 2, requires_grad=True), trial.start()
    return trial.solve(lambda t, y: cell(x, y) - y, y0), named(cell, y0, x)


@way()
def long_short_term_memory_cell(trial):
    cell, x = nn.LSTMCell(2, 3), torch.randn(2, 2)
    h, c = trial.start(), trial.start()
    field = lambda t, state: cell(x, state)  # noqa: E731
    return trial.solve(field, (h, c)), named(cell, h, c)


@way()
def normalised_layers(trial):
    net = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Tanh(), nn.GroupNorm(1, 4))
    y0 = trial.start(2, 4)
    return trial.solve(lambda t, y: net(y), y0), named(net, y0)


@way(idle=("in_proj_bias",))  # its part for the keys moves all scores alike
def multi_head_attention(trial):
    net, y0 = nn.MultiheadAttention(4, 2, batch_first=True), trial.start(2, 3, 4)
    field = lambda t, y: net(y, y, y, need_weights=False)[0]  # noqa: E731
    return trial.solve(field, y0), named(net, y0)


@way()
def convolutions_on_channels_last_states(trial):
    net = nn.Sequential(nn.Conv2d(2, 2, 3, padding=1), nn.Tanh())
    leaf = trial.start(2, 2, 3, 3)
    y0 = leaf.contiguous(memory_format=torch.channels_last)
    return trial.solve(lambda t, y: net(y), y0), named(net, leaf)


@way()
def in_place_activations(trial):
    net = nn.Sequential(nn.Linear(3, 4), nn.LeakyReLU(0.2, inplace=True), nn.Linear(4, 3))
    y0 = trial.start()
    return trial.solve(lambda t, y: net(y).tanh_(), y0), named(net, y0)


@way()
def einsum(trial):
    tensor, y0 = torch.randn(3, 3, 3, requires_grad=True), trial.start()
    field = lambda t, y: torch.einsum("bi,bj,ijk->bk", y, torch.tanh(y), tensor) / 4  # noqa: E731
    return trial.solve(field, y0), {"tensor": tensor, "y0": y0}


@way()
def embedding_lookups(trial):
    table, index, y0 = nn.Embedding(5, 3), torch.tensor([1, 4]), trial.start()
    return trial.solve(lambda t, y: torch.tanh(table(index) * y), y0), named(table, y0)


@way()
def sparse_matrices(trial):
    places = torch.tensor([[0, 1, 2, 2], [1, 2, 0, 2]])
    values, y0 = torch.randn(4, requires_grad=True), trial.start()

    def field(t, y):
        matrix = torch.sparse_coo_tensor(places, values, (3, 3), check_invariants=True)
        return torch.tanh(torch.sparse.mm(matrix, y.T)).T

    return trial.solve(field, y0), {"values": values, "y0": y0}


class Cube(torch.autograd.Function):
    """A function with a derivative of its own."""

    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x, scale)
        return scale * x**3

    @staticmethod
    def backward(ctx, *gradients):
        (gradient,), (x, scale) = gradients, ctx.saved_tensors
        return 3 * scale * x**2 * gradient, (gradient * x**3).sum()


@way()
def an_autograd_function_of_its_own(trial):
    scale, y0 = torch.tensor(-0.1, requires_grad=True), trial.start()
    return trial.solve(lambda t, y: Cube.apply(y, scale), y0), {"scale": scale, "y0": y0}


@way()
def a_part_without_gradient(trial):
    net, gate, y0 = layers(), layers(), trial.start()

    def field(t, y):
        with torch.no_grad():
            open_ = torch.sigmoid(gate(y))
        return open_ * net(y) - y.detach()

    return trial.solve(field, y0), named(net, y0)


@way()
def a_checkpointed_part(trial):
    net, y0 = layers(), trial.start()
    field = lambda t, y: checkpoint(net, y, use_reentrant=False)  # noqa: E731
    return trial.solve(field, y0), named(net, y0)


@way()
def the_gradient_of_a_potential(trial):
    potential, y0 = layers(3, 1), trial.start()

    def field(t, y):
        with torch.enable_grad():
            y = y if y.requires_grad else y.detach().requires_grad_()
            return -torch.autograd.grad(potential(y).sum(), y, create_graph=True)[0]

    asked = {"weight": potential[0].weight, "last": potential[2].weight, "y0": y0}
    return trial.solve(field, y0), asked


@way()
def the_divergence_of_a_flow(trial):
    net, x, density = layers(2, 2), trial.start(2, 2), trial.start(2, 1)

    def field(t, state):
        x, _ = state
        with torch.enable_grad():
            x = x if x.requires_grad else x.detach().requires_grad_()
            dx = net(x)
            rows = [torch.autograd.grad(dx[:, i].sum(), x, create_graph=True)[0] for i in (0, 1)]
        return dx, -(rows[0][:, :1] + rows[1][:, 1:])

    return trial.solve(field, (x, density)), named(net, x, density)


@way()
def a_jacobian_by_a_transform_inside(trial):
    net, y0 = layers(), trial.start()

    def field(t, y):
        return torch.func.jvp(net, (y,), (torch.ones_like(y),))[1]

    return trial.solve(field, y0), {"weight": net[0].weight, "last": net[2].weight, "y0": y0}


@way(steps=("fixed",))  # is slow enough with them
def a_solve_inside_the_field(trial):
    inner_net, net, y0 = layers(), layers(), trial.start()

    def field(t, y):
        relaxed = trial.inner().solve(lambda _, z: inner_net(z), y, torch.tensor([0.0, 0.2]))[-1]
        return net(relaxed)

    return trial.solve(field, y0), named(net, y0, **prefixed("inner", inner_net))


# ---------------------------------------------------------------------------------------------
# Control flow and time.


# The adjoint looks for tensors at the start, and may not know those that come into play later.
@way(times=("shared",), adjoint=either(LATER))
def networks_that_take_turns_in_time(trial):
    early, late, y0 = layers(), layers(), trial.start()
    if trial.steps == "adaptive":
        trial.options["jumps"] = (0.4,)
    turns = {"early": [early], "late": (lambda: late,)}

    def field(t, y):
        return turns["early"][0](y) if float(t) < 0.4 else turns["late"][0]()(y)

    asked = named(early, y0, **prefixed("late", late))
    return trial.solve(field, y0), asked


@way()
def pieces_by_value(trial):
    low, high, y0 = layers(), layers(), trial.start()

    def field(t, y):
        # The pieces meet so smoothly that an adaptive method keeps its order across the seam.
        return torch.sin(y).pow(3) * torch.where(y > 0, high(y), low(y))

    return trial.solve(field, y0), named(low, y0, **prefixed("high", high))


@way(times=("shared",))
def a_number_of_rounds_that_depends_on_the_state(trial):
    net, y0 = layers(), trial.start()

    def field(t, y):
        z = y
        for _ in range(2 + int(t * 0 + y.shape[0])):
            z = net(z)
        return z

    return trial.solve(field, y0), named(net, y0)


@way()
def a_memoised_time_embedding(trial):
    net, y0, memory = layers(4, 3), trial.start(), {}

    def field(t, y):
        key = tuple(t.reshape(-1).tolist())
        if key not in memory:
            memory[key] = torch.sin(3 * t.detach()).reshape(-1, 1).expand(len(y), 1)
        return net(torch.cat((y, memory[key]), dim=1))

    return trial.solve(field, y0), named(net, y0)


@way(checkpoint=either(CACHED), adjoint=either(CACHED))
def a_memoised_time_embedding_with_parameters(trial):
    net, embed, y0, memory = layers(5, 3), nn.Linear(1, 2), trial.start(), {}

    def field(t, y):
        key = tuple(t.reshape(-1).tolist())
        if key not in memory:
            memory[key] = torch.sin(embed(t.reshape(-1, 1))).expand(len(y), 2)
        return net(torch.cat((y, memory[key]), dim=1))

    return trial.solve(field, y0), named(net, y0, **prefixed("embed", embed))


@way()
def a_counter_and_a_log(trial):
    class Field(Timed):
        calls, seen = 0, []

        def forward(self, t, y):
            self.calls += 1
            self.seen.append(float(y.detach().abs().max()))
            return super().forward(t, y)

    net, y0 = Field(), trial.start()
    return trial.solve(net, y0), named(net, y0)


@way(checkpoint=either(NOT_REPEATED), adjoint=refused(NOT_REPEATED), steps=("fixed",))
def a_field_that_depends_on_how_often_it_was_called(trial):
    def rule(self, t, y):
        self.calls += 1
        return torch.tanh(y @ self.W) * math.sin(self.calls)

    field, y0 = Own(rule, calls=0), trial.start()
    return trial.solve(field, y0), named(field, y0)


@way()
def times_that_require_gradients(trial):
    net, y0, ts = Timed(), trial.start(), trial.ts().requires_grad_()
    return trial.solve(net, y0, ts), named(net, y0, ts=ts)


@way()
def times_that_are_computed(trial):
    net, y0, end = Timed(), trial.start(), torch.tensor(1.1, requires_grad=True)
    return trial.solve(net, y0, trial.ts() * end), named(net, y0, end=end)


@way()
def times_in_reverse(trial):
    net, y0, ts = Timed(), trial.start(), trial.ts().flip(-1).requires_grad_()
    return trial.solve(net, y0, ts), named(net, y0, ts=ts)


# ---------------------------------------------------------------------------------------------
# States of all sorts.


@way()
def tuple_states(trial):
    net, position, speed = layers(), trial.start(), trial.start(2, 3)
    field = lambda t, state: (state[1], net(state[0]))  # noqa: E731
    return trial.solve(field, (position, speed)), named(net, position, speed)


@way(times=("shared",))
def states_without_axes(trial):
    rate, y0 = torch.tensor(-0.7, requires_grad=True), torch.tensor(1.3, requires_grad=True)
    return trial.solve(lambda t, y: rate * torch.sin(y) + t, y0), {"rate": rate, "y0": y0}


@way(times=("shared",), idle=("0", "2", "y"))
def an_empty_batch(trial):
    net, y0 = layers(), trial.start(0, 3)
    return trial.solve(lambda t, y: net(y), y0), named(net, y0)


@way()
def states_that_are_not_contiguous(trial):
    net, leaf = layers(), trial.start(3, 2)
    return trial.solve(lambda t, y: net(y), leaf.T), named(net, leaf)


@way()
def a_start_that_is_a_parameter_of_the_field(trial):
    field = Own(lambda self, t, y: torch.tanh(y @ self.W) * self.start, start=None)
    field.start = nn.Parameter(torch.randn(2, 3))
    return trial.solve(field, field.start), named(field)


@way()
def a_start_that_is_expanded_from_a_parameter(trial):
    field = Own(lambda self, t, y: torch.tanh(y @ self.W))
    field.start = nn.Parameter(torch.randn(3))
    return trial.solve(field, field.start.expand(2, 3)), named(field)


@way()
def a_field_that_uses_the_start(trial):
    net, leaf = layers(), trial.start()
    y0 = leaf * 2
    return trial.solve(lambda t, y: net(y) - (y - y0), y0), named(net, leaf)


@way()
def a_field_that_returns_its_input(trial):
    y0 = trial.start()
    return trial.solve(lambda t, y: y, y0), {"y0": y0}


@way()
def a_field_that_returns_one_tensor_every_time(trial):
    speed, y0 = torch.randn(2, 3, requires_grad=True), trial.start()
    return trial.solve(lambda t, y: speed, y0), {"speed": speed, "y0": y0}


@way()
def a_field_that_returns_a_view(trial):
    net, y0 = layers(3, 6), trial.start()
    return trial.solve(lambda t, y: net(y).view(2, 3, 2)[..., 0], y0), named(net, y0)


@way()
def a_field_that_returns_an_expanded_tensor(trial):
    net, y0 = layers(3, 1), trial.start()
    return trial.solve(lambda t, y: net(y).expand(2, 3), y0), named(net, y0)


# Autograd cannot see that the slopes of all stages are one piece of memory.
ALIASED = Expected(True, IN_PLACE, (RuntimeError,))


@way(checkpoint=ALIASED, adjoint=ALIASED, direct=ALIASED, steps=("fixed",))
def a_field_that_writes_its_slope_into_one_buffer(trial):
    y0, room = trial.start(), torch.empty(2, 3)

    def field(t, y):
        with torch.no_grad():
            room.copy_(torch.sin(y))
        return room

    # Without a graph the field is a constant: what counts is that the states are right.
    return trial.solve(field, y0), {"y0": y0}


OVERWRITTEN = refused(IN_PLACE, RuntimeError, ValueError)


@way(checkpoint=OVERWRITTEN, adjoint=OVERWRITTEN, direct=OVERWRITTEN)
def a_field_that_writes_into_its_input(trial):
    W, y0 = torch.randn(3, 3, requires_grad=True), trial.start()
    return trial.solve(lambda t, y: y.mul_(0.5) @ W, y0), {"W": W, "y0": y0}


@way(checkpoint=OVERWRITTEN, adjoint=OVERWRITTEN, direct=OVERWRITTEN)
def a_field_that_writes_into_an_input_without_gradient(trial):
    W, y0 = torch.randn(3, 3, requires_grad=True), trial.start().detach()
    return trial.solve(lambda t, y: y.mul_(0.5) @ W, y0), {"W": W}


# ---------------------------------------------------------------------------------------------
# Tensors that are derived from parameters before the solve.


@way()
def a_derived_matrix_beside_its_parameter(trial):
    field, y0 = Own(lambda self, t, y: torch.tanh(y @ self.A)), trial.start()
    field.A = field.W - field.W.T
    return trial.solve(field, y0), named(field, y0)


@way()
def a_derived_matrix_and_its_parameter_both_used(trial):
    field, y0 = Own(lambda self, t, y: torch.tanh(y @ self.A) @ self.W), trial.start()
    field.A = field.W - field.W.T
    return trial.solve(field, y0), named(field, y0)


@way()
def derived_tensors_of_each_other(trial):
    field = Own(lambda self, t, y: torch.tanh(y @ self.A @ self.B) + self.row)
    y0 = trial.start()
    field.A = field.W - field.W.T
    field.B = field.A @ field.A / 4
    field.row = field.B[0]
    return trial.solve(field, y0), named(field, y0)


@way()
def conditional_on_an_encoder_that_gives_the_start(trial):
    encoder, net, x = nn.Linear(2, 3), layers(6, 3), torch.randn(2, 2)
    h = encoder(x)
    field = lambda t, y: net(torch.cat([y, h], -1))  # noqa: E731
    return trial.solve(field, h), named(net, **prefixed("encoder", encoder))


@way()
def conditional_on_an_expanded_start(trial):
    h0, net = torch.randn(3, requires_grad=True), layers(6, 3)
    h = h0.expand(2, 3)
    return trial.solve(lambda t, y: net(torch.cat([y, h], -1)), h), named(net, h0=h0)


class Conditional(nn.Module):
    """A model whose encoder the field can reach as well, beside what it has encoded."""

    def __init__(self, trial, encoder):
        super().__init__()
        self.trial, self.encoder, self.net = trial, encoder, layers(6, 3)

    def forward(self, x):
        h = self.encoder(x)
        return self.trial.solve(lambda t, y: self.net(torch.cat([y, h], -1)), h)


@way()
def a_conditional_model_with_its_encoder_within_reach(trial):
    model, x = Conditional(trial, nn.Linear(2, 3)), torch.randn(2, 2, requires_grad=True)
    return model(x), named(model, x)


@way()
def a_conditional_model_that_expands_its_start(trial):
    class Expand(nn.Module):
        def __init__(self):
            super().__init__()
            self.h0 = nn.Parameter(torch.randn(3))

        def forward(self, x):
            return self.h0.expand(len(x), 3)

    model = Conditional(trial, Expand())
    return model(torch.randn(2, 2)), named(model)


@way()
def conditional_on_an_encoder_beside_the_start(trial):
    encoder, net, y0 = nn.Linear(2, 3), layers(6, 3), trial.start()
    h = encoder(torch.randn(2, 2))
    return trial.solve(lambda t, y: net(torch.cat([y, h], -1)), y0), named(
        net, y0, **prefixed("encoder", encoder)
    )


@way()
def a_context_under_a_private_name(trial):
    def rule(self, t, y):
        return torch.tanh(y @ self.W) * self._ctx

    encoder, field, y0 = nn.Linear(2, 3), Own(rule), trial.start()
    field._ctx = encoder(torch.randn(2, 2))
    return trial.solve(field, y0), named(field, y0, **prefixed("encoder", encoder))


@way()
def weights_made_by_another_network(trial):
    maker, y0 = nn.Linear(2, 9), trial.start()
    weight = maker(torch.randn(2)).view(3, 3)
    return trial.solve(lambda t, y: torch.tanh(F.linear(y, weight)), y0), named(maker, y0)


@way()
def two_solves_that_share_a_context(trial):
    encoder, net, y0 = nn.Linear(2, 3), layers(6, 3), trial.start()
    h = encoder(torch.randn(2, 2))
    field = lambda t, y: net(torch.cat([y, h], -1))  # noqa: E731
    return (trial.solve(field, y0), trial.solve(field, h)), named(
        net, y0, **prefixed("encoder", encoder)
    )


class Skew(nn.Module):
    """A parametrisation."""

    def forward(self, weight):
        return weight.triu(1) - weight.triu(1).mT


def parametrised() -> Any:
    """A network with a weight that is computed whenever it is asked for."""
    net = layers().append(nn.Linear(3, 3))
    parametrize.register_parametrization(net[3], "weight", Skew())
    return net


@way()
def parametrised_weights(trial):
    net, y0 = parametrised(), trial.start()
    return trial.solve(lambda t, y: net(y), y0), named(net, y0)


@way(adjoint=either(BORROWED))
def parametrised_weights_cached_during_the_solve(trial):
    net, y0 = parametrised(), trial.start()
    with parametrize.cached():
        return trial.solve(lambda t, y: net(y), y0), named(net, y0)


@way(adjoint=either(BORROWED))
def parametrised_weights_cached_until_the_backward_pass(trial):
    net, y0 = parametrised(), trial.start()
    with parametrize.cached():
        loss = loss_of(trial.solve(lambda t, y: net(y), y0))
        return gradients_of(loss, named(net, y0), backward=trial.steps == "fixed")


@way(adjoint=either(BORROWED))
def parametrised_weights_cached_before_the_solve(trial):
    net, y0 = parametrised(), trial.start()
    with parametrize.cached():
        net(y0)
        loss = loss_of(trial.solve(lambda t, y: net(y), y0))
        return gradients_of(loss, named(net, y0), backward=trial.steps == "fixed")


@way()
def weight_norm(trial):
    net, y0 = nn.Sequential(parametrizations.weight_norm(nn.Linear(3, 3)), nn.Tanh()), trial.start()
    return trial.solve(lambda t, y: net(y), y0), named(net, y0)


@way()
def spectral_norm_in_eval_mode(trial):
    net = nn.Sequential(parametrizations.spectral_norm(nn.Linear(3, 3)), nn.Tanh()).eval()
    y0 = trial.start()
    return trial.solve(lambda t, y: net(y), y0), named(net, y0)


# The layer improves its estimate of the norm at each evaluation, so a second one of the same state
# gives another slope.
ESTIMATED = either(f"{NOT_REPEATED}|{CHANGED}")


@way(checkpoint=ESTIMATED, adjoint=ESTIMATED, steps=("fixed",))
def spectral_norm_in_training_mode(trial):
    net: Any = nn.Sequential(parametrizations.spectral_norm(nn.Linear(3, 3)), nn.Tanh())
    estimate = net[0].parametrizations.weight[0]
    estimate._v.copy_(F.normalize(torch.randn(3), dim=0))  # far from the end of its iteration
    y0 = trial.start()
    return trial.solve(lambda t, y: net(y), y0), named(net, y0)


@way(adjoint=either(CACHED))
def a_matrix_cached_at_the_first_call(trial):
    def rule(self, t, y):
        if self.cached is None:
            self.cached = self.W - self.W.T
        return torch.tanh(y @ self.cached)

    field, y0 = Own(rule, cached=None), trial.start()
    return trial.solve(field, y0), named(field, y0)


@way()
def a_matrix_cached_before_the_solve(trial):
    def rule(self, t, y):
        if self.cached is None:
            self.cached = self.W - self.W.T
        return torch.tanh(y @ self.cached)

    field, y0 = Own(rule, cached=None), trial.start()
    field(torch.tensor(0.0), y0)  # fills the cache with a graph
    return trial.solve(field, y0), named(field, y0)


# ---------------------------------------------------------------------------------------------
# torch.func.functional_call.


class Solving(nn.Module):
    """A model that solves with a lambda."""

    def __init__(self, trial):
        super().__init__()
        self.trial, self.net = trial, layers()

    def forward(self, x):
        return self.trial.solve(lambda t, y: self.net(y), x)


def _called(trial, model, change):
    y0, originals = trial.start(), dict(model.named_parameters())
    leaves = {k: v.detach().clone().requires_grad_() for k, v in originals.items()}
    given = {k: change(v) for k, v in leaves.items()}
    asked = {**leaves, "y0": y0, **{f"original {k}": v for k, v in originals.items()}}
    return functional_call(model, given, (y0,)), asked


def _as_they_are(value):
    return value


def _moved(value):
    with torch.no_grad():
        return value.mul_(1.5)


def _fast(value):
    return value - 0.3 * torch.tanh(value)  # as after an inner step of meta-learning


# The adjoint evaluates the field once more when its own parameters are back in their place.
calling = functools.partial(way, idle=("original",), adjoint=either(BORROWED))
calling_a_block = functools.partial(calling, times=("shared",), by_hand=False)


@calling()
def a_functional_call_of_a_solving_model_with_equal_leaves(trial):
    return _called(trial, Solving(trial), _as_they_are)


@calling()
def a_functional_call_of_a_solving_model_with_other_leaves(trial):
    return _called(trial, Solving(trial), _moved)


@calling()
def a_functional_call_of_a_solving_model_with_fast_weights(trial):
    return _called(trial, Solving(trial), _fast)


@calling_a_block()
def a_functional_call_of_a_block_with_equal_leaves(trial):
    return _called(trial, trial.block(bfno.FirstOrder(Timed())), _as_they_are)


@calling_a_block()
def a_functional_call_of_a_block_with_other_leaves(trial):
    return _called(trial, trial.block(bfno.FirstOrder(Timed())), _moved)


@calling_a_block()
def a_functional_call_of_a_block_with_fast_weights(trial):
    return _called(trial, trial.block(bfno.FirstOrder(Timed())), _fast)


# ---------------------------------------------------------------------------------------------
# What changes between the solve and the backward pass.

replaced = functools.partial(way, checkpoint=either(CHANGED), adjoint=either(CHANGED))


@replaced()
def a_layer_replaced_before_the_backward_pass(trial):
    net, y0 = Timed(), trial.start()
    asked = named(net, y0)
    ys = trial.solve(net, y0)
    net.net = layers()
    return ys, asked


@replaced()
def a_parameter_replaced_before_the_backward_pass(trial):
    field, y0 = Own(lambda self, t, y: torch.tanh(y @ self.W)), trial.start()
    asked = named(field, y0)
    ys = trial.solve(field, y0)
    field.W = nn.Parameter(2 * field.W.detach())
    return ys, asked


@replaced()
def the_data_of_a_parameter_replaced_before_the_backward_pass(trial):
    field, y0 = Own(lambda self, t, y: torch.tanh(y @ self.W)), trial.start()
    ys = trial.solve(field, y0)
    if trial.gradient in ("checkpoint", "adjoint"):
        # Autograd itself does not notice this, and would be wrong where it is the reference.
        field.W.data = 2 * field.W.data
    return ys, named(field, y0)


def _two_layers() -> tuple[Any, Callable]:
    net = nn.Sequential(nn.Linear(3, 4, bias=False), nn.ReLU(), nn.Linear(4, 3, bias=False))
    return net, lambda t, y: net(y) * (1 + column(t, y))


# The field's values stay what they were, to the last bit; its derivatives do not.
@replaced()
def layers_replaced_by_others_of_the_same_product(trial):
    net, field = _two_layers()
    y0 = trial.start()
    asked = named(net, y0)
    ys = trial.solve(field, y0)
    for layer, factor in ((net[0], 2.0), (net[2], 0.5)):
        layer.weight = nn.Parameter(factor * layer.weight.detach())
    return ys, asked


@replaced()
def layers_whose_data_was_replaced_by_that_of_the_same_product(trial):
    net, field = _two_layers()
    y0 = trial.start()
    ys = trial.solve(field, y0)
    if trial.gradient in ("checkpoint", "adjoint"):
        # Autograd itself does not notice this, and would be wrong where it is the reference.
        for layer, factor in ((net[0], 2.0), (net[2], 0.5)):
            layer.weight.data = factor * layer.weight.data
    return ys, named(net, y0)


@replaced()
def a_number_replaced_before_the_backward_pass(trial):
    field, y0 = Own(lambda self, t, y: torch.tanh(y @ self.W) * self.gain, gain=2.0), trial.start()
    ys = trial.solve(field, y0)
    field.gain = 3.0
    return ys, named(field, y0)


@replaced()
def a_variable_of_a_closure_replaced_before_the_backward_pass(trial):
    net, y0 = layers(), trial.start()
    asked = named(net, y0)
    ys = trial.solve(lambda t, y: net(y), y0)
    net = layers()
    return ys, asked


@replaced()
def a_context_replaced_between_two_solves(trial):
    field, y0 = Own(lambda self, t, y: torch.tanh(y @ self.W) * self.ctx), trial.start()
    encoder, x = nn.Linear(2, 3), torch.randn(2, 2, 2)
    field.ctx = encoder(x[0])
    first = trial.solve(field, y0)
    field.ctx = encoder(x[1])
    second = trial.solve(field, y0)
    return (first, second), named(field, y0, **prefixed("encoder", encoder))


@replaced(steps=("fixed",), by_hand=False, adjoint=either(f"{CHANGED}|{NOT_REPEATED}"))
def dropout_switched_off_before_the_backward_pass(trial):
    net, y0 = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5), nn.Tanh()), trial.start()
    ys = trial.solve(lambda t, y: net(y), y0)
    net.eval()
    return ys, named(net, y0)


WRITTEN = refused(f"{IN_PLACE}|{CHANGED}")
written = functools.partial(
    way, checkpoint=WRITTEN, adjoint=WRITTEN, direct=refused(IN_PLACE, RuntimeError)
)


@written()
def a_parameter_written_before_the_backward_pass(trial):
    net, y0 = Timed(), trial.start()
    ys = trial.solve(net, y0)
    with torch.no_grad():
        net.net[2].weight.mul_(2)
    return ys, named(net, y0)


@written()
def a_parameter_trained_before_the_backward_pass(trial):
    net, y0 = Timed(), trial.start()
    ys = trial.solve(net, y0)
    for parameter in net.parameters():
        parameter.grad = torch.ones_like(parameter)
    torch.optim.SGD(net.parameters(), 0.1).step()
    return ys, named(net, y0)


@written()
def a_buffer_written_before_the_backward_pass(trial):
    def rule(self, t, y):
        return torch.tanh(y @ self.W) * self.scale

    field, y0 = Own(rule), trial.start()
    field.register_buffer("scale", torch.randn(3))
    ys = trial.solve(field, y0)
    field.scale.mul_(2)
    return ys, named(field, y0)


@written()
def a_captured_tensor_written_before_the_backward_pass(trial):
    mask, y0 = torch.rand(3), trial.start()
    field = Own(lambda self, t, y: torch.tanh(y @ self.W) * mask)
    ys = trial.solve(field, y0)
    mask.zero_()
    return ys, named(field, y0)


@written()
def a_start_written_before_the_backward_pass(trial):
    net, y0 = Timed(), trial.start()
    ys = trial.solve(net, y0)
    with torch.no_grad():
        y0.mul_(2)
    return ys, named(net, y0)


# ---------------------------------------------------------------------------------------------
# Chance. Adaptive steps never settle on a field that is drawn anew at every evaluation, unless
# the tolerance accepts whatever comes; and a continuous adjoint of it does not exist.

drawn = functools.partial(way, adjoint=refused(NOT_REPEATED), by_hand=False)


def accept_everything(trial: Trial) -> None:
    """Make adaptive steps of any error pass."""
    if trial.steps == "adaptive":
        trial.options |= {"rtol": 10.0, "atol": 10.0, "first_step": 0.2}


@drawn()
def dropout(trial):
    accept_everything(trial)
    net, y0 = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 3)), trial.start()
    return trial.solve(lambda t, y: net(y), y0), named(net, y0)


@drawn()
def dropout_by_a_function(trial):
    accept_everything(trial)
    net, y0 = layers(), trial.start()
    return trial.solve(lambda t, y: F.dropout(net(y), 0.3), y0), named(net, y0)


@drawn()
def noise_of_the_global_generator(trial):
    accept_everything(trial)
    net, y0 = layers(), trial.start()
    return trial.solve(lambda t, y: net(y + torch.randn_like(y)), y0), named(net, y0)


@drawn()
def dropout_of_two_solves_and_numbers_drawn_between(trial):
    accept_everything(trial)
    net, y0 = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 3)), trial.start()
    first = trial.solve(lambda t, y: net(y), y0)
    torch.randn(5)
    second = trial.solve(lambda t, y: net(y), first[-1] if first.dim() == 3 else first)
    return (first, second), named(net, y0)


# No evaluation can be repeated; only one whose record was kept can be pulled back exactly.
stray = functools.partial(drawn, checkpoint=either(NOT_REPEATED))


@stray()
def noise_of_a_generator_of_its_own(trial):
    accept_everything(trial)
    net, y0, source = layers(), trial.start(), torch.Generator().manual_seed(3)
    field = lambda t, y: net(y + torch.randn(y.shape, generator=source))  # noqa: E731
    return trial.solve(field, y0), named(net, y0)


@stray()
def noise_of_numpy(trial):
    accept_everything(trial)
    net, y0, source = layers(), trial.start(), numpy.random.default_rng(3)
    return trial.solve(lambda t, y: net(y + source.normal()), y0), named(net, y0)


@stray()
def noise_of_python(trial):
    accept_everything(trial)
    net, y0, source = layers(), trial.start(), random.Random(3)
    return trial.solve(lambda t, y: net(y) * source.random(), y0), named(net, y0)


BATCH_NORM = refused("BatchNorm", ValueError)


@way(checkpoint=BATCH_NORM, adjoint=BATCH_NORM, direct=BATCH_NORM)
def batch_norm_in_training_mode(trial):
    net, y0 = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)), trial.start()
    return trial.solve(Own(lambda self, t, y: self.net(y), net=net), y0), named(net, y0)


# ---------------------------------------------------------------------------------------------
# Transforms of functions.

transformed = functools.partial(
    way,
    adjoint=TRANSFORMED,
    direct=TRANSFORMED,
    steps=("fixed",),
    times=("shared",),
)


def _functional(trial):
    """A loss of parameters and start, and where to take its derivatives."""
    net, y0 = layers(), trial.start().detach()
    params = {name: value.detach() for name, value in net.named_parameters()}

    def loss(params, y0):
        return loss_of(trial.solve(lambda t, y: functional_call(net, params, (y,)), y0))

    return loss, params, y0


@transformed()
def under_func_grad(trial):
    loss, params, y0 = _functional(trial)
    found, start = torch.func.grad(loss, argnums=(0, 1))(params, y0)
    return {**found, "y0": start}


@transformed()
def under_func_vjp(trial):
    loss, params, y0 = _functional(trial)
    value, pull, *_ = torch.func.vjp(loss, params, y0)
    found, start = pull(torch.ones_like(value))
    return {**found, "y0": start}


@transformed()
def under_func_jacrev(trial):
    net, y0 = layers(), trial.start().detach()
    rows = torch.func.jacrev(lambda y: trial.solve(lambda t, y: net(y), y)[-1])(y0)
    return {"jacobian": rows}


@transformed()
def under_func_jvp(trial):
    net, y0 = layers(), trial.start().detach()
    solved = lambda y: trial.solve(lambda t, y: net(y), y)  # noqa: E731
    ys, moved, *_ = torch.func.jvp(solved, (y0,), (torch.ones_like(y0),))
    return {"ys": ys.detach(), "tangent": moved.detach()}


@transformed()
def under_forward_mode(trial):
    net, y0 = layers(), trial.start().detach()
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(y0, torch.ones_like(y0))
        ys, moved = forward_ad.unpack_dual(trial.solve(lambda t, y: net(y), dual))
        return {"ys": ys.detach(), "tangent": None if moved is None else moved.detach().clone()}


@transformed()
def under_forward_mode_of_a_parameter(trial):
    W, y0 = torch.randn(3, 3), trial.start().detach()
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(W, torch.ones_like(W))
        ys, moved = forward_ad.unpack_dual(trial.solve(lambda t, y: torch.tanh(y @ dual), y0))
        return {"ys": ys.detach(), "tangent": None if moved is None else moved.detach().clone()}


@transformed()
def under_vmap(trial):
    net, starts = layers(), torch.randn(4, 2, 3)
    many = torch.func.vmap(lambda y: trial.solve(lambda t, y: net(y), y)[-1])(starts)
    found = torch.autograd.grad(loss_of(many), tuple(net.parameters()))
    return {"ys": many.detach(), **dict(zip(named(net), found, strict=True))}


@transformed()
def under_vmap_of_a_hidden_tensor(trial):
    y0, matrices = torch.randn(2, 3), torch.randn(4, 3, 3)
    many = torch.func.vmap(lambda W: trial.solve(lambda t, y: torch.tanh(y @ W), y0)[-1])(matrices)
    return {"ys": many.detach()}


@transformed()
def under_vmap_of_func_grad(trial):
    loss, params, _ = _functional(trial)
    starts = torch.randn(4, 2, 3)
    return torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(params, starts)


# ---------------------------------------------------------------------------------------------
# How gradients are taken.


def _with_hooks(trial, hook):
    """Gradients by backward(), and how often each hook was called."""
    net, y0, calls = Timed(), trial.start(), collections.Counter()
    for name, tensor in named(net, y0).items():
        hook(tensor, lambda _, name=name: calls.update([name]))
    found = gradients_of(loss_of(trial.solve(net, y0)), named(net, y0), backward=True)
    return found | {f"calls for {k}": torch.tensor(float(calls[k])) for k in named(net, y0)}


@way()
def hooks_of_parameters_and_start(trial):
    return _with_hooks(trial, lambda tensor, call: tensor.register_hook(call))


@way()
def hooks_after_accumulation(trial):
    return _with_hooks(trial, lambda tensor, c: tensor.register_post_accumulate_grad_hook(c))


@way()
def hooks_that_change_gradients(trial):
    net, leaf = Timed(), trial.start()
    y0 = leaf * 1.0
    y0.register_hook(lambda gradient: 3 * gradient)
    net.net[0].weight.register_hook(lambda gradient: gradient.clamp(-0.1, 0.1))
    return trial.solve(net, y0), named(net, leaf)


@way()
def forward_hooks_of_modules(trial):
    net, scale, y0 = Timed(), torch.tensor(0.5, requires_grad=True), trial.start()
    net.net[0].register_forward_hook(lambda module, args, output: output * scale)
    net.register_forward_pre_hook(lambda module, args: (args[0], args[1] + scale))
    return trial.solve(net, y0), named(net, y0, scale=scale)


@way()
def two_backward_passes_over_one_graph(trial):
    net, y0 = Timed(), trial.start()
    loss, asked = loss_of(trial.solve(net, y0)), named(net, y0)
    loss.backward(retain_graph=True)
    once = {f"once {name}": copy.deepcopy(leaf.grad) for name, leaf in asked.items()}
    loss.backward()
    return once | {name: leaf.grad for name, leaf in asked.items()}


@way()
def gradients_of_each_state_in_turn(trial):
    net, y0 = Timed(), trial.start()
    ys, asked = trial.solve(net, y0), named(net, y0)
    parts = ys.unbind(0 if trial.times == "shared" else 1)[1:]
    return {
        f"{i} {name}": value
        for i, part in enumerate(parts)
        for name, value in zip(
            asked,
            torch.autograd.grad(loss_of(part), tuple(asked.values()), retain_graph=True),
            strict=True,
        )
    }


@way()
def gradients_that_add_up_over_two_solves(trial):
    net, y0 = Timed(), trial.start()
    for start in (y0, 2 * y0):
        loss_of(trial.solve(net, start)).backward()
    return {name: leaf.grad for name, leaf in named(net, y0).items()}


@way()
def solves_that_feed_each_other(trial):
    net, y0 = Timed(), trial.start()
    y = y0
    for _ in range(3):
        ys = trial.solve(net, y)
        y = ys[-1] if trial.times == "shared" else ys[:, -1]
    return y, named(net, y0)


@way()
def a_loss_of_the_last_state_only(trial):
    net, y0 = Timed(), trial.start()
    ys = trial.solve(net, y0)
    return ys[-1] if trial.times == "shared" else ys[:, -1], named(net, y0)


@way(idle=("0.weight", "0.bias", "2.weight", "2.bias"))
def a_loss_of_the_first_state_only(trial):
    net, y0 = layers(), trial.start()
    ys = trial.solve(lambda t, y: net(y), y0)
    return ys[0] if trial.times == "shared" else ys[:, 0], named(net, y0)


@way()
def a_loss_that_uses_a_parameter_too(trial):
    net, y0 = Timed(), trial.start()
    ys = trial.solve(net, y0)
    return (ys, net.net[0].weight * 2), named(net, y0)


@way(adjoint=either(TWICE))
def a_gradient_penalty(trial):
    net, y0 = Timed(), trial.start()
    ys = trial.solve(net, y0)
    (first,) = torch.autograd.grad(loss_of(ys), y0, create_graph=True)
    asked = named(net, y0)
    loss = loss_of(ys) + first.square().sum()
    return gradients_of(loss, asked, backward=trial.steps == "fixed")


@way(adjoint=either(TWICE))
def a_gradient_penalty_on_a_hidden_tensor(trial):
    encoder, net, y0 = nn.Linear(2, 3), layers(6, 3), trial.start()
    h = encoder(torch.randn(2, 2))
    ys = trial.solve(lambda t, y: net(torch.cat([y, h], -1)), y0)
    (first,) = torch.autograd.grad(loss_of(ys), h, create_graph=True)
    asked = named(net, y0, **prefixed("encoder", encoder))
    return gradients_of(first.square().sum(), asked, backward=False)


@way(adjoint=either(TWICE), steps=("fixed",), times=("shared",))
def a_third_derivative(trial):
    rate, y0 = torch.tensor(-0.7, requires_grad=True), trial.start()
    value = loss_of(trial.solve(lambda t, y: torch.sin(rate * y), y0))
    for _ in range(2):
        (slope,) = torch.autograd.grad(value, y0, create_graph=True)
        value = slope.sum()
    return gradients_of(value, {"rate": rate, "y0": y0}, backward=False)


@way()
def a_backward_pass_without_gradient_mode(trial):
    net, y0 = Timed(), trial.start()
    loss, asked = loss_of(trial.solve(net, y0)), named(net, y0)
    with torch.no_grad():
        return gradients_of(loss, asked, backward=True)


@way()
def a_backward_pass_in_another_thread(trial):
    net, y0 = Timed(), trial.start()
    loss, asked = loss_of(trial.solve(net, y0)), named(net, y0)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(gradients_of, loss, asked, backward=True).result()


@way()
def a_checkpointed_solve(trial):
    net, y0 = Timed(), trial.start()
    return checkpoint(lambda y: trial.solve(net, y), y0, use_reentrant=False), named(net, y0)


@way()
def saved_tensors_kept_elsewhere(trial):
    net, y0 = Timed(), trial.start()
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x.numpy(force=True), torch.tensor):
        ys = trial.solve(net, y0)
    return ys, named(net, y0)


@way()
def tensors_saved_on_the_cpu(trial):
    net, y0 = Timed(), trial.start()
    with torch.autograd.graph.save_on_cpu():
        ys = trial.solve(net, y0)
    return ys, named(net, y0)


@way(times=("shared",))
def anomaly_detection(trial):
    net, y0 = Timed(), trial.start()
    with torch.autograd.set_detect_anomaly(True, check_nan=True):
        found = gradients_of(loss_of(trial.solve(net, y0)), named(net, y0), backward=True)
    return found


def _half(trial, **settings):
    net, y0 = layers().float(), torch.randn(2, 3, dtype=torch.float32).requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16, **settings):
        ys = trial.solve(lambda t, y: net(y).to(y.dtype), y0)
    return ys, named(net, y0)


@way(gradients=("checkpoint",), tolerance=1e-6, by_hand=False)
def autocast_around_the_solve(trial):
    return _half(trial, cache_enabled=False)


# With its cache, autocast makes one copy of a weight for all evaluations, and direct adds their
# gradients up in that copy's few bits.
@way(gradients=("checkpoint",), tolerance=2e-2, by_hand=False)
def autocast_with_its_cache(trial):
    return _half(trial)


def _compiled(trial, backend):
    torch.compiler.reset()
    net, y0 = layers(), trial.start()
    compiled = torch.compile(net, backend=backend)
    return trial.solve(lambda t, y: compiled(y), y0), named(net, y0)


# Compiling takes a second, so one kind of steps and times has to do.
compiling = functools.partial(way, steps=("fixed",), times=("shared",), by_hand=False)


@compiling(gradients=("checkpoint",))
def a_field_compiled_by_dynamo(trial):
    return _compiled(trial, "eager")


@compiling()
def a_field_compiled_ahead_of_time(trial):
    return _compiled(trial, "aot_eager")


@way(times=("shared",), by_hand=False)
def distributed_data_parallel(trial):
    store = torch.distributed.HashStore()  # pyright: ignore[reportPrivateImportUsage]
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        model, y0 = Solving(trial), trial.start()
        ys = nn.parallel.DistributedDataParallel(model)(y0)
        return gradients_of(loss_of(ys), named(model, y0), backward=True)
    finally:
        torch.distributed.destroy_process_group()


# ---------------------------------------------------------------------------------------------
# Every dynamics of the library as a block.


def _block(dynamics):
    def build(trial):
        chosen = getattr(bfno, dynamics)
        inputs = 6 if dynamics == "SecondOrder" else 3
        net = layers(inputs, 3)
        block, x = trial.block(chosen(lambda t, y: net(y))), trial.start()
        return block(x), named(net, x, **named(block))

    return build


for _name in (
    *("FirstOrder", "SecondOrder", "HeavyBall", "GeneralizedHeavyBall"),
    *("Nesterov", "GeneralizedNesterov", "AdamODE"),
):
    WAYS[f"a block of {_name}"] = Way(
        f"a block of {_name}", _block(_name), times=("shared",), by_hand=False
    )
