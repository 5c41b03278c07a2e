"""An integrator from another library, so that dynamics are tested apart from our own."""

import numpy as np
import torch
from scipy.integrate import solve_ivp

# The oracle's relative and absolute error; results agree to about a hundred times this.
PRECISION = 1e-12
TOLERANCE = 1e-10


def trajectory(dynamics, x, times):
    """States of the dynamics that start from the input `x`, one row a time."""
    with torch.no_grad():
        y0 = dynamics.initial(x)
    return integrate(dynamics, y0, times)


def integrate(rates, y0, times):
    """Solve `y' = rates(t, y)` and return the states, one row a time."""

    def flat_rates(t, y):
        with torch.no_grad():
            return rates(t, torch.from_numpy(y).view(y0.shape)).numpy().ravel()

    times = np.asarray(times, dtype=float)
    span = (times[0], times[-1])
    solution = solve_ivp(
        flat_rates, span, y0.numpy().ravel(), "DOP853", times, rtol=PRECISION, atol=PRECISION
    )
    assert solution.success
    return torch.from_numpy(np.ascontiguousarray(solution.y.T)).view(len(times), *y0.shape)
