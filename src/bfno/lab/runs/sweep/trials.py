"""The results of a sweep so far: its trials, without the program that chose them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["SweepResult", "Trial", "TrialState"]

TrialState = Literal["running", "finished", "pruned", "failed"]


@dataclass(frozen=True)
class Trial:
    """Some settings, and their score.

    Attributes:
        number: Its number, from 0 on.
        values: The settings that were tried, by name.
        state: Its state. `pruned`: stopped early because others were better by then.
        score: Its validation score, once it is finished.
        scores: Validation score of each epoch, by its number.
        error: Why it failed.
        same_as: Number of the trial with the same settings whose score this one has.
    """

    number: int
    values: Mapping[str, Any]
    state: TrialState
    score: float | None = None
    scores: Mapping[int, float] = field(default_factory=dict)
    error: str = ""
    same_as: int | None = None

    @property
    def name(self) -> str:
        """Its name, which is also that of its folder.

        Example:
            >>> Trial(3, {}, "running").name
            'trial-0003'
        """
        return f"trial-{self.number:04}"


@dataclass(frozen=True)
class SweepResult:
    """All trials of a sweep.

    Attributes:
        experiment: The experiment, `data/method`.
        scale: Its scale.
        seed: Its seed, the same for all trials.
        metric: Key of the score, such as `validation_accuracy`.
        lower_is_better: Whether the best trial has the lowest score.
        ranges: The range tried of each setting, as text.
        logarithmic: Settings whose range is logarithmic.
        trials: The trials, in the order of their numbers.
        importance: Share of each setting in the differences between scores, largest first; empty
            if there are too few finished trials to estimate it.
    """

    experiment: str
    scale: str
    seed: int
    metric: str
    lower_is_better: bool
    ranges: Mapping[str, str]
    logarithmic: frozenset[str]
    trials: Sequence[Trial]
    importance: Mapping[str, float] = field(default_factory=dict)

    @property
    def ranked(self) -> list[Trial]:
        """The finished trials, best first; of equal ones, the earlier first."""
        sign = 1 if self.lower_is_better else -1
        scored = [(sign * one.score, one) for one in self.trials if one.score is not None]
        return [one for _, one in sorted(scored, key=lambda pair: (pair[0], pair[1].number))]

    @property
    def best(self) -> Trial | None:
        """The trial with the best score; None if none is finished."""
        return next(iter(self.ranked), None)
