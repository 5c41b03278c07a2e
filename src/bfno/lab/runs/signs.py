"""Warnings that a training is going wrong, while something can still be done about it.

Each depends only on the epochs so far, and is reported after the first epoch that shows it: a run
that was stopped and continues repeats none and misses none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bfno.lab.experiments.tasks import Task

__all__ = ["sign_of_a_hard_step", "signs_of_trouble"]

# Growth of a solve's evaluations since the first epoch, and their smallest number.
_GROWTH, _FEWEST_EVALUATIONS = (2.0, 4.0, 8.0), 30.0
# Evaluations of a single hard step, and their multiple of the usual number in the epoch.
_MANY, _TIMES_THE_USUAL = 500.0, 20.0
# Epochs without a better validation score, and its fall as a share of the best.
_EPOCHS_IN_VAIN, _FALL = 5, 0.05
# Error of a solver as a share of the score, or of 1 if that is less.
_COARSE = 0.05
# Share of samples with a regulariser that its solver has made negative.
_PENALTY, _BELOW_ZERO = "train_penalty_below_zero", 0.01
_HELD_OUT = ("validation", "test")

Epoch = Mapping[str, Any]


def signs_of_trouble(
    epochs: Sequence[Epoch], task: Task, select: str = "best", validation: int = 10**6
) -> Iterator[str]:
    """The warnings that the last epoch is the first to show.

    Args:
        epochs: Metrics of all epochs so far.
        task: What the model is trained for.
        select: Which epoch's weights the run ends with, see `TrainSettings`.
        validation: Number of validation samples; the score of a few varies by chance.
    """
    if len(epochs) == 1 and select == "best" and _cannot_be_judged(epochs[0], task):
        yield (
            f"the validation samples have no {task.selection}, as if all were of one class: none "
            "of them chooses the epoch, and the last one counts. Keep more of them aside "
            "(data.validation)"
        )
    before, now = _growth(epochs[:-1]), _growth(epochs)
    if now > before:
        first, last = epochs[0]["forward_nfe"], epochs[-1]["forward_nfe"]
        yield (
            f"the solver needs {last:.0f} evaluations per batch, {first:.0f} in the first epoch, "
            f"and every epoch takes longer: the equation becomes stiff. {task.remedy_for_growth}"
        )
    *earlier, is_coarse = (_is_coarse(epoch, task) for epoch in epochs)
    if is_coarse and not any(earlier):
        yield _coarse(epochs[-1], task)
    *earlier, is_below = (_is_below_zero(epoch) for epoch in epochs)
    if is_below and not any(earlier):
        yield _below_zero(epochs[-1])
    told = any(_learns_by_heart(epochs[:count], task, validation) for count in range(len(epochs)))
    if not told and _learns_by_heart(epochs, task, validation):
        yield _by_heart(epochs, task, select)


def sign_of_a_hard_step(step: Mapping[str, float], epoch: Mapping[str, float], task: Task) -> str:
    """Warn that a step was far harder to solve than those before it; empty if it was not.

    Such a step may take minutes while others take a second, and the end of the epoch, when other
    warnings come, may be hours away.

    Args:
        step: Totals of the step.
        epoch: Those of its epoch so far, with this step.
        task: What the model is trained for.
    """
    earlier = epoch["solves"] - step["solves"]
    taken = step["forward_nfe"] / step["solves"]
    if earlier <= 0 or taken < _MANY:
        return ""
    usual = (epoch["forward_nfe"] - step["forward_nfe"]) / earlier
    if taken < _TIMES_THE_USUAL * usual:
        return ""
    return (
        f"a step took {taken:,.0f} evaluations, but those before it in this epoch {usual:.0f}: the "
        f"equation has become stiff, and such steps may take minutes. {task.remedy_for_growth}"
    )


def _cannot_be_judged(epoch: Epoch, task: Task) -> bool:
    """Whether validation samples were scored, but not by the metric that chooses epochs."""
    measured = [name for name in epoch if name.startswith("validation_")]
    return bool(measured) and f"validation_{task.selection}" not in measured


def _growth(epochs: Sequence[Epoch]) -> int:
    """How many thresholds the evaluations of a forward pass have exceeded so far."""
    counts = [epoch.get("forward_nfe") or 0.0 for epoch in epochs]
    most = max(counts[1:], default=0.0)
    if most < _FEWEST_EVALUATIONS or counts[0] <= 0:
        return 0
    return sum(most >= mark * counts[0] for mark in _GROWTH)


def _is_coarse(epoch: Epoch, task: Task) -> bool:
    """Whether the steps of the training stray far from the exact path."""
    split = _solved_twice(epoch)
    if not split:
        return False
    score = epoch.get(f"{split}_{task.selection}", 0.0)
    # So that not-a-number counts.
    return not epoch[f"{split}_solver_error"] <= _COARSE * max(1.0, abs(score))


def _solved_twice(epoch: Epoch) -> str:
    """The split on which the training's solver was compared with the other; empty if none."""
    return next((split for split in _HELD_OUT if f"{split}_solver_error" in epoch), "")


