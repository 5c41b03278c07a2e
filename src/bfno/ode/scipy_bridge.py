"""SciPy's solvers, for stiff problems and comparisons."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from bfno.ode.problem import Problem
from bfno.ode.state import real_dtype

__all__ = ["ScipyProblem"]


@dataclass
class ScipyProblem(Problem):
    """A problem that `scipy.integrate.solve_ivp` solves forward.

    Attributes:
        settings: Keywords of `solve_ivp`.
    """

    settings: dict[str, Any] = field(default_factory=dict)

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
        result = solve_ivp(
            lambda t, y: self._flat_slope(t, y, y0),
            (requested[0], requested[-1]),
            y0.detach().cpu().numpy().reshape(-1),
            t_eval=requested,
            **self.settings,
        )
        if not result.success:
            raise RuntimeError(f"scipy_solver stopped at t = {result.t[-1]:.6g}: {result.message}")
        return torch.as_tensor(result.y.T, dtype=y0.dtype, device=y0.device).view(-1, *y0.shape)

    def _flat_slope(self, t: float, y: Any, like: Tensor) -> Any:
        self.stats.forward_evaluations += 1
        state = torch.as_tensor(y, dtype=like.dtype, device=like.device).view(like.shape)
        with torch.no_grad():
            return (
                self.field(torch.tensor(t, dtype=real_dtype(like.dtype), device=like.device), state)
                .cpu()
                .numpy()
                .reshape(-1)
            )
