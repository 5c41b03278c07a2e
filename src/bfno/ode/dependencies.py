"""What an evaluation of a field depends on, read from the graph that autograd recorded."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bfno.ode.solution import GradientError

__all__ = [
    "Dependencies",
    "Gathering",
    "mark",
    "refuse_batch_norm",
    "refuse_recorded_batch_norm",
    "used_leaves",
    "without_hooks",
]

Node = Any
"""A node of a graph; those of leaves, and no others, have the attribute `variable`."""

Edge = tuple[Node, int]
"""A node and the number of one of its outputs: what identifies a tensor in a graph."""

LEAF = (1 << 64) - 1
"""The number that autograd gives to all nodes of leaves, to run them first; others count up."""


def refuse_batch_norm(field: Any) -> None:
    """Refuse a module whose statistics would change at every evaluation."""
    if not isinstance(field, nn.Module):
        return
    for name, module in field.named_modules():
        moves = isinstance(module, nn.modules.batchnorm._BatchNorm) and module.track_running_stats
        if moves and module.training:
            raise ValueError(_BATCH_NORM.format(name or "the field"))


def refuse_recorded_batch_norm(slope: Any, since: int) -> None:
    """Refuse an evaluation that changed such statistics, wherever the module comes from.

    Args:
        slope: Its result.
        since: A mark from before it.
    """
    if not isinstance(slope, Tensor) or slope.grad_fn is None:
        return
    for node in _explore([slope.grad_fn], since)[0]:
        moves = "BatchNorm" in node.name() and getattr(node, "_saved_training", False)
        if moves and getattr(node, "_saved_running_mean", None) is not None:
            raise ValueError(_BATCH_NORM.format("one that it calls"))


_BATCH_NORM = (
    "the field must not hold a BatchNorm in training mode, got {}: its running statistics would be "
    "updated once per evaluation; use GroupNorm, or call .eval() on it"
)


def used_leaves(result: Tensor, since: int) -> list[Tensor]:
    """The leaves that a result was computed from since a mark."""
    edges = _outward(result, since)
    return [node.variable for node, _ in edges if node._sequence_nr() == LEAF]


def mark() -> int:
    """A number that separates the nodes of graphs recorded so far from those to come."""
    with torch.enable_grad():
        node: Node = torch.zeros((), requires_grad=True).clone().grad_fn
    return node._sequence_nr()


def _explore(
    roots: Iterable[Node], since: int, known: Collection[Edge] = ()
) -> tuple[set[Node], set[Edge]]:
    """Nodes of a graph that are younger than a mark, and the edges that lead out of them.

    Threads count their nodes separately, so known edges lead out whatever their number.
    """
    waiting = list(roots)
    inner, outward = set(waiting), set()
    while waiting:
        for edge in waiting.pop().next_functions:
            node = edge[0]
            if node is None or node in inner or edge in outward:
                continue
            if edge in known or not since < node._sequence_nr() < LEAF:
                outward.add(edge)
            else:
                inner.add(node)
                waiting.append(node)
    return inner, outward


def _outward(slope: Any, since: int, known: Collection[Edge] = ()) -> set[Edge]:
    """Edges that lead out of an evaluation."""
    return _all_outward([slope], since, known)


def _all_outward(results: Iterable[Any], since: int, known: Collection[Edge] = ()) -> set[Edge]:
    """Edges that lead out of what was computed since a mark."""
    edges = {_edge(one) for one in results if isinstance(one, Tensor) and one.requires_grad}
    outside = {edge for edge in edges if edge in known or not since < edge[0]._sequence_nr() < LEAF}
    return outside | _explore({node for node, _ in edges - outside}, since, known)[1]


def _edge(tensor: Tensor) -> Edge:
    edge = get_gradient_edge(tensor)
    return edge.node, edge.output_nr


class Dependencies:
    """The tensors that a field takes from elsewhere, found by evaluating it once.

    Args:
        field: The field.
        t: A time.
        y: A state.
        further: Tensors that other evaluations may use.
        only: Whether to look for no others.

    Attributes:
        tensors: Parameters and other leaves, and results of earlier computations.
        slope: What the evaluation returned.
    """

    def __init__(
        self,
        field: Callable[..., Tensor],
        t: Tensor,
        y: Tensor,
        further: Iterable[Tensor] = (),
        *,
        only: bool = False,
    ) -> None:
        since, t, y = mark(), t.detach(), y.detach().requires_grad_()
        slope = field(t, y)
        known = {_edge(tensor): tensor for tensor in further if tensor.requires_grad}
        missing: set[Edge] = set()
        if not only:
            missing = _outward(slope, since, known) - known.keys() - {_edge(y)}
        known |= {edge: edge[0].variable for edge in missing if edge[0]._sequence_nr() == LEAF}
        missing -= known.keys()
        if missing:
            known |= _find_results(lambda: field(t, y), missing, _UNSEEN_BY_ADJOINT)
        # Results before what they were computed from.
        self._edges = sorted(known, key=lambda edge: -_age(edge))
        self._known = set(self._edges)
        self.tensors = tuple(known[edge] for edge in self._edges)
        self._only = only
        # Given tensors may be those from which the field's own were computed, once for all calls.
        self._are_tangled = only or _are_tangled(self.tensors, self._edges)
        self.slope = slope.detach()

    def refuse_others(self, slope: Tensor, since: int, inputs: Sequence[Tensor]) -> None:
        """Refuse an evaluation that used other tensors.

        Args:
            slope: What it returned.
            since: A mark from before it.
            inputs: Its arguments.
        """
        if self._only:
            return
        for node, _ in _outward(slope, since, self._known) - self._known:
            variable = getattr(node, "variable", None)
            if any(variable is one for one in inputs):
                continue
            raise GradientError(
                f"the backward pass of gradient='adjoint' met {_described(node)} that the field "
                "did not use at the start of the solve, and cannot give it a gradient; if one was "
                "replaced since, call backward() before; else name all such tensors with "
                "parameters=…, or use gradient='checkpoint'"
            )

    def pull_back(
        self, slope: Tensor, inputs: tuple[Tensor, ...], cotangent: Tensor
    ) -> list[Tensor | None]:
        """Gradients with respect to `inputs` and the tensors."""
        wanted = (*inputs, *self.tensors)
        if not slope.requires_grad:
            return [None] * len(wanted)
        # Results of earlier computations will need their graphs when this pass is over.
        found = torch.autograd.grad(
            slope, wanted, cotangent, allow_unused=True, retain_graph=self._are_tangled
        )
        if not self._are_tangled:
            return list(found)
        return [*found[: len(inputs)], *_untangle(self.tensors, found[len(inputs) :])]


def _are_tangled(tensors: Sequence[Tensor], edges: Sequence[Edge]) -> bool:
    """Whether one of some tensors was computed from another."""
    results = [(index, tensor) for index, tensor in enumerate(tensors) if tensor.grad_fn]
    for index, tensor in results:
        nodes = {edge for node in _ancestors(tensor) for edge in node.next_functions}
        if any(edge in nodes for place, edge in enumerate(edges) if place != index):
            return True
    return False


def _untangle(tensors: Sequence[Tensor], found: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Remove from gradients what arrived through another of the tensors.

    Autograd pulls the gradients of results back to what they were computed from, and would count
    that part twice.

    Args:
        tensors: The tensors, results before what they were computed from.
        found: Their gradients.
    """
    parts: list[Tensor | None] = []
    for index, (tensor, total) in enumerate(zip(tensors, found, strict=True)):
        pairs = [
            (later, part)
            for later, part in zip(tensors[:index], parts, strict=True)
            if part is not None and later.grad_fn is not None
        ]
        if total is not None and pairs:
            outputs, gradients = zip(*pairs, strict=True)
            (by_way,) = torch.autograd.grad(
                outputs, tensor, gradients, allow_unused=True, retain_graph=True
            )
            total = total if by_way is None else total - by_way
        parts.append(total)
    return parts


