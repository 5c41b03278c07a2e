"""Fixed Runge–Kutta steps over a different interval for every sample, recorded by plain autograd.

`solve` is made for long intervals and many requested times. A recurrent model instead asks for a
short interval between every two of its updates, where everything around the steps costs more than
the steps themselves.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bfno.ode.evaluate import Field
from bfno.ode.state import real_dtype
from bfno.ode.step import RowSums, take_stages
from bfno.ode.tableaus import Tableau, find_explicit

__all__ = ["advance", "take_step"]


def advance(
    field: Field,
    y: Tensor,
    start: Tensor,
    gap: Tensor,
    *,
    method: str | Tableau = "midpoint",
    steps: int | Tensor = 1,
) -> Tensor:
    """Move every sample over its own interval in equal steps.

    A sample that has taken all its steps stands still, so its result does not depend on the others.

    Args:
        field: The derivative, called with one time per sample.
        y: States, `(batch, ...)`.
        start: Where each interval begins, `(batch,)`.
        gap: Length of each interval, `(batch,)`; negative values go back in time.
        method: An explicit Runge–Kutta method: its name, see `METHODS`, or its tableau.
        steps: Number of steps, the same for all or one per sample, `(batch,)`.

    Raises:
        ValueError: If shapes do not fit or an interval has no steps.

    Example:
        >>> y = torch.ones(2, 1)
        >>> gap = torch.tensor([0.0, 1.0])
        >>> advance(lambda t, y: -y, y, torch.zeros(2), gap, method="euler", steps=2)
        tensor([[1.0000],
                [0.2500]]...)
    """
    tableau = find_explicit(method, "advance")
    counts = torch.as_tensor(steps, device=y.device).expand(len(y))
    _check(y, start, gap, counts)
    kind = real_dtype(y.dtype)
    first, size = start.to(kind), (gap / counts.clamp(min=1)).to(kind)
    fewest, most = (0, 0) if len(y) == 0 else torch.stack(counts.aminmax()).tolist()
    for number in range(int(most)):
        moving = size if number < fewest else size.where(number < counts, 0.0)
        y = take_step(field, tableau, y, (torch.add(first, size, alpha=number), moving), moving)
    return y


def take_step(
    field: Field, tableau: Tableau, y: Tensor, clock: tuple[Tensor, Tensor], size: Tensor
) -> Tensor:
    """Take one step.

    Args:
        field: The derivative.
        tableau: The method.
        y: States, `(batch, ...)`.
        clock: The time at the start of the step and its length, as the field sees them.
        size: Factor of the slopes, `(batch,)`: the step's length, unless the clock has its own
            pace.
    """
    time, length = clock
    tableau = tableau.without_end_stage  # no error estimate is needed
    sums = RowSums(tableau)
    sums.begin(y, size)
    times = [torch.add(time, length, alpha=node) if node else time for node in tableau.nodes]
    return take_stages(field, times, sums)


def _check(y: Tensor, start: Tensor, gap: Tensor, counts: Tensor) -> None:
    if y.dim() == 0 or start.shape != y.shape[:1] or gap.shape != y.shape[:1]:
        raise ValueError(
            f"start and gap must hold one value per sample, got shapes {tuple(start.shape)} and "
            f"{tuple(gap.shape)} for a state of shape {tuple(y.shape)}"
        )
    if bool(((counts < 1) & (gap != 0)).any()):
        raise ValueError("steps must be at least 1 for every sample whose gap is not zero")