def _coarse(epoch: Epoch, task: Task) -> str:
    split = _solved_twice(epoch)
    return (
        f"the solver of the training is too coarse for this field: its {task.selection} is off by "
        f"{epoch[f'{split}_solver_error']:.2g} on {split} samples, so the loss cannot be "
        "trusted. Train again with a smaller solver.step, lower solver.rtol and solver.atol, or a "
        "lower train.lr; --set solver.method=dopri5 with --set solver.step=null adapts its steps."
    )


def _is_below_zero(epoch: Epoch) -> bool:
    """Whether regularisers were negative, which an integral of squares cannot be."""
    return epoch.get(_PENALTY, 0.0) > _BELOW_ZERO


def _below_zero(epoch: Epoch) -> str:
    return (
        f"{epoch[_PENALTY]:.0%} of the samples had a negative regulariser, which an integral of "
        "squares cannot be: the solver of the training is too coarse for it. They counted as zero. "
        "Train again with lower solver.rtol and solver.atol or a smaller solver.step, or with a "
        "lower train.lr."
    )


def _judged_by(epochs: Sequence[Epoch], task: Task) -> tuple[str, bool] | None:
    """A metric of training and validation samples, and whether lower is better, if there is one."""
    for name, lower in ((task.selection, task.lower_is_better), ("loss", True)):
        if all(f"{split}_{name}" in epoch for epoch in epochs for split in ("train", "validation")):
            return name, lower
    return None


def _learns_by_heart(epochs: Sequence[Epoch], task: Task, validation: int) -> bool:
    """Whether the score gets worse on validation samples while it improves in training."""
    judged = _judged_by(epochs, task)
    if not epochs or judged is None:
        return False
    valid, train = f"validation_{judged[0]}", f"train_{judged[0]}"
    sign = -1.0 if judged[1] else 1.0
    best = max(range(len(epochs)), key=lambda number: sign * epochs[number][valid])
    since = epochs[best:]
    if len(since) <= _EPOCHS_IN_VAIN:
        return False
    if any(_is_coarse(epoch, task) for epoch in since):
        return False  # training and validation differ by the error of the solver
    recent = [sign * epoch[valid] for epoch in since[-_EPOCHS_IN_VAIN:]]
    fall = sign * since[0][valid] - max(recent)
    rise = sign * (since[-1][train] - since[0][train])
    # The best of many epochs owes something to chance: about two standard errors of a share.
    by_chance = 0.0 if judged[1] else validation**-0.5
    return rise > 0 and fall > max(_FALL * abs(since[0][valid]), by_chance)


def _by_heart(epochs: Sequence[Epoch], task: Task, select: str) -> str:
    name, lower = _judged_by(epochs, task) or (task.selection, task.lower_is_better)
    valid, train = f"validation_{name}", f"train_{name}"
    choose = min if lower else max
    best = choose(epochs, key=lambda epoch: epoch[valid])
    kept = f"The weights of epoch {best['epoch']} are kept."
    if name != task.selection:
        kept = f"The weights of the epoch with the best {task.selection} are kept."
    if select == "last":
        kept = "`bfno resume` with --set train.select=best keeps the best epoch from then on."
    word = "risen" if lower else "fallen"
    return (
        f"the validation {name} has {word} from {best[valid]:.3g} in epoch "
        f"{best['epoch']} to {epochs[-1][valid]:.3g}, while that of the training samples went from "
        f"{best[train]:.3g} to {epochs[-1][train]:.3g}: the model learns its samples by heart. "
        f"{kept} {task.remedy_for_overfitting}"
    )
