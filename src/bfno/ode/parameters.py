"""The trainable tensors that a field depends on, found when it is used."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import Tensor, nn

__all__ = ["refuse_batch_norm", "trainable_tensors"]

_DEPTH = 4
"""How many levels of containers, closures and attributes are searched."""


def trainable_tensors(field: Callable[..., Any]) -> tuple[Tensor, ...]:
    """Every tensor with a gradient that a field can reach.

    A module gives its parameters and tensors among its attributes; any other callable is searched
    through its closure, the globals that it names, bound objects and partial arguments.
    """
    found: dict[int, Tensor] = {}
    seen: set[int] = set()
    for tensor in _search(field, _DEPTH, seen):
        found.setdefault(id(tensor), tensor)
    return tuple(found.values())


def _search(value: Any, depth: int, seen: set[int]) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        if value.requires_grad:
            yield value
        return
    if depth == 0 or id(value) in seen or isinstance(value, (str, bytes, int, float, type)):
        return
    seen.add(id(value))
    if isinstance(value, nn.Module):
        yield from _module_tensors(value, depth, seen)
        return
    for part in _parts(value):
        yield from _search(part, depth - 1, seen)


def _module_tensors(module: nn.Module, depth: int, seen: set[int]) -> Iterator[Tensor]:
    yield from (parameter for parameter in module.parameters() if parameter.requires_grad)
    for part in module.modules():
        for name, value in vars(part).items():
            if not name.startswith("_"):
                yield from _search(value, depth - 1, seen)


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, (list, tuple, set, frozenset)):
        return value
    if isinstance(value, dict):
        return value.values()
    if isinstance(value, functools.partial):
        return (value.func, value.args, value.keywords)
    if inspect.ismethod(value):
        return (value.__self__, value.__func__)
    if inspect.isfunction(value):
        return _captured(value)
    if inspect.isbuiltin(value) or inspect.ismodule(value) or inspect.isclass(value):
        return ()
    return vars(value).values() if hasattr(value, "__dict__") else ()


def _captured(function: Any) -> list[Any]:
    """What a function holds: its closure, its defaults and the globals that its code names."""
    parts = [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]
    parts.extend(function.__defaults__ or ())
    names = set(function.__code__.co_names)
    for constant in function.__code__.co_consts:  # functions defined inside it
        if inspect.iscode(constant):
            names.update(constant.co_names)
    parts.extend(function.__globals__[name] for name in names if name in function.__globals__)
    return parts


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def refuse_batch_norm(field: Any) -> None:
    """Refuse a field whose statistics would move at every evaluation."""
    if not isinstance(field, nn.Module):
        return
    for name, module in field.named_modules():
        moving = isinstance(module, nn.modules.batchnorm._BatchNorm) and module.track_running_stats
        if moving and module.training:
            raise ValueError(
                f"the field must not hold a BatchNorm in training mode, got {name or 'the field'}: "
                "its running statistics would be updated once an evaluation; use GroupNorm, or "
                "call .eval() on it"
            )
