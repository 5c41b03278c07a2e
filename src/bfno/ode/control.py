"""Step sizes: error norms, the first step and the step-size rule."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bfno.ode.inputs import CONTROLLERS, read_norm

__all__ = [
    "FIRST_RATIOS",
    "Control",
    "Norm",
    "Ratios",
    "component_norm",
    "largest",
    "root_mean_square",
]

Ratios = tuple[float, float]
"""Error ratios of the last two accepted steps, the last one first."""
FIRST_RATIOS: Ratios = (1.0, 1.0)
"""Placeholders before there are any; they have no effect."""

Norm = Callable[[Tensor], Tensor | float]


@dataclass(frozen=True)
class Control:
    """Rule for the size of adaptive steps.

    A step is accepted if the norm of its error estimate, divided elementwise by
    `atol + rtol * max(|y0|, |y1|)`, is at most one.

    Attributes:
        rtol: Relative tolerance: a number, or a tensor that broadcasts to the state.
        atol: Absolute tolerance, likewise.
        first_step: Size of the first step, or None to estimate it from two evaluations.
        min_step: Steps of this size are accepted whatever their error.
        max_step: Steps are never larger.
        norm: Norm of a scaled error; None is the root mean square.
        safety: Share of the optimal step that is tried.
        growth: Largest factor by which a step may grow.
        shrink: Smallest factor by which a rejected step is scaled.
        coefficients: Weights of the present error (integral), its change (proportional) and the
            change of that (derivative) in the size of the next step; as (P, I, D).
    """

    rtol: Tensor | float
    atol: Tensor | float
    first_step: float | None = None
    min_step: float = 0.0
    max_step: float = math.inf
    norm: Norm | None = None
    safety: float = 0.9
    growth: float = 10.0
    shrink: float = 0.2
    coefficients: tuple[float, float, float] = CONTROLLERS["I"]

    def refuse_what_stands_still(self, y: Tensor, tolerance: Callable[[], Tensor]) -> None:
        """Refuse tolerances for which steps become too small to move a state.

        Only bfloat16 has so few digits. Measured on four equations: down to a thousandth of its
        precision errors are of its size; a tenth of that makes them ten times as large, a hundredth
        leaves the state where it began.

        Args:
            y: The state.
            tolerance: Gives the tolerance of each of its numbers.

        Raises:
            ValueError: If that of a number is too small for it.
        """
        if y.dtype != torch.bfloat16:
            return
        least = torch.finfo(y.dtype).eps / 1000
        still = tolerance() < least * y.abs()
        if bool(still.any()):
            largest = [float(torch.as_tensor(one).amax()) for one in (self.rtol, self.atol)]
            raise ValueError(
                f"rtol={largest[0]:.1g} and atol={largest[1]:.1g} take steps too small to move a "
                f"state of {float(y[still].abs().amax()):.3g} in bfloat16; use rtol=1e-3 and "
                "atol=1e-3, or a state in float32"
            )

    def error_ratio(self, error: Tensor, y0: Tensor, y1: Tensor) -> float:
        """Norm of a step's error in units of the tolerance; `error` is overwritten."""
        return self._measure(error.div_(self._scale(torch.maximum(y0.abs(), y1.abs()))))

    def tolerance(self, y: Tensor) -> Tensor:
        """The tolerance of each number of a state."""
        return self._scale(y.abs())

    def measure(self, scaled: Tensor) -> float:
        """Norm of a state that was divided by its tolerance."""
        return self._measure(scaled)

    def _scale(self, sizes: Tensor) -> Tensor:
        """The tolerance of each number, given its size."""
        if isinstance(self.rtol, Tensor) or isinstance(self.atol, Tensor):
            scale = sizes.mul_(self.rtol).add_(self.atol)
        else:
            scale = torch.add(self.atol, sizes, alpha=self.rtol)
        kind = torch.finfo(scale.dtype)
        if isinstance(self.atol, Tensor) or self.atol < kind.tiny * kind.eps:
            # If a number is zero, its tolerance may be zero too; a zero error there stays zero.
            scale = scale.clamp_(min=kind.tiny)
        return scale

    def next_size(
        self, size: float, ratio: float, order: int, past: Ratios = FIRST_RATIOS
    ) -> float:
        """Size of the step after one of `size` whose error ratio was `ratio`.

        A step that was accepted is never followed by a smaller one, a rejected one always, and by
        at least the margin of `safety`.

        Args:
            size: The step.
            ratio: Its error ratio.
            order: The power of the step size that the error estimate falls with.
            past: The error ratios of the accepted steps before it.
        """
        if not math.isfinite(ratio):
            return self.clamp(size * self.shrink)
        least = 1.0 if ratio < 1 else self.shrink
        if self.coefficients == CONTROLLERS["I"] or ratio == 0:
            return self.clamp(size * max(self._growth_after(ratio, order), least))
        most = self.growth if ratio <= 1 else self.safety
        ratios = zip(self.exponents(order), (ratio, *past), strict=True)
        power = sum(exponent * math.log(one) for exponent, one in ratios)
        # Bounded, because floats end at e^709.
        factor = self.safety * math.exp(min(power, 700.0))
        return self.clamp(size * min(max(factor, least), most))

    def exponents(self, order: int) -> tuple[float, float, float]:
        """Powers to which the error ratios of the last three steps are taken, the last one first.

        As in Söderlind, Digital filters in adaptive time-stepping, and in diffrax.
        """
        proportional, integral, derivative = self.coefficients
        sums = (
            -(proportional + integral + derivative),
            proportional + 2 * derivative,
            -derivative,
        )
        return sums[0] / order, sums[1] / order, sums[2] / order

    @staticmethod
    def remember(ratio: float, past: Ratios) -> Ratios:
        """The error ratios of the last two accepted steps after one more; zeros are not counted."""
        return (ratio or 1.0, past[0])

    def best_size(self, size: float, ratio: float, order: int) -> float:
        """Size that would have been right for a step of `size` with this error ratio."""
        return self.clamp(size * self._growth_after(ratio, order))

    def _growth_after(self, ratio: float, order: int) -> float:
        if ratio == 0:
            return self.growth
        return min(self.growth, self.safety / ratio ** (1 / order))

    def is_elementwise(self) -> bool:
        """Whether tolerances are tensors, which may differ between samples."""
        return isinstance(self.rtol, Tensor) or isinstance(self.atol, Tensor)

    def clamp(self, size: float) -> float:
        """Keep a step size, whose sign is the direction of time, between its bounds."""
        return math.copysign(min(max(abs(size), self.min_step), self.max_step), size)

    def first_size(
        self,
        evaluate: Callable[[float, Tensor], Tensor],
        y0: Tensor,
        slope: Tensor,
        order: int,
        limit: float = math.inf,
    ) -> float:
        """Estimate a first step, as in Hairer, Nørsett and Wanner, Solving ODEs I, II.4.

        Args:
            evaluate: The field, its time counted from the start in the direction of the solve.
            y0: State at the start.
            slope: Value of the field there.
            order: The power of the step size that the error estimate falls with.
            limit: How far ahead the field may be evaluated.
        """
        scale = self._scale(y0.abs())
        size_y, size_f = self._measure_both(y0 / scale, slope / scale)
        trial = self.trial_size(size_y, size_f, limit)
        if not trial > 0:  # an infinite slope, which the first step reports
            return 1e-6
        change = evaluate(trial, torch.add(y0, slope, alpha=trial)) - slope
        return self.size_after_trial(trial, size_f, self._measure(change / scale) / trial, order)

    @staticmethod
    def trial_size(size_y: float, size_f: float, limit: float) -> float:
        """Size of a trial for the first step, given the sizes of the state and its slope."""
        return min(1e-6 if size_y < 1e-5 or size_f < 1e-5 else 0.01 * size_y / size_f, limit)

    @staticmethod
    def size_after_trial(trial: float, size_f: float, bend: float, order: int) -> float:
        """The first step, given the size of the slope and its rate of change over a trial."""
        if size_f <= 1e-15 and bend <= 1e-15:
            size = max(1e-6, trial * 1e-3)
        else:
            size = (0.01 / max(size_f, bend)) ** (1 / order)
        estimate = min(100 * trial, size)
        return estimate if math.isfinite(estimate) and estimate > 0 else trial

    @staticmethod
    def moving_clock(size: float, start: float) -> float:
        """An estimated first step, at least large enough to move the time, as in SciPy."""
        return max(size, 10 * math.ulp(start))

    def _measure_both(self, one: Tensor, other: Tensor) -> list[float]:
        """Two norms, for which the host waits at most once."""
        if one.device.type == "cpu":
            return [self._measure(one), self._measure(other)]
        norms = [(self.norm or root_mean_square)(part) for part in (one, other)]
        if not all(isinstance(norm, Tensor) and norm.numel() == 1 for norm in norms):
            return [read_norm(norm) for norm in norms]
        return torch.stack([torch.as_tensor(norm).reshape(()) for norm in norms]).abs().tolist()

    def _measure(self, scaled: Tensor) -> float:
        if self.norm is not None:
            return read_norm(self.norm(scaled))
        return torch.linalg.vector_norm(scaled).item() / math.sqrt(max(scaled.numel(), 1))


def root_mean_square(values: Tensor) -> Tensor:
    """Euclidean norm divided by the root of the number of values; zero if there are none."""
    return torch.linalg.vector_norm(values) / math.sqrt(max(values.numel(), 1))


def component_norm(parts: Sequence[slice], ignore: Sequence[int] = ()) -> Norm:
    """Largest root mean square of the components of a concatenated state.

    Args:
        parts: Where each component lies along the last axis.
        ignore: Components that do not count.
    """
    counted = [part for index, part in enumerate(parts) if index not in ignore]

    def norm(scaled: Tensor) -> Tensor:
        return largest([root_mean_square(scaled[..., part]) for part in counted], scaled)

    return norm


def largest(sizes: Sequence[Tensor], like: Tensor) -> Tensor:
    """The largest of some sizes, zero if there are none; not-a-number counts as largest."""
    return torch.stack(list(sizes)).max() if sizes else like.new_zeros(())
