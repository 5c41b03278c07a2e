"""Generators: from the initial latent states of series to their states at later times."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from bfno.ode import Stats, solve
from bfno.ode.block import solver_settings
from bfno.ode.tableaus import find_method

__all__ = ["ACEGenerator", "CoupledGenerator", "LatentGenerator", "correlation"]

_SMALLEST_VARIANCE = 1e-12


class LatentGenerator(nn.Module):
    """Solves an equation from the first time of each series, every trajectory at its own times.

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
        stats: Cost of the last call.

    Shape:
        Initial states `(samples, batch, latents)` and ascending times `(batch, time)`, the first
        one that of the initial states, to `(samples, batch, time, latents + augment)`.

    Example:
        >>> decay = LatentGenerator(lambda t, y: -y, augment=1)
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
        tolerances = {"rtol": rtol, "atol": atol}
        self.settings = solver_settings(method, gradient, **tolerances, **options)
        self.stats = Stats()

    def forward(self, z0: Tensor, times: Tensor) -> Tensor:
        z0 = nn.functional.pad(z0, (0, self.augment))
        if times.shape[1] == 1:
            # A solver needs two times; solving to the same time again costs nothing.
            return self(z0[..., : z0.shape[-1] - self.augment], times.expand(-1, 2))[:, :, :1]
        return self._trajectories(z0, times)

    def kinetic(self, path: Tensor, times: Tensor) -> Tensor:
        """Half the mean squared rate of change, at a random time of each series.

        Small rates mean smooth trajectories, which take a solver few steps.

        Args:
            path: States, `(samples, batch, time, size)`.
            times: Their times, `(batch, time)`.

        Returns:
            A scalar: one evaluation of the field estimates the mean over all times.

        Raises:
            ValueError: If trajectories depend on each other.
        """
        if self.couples_series:
            raise ValueError("trajectories that depend on each other have no separate rates")
        series = torch.arange(len(times), device=times.device)
        row = torch.randint(times.shape[1], (len(times),), device=times.device)
        states, moments = path[:, series, row], times[series, row].repeat(len(path))
        return 0.5 * self.field(moments, states.flatten(0, 1)).square().mean()

    def _trajectories(self, z0: Tensor, times: Tensor) -> Tensor:
        samples = len(z0)

        def rates(t: Tensor, y: Tensor) -> Tensor:
            moments = t.repeat_interleave(samples) if t.dim() else t
            return self.field(moments, y.flatten(0, 1)).view_as(y)

        # Samples of a series share its times, so they are next to each other.
        return self._solve(rates, z0.transpose(0, 1).contiguous(), times).permute(2, 0, 1, 3)

    def _solve(self, rates: Any, rows: Tensor, ts: Tensor) -> Tensor:
        """States at each row's times, `(rows, time, samples, size)`."""
        solution = solve(rates, rows, ts, **self.settings)
        self.stats = solution.stats
        return solution.ys


class CoupledGenerator(LatentGenerator):
    """Solves one equation of all trajectories together.

    Trajectories that depend on each other have to move through the same times, so all of them start
    at the first time of the batch and end at the last.

    Args:
        field: Rates of all trajectories, `(samples, batch, size)`.
        **settings: As for `LatentGenerator`.

    Shape:
        As for `LatentGenerator`; the times of each series need not begin at the first of the batch.

    Example:
        >>> meet = CoupledGenerator(lambda t, y: y.mean(1, keepdim=True) - y)
        >>> times = torch.tensor([[0.0, 1.0], [0.5, 3.0]])
        >>> meet(torch.randn(1, 2, 3), times).shape
        torch.Size([1, 2, 2, 3])
    """

    couples_series = True

    def __init__(self, field: Any, **settings: Any) -> None:
        super().__init__(field, **settings)
        adaptive = find_method(self.settings["method"]).adaptive
        self._adaptive = adaptive and self.settings.get("step") is None

    def _trajectories(self, z0: Tensor, times: Tensor) -> Tensor:
        def rates(t: Tensor, rows: Tensor) -> Tensor:
            moment = t[0] if t.dim() else t
            return self.field(moment, rows.transpose(0, 1)).transpose(0, 1).contiguous()

        return self._solve_together(rates, z0.transpose(0, 1).contiguous(), times)

    def _solve_together(self, rates: Any, rows: Tensor, times: Tensor) -> Tensor:
        """Solve with one clock for all.

        Args:
            rates: Rates of all rows.
            rows: One row per series, and then rows that are solved along with them but not
                returned, `(rows, samples, size)`.
            times: `(batch, time)`.

        Returns:
            States of the series, `(samples, batch, time, size)`.
        """
        batch, count = times.shape
        further = len(rows) - batch
        if self._adaptive:
            # Steps do not depend on the times that a row needs between the first and the last.
            first, last = times.min().expand(len(rows), 1), times.max().expand(len(rows), 1)
            between = torch.cat((times, last[batch:].expand(further, count)))
            ys = self._solve(rates, rows, torch.cat((first, between, last), dim=1))[:batch, 1:-1]
        else:
            union, place = times.unique(return_inverse=True)
            union = union if len(union) > 1 else union.expand(2)
            ys = self._solve(rates, rows, union.expand(len(rows), -1))
            ys = ys[torch.arange(batch, device=place.device)[:, None], place]
        return ys.permute(2, 0, 1, 3)