class Gathering:
    """The tensors that many evaluations of a field take from elsewhere, found one by one.

    Attributes:
        tensors: Parameters and other leaves, and results of earlier computations; results before
            what they were computed from.
    """

    def __init__(self) -> None:
        self._known: dict[Edge, Tensor] = {}
        self._states: weakref.WeakValueDictionary[int, Tensor] = weakref.WeakValueDictionary()
        self._edges: list[Edge] = []
        self.tensors: tuple[Tensor, ...] = ()

    def state(self, y: Tensor, *, wanted: bool = True) -> Tensor:
        """A state without history, to evaluate the field at."""
        alone = y.detach().requires_grad_(wanted)
        self._states[id(alone)] = alone
        return alone

    def gather(self, slope: Tensor, since: int, y: Tensor, again: Callable[[], Any]) -> bool:
        """Note the tensors that an evaluation used; tell whether there were new ones.

        Args:
            slope: What it returned.
            since: A mark from before it.
            y: The state, as `state` gave it.
            again: Repeats the evaluation.
        """
        missing = _outward(slope, since, self._known) - self._known.keys()
        found = {edge: leaf for edge, leaf in _leaves(missing).items() if leaf is not y}
        results = missing - _leaves(missing).keys()
        if results:
            found |= _find_results(again, results, _UNSEEN)
        if results and torch.is_autocast_enabled(y.device.type):
            # A backward pass makes autocast's copies of weights again, from the weights themselves.
            found |= _leaves({edge for node, _ in results for edge in node.next_functions})
        if not found:
            return False
        for tensor in found.values():
            self._refuse_earlier_states(tensor)
        self._known |= found
        self._edges = sorted(self._known, key=lambda edge: -_age(edge))
        self.tensors = tuple(self._known[edge] for edge in self._edges)
        return True

    def _refuse_earlier_states(self, tensor: Tensor) -> None:
        """Refuse a tensor that was computed from the state of another evaluation."""
        edges = {_edge(tensor)} | {e for node in _ancestors(tensor) for e in node.next_functions}
        for node, _ in edges:
            leaf = getattr(node, "variable", None)
            if leaf is not None and self._states.get(id(leaf)) is leaf:
                raise GradientError(
                    "the field keeps something from one call for the next that depends on the "
                    "state, through which no gradient can flow when the graphs of steps are let "
                    "go; compute it again, or use memory=0"
                )

    def refuse_others(self, results: Iterable[Any], since: int, inputs: Collection[Tensor]) -> None:
        """Refuse results that used other tensors.

        Args:
            results: The results.
            since: A mark from before their computation.
            inputs: Leaves that they were computed from.
        """
        for node, _ in _all_outward(results, since, self._known) - self._known.keys():
            variable = getattr(node, "variable", None)
            if not any(variable is one for one in inputs):
                raise GradientError(
                    f"the backward pass met {_described(node)} that the field did not use in the "
                    "solve, and cannot give it a gradient; if one was replaced since, call "
                    "backward() before; if the field keeps one in a cache, leave that out, or use "
                    "memory=0"
                )

    def is_tangled(self) -> bool:
        """Whether one of the tensors was computed from another."""
        return _are_tangled(self.tensors, self._edges)

    def untangle(self, found: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Remove from the tensors' gradients what arrived through another of the tensors."""
        return _untangle(self.tensors, found)


def _leaves(edges: Iterable[Edge]) -> dict[Edge, Tensor]:
    """The leaves among some edges."""
    return {edge: edge[0].variable for edge in edges if hasattr(edge[0], "variable")}


def _described(node: Node) -> str:
    """Describe a tensor in words."""
    leaf = getattr(node, "variable", None)
    return (
        f"a result of {node.name()}" if leaf is None else f"a tensor of shape {tuple(leaf.shape)}"
    )


def _age(edge: Edge) -> int:
    """A number that is larger for younger tensors; leaves come before all results."""
    number = edge[0]._sequence_nr()
    return -1 if number == LEAF else number


def _ancestors(tensor: Tensor) -> set[Node]:
    return _explore([tensor.grad_fn], -1)[0] if tensor.grad_fn is not None else set()


def _find_results(again: Callable[[], Any], missing: set[Edge], unseen: str) -> dict[Edge, Tensor]:
    """The tensors at some edges, found by looking at every operation of one more evaluation."""
    with _Looking(missing) as looking:
        again()
    if looking.found.keys() != missing:
        raise GradientError(unseen)
    return looking.found


_UNSEEN_BY_ADJOINT = (
    "gradient='adjoint' cannot see where the field takes one of its tensors from; name such "
    "tensors with parameters=…, or use gradient='checkpoint'"
)
_UNSEEN = (
    "a solve that lets the graphs of its steps go cannot see where the field takes one of its "
    "tensors from; use memory=0, which keeps them"
)


class _Looking(TorchDispatchMode):
    """Looks for tensors among the arguments of operations."""

    def __init__(self, wanted: set[Edge]) -> None:
        super().__init__()
        self._wanted, self.found = wanted, {}

    def __torch_dispatch__(self, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for value in tree_leaves((args, kwargs)):
            if isinstance(value, Tensor) and value.grad_fn is not None:
                edge = value.grad_fn, value.output_nr
                if edge in self._wanted:
                    self.found[edge] = value
        return function(*args, **kwargs)


@contextlib.contextmanager
def without_hooks(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Remove hooks from tensors temporarily: they expect whole gradients, not parts of them.

    The same is done for gradients that tensors retain.
    """
    retained = [(tensor, tensor.grad) for tensor in tensors if tensor.retains_grad]
    found = [hooks for tensor in tensors if (hooks := tensor._backward_hooks)]
    kept = [dict(hooks) for hooks in found]
    for hooks in found:
        hooks.clear()
    try:
        yield
    finally:
        for hooks, items in zip(found, kept, strict=True):
            hooks.update(items)
        for tensor, gradient in retained:
            tensor.grad = gradient
