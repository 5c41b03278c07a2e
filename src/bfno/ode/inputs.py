"""Checks of user input; each error is one sentence with name, rule, value and remedy."""

from __future__ import annotations

import difflib
import math
import numbers
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from bfno.ode.tableaus import find_method

__all__ = [
    "ATOL",
    "CONTROLLERS",
    "GRADIENTS",
    "RTOL",
    "check_function",
    "check_inputs",
    "check_state",
    "check_times",
    "check_use",
    "read_controller",
    "read_count",
    "read_memory",
    "read_moments",
    "read_norm",
    "read_number",
    "read_parameters",
    "read_settings",
    "read_tolerances",
    "refuse_unknown",
    "shown",
    "split_memory",
]

GRADIENTS = ("checkpoint", "direct", "adjoint")

RTOL, ATOL = 1e-4, 1e-6
"""Default tolerances of a solve."""

_ADJOINT_OPTIONS = ("method", "rtol", "atol", "step", "seminorm")


CONTROLLERS = {"I": (0.0, 1.0, 0.0), "PI": (0.4, 0.3, 0.0), "PID": (0.01, 0.47, 0.1)}
"""Rules for the step size by name: proportional, integral and derivative coefficients.

I and PI are two that diffrax recommends, PID is the default of SUNDIALS' ARKODE.
"""


# States and times


def check_inputs(y0: Any, ts: Any) -> None:
    """Refuse states and times that cannot be solved for."""
    check_state(y0)
    _check_real("ts", ts)
    if ts.dim() not in (1, 2) or ts.shape[-1] < 2:
        raise ValueError(
            "ts must hold at least two times, with shape (time,) or (batch, time), "
            f"got shape {tuple(ts.shape)}"
        )
    if not bool(torch.isfinite(ts).all()):
        raise ValueError(f"ts must be finite, got {ts.detach().flatten().tolist()[:8]}")
    if ts.dim() == 1:
        _check_monotonic("ts", ts)
    else:
        _check_rows(y0, ts)


def check_times(t: Any) -> None:
    """Refuse times that are not one increasing or decreasing row."""
    _check_real("t", t)
    if t.dim() != 1 or len(t) == 0 or not bool(torch.isfinite(t).all()):
        raise ValueError(f"t must be one row of finite times, got shape {tuple(t.shape)}")
    _check_monotonic("t", t)


def check_state(y0: Any) -> None:
    """Refuse states that are not made of tensors of real or complex numbers."""
    parts = tree_leaves(y0)
    if not parts or not all(isinstance(part, Tensor) for part in parts):
        raise ValueError(
            f"y0 must be a tensor, or a tuple, list, dict or nest of tensors, "
            f"got {type(y0).__name__}"
        )
    for part in parts:
        if not (part.is_floating_point() or part.is_complex()):
            raise ValueError(
                f"y0 must hold real floating-point or complex numbers, got {part.dtype}; convert "
                "it, for example with y0.float()"
            )
        _check_dense("y0", part)


def _check_real(name: str, value: Any) -> None:
    if not isinstance(value, Tensor) or not value.is_floating_point():
        kind = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"{name} must be a tensor of real numbers, got {kind}")
    _check_dense(name, value)


def _check_dense(name: str, value: Tensor) -> None:
    """Refuse tensors without numbers, or with a ragged or sparse layout."""
    if value.is_meta:
        raise ValueError(
            f"{name} must hold numbers, got a tensor on the meta device; create it on another one"
        )
    if value.is_nested:
        raise ValueError(
            f"{name} must have one shape, got a nested tensor; pass a tuple of its parts"
        )
    if value.layout is not torch.strided:
        raise ValueError(f"{name} must be dense, got {value.layout}; call .to_dense()")


def _check_monotonic(name: str, ts: Tensor) -> None:
    values = ts.tolist()
    sign = 1 if values[-1] > values[0] else -1
    for index in range(1, len(values)):
        if (values[index] - values[index - 1]) * sign <= 0:
            raise ValueError(
                f"{name} must be strictly increasing or decreasing, got {name}[{index}]="
                f"{values[index]:g} after {name}[{index - 1}]={values[index - 1]:g}"
            )


def _check_rows(y0: Any, ts: Tensor) -> None:
    parts = tree_leaves(y0)
    if any(part.dim() == 0 or len(part) != len(ts) for part in parts):
        raise ValueError(
            f"ts with one row per sample needs {len(ts)} samples along the state's first axis, got "
            f"shapes {[tuple(part.shape) for part in parts]}"
        )
    steps = ts.detach().diff(dim=1)
    turned = ((steps > 0).any(1) & (steps < 0).any(1)).nonzero()
    if len(turned):
        row = int(turned[0])
        raise ValueError(f"every row of ts must be monotonic, got ts[{row}]={ts[row].tolist()[:8]}")


