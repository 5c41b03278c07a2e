"""The facts about every metric: its title, decimals, direction and unit.

Tables, figures, pages and the terminal all take these facts from here. A metric's key in records
and epochs is its split and its name: `test_accuracy`, `train_loss`, `forward_nfe`.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

__all__ = [
    "COMPANIONS",
    "COSTS",
    "HEADLINES",
    "LIMIT",
    "MEBIBYTE",
    "METRICS",
    "SPLITS",
    "Estimate",
    "Metric",
]
__all__ += ["chance_of_lead", "counted", "duration", "find_metric", "headline_of"]
__all__ += ["interval_of_lead", "mean", "name_of_test", "reason_of_choice"]

MEBIBYTE = 2**20
SPLITS = {"test": "test", "validation": "validation", "train": "training"}
"""Parts of the data that metrics are about, as keys and as people say them."""
LIMIT = 0.05
"""Significance level: a lead that chance alone gives more often proves nothing."""
_MOST_IN_ALL_ORDERS = 8
_ORDERS = 100_000


@dataclass(frozen=True)
class Metric:
    """A number that runs measure.

    Attributes:
        name: Its name without the split: `accuracy`.
        words: Its name for people.
        digits: Number of decimals in tables.
        higher_is_better: Whether higher values are better.
        form: How a single value is printed, as `format` takes it.
        unit: Its unit, if the name does not say it.
        split: The split that it was measured on, such as `test`, or the pass of a solver.
    """

    name: str
    words: str
    digits: int
    higher_is_better: bool = False
    form: str = ".4f"
    unit: str = ""
    split: str = ""

    @property
    def key(self) -> str:
        """Its key in records."""
        return f"{self.split}_{self.name}" if self.split else self.name

    @property
    def title(self) -> str:
        """Its name for people, with the split."""
        if self.name == "nfe" and self.split:
            return f"{self.words} {self.split}"
        return f"{SPLITS.get(self.split, self.split)} {self.words}".strip()

    @property
    def caption(self) -> str:
        """The title above a figure of it."""
        if self.name == "nfe":
            return f"NFE of the {self.split}{'' if self.split == 'test' else ' pass'}"
        return self.title[0].upper() + self.title[1:]

    @property
    def axis(self) -> str:
        """The label of an axis of it."""
        return f"{self.words}, {self.split}" if self.name == "nfe" else self.title

    def on(self, split: str) -> Metric:
        """The same metric on another part of the data."""
        return replace(self, split=split)

    def text(self, value: float | None) -> str:
        """A single value for people."""
        return "unknown" if value is None else format(value, self.form)

    def estimate(self, runs: Iterable[Any], seeds: int = 0) -> Estimate | None:
        """Its mean and deviation over runs, some of which may lack it; None without any.

        Args:
            runs: The runs.
            seeds: The expected number of seeds; a remark reports fewer.
        """
        values = [run.result[self.key] for run in runs if self.key in run.result]
        found = Estimate.of(values, self.digits)
        return found and found.with_seeds(len(values), seeds)

    def rank(self, value: float | None) -> float:
        """A number to sort by: the best value is the smallest; infinite ones and NaN are last."""
        if value is None or not math.isfinite(value):
            return math.inf
        return -value if self.higher_is_better else value


METRICS = {
    metric.name: metric
    for metric in (
        Metric("accuracy", "accuracy", 4, higher_is_better=True, form=".2%"),
        Metric("macro_f1", "macro-F1", 4, higher_is_better=True),
        Metric("auroc", "AUROC", 4, higher_is_better=True),
        Metric("auprc", "AUPRC", 4, higher_is_better=True),
        Metric("loss", "loss", 4),
        Metric("cross_entropy", "cross-entropy of the labels", 4),
        Metric("calibration_error", "calibration error", 3, form=".1%"),
        Metric("calibrated_error", "calibration error after scaling", 3, form=".1%"),
        Metric("mse", "MSE", 5, form=".5f"),
        # The best value is neither high nor low, but the one in its name.
        Metric("coverage_90", "coverage of the 90 % interval", 3, True, form=".1%"),
        Metric("width_90", "mean width of the 90 % interval", 3, form=".3f", unit="scaled units"),
        Metric("bits_per_dim", "bits/dim (uniform)", 3),
        Metric("bits_per_dim_center", "bits/dim (center)", 3),
        Metric("solver_error", "error of the training's solver", 3),
        Metric("percentile", "percentile", 1, form=".1f"),
        Metric("anomaly", "anomaly", 1, form=".1f"),
        Metric("nll", "NLL", 4, unit="nats"),
        Metric("nfe", "NFE", 1, form=".1f", unit="function evaluations per solve"),
        Metric("seconds", "seconds", 1, form=".1f"),
        Metric("peak_memory", "peak MiB", 0, form=".0f"),
    )
}
"""Every metric by its name, in the order in which an evaluation lists them."""
# A run is judged by the metric that it names, else by the first of these that it has; a new task
# adds its metric here. A training that never saw its test samples has those of validation alone.
HEADLINES = tuple(
    METRICS[name].on(split)
    for split in ("test", "validation")
    for name in ("accuracy", "auroc", "bits_per_dim", "nll", "mse", "loss")
)
# Shown beside the headline, though no run is judged by them: densities at the centres of bytes are
# what some papers print, but they are not a bound.
COMPANIONS = (METRICS["bits_per_dim_center"].on("test"),)
COSTS = tuple(METRICS["nfe"].on(way) for way in ("forward", "backward", "test"))
"""Function evaluations of solves."""
_WAYS = {*SPLITS, *(metric.split for metric in COSTS)}


def find_metric(key: str) -> Metric:
    """The metric with this key in records; a new one for an unknown key.

    Example:
        >>> find_metric("test_nll").title, find_metric("forward_nfe").title
        ('test NLL', 'NFE forward')
        >>> find_metric("train_loss").title, find_metric("test_warmth").title
        ('training loss', 'test warmth')
    """
    split, _, name = key.partition("_")
    if split not in _WAYS or not name:
        split, name = "", key
    known = METRICS.get(name) or Metric(name, name.replace("_", " "), 4)
    return known.on(split)


def reason_of_choice(chosen_by: str) -> str:
    """Why a run ended with the weights of an epoch, to follow its number.

    Example:
        >>> reason_of_choice("validation_accuracy"), reason_of_choice("last epoch")
        ('chosen by validation accuracy', 'the last')
    """
    is_last = chosen_by == "last epoch"
    return "the last" if is_last else f"chosen by {find_metric(chosen_by).title}"


def headline_of(run: Any) -> Metric | None:
    """The metric that a run is judged by: its own choice, else the first that it has; or none."""
    known = [metric for metric in HEADLINES if metric.key in run.result]
    return min(known, key=lambda metric: metric.key != run.judged_by, default=None)


@dataclass(frozen=True)
class Estimate:
    """A number measured once or several times.

    Attributes:
        mean: Mean of the measurements.
        std: Their standard deviation, dividing by one less than their number; None for a single
            one.
        digits: Number of decimals to print.
        remark: A remark to print beside it.
        lacks_seeds: Whether others in the comparison were measured more often.

    Example:
        >>> str(Estimate.of([0.96, 0.98], digits=2))
        '0.97 ± 0.01'
    """

    mean: float
    std: float | None
    digits: int
    remark: str = ""
    lacks_seeds: bool = False

    @classmethod
    def of(cls, values: Iterable[float | None], digits: int) -> Estimate | None:
        """The estimate from measurements, some of which may be missing; None without any."""
        # Sorted, so that two places that read the runs in another order print the same digits.
        known = sorted(value for value in values if value is not None)
        if not known:
            return None
        middle = mean(known)
        if len(known) == 1:
            return cls(middle, None, digits)
        squares = sum((value - middle) * (value - middle) for value in known)
        return cls(middle, math.sqrt(squares / (len(known) - 1)), digits)

    def with_seeds(self, seeds: int, most: int) -> Estimate:
        """The same, with a remark if it has fewer seeds than others.

        Example:
            >>> str(Estimate(0.97, None, 2).with_seeds(1, 3))
            '0.97 (1 of 3 seeds)'
        """
        remark = f"({seeds} of {most} seeds)"
        return replace(self, remark=remark, lacks_seeds=True) if seeds < most else self

    def __str__(self) -> str:
        text = _number(self.mean, self.digits)
        if self.std is not None:
            text += f" ± {_number(self.std, self.digits)}"
        return f"{text} {self.remark}".rstrip()


def mean(values: Sequence[float]) -> float:
    """The mean over seeds.

    Not that of the statistics module, which raises errors on infinities from diverged runs.
    """
    return sum(values) / len(values)


def _number(value: float, digits: int) -> str:
    return f"{value:.3g}" if abs(value) >= 1e9 else f"{value:,.{digits}f}"


def chance_of_lead(
    ours: Sequence[float | None], others: Sequence[float | None], rivals: int = 1
) -> float | None:
    """The chance that equal methods would differ at least as much: Welch's test.

    If the seeds of each method all agree, an exact test of the order of the seeds.

    Args:
        ours: A score for each seed.
        others: Those of the other method.
        rivals: Number of methods of which the other is the best. The more there are, the likelier
            it is that one of them was lucky; the probability is multiplied by their number.

    Returns:
        A probability; None if there are not two numbers of each.

    Example:
        >>> round(chance_of_lead([0.95, 0.96, 0.95], [0.92, 0.93, 0.92]), 4)
        0.0031
    """
    known = _repeated(ours, others)
    if known is None:
        return None
    first, second = known
    if not _differ(first, second):
        if first[0] == second[0]:
            return 1.0
        # No spread, no such test: how often would chance alone divide the seeds like this?
        return min(1.0, rivals * 2 / math.comb(len(first) + len(second), len(first)))
    return min(1.0, rivals * float(_welch(first, second).pvalue))


def name_of_test(ours: Sequence[float | None], others: Sequence[float | None]) -> str:
    """The name of the test that `chance_of_lead` uses."""
    known = _repeated(ours, others)
    spread = known is None or _differ(*known)
    return "Welch's test over the seeds" if spread else "an exact test of the seeds' order"


def interval_of_lead(
    ours: Sequence[float | None], others: Sequence[float | None], rivals: int = 1
) -> tuple[float, float] | None:
    """The 95 % confidence interval of the difference of two methods: Welch's interval.

    Zero is outside exactly if `chance_of_lead` is less than `LIMIT`. There is no interval if the
    seeds of each method all agree.

    Args:
        ours: A score for each seed.
        others: Those of the other method.
        rivals: Number of methods of which the other is the best: the more, the wider the interval.

    Returns:
        Both ends; None without at least two numbers of each, or without any spread.

    Example:
        >>> low, high = interval_of_lead([0.95, 0.96, 0.95], [0.92, 0.93, 0.92])
        >>> round(low, 3), round(high, 3)
        (0.017, 0.043)
    """
    known = _repeated(ours, others)
    if known is None:
        return None
    first, second = known
    if not _differ(first, second):
        return None
    found = _welch(first, second).confidence_interval(1 - LIMIT / rivals)
    return float(found.low), float(found.high)


def rank_correlation(ours: Sequence[float], others: Sequence[float]) -> tuple[float, float] | None:
    """Spearman's rank correlation of two lists, and the chance of one at least as far from zero.

    The chance is counted over orders of one list: all of them for up to eight numbers, a fixed
    sample for more.

    Returns:
        None if all numbers of a list are equal.

    Example:
        >>> rank_correlation([1, 2, 3, 4], [10, 20, 40, 30])
        (0.8, 0.3333333333333333)
    """
    import numpy as np  # takes long to import, as scipy does
    from scipy.stats import rankdata

    if len(set(ours)) == 1 or len(set(others)) == 1:
        return None
    first, second = (
        (ranks - ranks.mean()) / (ranks.std() * len(ranks) ** 0.5)
        for ranks in map(rankdata, (ours, others))
    )
    if len(first) <= _MOST_IN_ALL_ORDERS:
        orders = np.array([*itertools.permutations(range(len(first)))])
    else:
        places = np.tile(np.arange(len(first)), (_ORDERS, 1))
        orders = np.random.default_rng(0).permuted(places, axis=1)
    found = float(first @ second)
    # Orders that are as far from zero differ in the last bits.
    as_far = np.abs(first[orders] @ second) > abs(found) - 1e-9
    return round(found, 9), float(as_far.mean())


def odds(chance: float) -> str:
    """A chance as papers write it.

    Example:
        >>> odds(0.0301), odds(0.00004)
        ('p = 0.03', 'p < 0.001')
    """
    return "p < 0.001" if chance < 0.001 else f"p = {chance:.2g}"


def _repeated(
    ours: Sequence[float | None], others: Sequence[float | None]
) -> tuple[list[float], list[float]] | None:
    """The numbers of both methods; None unless each has two finite ones."""
    first, second = ([one for one in some if one is not None] for some in (ours, others))
    if min(len(first), len(second)) < 2 or not all(map(math.isfinite, first + second)):
        return None
    return first, second


def _differ(first: Sequence[float], second: Sequence[float]) -> bool:
    """Whether any seed of a method differs from another."""
    return len(set(first)) > 1 or len(set(second)) > 1


def _welch(first: Sequence[float], second: Sequence[float]) -> Any:
    from scipy.stats import ttest_ind  # scipy takes long to import

    # All seeds of one method may be equal: the test says so, and is right without it.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ttest_ind(first, second, equal_var=False)


def counted(number: int, noun: str) -> str:
    """A number with its noun, in the plural where needed.

    Example:
        >>> counted(1, "run"), counted(2, "run")
        ('1 run', '2 runs')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def duration(seconds: float) -> str:
    """A duration in words.

    Example:
        >>> duration(0.2), duration(42), duration(600), duration(9000)
        ('a moment', '42 s', '10 min', '2 h 30 min')
    """
    if not math.isfinite(seconds):
        return "an unknown time"
    if seconds < 1:
        return "a moment"
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02} min"
