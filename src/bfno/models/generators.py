"""From the initial states of series to their states at later times."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from bfno.ode import METHODS, Stats, solve

__all__ = ["CoupledGenerator", "Generator"]


class Generator(nn.Module):
    """Solves an equation from the first time of each series, every trajectory on its own times.

    Args:
        field: Rates of trajectories, `(trajectories, size)`.
        augment: Number of zeros appended to an initial state.
        method: Name of a Runge–Kutta method.
        rtol: Relative tolerance.
        atol: Absolute tolerance.
        gradient: How to differentiate, see `solve`.
        **options: Options of `solve`.

    Attributes:
        couples_series: Whether trajectories depend on each other.
        stats: What the last call cost.

    Shape:
        Initial states `(samples, batch, latents)` and ascending times `(batch, time)`, the first
        one that of the initial states, to `(samples, batch, time, latents + augment)`.

    Example:
        >>> decay = Generator(lambda t, y: -y, augment=1)
        >>> times = torch.tensor([[0.0, 1.0], [0.0, 3.0]])
        >>> decay(torch.ones(1, 2, 1), times).shape
        torch.Size([1, 2, 2, 2])
    """

    couples_series = False

    def __init__(
        self,
        field: Any,
        *,
        augment: int = 0,
        method: str = "dopri5",
        rtol: float = 1e-3,
        atol: float = 1e-4,
        gradient: str = "checkpoint",
        **options: Any,
    ) -> None:
        super().__init__()
        if getattr(field, "couples_series", False) and not self.couples_series:
            raise ValueError(
                "a field that couples series needs all of them at the same time; use "
                "CoupledGenerator"
            )
        self.field, self.augment = field, augment
        self.settings = {
            "method": method,
            "rtol": rtol,
            "atol": atol,
            "gradient": gradient,
            **options,
        }
        self.stats = Stats()

    def forward(self, z0: Tensor, times: Tensor) -> Tensor:
        z0 = nn.functional.pad(z0, (0, self.augment))
        if times.shape[1] == 1:
            # A solver wants two times; the second one costs no way.
            return self(z0[..., : z0.shape[-1] - self.augment], times.expand(-1, 2))[:, :, :1]
        return self._trajectories(z0, times)

    def _trajectories(self, z0: Tensor, times: Tensor) -> Tensor:
        ys = self._solve(self.field, z0.flatten(0, 1), times.repeat(len(z0), 1))
        return ys.unflatten(0, z0.shape[:2])

    def _solve(self, field: Any, rows: Tensor, ts: Tensor) -> Tensor:
        solution = solve(field, rows, ts, **self.settings)
        self.stats = solution.stats
        return solution.ys


class CoupledGenerator(Generator):
    """Solves an equation of all trajectories together.

    Trajectories that depend on each other have to be at the same time, so all of them start at the
    first time of the batch and go on to its last one.

    Args:
        field: Rates of all trajectories, `(samples, batch, size)`.
        **settings: As for `Generator`.

    Shape:
        As for `Generator`; the times of each series need not begin at the first of the batch.
    """

    couples_series = True

    def __init__(self, field: Any, **settings: Any) -> None:
        super().__init__(field, **settings)
        adaptive = METHODS[self.settings["method"]].adaptive
        self._adaptive = adaptive and self.settings.get("step") is None

    def _trajectories(self, z0: Tensor, times: Tensor) -> Tensor:
        samples, batch, size = z0.shape

        def rates(t: Tensor, rows: Tensor) -> Tensor:
            return self.field(t[0], rows.view(samples, batch, size)).flatten(0, 1)

        ys = self._solve_together(rates, z0.flatten(0, 1), times.repeat(samples, 1))
        return ys.unflatten(0, (samples, batch))

    def _solve_together(self, rates: Any, rows: Tensor, ts: Tensor) -> Tensor:
        """Solve with one clock for all; rows beyond those of `ts` are carried along.

        Args:
            rates: Rates of all rows.
            rows: `(trajectories + further, size)`.
            ts: `(trajectories, time)`.

        Returns:
            `(trajectories, time, size)`.
        """
        wanted, spare, place = self._shared_times(ts)
        further = spare.expand(len(rows) - len(ts), -1)
        ys = self._solve(rates, rows, torch.cat((wanted, further)))[: len(ts)]
        return ys.gather(1, place.unsqueeze(-1).expand(-1, -1, rows.shape[-1]))

    def _shared_times(self, ts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rows of times that begin and end together, one more such row, and where `ts` are."""
        if self._adaptive:
            # Adaptive steps are the same whatever times each row wants in between.
            first, last = ts.min().expand(len(ts), 1), ts.max().expand(len(ts), 1)
            place = torch.arange(1, ts.shape[1] + 1, device=ts.device).expand_as(ts)
            spare = torch.cat((first[0], last[0].expand(ts.shape[1] + 1)))
            return torch.cat((first, ts, last), dim=1), spare, place
        union, place = ts.unique(return_inverse=True)
        if len(union) == 1:
            union = union.expand(2)
        return union.expand(len(ts), -1), union, place
