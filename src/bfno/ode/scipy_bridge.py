"""SciPy's solvers, for stiff problems and comparisons."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from bfno.ode.problem import Problem
from bfno.ode.solution import SolverError, Status
from bfno.ode.state import real_dtype

__all__ = ["ScipyProblem"]


@dataclass
class ScipyProblem(Problem):
    """A problem that `scipy.integrate.solve_ivp` solves forward.

    Attributes:
        settings: Keywords of `solve_ivp`.
        finite: Whether the last value of the field was.
    """

    settings: dict[str, Any] = field(default_factory=dict)
    finite: bool = field(default=True, init=False)

    def states(self, y0: Tensor, times: Tensor, slope: Tensor | None = None) -> Tensor:
        """Solve without a graph."""
        try:
            from scipy.integrate import solve_ivp
        except ImportError as error:
            message = "method 'scipy_solver' needs SciPy; install it with: pip install scipy"
            raise ValueError(message) from error
        if len(times) == 1:
            return y0.detach()[None]
        requested = times.detach().cpu().double().numpy()
        try:
            result = solve_ivp(
                lambda t, y: self._flat_slope(t, y, y0, at_start=t == requested[0]),
                (requested[0], requested[-1]),
                y0.detach().cpu().numpy().reshape(-1),
                t_eval=requested,
                **self.settings,
            )
        except ValueError as error:
            if self.finite:
                raise
            raise self._failure(str(error)) from error  # the message of implicit solvers
        if not result.success:
            raise self._failure(result.message)
        ys = torch.as_tensor(result.y.T, dtype=y0.dtype, device=y0.device).view(-1, *y0.shape)
        if not bool(torch.isfinite(ys).all()):  # which LSODA counts as success
            self.finite = False
            raise self._failure("the solution is not finite")
        return ys

    def _flat_slope(self, t: float, y: Any, like: Tensor, *, at_start: bool) -> Any:
        self.stats.forward_evaluations += 1
        state = torch.as_tensor(y, dtype=like.dtype, device=like.device).view(like.shape)
        time = torch.tensor(t, dtype=real_dtype(like.dtype), device=like.device)
        with torch.no_grad():
            slope = self.field(time, state)
        self.reached, self.finite = float(t), bool(torch.isfinite(slope).all())
        if at_start and not self.finite:  # on which SciPy's explicit solvers never return
            raise self._failure("the field is not finite at the start")
        return slope.cpu().numpy().reshape(-1)

    def _failure(self, reason: str) -> SolverError:
        """The error that says where and why SciPy gave up."""
        status = Status.STEP_UNDERFLOW if self.finite else Status.NON_FINITE
        where = f"scipy_solver stopped near t = {self.reached:.6g} ({reason.rstrip('.')})"
        return SolverError(status, where, self.stats)