class ACEGenerator(CoupledGenerator):
    """Moves states `z` and the attention `a` between their coordinates together (ACE).

    For each latent sample, where `z` has one row per series and `a` one row per coordinate,

        z̃ = z softmax(a)ᵀ,    z' = f(z̃),    a' = z̃ᵀ g(z̃) / batch,

    where the softmax makes every row of `a` sum to one. The attention starts as the correlation
    of the coordinates over the batch, and is not read out. Every series therefore depends on the
    others of its batch.

    Args:
        field: The network `f` of states, `(..., size)` to the same.
        attention_field: The network `g`, of the same shape. Only for the variant `own`.
        variant: `own` as above. `public_code` takes `a` without the softmax and `f` for `g`, as the
            published code does. That code also draws a new random map from `g(z̃)` to `a'` at every
            call, which cannot be trained; both variants use the mean above instead.
        **settings: As for `LatentGenerator`.

    References:
        Jhin et al., ACE-NODE: Attentive Co-Evolving Neural Ordinary Differential Equations, 2021.

    Example:
        >>> generator = ACEGenerator(nn.Linear(3, 3), nn.Linear(3, 3))
        >>> generator(torch.randn(1, 2, 3), torch.tensor([[0.0, 1.0], [0.5, 3.0]])).shape
        torch.Size([1, 2, 2, 3])
    """

    def __init__(
        self,
        field: nn.Module,
        attention_field: nn.Module | None = None,
        *,
        variant: str = "own",
        **settings: Any,
    ) -> None:
        super().__init__(field, **settings)
        if variant not in ("own", "public_code"):
            raise ValueError(f"variant must be own or public_code, got {variant!r}")
        if (variant == "own") != (attention_field is not None):
            raise ValueError("attention_field belongs to variant='own' alone, which needs it")
        self.variant, self.attention_field = variant, attention_field

    def rates(self, z: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
        """Rates of states `(samples, batch, size)` and attentions `(samples, size, size)`."""
        weights = a.softmax(-1) if self.variant == "own" else a
        attended = z @ weights.mT
        slope = self.field(attended)
        other = slope if self.attention_field is None else self.attention_field(attended)
        return slope, attended.mT @ other / z.shape[1]

    def _trajectories(self, z0: Tensor, times: Tensor) -> Tensor:
        batch = z0.shape[1]

        def rates(t: Tensor, rows: Tensor) -> Tensor:
            z, a = rows[:batch].transpose(0, 1), rows[batch:].transpose(0, 1)
            return torch.cat(self.rates(z, a), dim=1).transpose(0, 1).contiguous()

        # States and attentions have rows of the same size, so they fit into one tensor.
        rows = torch.cat((z0, correlation(z0)), dim=1).transpose(0, 1).contiguous()
        return self._solve_together(rates, rows, times)


def correlation(z: Tensor) -> Tensor:
    """Correlation of coordinates over the batch.

    A coordinate that is constant over the batch, as in any batch of one, has zero correlation with
    all, even with itself.

    Args:
        z: `(samples, batch, size)`.

    Returns:
        `(samples, size, size)`.

    Example:
        >>> correlation(torch.tensor([[[1.0, 5.0, 2.0], [3.0, 1.0, 2.0]]])).round(decimals=3)
        tensor([[[ 1., -1.,  0.],
                 [-1.,  1.,  0.],
                 [ 0.,  0.,  0.]]]...)
    """
    centred = z - z.mean(1, keepdim=True)
    # The square root has no slope at a variance of zero; this small addition gives it one.
    deviation = (centred.square().mean(1, keepdim=True) + _SMALLEST_VARIANCE).sqrt()
    normalised = centred / deviation
    return normalised.mT @ normalised / z.shape[1]
