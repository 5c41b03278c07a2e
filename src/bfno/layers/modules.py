"""What a module does besides what its class says: hooks, and subclasses with other passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.nn.modules import module as every_module

__all__ = ["has_hooks", "method_of", "speaks_of_forward"]

_HOOKS = ("forward_hooks", "forward_pre_hooks", "backward_hooks", "backward_pre_hooks")


def has_hooks(module: nn.Module) -> bool:
    """Whether hooks see what a module takes and returns: they may keep it, or change it."""
    return any(getattr(module, f"_{name}") for name in _HOOKS) or any(
        getattr(every_module, f"_global_{name}") for name in _HOOKS
    )


def speaks_of_forward(kind: Any, name: str) -> bool:
    """Whether an attribute of a class is true of its forward pass.

    A subclass with a forward pass of its own inherits what was said of another one.

    Args:
        kind: The class; of any other callable, nothing is known.
        name: The attribute, of the class or one above it.
    """
    for one in getattr(kind, "__mro__", ()):
        if name in vars(one):
            return True
        if not {"forward", "__call__"}.isdisjoint(vars(one)):
            return False
    return False


def method_of(caller: Any, name: str) -> Callable[..., Any] | None:
    """A method that may be called in place of an object, because it knows what that would do.

    None where there is none, where a subclass or the object has another forward pass than the one
    that the method belongs to, and where hooks would not be called.
    """
    method = getattr(caller, name, None)
    owner = getattr(method, "__self__", None)
    if owner is None:  # none at all, or a function that was put there for this very object
        return method
    if not speaks_of_forward(type(owner), name) or "forward" in _own(owner):
        return None
    is_watched = isinstance(owner, nn.Module) and any(map(has_hooks, owner.modules()))
    return None if is_watched else method


def _own(thing: Any) -> dict[str, Any]:
    return getattr(thing, "__dict__", {})
