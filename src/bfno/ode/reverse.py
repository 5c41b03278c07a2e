"""The exact gradient of Runge–Kutta steps, one evaluation at a time.

With stage inputs `Y_i`, slopes `k_i = f(t_i, Y_i)` and a gradient λ at the end of a step of size h,

    κ_i = h (b_i λ + Σ_{m>i} a_mi η_m + Σ_j p_i(θ_j) g_j),    η_i = (∂f/∂y)ᵀ κ_i,

where `g_j` are gradients of dense output inside the step; the gradient at the start is
`λ + Σ_j g_j + Σ_i η_i`. Only one evaluation's graph exists at any time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from bfno.ode.march import TakenStep
from bfno.ode.solution import Stats
from bfno.ode.step import Field, clock_dtype, combine, dense_matrix
from bfno.ode.tableaus import Tableau

__all__ = ["Reverser"]


SMALL_STATE = 1 << 14
"""Numbers in a state up to which a step is pulled back as a whole.

For small states the calls of autograd's engine are what takes time: one a step instead of one an
evaluation. Large states are pulled back one evaluation at a time, which saves memory.
"""


class _Pulled(NamedTuple):
    """One stage of the backward pass: its slope and gradients with respect to slope and time."""

    stage: int
    slope: Tensor
    cotangent: Tensor
    time: Tensor | float


class _Dense(NamedTuple):
    """Gradients of dense output inside a step.

    Attributes:
        thetas: Share of the step at which each output lies.
        gradients: Gradient of each output, `(outputs, features)`.
        samples: Sample of each output, or None if an output is a whole state.
    """

    thetas: Tensor
    gradients: Tensor
    samples: Tensor | None

    def add_to(self, state: Tensor) -> Tensor:
        """Add the gradients to the one of the state at the start of the step."""
        if self.samples is None:
            return state + self.gradients.sum(0).view(state.shape)
        rows = state.reshape(len(state), -1)
        return rows.index_add(0, self.samples, self.gradients).view(state.shape)


class Reverser:
    """Pulls gradients back through accepted steps, the last one first.

    Args:
        field: The field.
        tableau: The method that took the steps.
        parameters: Tensors whose gradients are summed up.
        times: Requested times, or a clock for every sample.
        stats: Where evaluations are counted.
        wants_times: Whether gradients with respect to the times are needed.
    """

    def __init__(
        self,
        field: Field,
        tableau: Tableau,
        parameters: Sequence[Tensor],
        times: Tensor,
        stats: Stats,
        *,
        wants_times: bool,
    ) -> None:
        self._field, self._tableau, self._stats = field, tableau, stats
        self._parameters = list(parameters)
        self._times, self._wants_times = times, wants_times
        self._sums = [torch.zeros_like(parameter) for parameter in self._parameters]
        self._used: set[int] = set()
        self._recipes: list[tuple[int, Tensor | None]] = []
        self.time_gradient = torch.zeros_like(times, dtype=clock_dtype(times.device))

    def parameter_gradients(self) -> list[Tensor | None]:
        """Gradients so far, None for parameters that the field did not use."""
        return [total if i in self._used else None for i, total in enumerate(self._sums)]

    def pull_back(self, step: TakenStep, gradient: Tensor, outputs: Tensor) -> Tensor:
        """Turn the gradient at the end of a step into the one at its start.

        Args:
            step: The step.
            gradient: Gradient of everything after the step with respect to its end.
            outputs: Gradients of all requested states.
        """
        for index in step.served.at_end:
            gradient = gradient + outputs[index]
        dense = self._dense(step, outputs)
        if dense is None and not self._wants_times and gradient.numel() <= SMALL_STATE:
            return self._pull_whole(step, gradient)
        pulled, total = self._pull_stages(step, gradient, dense)
        if dense is not None:
            total = dense.add_to(total)
        if self._wants_times:
            self._add_time_gradients(step, pulled, dense)
        return total

    def _pull_whole(self, step: TakenStep, gradient: Tensor) -> Tensor:
        """Record the whole step once more and pull the gradient back through it."""
        size, tableau = step.end.value - step.start.value, self._tableau
        count = len(tableau.stages) - tableau.reuses_last_stage
        self._stats.backward_evaluations += count
        with torch.enable_grad():
            y, slopes = step.inputs[0].detach().requires_grad_(), []
            for stage in range(count):
                point = combine(y, slopes, tableau.stages[stage], size)
                slopes.append(self._field(step.times[stage], point))
            y1 = combine(y, slopes, tableau.weights, size)
        state, *others = torch.autograd.grad(
            y1, (y, *self._parameters), gradient, allow_unused=True
        )
        self._add_parameters(others)
        return state

    def _add_parameters(self, gradients: Sequence[Tensor | None]) -> None:
        used = {index: part for index, part in enumerate(gradients) if part is not None}
        if used:
            sums, added = [self._sums[index] for index in used], list(used.values())
            # PyTorch has no public name for adding many tensors in one call.
            torch._foreach_add_(sums, added)  # pyright: ignore[reportPrivateImportUsage]
            self._used.update(used)

    def _pull_stages(
        self, step: TakenStep, gradient: Tensor, dense: _Dense | None
    ) -> tuple[list[_Pulled], Tensor]:
        size, shape = step.end.value - step.start.value, gradient.shape
        extra = None if dense is None else self._spread(dense, gradient)
        # Row 0 is λ; the others are η of the stages, in the order in which they are found.
        rows = gradient.new_zeros(len(step.inputs) + 1, gradient.numel())
        rows[0] = gradient.reshape(-1)
        pulled = []
        self._recipes = self._recipes or self._make_recipes(gradient)
        for found, (stage, weights) in enumerate(self._recipes, start=1):
            if weights is None and extra is None:
                continue
            cotangent = rows[0] * 0 if weights is None else torch.mv(rows[:found].T, weights)
            if extra is not None:
                cotangent = cotangent + extra[stage]
            cotangent = cotangent.mul_(size)
            slope, state, time = self._pull_evaluation(
                step.times[stage], step.inputs[stage], cotangent.view(shape)
            )
            if state is not None:
                rows[found] = state.reshape(-1)
            pulled.append(_Pulled(stage, slope.reshape(-1), cotangent, time))
        return pulled, rows.sum(0).view(shape)

    def _make_recipes(self, like: Tensor) -> list[tuple[int, Tensor | None]]:
        """Stages from last to first, each with its weights of the rows found before it."""
        stages, recipes = self._tableau.stages, []
        for stage in reversed(range(len(stages))):
            later = [stages[m][stage] for m in reversed(range(stage + 1, len(stages)))]
            weights = [self._tableau.weights[stage], *later]
            recipes.append((stage, like.new_tensor(weights) if any(weights) else None))
        return recipes

    def _pull_evaluation(
        self, time: Tensor, point: Tensor, cotangent: Tensor
    ) -> tuple[Tensor, Tensor | None, Tensor | float]:
        """Evaluate the field again and pull a gradient back through it."""
        self._stats.backward_evaluations += 1
        with torch.enable_grad():
            point = point.detach().requires_grad_()
            if self._wants_times:
                time = time.detach().requires_grad_()
            slope = self._field(time, point)
        if not slope.requires_grad:
            return slope, None, 0.0
        wanted = (point, *self._parameters, *((time,) if self._wants_times else ()))
        state, *others = torch.autograd.grad(slope, wanted, cotangent, allow_unused=True)
        last = others.pop() if self._wants_times else None
        self._add_parameters(others)
        return slope.detach(), state, 0.0 if last is None else last

    def _dense(self, step: TakenStep, outputs: Tensor) -> _Dense | None:
        size = step.end.value - step.start.value
        if step.served.rows is not None:
            samples, columns = step.served.rows
            if not len(samples):
                return None
            thetas = (self._times[samples, columns] - step.start.value) / size
            return _Dense(thetas, outputs[samples, columns].reshape(len(samples), -1), samples)
        if not step.served.inside:
            return None
        inside = list(step.served.inside)
        thetas = (self._times[inside].to(clock_dtype(outputs.device)) - step.start.value) / size
        return _Dense(thetas, outputs[inside].reshape(len(inside), -1), None)

    def _spread(self, dense: _Dense, like: Tensor) -> Tensor:
        """`Σ_j p_i(θ_j) g_j` for every stage i, flattened."""
        weights = dense_matrix(self._tableau, dense.thetas).to(like.dtype)
        if dense.samples is None:
            return weights.T @ dense.gradients
        spread = like.new_zeros(weights.shape[1], len(like), dense.gradients.shape[1])
        spread.index_add_(1, dense.samples, weights.T.unsqueeze(-1) * dense.gradients)
        return spread.flatten(1)

    def _add_time_gradients(
        self, step: TakenStep, pulled: list[_Pulled], dense: _Dense | None
    ) -> None:
        size = step.end.value - step.start.value
        thetas = None if dense is None else self._theta_gradients(dense, pulled) * size
        if step.served.rows is not None:
            if thetas is not None:  # step boundaries are fixed on the clock
                self.time_gradient[step.served.rows] += thetas / size
            return
        start = sum(one.time for one in pulled)
        moved = sum(self._tableau.nodes[one.stage] * one.time for one in pulled)
        moved = moved + sum(one.cotangent @ one.slope for one in pulled) / size
        if dense is not None and thetas is not None:
            self.time_gradient[list(step.served.inside)] += thetas / size
            start = start - thetas.sum() / size
            moved = moved - (dense.thetas * thetas).sum() / size
        self.time_gradient[step.start.anchor] += start - moved
        self.time_gradient[step.end.anchor] += moved

    def _theta_gradients(self, dense: _Dense, pulled: list[_Pulled]) -> Tensor:
        """Gradient with respect to each θ, per unit of step size."""
        slopes = {one.stage: one.slope for one in pulled}
        weights = dense_matrix(self._tableau, dense.thetas, slope=True)
        total = torch.zeros_like(dense.thetas)
        for stage, slope in slopes.items():
            values = slope
            if dense.samples is not None:
                values = slope.view(-1, dense.gradients.shape[1])[dense.samples]
            total = total + weights[:, stage] * (dense.gradients * values).sum(-1)
        return total
