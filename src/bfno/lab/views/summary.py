"""What was trained and what the result is, in sentences."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from bfno.lab.runs.record import Record
from bfno.lab.views.layout import cell_text
from bfno.lab.views.methods import Replicates, kind_of
from bfno.lab.views.metrics import LIMIT, Estimate, Metric, chance_of_lead, headline_of

__all__ = ["SCALES", "counted", "listed", "samples_text", "scale_notes", "subtitle", "summary"]

_PURPOSES = {
    "images": "classify images",
    "series": "classify series",
    "densities": "learn densities",
}
SCALES = {
    "smoke": "a few steps of tiny models, which show that everything runs and nothing else",
    "cpu": "the same methods at a size that trains in minutes",
    "paper": "the published settings",
}
"""What the scales of runs mean."""


def subtitle(groups: Sequence[Replicates]) -> str:
    """How many runs of how many methods learned what, and from how many samples if all alike.

    Args:
        groups: The methods of a page.
    """
    runs = [run for group in groups for run in group.runs]
    methods = counted(len({group.label for group in groups}), "method")
    purposes = list(dict.fromkeys(filter(None, map(_purpose, runs))))
    text = f"{counted(len(runs), 'run')} of {methods}"
    text += f" that {listed(purposes)}" if purposes else ""
    samples = {samples_text(run) for run in runs} - {""}
    return f"{text}; samples: {samples.pop()}" if len(samples) == 1 else text


def samples_text(run: Record) -> str:
    """How many samples each part of a run's data has; empty if it recorded none."""
    return ", ".join(f"{count:,.0f} {name}" for name, count in run.samples.items())


def scale_notes(groups: Iterable[Replicates]) -> list[str]:
    """What the scales of the runs mean for their numbers.

    Args:
        groups: The methods of a page.
    """
    return [
        f"Scale {scale}: {SCALES[scale]}. Not comparable with published numbers."
        for scale in sorted({group.task[1] for group in groups} & (SCALES.keys() - {"paper"}))
    ]


def listed(names: Sequence[str]) -> str:
    """Names in one phrase.

    Example:
        >>> listed(["node", "anode", "sonode"])
        'node, anode and sonode'
    """
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def counted(number: int, noun: str) -> str:
    """A number of things.

    Example:
        >>> counted(1, "run"), counted(2, "run")
        ('1 run', '2 runs')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def summary(groups: Sequence[Replicates]) -> str:
    """The result of a task in sentences: the best method, its lead and its cost.

    Args:
        groups: The methods of one task, best first, as from `replicates`.
    """
    best, (data, scale, protocol) = groups[0], groups[0].task
    metric, score = best.headline, best.score()
    where = f"On {data} (scale {scale}{protocol and f', protocol {protocol}'})"
    if metric is None or score is None:
        return f"{where}, no run recorded a known metric."
    if not math.isfinite(score.mean):
        return f"{where}, no method has a {metric.title} that is a number."
    rivals = [group for group in groups[1:] if group.headline == metric]
    return f"{where}, {_outcome(best, rivals, metric, score)}"


def _outcome(best: Replicates, rivals: list[Replicates], metric: Metric, score: Estimate) -> str:
    seeds = f" over {len(best.runs)} seeds" if len(best.runs) > 1 else ""
    if not rivals:
        text = f"{best.label} reaches a {metric.title} of {score}{seeds}."
        return f"{text} {_cost(best, None)}".strip()
    rival, other = rivals[0], rivals[0].score()
    if other is None or not math.isfinite(other.mean):
        text = f"{best.label} has a {metric.title} of {score}{seeds}; {_nobody(rivals, metric)}."
        return f"{text} {_cost(best, None)}".strip()
    # Of the means as they are printed: a reader may subtract them.
    lead = abs(_printed(score) - _printed(other))
    if lead == 0:
        equal = [one.label for one in rivals if _printed(one.score()) == _printed(score)]
        text = f"{listed([best.label, *equal])} share the best {metric.title}, {_mean(score)}."
        return f"{text} {_cost(best, rival)}".strip()
    text = (
        f"{best.label} has the best {metric.title} of {len(rivals) + 1} methods: "
        f"{score}{seeds}, which is {Estimate(lead, None, metric.digits)} "
        f"{'above' if metric.higher_is_better else 'below'} {rival.label} with {other}."
    )
    return " ".join(filter(None, [text, _cost(best, rival), _certainty(best, rival, len(rivals))]))


def _purpose(run: Record) -> str:
    metric = headline_of(run)
    if metric is None:
        return ""
    return "reconstruct series" if metric.name == "mse" else _PURPOSES[kind_of(run)]


def _printed(estimate: Estimate | None) -> float:
    return math.nan if estimate is None else round(estimate.mean, estimate.digits)


def _nobody(rivals: list[Replicates], metric: Metric) -> str:
    """What the other methods have, none of which has a mean."""
    values = (run.result.get(metric.key, math.nan) for group in rivals for run in group.runs)
    ever = any(map(math.isfinite, values))
    return f"no other method has a number{' for every seed' if ever else ''}"


def _cost(best: Replicates, rival: Replicates | None) -> str:
    """A sentence on evaluations, time and size, next to those of another method."""
    measures = {
        "{} forward evaluations": lambda group: group.result("forward_nfe"),
        "{} backward evaluations per training step": lambda group: group.result("backward_nfe"),
        "{} s of training": lambda group: group.seconds(digits=0),
        "{} parameters": lambda group: group.runs[0].parameters,
    }
    parts = []
    for words, read in measures.items():
        ours, theirs = read(best), rival and read(rival)
        if _says_something(ours):
            against = f" (against {_mean(theirs)})" if _says_something(theirs) else ""
            parts.append(words.format(_mean(ours)) + against)
    return f"{best.label} takes {listed(parts)}." if parts else ""


def _says_something(value: Estimate | int | None) -> bool:
    # A recurrent model solves nothing; to praise it for that says nothing.
    return value is not None and _mean(value) != "0.0"


def _mean(value: Estimate | int | None) -> str:
    return str(replace(value, std=None)) if isinstance(value, Estimate) else cell_text(value)


def _certainty(best: Replicates, rival: Replicates, rivals: int) -> str:
    metric = best.headline
    assert metric is not None  # or nothing would have been compared
    values = [[run.result.get(metric.key) for run in group.runs] for group in (best, rival)]
    chance = chance_of_lead(*values, rivals=rivals)
    if chance is None:
        return "Without several seeds of both, chance is not ruled out."
    percent = float(f"{100 * chance:.2g}")
    odds = "fewer than 1 of 1,000" if chance < 0.001 else f"{percent:g} of 100"
    if chance < LIMIT:
        return f"Chance alone would give such a lead in {odds} cases (Welch's test over the seeds)."
    return (
        f"It may be chance, which gives such a lead in {odds} cases (Welch's test over the seeds)."
    )
