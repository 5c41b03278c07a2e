"""A continuous normalizing flow: samples move along an ODE and carry their density along."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from bfno.fields.interface import prepared, pull_back
from bfno.models.flows.interface import Encoding, Flow
from bfno.ode import Stats, solve
from bfno.ode.block import solver_settings

__all__ = ["PENALTIES", "ContinuousFlow"]

PENALTIES = ("kinetic", "jacobian")
"""Regularisers that can be integrated along the path."""


class ContinuousFlow(Flow):
    r"""Moves a sample by $z' = f(t, z)$ from $z(0) = x$ to the latent variable $z(T)$.

    The logarithm of the density changes by the divergence of the field along the path, so
    $\log p(x) = \log N(z(T)) + \int_0^T \mathrm{tr}(\partial f/\partial z)\, dt$. Sample, density
    and regularisers are solved together; one product of a noise vector ε with the Jacobian serves
    both the estimate $ε^\top (\partial f/\partial z) ε$ of the trace and the Jacobian's norm.

    The regularisers are means over the dimensions, not sums: half the squared speed, `kinetic`, and
    $\|ε^\top \partial f/\partial z\|^2$, `jacobian`. They exist only in training mode and do not
    influence the solver's steps.

    Args:
        field: `f(t, z)`; a method `pull_back` makes its Jacobian products fast.
        event_shape: Shape of one sample.
        trace: How the trace is found: from noise drawn once per call, `"gaussian"` or
            `"rademacher"` (signs), or `"exact"`, from one Jacobian product per dimension.
        penalties: Names of the regularisers, from `PENALTIES`.
        end_time: The end T of the interval.
        learn_end_time: Whether T is trained; its square root is the parameter.
        solver: Arguments of `solve` in training mode.
        test_solver: Arguments of `solve` in evaluation mode; None means a tolerance of 1e-5.

    References:
        Grathwohl et al., FFJORD, ICLR 2019; Finlay et al., How to Train Your Neural ODE, ICML 2020.

    Example:
        >>> from bfno.fields import MLPField
        >>> flow = ContinuousFlow(MLPField(2, 16), (2,), trace="exact").eval()
        >>> flow.log_prob(torch.zeros(5, 2)).shape, flow.sample(3).shape
        (torch.Size([5]), torch.Size([3, 2]))
    """

    def __init__(
        self,
        field: nn.Module,
        event_shape: tuple[int, ...],
        *,
        trace: Literal["gaussian", "rademacher", "exact"] = "gaussian",
        penalties: tuple[str, ...] = (),
        end_time: float = 1.0,
        learn_end_time: bool = False,
        solver: Mapping[str, Any] | None = None,
        test_solver: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(event_shape)
        _check("trace", trace, ("gaussian", "rademacher", "exact"))
        for name in penalties:
            _check("a penalty", name, PENALTIES)
        if not 0 < end_time < math.inf:
            raise ValueError(f"end_time must be positive, got {end_time}")
        self.field, self.trace, self.penalties = field, trace, tuple(penalties)
        root = math.sqrt(end_time)
        self.sqrt_end_time = nn.Parameter(torch.tensor(root)) if learn_end_time else root
        self._solvers = {
            True: _settings(solver or {}),
            False: _settings(test_solver or {"rtol": 1e-5, "atol": 1e-5}),
        }

    def solve_with(self, **solver: Any) -> None:
        """Change how the ODE is solved in the current mode, training or evaluation.

        Args:
            **solver: Arguments of `solve`.
        """
        self._solvers[self.training] = _settings(solver)

    def encode(self, x: Tensor) -> Encoding:
        self.check(x)
        penalties = self.penalties if self.training else ()
        if not len(x):
            return self._of_nothing(x, penalties)
        motion = _Motion(prepared(self.field, x), self._noise(x), penalties)
        start = (x, *(x.new_zeros(len(x)) for _ in range(1 + len(penalties))))
        ignored = tuple(range(2, len(start)))
        settings = self._solvers[self.training]
        solution = solve(motion, start, self._times(x), **settings, ignore=ignored)
        self.solved = solution.stats
        z, log_det, *found = (part[-1] for part in solution.ys)
        return Encoding(z.flatten(1), log_det, dict(zip(penalties, found, strict=True)))

    def _of_nothing(self, x: Tensor, penalties: tuple[str, ...]) -> Encoding:
        """The encoding of an empty batch, for which there is nothing to solve."""
        self.solved = Stats()
        none = x.new_zeros(0)
        return Encoding(x.flatten(1), none, dict.fromkeys(penalties, none))

    def decode(self, latent: Tensor) -> Tensor:
        z = latent.view(len(latent), *self.event_shape)
        return self._solve_back(z, self._times(z).flip(0))[-1]

    def trajectory(self, latent: Tensor, shares: Tensor) -> Tensor:
        """Positions of samples on the path from their latent variables to the final samples.

        Args:
            latent: `(batch, dimensions)`.
            shares: Increasing shares of the path; 0 is the latent variable, 1 the sample.

        Returns:
            Positions, `(shares, batch, *event_shape)`.
        """
        z = latent.view(len(latent), *self.event_shape)
        first, end = self._times(z)
        shares = shares.to(end)
        is_late = bool((shares[:1] != 0).any())
        start = shares.new_zeros(int(is_late))  # the start of the path
        way = self._solve_back(z, end + (first - end) * torch.cat((start, shares)))
        return way[len(start) :]

    def _solve_back(self, z: Tensor, times: Tensor) -> Tensor:
        if not len(z) or len(times) < 2:  # nothing to solve
            self.solved = Stats()
            return z.expand(len(times), *z.shape)
        solution = solve(prepared(self.field, z), z, times, **self._solvers[self.training])
        self.solved = solution.stats
        return solution.ys

    def _times(self, x: Tensor) -> Tensor:
        """Start and end of the interval, in double precision where the device has it.

        They are on the samples' device only if the end is trained: a solve needs their values.
        """
        root = self.sqrt_end_time
        if not isinstance(root, Tensor):
            return torch.tensor([0.0, root], dtype=torch.float64).square()
        wide = torch.float32 if x.device.type == "mps" else torch.float64
        end = root.to(x.device, wide).square()
        return torch.stack((torch.zeros_like(end), end))

    def _noise(self, x: Tensor) -> Tensor | None:
        if self.trace == "exact":
            return None
        if self.trace == "gaussian":
            return torch.randn_like(x)
        return torch.randint(0, 2, x.shape, device=x.device).to(x.dtype).mul_(2).sub_(1)

    def extra_repr(self) -> str:
        return f"trace={self.trace!r}, penalties={self.penalties}"


class _Motion(nn.Module):
    """The joint rate of change of a sample, its density and the regularisers."""

    def __init__(self, field: Any, noise: Tensor | None, penalties: tuple[str, ...]) -> None:
        super().__init__()
        self.field, self.noise, self.penalties = field, noise, penalties

    def forward(self, t: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        z = state[0]
        if self.noise is None:
            slope, divergence, jacobian = _exact(self.field, t, z)
        else:
            slope, pulled = pull_back(self.field, t, z, self.noise)
            divergence = (pulled * self.noise).flatten(1).sum(1)
            jacobian = pulled.square().flatten(1).mean(1) if self.penalties else divergence
        found = {"jacobian": jacobian}
        if "kinetic" in self.penalties:
            found["kinetic"] = 0.5 * slope.square().flatten(1).mean(1)
        return slope, divergence, *(found[name] for name in self.penalties)


def _exact(field: Any, t: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The field, its divergence and the mean over dimensions of its Jacobian's squared norm."""
    size = z[0].numel()
    # One copy of the batch for each dimension, pulled back along that dimension.
    basis = torch.eye(size, dtype=z.dtype, device=z.device).view(size, 1, *z.shape[1:])
    cotangents = basis.expand(size, *z.shape).flatten(0, 1)
    copies = z.expand(size, *z.shape).flatten(0, 1)
    slope, rows = pull_back(field, t, copies, cotangents)
    divergence = (rows * cotangents).reshape(size, len(z), -1).sum((0, 2))
    jacobian = rows.square().reshape(size, len(z), -1).sum((0, 2)) / size
    return slope[: len(z)], divergence, jacobian


def _settings(solver: Mapping[str, Any]) -> dict[str, Any]:
    filled = {"method": "dopri5", "gradient": "checkpoint", "rtol": 1e-3, "atol": 1e-3, **solver}
    return solver_settings(**filled)


def _check(what: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"{what} must be one of {', '.join(known)}, got {value!r}")
