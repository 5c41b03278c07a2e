"""Whether a module does what its class says: hooks, and subclasses with their own forward pass.

Code that replaces the call of a module may do so only if the module's forward pass is the one that
the code was written for, and if no hooks would have been called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.nn.modules import module as every_module

__all__ = [
    "gives_result_away",
    "has_hooks",
    "is_plain",
    "is_untouched",
    "known_method",
    "method_of",
    "speaks_of_forward",
]


def has_hooks(module: nn.Module) -> bool:
    """Whether hooks see a module's input or output: they may keep or change it."""
    return _has_own_hooks(module) or _has_hooks_everywhere()


def _has_own_hooks(module: nn.Module) -> bool:
    # Attribute by attribute, for speed: every evaluation checks every part of a field.
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )


def _has_hooks_everywhere() -> bool:
    return bool(
        every_module._global_forward_hooks
        or every_module._global_forward_pre_hooks
        or every_module._global_backward_hooks
        or every_module._global_backward_pre_hooks
    )


def is_untouched(module: nn.Module) -> bool:
    """Whether calling a module does what its class says: nothing was set on the object itself."""
    return "forward" not in module.__dict__ and not has_hooks(module)


def is_plain(module: Any, kind: type[nn.Module]) -> bool:
    """Whether calling a module does what a class says.

    A subclass without its own forward pass may differ in name only, or have parametrised weights.
    """
    own = type(module)
    return (
        isinstance(module, kind)
        and own.forward is kind.forward
        and own.__call__ is kind.__call__
        and is_untouched(module)
    )


def gives_result_away(module: nn.Module) -> bool:
    """Whether a module's result may be overwritten: no derivative needs it, and no hook keeps it.

    A class declares this for its forward pass with `result_may_be_overwritten = True`.
    """
    if is_plain(module, nn.Linear):
        return True
    says_so = getattr(type(module), "result_may_be_overwritten", False)
    return (
        says_so
        and speaks_of_forward(type(module), "result_may_be_overwritten")
        and is_untouched(module)
    )


def speaks_of_forward(kind: Any, name: str) -> bool:
    """Whether an attribute of a class describes its present forward pass.

    A subclass with its own forward pass inherits attributes that describe another one.

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


def known_method(caller: Any, name: str) -> Callable[..., Any] | None:
    """The method that replaces calling an object, as far as its classes tell.

    None if there is none, if a subclass or the object has a different forward pass from the one
    that the method belongs to, or if an object passes on the method of one that it wraps.
    """
    method = getattr(caller, name, None)
    if not callable(method):  # a convolution has a flag of this name
        return None
    if name in _own(caller):  # set on this object itself
        return method
    owner = getattr(method, "__self__", caller)
    # A module from `torch.compile` does the same as the module inside it.
    if owner is not caller and owner is not _own(caller).get("_modules", {}).get("_orig_mod"):
        return None
    return method if speaks_of_forward(type(owner), name) and "forward" not in _own(owner) else None


def method_of(caller: Any, name: str) -> Callable[..., Any] | None:
    """A method that may be called in place of an object, because it does the same.

    None if `known_method` finds none, or if hooks of the object or its parts would not be called.
    """
    method = known_method(caller, name)
    return None if method is None or _is_watched(caller) else method


def _is_watched(caller: Any) -> bool:
    return isinstance(caller, nn.Module) and (
        _has_hooks_everywhere() or any(map(_has_own_hooks, caller.modules()))
    )


def _own(thing: Any) -> dict[str, Any]:
    return getattr(thing, "__dict__", {})