# Tolerances


def read_tolerances(rtol: Any, atol: Any, y0: Any = None, *, prefix: str = "") -> tuple[Any, Any]:
    """Tolerances as numbers, or tensors that broadcast to a state.

    Args:
        rtol: The relative one.
        atol: The absolute one.
        y0: The state, if it is known yet.
        prefix: Prefix of their names.
    """
    relative, absolute = (
        _read_tolerance(prefix + name, value, y0)
        for name, value in (("rtol", rtol), ("atol", atol))
    )
    if y0 is None and (isinstance(relative, Tensor) or isinstance(absolute, Tensor)):
        return relative, absolute  # their shapes may not match
    total = relative + absolute
    if not (bool((total > 0).all()) if isinstance(total, Tensor) else total > 0):
        raise ValueError(
            f"{prefix}rtol and {prefix}atol must not both be zero: no step could be exact enough"
        )
    return relative, absolute


def _read_tolerance(name: str, value: Any, y0: Any) -> Tensor | float:
    if isinstance(value, Tensor):
        real = value.is_floating_point() and not value.is_meta and not value.requires_grad
        if real and bool((torch.isfinite(value) & (value >= 0)).all()):
            _check_fit(name, value, y0)
            return value
    elif _is_number(value) and math.isfinite(value) and value >= 0:
        return float(value)
    raise ValueError(f"{name} must be a finite number, zero or more, got {shown(value)}")


def _check_fit(name: str, value: Tensor, y0: Any) -> None:
    """Refuse a tolerance that does not broadcast to the state."""
    if y0 is None or value.dim() == 0:
        return
    if not isinstance(y0, Tensor):
        raise ValueError(
            f"{name} must be one number where y0 is not one tensor, got shape {tuple(value.shape)}"
        )
    sizes = zip(reversed(value.shape), reversed(y0.shape), strict=False)
    if value.dim() > y0.dim() or any(own not in (1, whole) for own, whole in sizes):
        raise ValueError(
            f"{name} must be a number or broadcast to the state's shape {tuple(y0.shape)}, got "
            f"shape {tuple(value.shape)}"
        )


# Numbers and functions


def read_number(name: str, value: Any, *, zero: bool = False) -> float:
    """A positive number, or zero if allowed; may also come from NumPy or a one-element tensor."""
    kind = type(value)
    if not (kind is float or kind is int):
        if isinstance(value, Tensor) and value.numel() == 1 and not value.is_meta:
            value = value.item()
        if not _is_number(value):
            raise ValueError(f"{name} must be a number, got {shown(value)}")
        value = float(value)
    if not (value > 0 or (zero and value == 0)):
        rule = "zero or more" if zero else "positive"
        raise ValueError(f"{name} must be {rule}, got {value}")
    return value


def read_norm(value: Any) -> float:
    """The value of a norm as a number."""
    if isinstance(value, Tensor) and value.numel() == 1:
        return abs(value.item())
    if not _is_number(value):
        raise ValueError(f"norm must return one number, got {shown(value)}")
    return abs(float(value))


def read_count(name: str, value: Any) -> int | float:
    """A positive whole number; infinity counts as one."""
    count = read_number(name, value)
    if count % 1 > 0:
        raise ValueError(f"{name} must be a whole number, got {value}")
    return count if math.isinf(count) else int(count)


def read_controller(name: str, value: Any) -> tuple[float, float, float]:
    """Coefficients of a rule for the step size, given by name or as three numbers.

    Example:
        >>> read_controller("controller", "PI")
        (0.4, 0.3, 0.0)
    """
    if isinstance(value, str) and value in CONTROLLERS:
        return CONTROLLERS[value]
    given = tuple(value) if isinstance(value, (tuple, list)) else ()
    if len(given) != 3 or not all(_is_number(one) and math.isfinite(one) for one in given):
        raise ValueError(
            f"{name} must be one of {', '.join(CONTROLLERS)}, or three coefficients as in "
            f"{name}=(0.4, 0.3, 0.0), got {shown(value)}"
        )
    proportional, integral, derivative = map(float, given)
    if not (integral > 0 and proportional + integral + derivative > 0):
        raise ValueError(
            f"{name} must have an integral part and a sum above zero, or no error would be brought "
            f"down to the tolerance, got {shown(value)}"
        )
    return proportional, integral, derivative


