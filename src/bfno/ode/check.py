"""How exact a gradient is: an estimate of the error that the steps of a solve cause."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from bfno.ode.dependencies import mark, used_leaves
from bfno.ode.inputs import (
    ATOL,
    RTOL,
    check_function,
    check_inputs,
    read_count,
    read_number,
    read_parameters,
    read_tolerances,
)
from bfno.ode.solve import solve
from bfno.ode.state import on_host, real_dtype
from bfno.ode.tableaus import Tableau, find_method

__all__ = ["GradientCheck", "check_gradient"]

_FINER = 10
"""Factor by which the tolerance of the reference solve is smaller."""


@dataclass(frozen=True)
class GradientCheck:
    """The result of `check_gradient`; printed, it is a sentence.

    Attributes:
        error: Relative error of the gradient with respect to the first state and the parameters
            together, so small parts hardly count.
        state_error: Relative error of the gradient with respect to the first state alone.
        parameter_error: The same with respect to the parameters alone; zero if there are none.
        solution_error: Relative error of the states themselves.
        adjoint_error: The part of the gradient's error that comes from gradient="adjoint" itself;
            None with another gradient.
        is_enough: Whether the error is at most the target.
        sentence: The result in words.
        remedy: What to do about it; empty if it is enough.
    """

    error: float
    state_error: float
    parameter_error: float
    solution_error: float
    adjoint_error: float | None
    is_enough: bool
    sentence: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.sentence}; {self.remedy}" if self.remedy else self.sentence


def check_gradient(
    field: Callable[..., Any],
    y0: Any,
    ts: Tensor,
    *,
    method: str | Tableau = "dopri5",
    rtol: float | Tensor = RTOL,
    atol: float | Tensor = ATOL,
    gradient: str = "checkpoint",
    loss: Callable[[Any], Tensor] | None = None,
    parameters: Iterable[Tensor] | None = None,
    samples: int | None = None,
    target: float = 0.01,
    **options: Any,
) -> GradientCheck:
    """Estimate how far the gradient of a solve is from the gradient of the exact solution.

    `checkpoint` and `direct` differentiate the steps taken without further error, but the steps
    themselves are only as exact as their tolerance. The gradient is compared with that of a solve
    at a tenth of the tolerance, or with half the step size; `adjoint` is also compared with the
    gradient of the steps at the same tolerance. This costs two or three solves and backward passes.

    Args:
        field: The derivative, as in `solve`. Random numbers in it, as dropout draws them, would
            count as errors: call `.eval()` before.
        y0: State at the start.
        ts: Requested times.
        method: The method whose gradient is checked.
        rtol: Relative tolerance.
        atol: Absolute tolerance.
        gradient: `"checkpoint"`, `"direct"` or `"adjoint"`.
        loss: The function of the solution's states whose gradient is checked; None means a sum of
            all states but the first, with random weights.
        parameters: The tensors whose gradients count beside that of the state. None takes all that
            the field uses at the start, and those of a module.
        samples: Check only this many samples, drawn at random along the state's first axis.
        target: The relative error that is good enough.
        **options: Options of `solve`.

    Raises:
        SolverError: If one of the solves fails, whatever `throw` says.

    Example:
        >>> rate = torch.tensor(2.0, requires_grad=True)
        >>> ts = torch.tensor([0.0, 1.0])
        >>> found = check_gradient(lambda t, y: -rate * y, torch.ones(3), ts)
        >>> found.is_enough, found.error < 1e-3
        (True, True)
        >>> print(check_gradient(lambda t, y: -rate * y, torch.ones(3), ts, method="rk4", step=0.5))
        the gradient is off by 4.6 %, the solution by 4 %; use step=0.34
    """
    check_function("field", field)
    check_inputs(y0, on_host(ts))
    read_number("target", target)
    given = {**options, "method": find_method(method), "gradient": gradient, "throw": True}
    given["rtol"], given["atol"] = read_tolerances(rtol, atol, y0)
    with torch.inference_mode(False), torch.enable_grad():
        y0, ts = _drawn(y0, ts.detach().clone(), samples)
        probe = _Probe(field, y0, ts, loss, read_parameters("parameters", parameters))
        return _Report(probe, given, target).result()


def _drawn(y0: Any, ts: Tensor, samples: int | None) -> tuple[Any, Tensor]:
    """Some samples, as leaves of new graphs."""
    parts, structure = pytree.tree_flatten(y0)
    if samples is not None:
        count = read_count("samples", samples)
        sizes = {len(part) if part.dim() else 0 for part in parts}
        if len(sizes) > 1 or 0 in sizes:
            raise ValueError(
                "samples needs a state whose tensors have the samples as their first axis, got "
                f"shapes {[tuple(part.shape) for part in parts]}"
            )
        places = torch.randperm(sizes.pop(), generator=torch.Generator().manual_seed(0))
        chosen = places[: int(min(count, len(places)))].sort().values
        parts = [part[chosen.to(part.device)] for part in parts]
        ts = ts[chosen.to(ts.device)] if ts.dim() == 2 else ts
    leaves = [part.detach().clone().requires_grad_() for part in parts]
    return pytree.tree_unflatten(leaves, structure), ts


class _Gradient:
    """A gradient, and the states whose loss it belongs to."""

    def __init__(self, states: Tensor, by_state: Tensor, by_parameters: Tensor) -> None:
        self.states, self.by_state, self.by_parameters = states, by_state, by_parameters

    def errors(self, exact: _Gradient) -> tuple[float, float, float]:
        """Relative errors of the whole, and with respect to state and parameters."""
        pairs = (self.by_state, exact.by_state), (self.by_parameters, exact.by_parameters)
        whole = _relative(*map(torch.cat, zip(*pairs, strict=True)))
        return whole, _relative(*pairs[0]), _relative(*pairs[1])


class _Probe:
    """Computes gradients of one loss in several ways."""

    def __init__(
        self,
        field: Callable[..., Any],
        y0: Any,
        ts: Tensor,
        loss: Callable[[Any], Tensor] | None,
        parameters: Sequence[Tensor] | None,
    ) -> None:
        if loss is not None:
            check_function("loss", loss, "the solution's states")
        self._field, self._y0, self.ts, self._loss = field, y0, ts, loss
        self._parameters = parameters
        self.dtype = pytree.tree_leaves(y0)[0].dtype

    def gradient(self, settings: dict[str, Any]) -> _Gradient:
        ys = solve(self._field, self._y0, self.ts, **settings).ys
        # The first states are given, and exact.
        axis = self.ts.dim() - 1
        later = [one.narrow(axis, 1, one.shape[axis] - 1) for one in pytree.tree_leaves(ys)]
        loss = _random_sum(later) if self._loss is None else self._loss(ys)
        leaves = pytree.tree_leaves(self._y0)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            raise ValueError(f"loss must return one number as a tensor, got {loss!r}")
        if self._parameters is None:
            self._parameters = self._found(settings)
        wanted = [*leaves, *self._parameters]
        found = torch.autograd.grad(loss.sum(), wanted, allow_unused=True)
        parts = [
            torch.zeros_like(one) if part is None else part
            for one, part in zip(wanted, found, strict=True)
        ]
        count = len(leaves)
        return _Gradient(_joined(later), _joined(parts[:count]), _joined(parts[count:]))

    def _found(self, settings: Mapping[str, Any]) -> Sequence[Tensor]:
        """Find what the field depends on at the start, and the parameters of a module."""
        time, since = self.ts[..., 0].to(real_dtype(self.dtype)), mark()
        if settings.get("independent"):
            time = time.expand(len(pytree.tree_leaves(self._y0)[0]))
        slope = self._field(time, self._y0, *settings.get("args", ()))
        own = self._field.parameters() if isinstance(self._field, nn.Module) else ()
        used = [one for part in pytree.tree_leaves(slope) for one in used_leaves(part, since)]
        states = {id(part) for part in pytree.tree_leaves(self._y0)}
        tensors = (*used, *(one for one in own if one.requires_grad))
        return [one for key, one in {id(one): one for one in tensors}.items() if key not in states]


class _Report:
    """Compares gradients and describes the result in words."""

    def __init__(self, probe: _Probe, settings: dict[str, Any], target: float) -> None:
        self._probe, self._settings, self._target = probe, settings, target
        self._method: Tableau = settings["method"]
        self._adapts = self._method.adaptive and settings.get("step") is None

    def result(self) -> GradientCheck:
        """Compare the gradients."""
        given = self._probe.gradient(self._settings)
        exactly, adjoint = self._settings, None
        if self._settings["gradient"] == "adjoint":
            exactly = {key: one for key, one in exactly.items() if key != "adjoint"}
            exactly["gradient"] = "checkpoint"
            adjoint = given.errors(self._probe.gradient(exactly))[0]
        exact = self._probe.gradient(self._finer(exactly))
        # With halved steps, a known share of the error remains.
        scale = 1.0 if self._adapts else 1 / (1 - 2.0**-self._method.order)
        error, by_state, by_parameters = (scale * one for one in given.errors(exact))
        solution = scale * _relative(given.states, exact.states)
        is_enough = error <= self._target
        sentence = self._sentence(error, solution, adjoint)
        remedy = "" if is_enough else self._remedy(error, adjoint)
        return GradientCheck(
            error, by_state, by_parameters, solution, adjoint, is_enough, sentence, remedy
        )

    def _finer(self, settings: dict[str, Any]) -> dict[str, Any]:
        """The same settings with smaller steps."""
        if self._adapts:
            finer = {name: settings[name] / _FINER for name in ("rtol", "atol")}
        elif settings.get("step") is not None:
            finer = {"step": settings["step"] / 2}
        else:
            ts = self._probe.ts
            if ts.dim() == 2:
                raise ValueError(
                    f"check_gradient needs a step for {self._method.name!r} where every sample has "
                    "its own times, as in step=0.1"
                )
            middles = tuple(((ts[1:] + ts[:-1]) / 2).tolist())
            finer = {"stops": (*settings.get("stops", ()), *middles)}
        return {**settings, **finer}

    def _sentence(self, error: float, solution: float, adjoint: float | None) -> str:
        if not math.isfinite(error):
            return "the gradient is not finite, or vanishes with smaller steps"
        found = f"the gradient is off by {_percent(error)}, the solution by {_percent(solution)}"
        if adjoint is None:
            return found
        return f"{found}; gradient='adjoint' alone makes {_percent(adjoint)}"

    def _remedy(self, error: float, adjoint: float | None) -> str:
        if adjoint is not None and adjoint > error / 2:
            return "use gradient='checkpoint', or smaller tolerances in adjoint={'rtol': ...}"
        if not math.isfinite(error):
            return "check the field and the loss"
        share = self._target / error
        if not self._adapts:
            return self._smaller_steps(share)
        # The error of a gradient is about proportional to the tolerance.
        factor = 10.0 ** math.floor(math.log10(share))
        rtol, atol = self._settings["rtol"], self._settings["atol"]
        if isinstance(rtol, Tensor) or isinstance(atol, Tensor):
            return f"make rtol and atol {1 / factor:.0f} times smaller"
        if rtol * factor < 8 * torch.finfo(self._probe.dtype).eps:
            return "use double precision: y0.double(), and the same for the field"
        return f"use rtol={rtol * factor:.2g}, atol={atol * factor:.2g}"

    def _smaller_steps(self, share: float) -> str:
        step, factor = self._settings.get("step"), share ** (1 / self._method.order)
        if step is None:
            return f"use steps {math.ceil(1 / factor)} times smaller: give a step, or more times"
        return f"use step={step * factor:.2g}"


def _random_sum(states: Sequence[Tensor]) -> Tensor:
    """All states summed up with random weights, the same in every call."""
    generator = torch.Generator().manual_seed(0)
    sums = []
    for part in states:
        wide = torch.view_as_real(part) if part.is_complex() else part
        weights = torch.randn(wide.shape, generator=generator, dtype=torch.float64)
        sums.append((wide * weights.to(wide)).sum())
    return torch.stack([one.to(sums[0]) for one in sums]).sum()


def _joined(parts: Sequence[Tensor]) -> Tensor:
    wide = [torch.view_as_real(part) if part.is_complex() else part for part in parts]
    flat = [part.detach().reshape(-1).double() for part in wide]
    return torch.cat(flat) if flat else torch.zeros(0, dtype=torch.float64)


def _relative(found: Tensor, exact: Tensor) -> float:
    """Size of a difference relative to the exact value."""
    error = torch.linalg.vector_norm(found - exact).item()
    if error == 0:
        return 0.0
    size = torch.linalg.vector_norm(exact).item()
    return error / size if size else math.inf


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 1 else f"{100 * share:,.0f} %"
