"""A field as a graph of operations, with the tensors that it uses.

torch's compiler front end traces the field, and checks at every later call whether it is still the
same: another module, mode, shape or number in a closure makes another graph.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import GraphModule

from bfno.ode.evaluate import Field, WithArguments

__all__ = ["CannotCompile", "Captured", "CapturedField", "capture"]


# The setting by which the front end refuses side effects; torch 2.6 does not have it.
_POLICY = "side_effect_replay_policy"


class CannotCompile(Exception):
    """Why a solve cannot be compiled as a whole; the message completes "because"."""


class CapturedField:
    """The graph of a field, which is called with tensors in a fixed order.

    Attributes:
        graph: The graph.
        programs: The programs compiled from it, by method.
        roles: Which inputs are the time and the state, once they are known; the others are tensors
            that the field uses.
    """

    def __init__(self, graph: GraphModule) -> None:
        self.graph = graph
        self.programs: dict[Any, Any] = {}
        self.roles: tuple[int | None, int | None] = (None, None)

    def __call__(self, *inputs: Any) -> tuple[Captured]:
        # The front end calls this instead of the field, with the inputs that it has found.
        return (Captured(self, inputs),)

    def slope(self, t: Tensor, y: Tensor, tensors: Sequence[Tensor]) -> Tensor:
        """The field."""
        inputs, (time, state) = list(tensors), self.roles
        for place, value in sorted(
            (place, value) for place, value in ((time, t), (state, y)) if place is not None
        ):
            inputs.insert(place, value)
        slope = self.graph(*inputs)[0]
        if slope.shape != y.shape or slope.dtype != y.dtype:
            raise CannotCompile("the field's slope does not look like the state")
        return slope.contiguous()


class Captured(NamedTuple):
    """A graph, and the field's present inputs for it."""

    field: CapturedField
    inputs: tuple[Any, ...]

    def tensors(self, t: Tensor, y: Tensor) -> list[Tensor]:
        """The tensors that the field uses besides time and state."""
        places = [
            next((i for i, one in enumerate(self.inputs) if one is given), None) for given in (t, y)
        ]
        self.field.roles = places[0], places[1]
        return [one for one in self.inputs if one is not t and one is not y]


def capture(field: Field, t: Tensor, y: Tensor) -> tuple[CapturedField, list[Tensor]]:
    """The graph of a field at a time and a state, and the tensors that it uses.

    Raises:
        CannotCompile: If the field is not a single graph.
    """
    if not hasattr(torch._dynamo.config, _POLICY):
        raise CannotCompile(f"torch {torch.__version__} cannot do more; install a newer one")
    inner, arguments = field, ()
    if isinstance(field, WithArguments):
        inner, arguments = field.field, field.arguments
    look, backend = _front_end(inner)
    kind = (y.shape, y.dtype, y.requires_grad)
    if kind in backend.failures:  # which would take equally long to find again
        raise CannotCompile(backend.failures[kind])
    try:
        found = look(arguments, t, y)
    except Exception:  # there is no graph yet, or it is no longer valid
        try:
            found = _look_anew(look, backend, (arguments, t, y))
        except CannotCompile as reason:
            backend.failures[kind] = str(reason)
            raise
    if not isinstance(found, Captured):
        raise CannotCompile("torch.compile does not look into the field")
    tensors = found.tensors(t, y)
    for one in tensors:
        if type(one) not in (Tensor, torch.nn.Parameter) or one.layout is not torch.strided:
            raise CannotCompile(f"the field uses a {type(one).__name__} that is no plain tensor")
        if one.device.type != "cpu" or one.is_complex() or one.is_neg():
            raise CannotCompile(f"the field uses a tensor of {one.dtype} on {one.device}")
    return found.field, tensors


def _look_anew(look: Any, backend: _Backend, inputs: tuple[Any, ...]) -> Any:
    try:
        # Side effects of a call, such as a counter, would happen once per solve.
        with torch._dynamo.config.patch({_POLICY: "error"}):
            backend.is_ready = True
            return look(*inputs)
    except Exception as error:
        if "side effects happened" in str(error):
            text = "a call of the field leaves something behind, as a counter does"
        else:
            text = f"the field is not one graph ({_first_line(error)})"
        raise CannotCompile(text) from error
    finally:
        backend.is_ready = False


class _Backend:
    """Takes graphs from the front end, but only while the front end is set to refuse side effects.

    Changing that setting takes longer than checking whether a graph is still valid.

    Attributes:
        is_ready: Whether side effects are refused.
        failures: Why there is no graph, by kind of state.
    """

    def __init__(self) -> None:
        self.is_ready, self.failures = False, dict[Any, str]()

    def __call__(self, graph: GraphModule, inputs: Sequence[Any]) -> CapturedField:
        if not self.is_ready:
            raise CannotCompile("")
        return CapturedField(graph)


@functools.lru_cache(maxsize=16)
def _front_end(field: Callable[..., Tensor]) -> tuple[Any, _Backend]:
    """Finds the graph of a field; the last few are kept."""

    def call(arguments: tuple[Any, ...], t: Tensor, y: Tensor) -> Tensor:
        return field(t, y, *arguments).clone()  # a graph even if nothing is computed

    # The compiler limits the variants of one code object, so every field gets its own.
    call.__code__ = call.__code__.replace()
    backend: Any = _Backend()
    return torch.compile(call, backend=backend, fullgraph=True, dynamic=False), backend


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
