"""A neural ODE as a module."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from bfno.ode.evaluate import is_mapped
from bfno.ode.inputs import ATOL, RTOL, check_use, read_tolerances, shown
from bfno.ode.plain import is_plain, plain_steps
from bfno.ode.solution import Solution, Stats
from bfno.ode.solve import read_options, solve
from bfno.ode.tableaus import Tableau, find_method
from bfno.tracing import hide_from_old_compilers, is_functional

__all__ = ["DynamicsLike", "NeuralODE", "solver_settings"]


_PARTS = ("interval", "initial", "read_out")


class DynamicsLike(Protocol):
    """How a state moves, where it starts and what is read out of it."""

    interval: tuple[float, float]

    def __call__(self, t: Tensor, y: Any) -> Any:
        """The state's derivative."""
        ...

    def initial(self, x: Tensor) -> Any:
        """The state at the start of the interval, as `solve` takes it."""
        ...

    def read_out(self, y: Any) -> Tensor:
        """The output, read out of the state at the end of the interval."""
        ...


def solver_settings(method: str | Tableau, gradient: str, **options: Any) -> dict[str, Any]:
    """Check arguments of `solve` that a module keeps, when the module is made.

    Args:
        method: A Runge–Kutta method: its name or its tableau.
        gradient: One of `GRADIENTS`.
        **options: Tolerances, and options of `solve`.

    Raises:
        ValueError: If there is no such method, gradient or option.
    """
    find_method(method)
    rtol, atol = read_tolerances(options.pop("rtol", RTOL), options.pop("atol", ATOL))
    read = read_options(options)
    check_use(read, gradient, (rtol, atol))
    # As they were read: parameters from a generator can be read only once.
    kept = {name: getattr(read, name) for name in options}
    return {"method": method, "gradient": gradient, "rtol": rtol, "atol": atol, **kept}


class NeuralODE(nn.Module):
    """Carries an input along the flow of its dynamics.

    Args:
        dynamics: A dynamics module, such as `FirstOrder(field)`.
        method: A Runge–Kutta method: its name or its tableau.
        rtol: Relative tolerance.
        atol: Absolute tolerance.
        gradient: `"checkpoint"`, `"direct"` or `"adjoint"`.
        **options: Options of `solve`. `first_step="last"` begins with the step size that suited the
            last batch in training mode, instead of a cautious one that takes two evaluations to
            find. It is a buffer of the module, and part of its `state_dict`.

    Attributes:
        stats: What the last call cost; backward evaluations appear after its backward pass.

    Shape:
        From the input of the dynamics to its read-out.

    Note:
        For distributed training, wrap the model that holds this module, never the field: ranks
        evaluate their fields different numbers of times. Under `torch.export` and `torch.compile`,
        fixed steps are one graph of plain operations, which does not check whether the state is
        finite.
    """

    first_step: Tensor

    def __init__(
        self,
        dynamics: DynamicsLike,
        *,
        method: str | Tableau = "dopri5",
        rtol: float = 1e-3,
        atol: float = 1e-3,
        gradient: str = "checkpoint",
        **options: Any,
    ) -> None:
        super().__init__()
        if not callable(dynamics) or not all(hasattr(dynamics, name) for name in _PARTS):
            raise ValueError(
                f"dynamics must be a module that has {', '.join(_PARTS)}, got {shown(dynamics)}; "
                "make one of a field with FirstOrder(field)"
            )
        self.dynamics: Any = dynamics
        self._remembers = options.get("first_step") == "last"
        if self._remembers:
            del options["first_step"]
            self.register_buffer("first_step", torch.zeros(()))  # zero: none is known yet
        tolerances = {"rtol": rtol, "atol": atol}
        self.settings = solver_settings(method, gradient, **tolerances, **options)
        self.stats = Stats()

    @hide_from_old_compilers
    def forward(self, x: Tensor) -> Tensor:
        begin, end = self.dynamics.interval
        if torch.compiler.is_compiling() and is_plain(self.settings):
            y0 = self.dynamics.initial(x)
            y1, self.stats = plain_steps(self.dynamics, y0, (begin, end), self.settings)
            return self.dynamics.read_out(y1)
        ts = torch.tensor((begin, end), dtype=torch.float64)
        solution = self._solve(x, ts)
        self._remember(abs(end - begin))
        return self.dynamics.read_out(tree_map(lambda states: states[-1], solution.ys))

    def _remember(self, most: float) -> None:
        """Remember the best step size for the next batch."""
        # Not while it is evaluated: results would depend on the order of batches. Nor under
        # torch.func, where a function changes nothing.
        if not self._remembers or not self.training or is_functional():
            return
        if self.stats.first_step:
            self.first_step.fill_(min(self.stats.first_step, most))

    def trajectory(self, x: Tensor, ts: Tensor) -> Solution[Any]:
        """The states at given times, starting from the initial state of the input."""
        return self._solve(x, ts)

    def _solve(self, x: Tensor, ts: Tensor) -> Solution[Any]:
        settings = self.settings
        if self._remembers:
            # Under vmap there are no numbers, and no adaptive steps that would need this one.
            first = None if is_mapped() else self.first_step.item() or None
            settings = {**settings, "first_step": first}
        solution = solve(self.dynamics, self.dynamics.initial(x), ts, **settings)
        self.stats = solution.stats
        return solution

    def extra_repr(self) -> str:
        method = self.settings["method"]
        shown_as = {**self.settings, "method": getattr(method, "name", method)}
        if self._remembers:
            shown_as["first_step"] = "last"
        return ", ".join(f"{name}={value!r}" for name, value in shown_as.items())