def read_moments(name: str, value: Any) -> tuple[float, ...]:
    """Times as numbers, from a tuple, a list, a tensor or any other collection."""
    if isinstance(value, Tensor):
        value = value.reshape(-1)
    try:
        moments = tuple(map(float, value))
    except (TypeError, ValueError, RuntimeError):  # not a collection, not numbers, or a meta tensor
        moments = (math.nan,)
    if isinstance(value, str) or any(map(math.isnan, moments)):
        raise ValueError(f"{name} must hold times, as in {name}=(0.5,), got {shown(value)}")
    return moments


def read_parameters(name: str, value: Any) -> tuple[Tensor, ...] | None:
    """Tensors from any collection, each once; None if none were given."""
    if value is None:
        return None
    if isinstance(value, (str, Tensor)) or not isinstance(value, Iterable):
        raise ValueError(
            f"{name} must be a collection of tensors, as in {name}=(weight,), got {shown(value)}"
        )
    found = tuple(value)
    for one in found:
        if not isinstance(one, Tensor):
            raise ValueError(f"{name} must hold tensors, got {shown(one)}")
    return tuple({id(one): one for one in found}.values())


def read_memory(name: str, value: Any) -> float | str:
    """Bytes for graphs, from a number or text, or which states are kept instead of graphs.

    Example:
        >>> read_memory("memory", "256 MB"), read_memory("memory", "2 GiB")
        (256000000, 2147483648)
        >>> read_memory("memory", "stages"), read_memory("memory", "steps 1 MB")
        (0, 'steps 1000000')
    """
    text = value.strip().lower() if isinstance(value, str) else ""
    if text in ("steps", "log"):
        return text
    if text in ("unlimited", "stages"):
        return math.inf if text == "unlimited" else 0
    match = re.fullmatch(r"(steps\s+)?(\d+\.?\d*|\.\d+)\s*(?:([kmgt])(i?))?b?", text)
    if match:
        steps, number, letter, binary = match.groups()
        base = 1024 if binary else 1000
        size = round(float(number) * base ** (" kmgt".index(letter) if letter else 0))
        return f"steps {size}" if steps else size
    if _is_number(value) and float(value) >= 0:
        return math.inf if float(value) == math.inf else int(value)
    raise ValueError(
        f"{name} must be a number of bytes or text such as '256 MB', '2 GiB', 'unlimited', "
        f"'stages', 'steps', 'steps 50 MB' or 'log', got {shown(value)}"
    )


def split_memory(memory: float | str | None) -> tuple[float | None, float | None]:
    """Bytes that graphs may take, and states that replace graphs; None if no bound was given.

    Args:
        memory: The result of `read_memory`, or None.

    Example:
        >>> split_memory(0), split_memory("log"), split_memory("steps 1000000")
        ((0, None), (None, 0.0), (None, 1000000.0))
    """
    if not isinstance(memory, str):
        return memory, None
    word, _, size = memory.partition(" ")
    return None, 0.0 if word == "log" else float(size or math.inf)


def check_function(name: str, value: Any, arguments: str = "time and state") -> None:
    """Refuse values that are not callable."""
    if not callable(value):
        raise ValueError(
            f"{name} must be a function of {arguments}, or a module, got {shown(value)}"
        )


def refuse_unknown(kind: str, given: Mapping[str, Any], known: Sequence[str]) -> None:
    """Refuse names that do not exist, with the nearest one that does."""
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
            raise ValueError(f"{kind} {name!r} does not exist; {hint}")


def shown(value: Any) -> str:
    """A value as one short line."""
    if isinstance(value, Tensor) and (value.is_meta or value.numel() != 1):
        return f"a tensor of shape {tuple(value.shape)}"
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else type(value).__name__


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


# Options


def read_settings(options: Any) -> dict[str, Any]:
    """The options of `solve` that have a rule or several forms, in the form used internally."""
    found: dict[str, Any] = {"max_steps": read_count("max_steps", options.max_steps)}
    if isinstance(options.first_step, str) and options.first_step == "last":
        raise ValueError("first_step='last' needs a NeuralODE, which remembers; give a number")
    for name in ("step", "first_step"):
        if getattr(options, name) is not None:
            found[name] = read_number(name, getattr(options, name))
    found["controller"] = read_controller("controller", options.controller)
    found["max_step"] = read_number("max_step", options.max_step)
    found["min_step"] = read_number("min_step", options.min_step, zero=True)
    if found["min_step"] > found["max_step"]:
        raise ValueError(
            f"min_step must lie between 0 and max_step={options.max_step}, got {options.min_step}"
        )
    for name, arguments in _FUNCTIONS.items():
        if getattr(options, name) is not None:
            check_function(name, getattr(options, name), arguments)
    if not isinstance(options.args, (tuple, list)):
        got = shown(options.args)
        raise ValueError(f"args must be a tuple, as in args=(rate,), got {got}")
    for name in ("jumps", "stops"):
        found[name] = read_moments(name, getattr(options, name))
    found["ignore"] = _read_ignored(options.ignore, options.norm)
    if options.memory is not None:
        found["memory"] = read_memory("memory", options.memory)
    if options.adjoint is not None:
        found["adjoint"] = _read_adjoint(options.adjoint)
    found["parameters"] = read_parameters("parameters", options.parameters)
    for name in ("land", "dense", "throw", "compile", "independent"):
        if not isinstance(getattr(options, name), bool):
            got = shown(getattr(options, name))
            raise ValueError(f"{name} must be True or False, got {got}")
    return found


_FUNCTIONS = {
    "norm": "a state",
    "event": "time and state",
    "on_step": "time, state and statistics",
}


def _read_ignored(places: Any, norm: Any) -> tuple[int, ...]:
    if not isinstance(places, (tuple, list)) or not all(
        isinstance(one, numbers.Integral) and not isinstance(one, bool) for one in places
    ):
        raise ValueError(
            f"ignore must hold places of components, as in ignore=(1,), got {shown(places)}"
        )
    if places and norm is not None:
        raise ValueError(
            "ignore and norm exclude each other, for the norm itself can leave components out; "
            f"pass one of them, got ignore={shown(places)}"
        )
    return tuple(int(one) for one in places)


def _read_adjoint(given: Any) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise ValueError(
            "adjoint must be a dict of settings, as in adjoint={'rtol': 1e-5}, got "
            f"{shown(given)}"
        )
    refuse_unknown("adjoint option", given, _ADJOINT_OPTIONS)
    found = dict(given)
    for name in ("rtol", "atol"):
        if name in found:
            found[name] = _read_tolerance(f"adjoint {name}", found[name], None)
    if found.get("step") is not None:
        found["step"] = read_number("adjoint step", found["step"])
    if "method" in found:
        find_method(found["method"])
    if not isinstance(found.get("seminorm", False), bool):
        raise ValueError(f"adjoint seminorm must be True or False, got {shown(found['seminorm'])}")
    return found


def check_use(options: Any, gradient: str, tolerances: tuple[Any, Any], y0: Any = None) -> None:
    """Refuse an unknown gradient, and options that make no sense for it or for the state.

    Args:
        options: Options of `solve`.
        gradient: One of `GRADIENTS`.
        tolerances: The relative and the absolute one.
        y0: The state, if it is known yet.
    """
    if gradient not in GRADIENTS:
        raise ValueError(f"gradient must be one of {', '.join(GRADIENTS)}, got {gradient!r}")
    if options.memory is not None and gradient != "checkpoint":
        raise ValueError(f"memory needs gradient='checkpoint', got gradient={gradient!r}")
    if isinstance(options.memory, str):
        for other in ("event", "dense", "compile", "independent"):
            if getattr(options, other):
                raise ValueError(
                    f"memory={options.memory!r} keeps no graphs of steps, which {other} needs; "
                    "leave one of the two out, or pass memory=0"
                )
    if gradient == "adjoint":
        _check_backward(options.adjoint or {}, *tolerances)
    else:
        for name in ("adjoint", "parameters"):
            if getattr(options, name) is not None:
                raise ValueError(f"{name} needs gradient='adjoint', got gradient={gradient!r}")
    if options.ignore and y0 is not None:
        count = 0 if isinstance(y0, Tensor) else len(tree_leaves(y0))
        wrong = [place for place in options.ignore if not 0 <= place < count]
        if wrong:
            rule = f"lie between 0 and {count - 1}" if count else "be empty where y0 is one tensor"
            raise ValueError(f"ignore must {rule}, got {wrong[0]}")


def _check_backward(adjoint: Mapping[str, Any], rtol: Any, atol: Any) -> None:
    """Refuse tolerances per element for the adjoint equation, which has a different state."""
    values = {"rtol": rtol, "atol": atol, **adjoint}
    for name in ("rtol", "atol"):
        if isinstance(values[name], Tensor) and values[name].dim():
            raise ValueError(
                f"gradient='adjoint' needs one number as {name} of its backward solve, got shape "
                f"{tuple(values[name].shape)}; pass adjoint={{'{name}': 1e-5}}"
            )
    read_tolerances(values["rtol"], values["atol"], prefix="adjoint ")
