"""The training and its result, in sentences."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from bfno.lab.runs.record import Record
from bfno.lab.views.layout import cell_text
from bfno.lab.views.methods import Replicates, kind_of, sample_name
from bfno.lab.views.metrics import (
    LIMIT,
    Estimate,
    Metric,
    chance_of_lead,
    counted,
    headline_of,
    mean,
    name_of_test,
)

__all__ = ["SCALES", "calibration", "coverage", "data_title", "listed", "opening"]
__all__ += ["samples_text", "scale_notes", "subtitle", "summary", "trust"]

_PURPOSES = {
    "images": "classify images",
    "series": "classify series",
    "densities": "learn densities",
}
SCALES = {
    "smoke": "a few steps of tiny models, which show that everything runs and nothing else",
    "cpu": "the same methods, with smaller models, less data or fewer epochs: minutes per run",
    "paper": "the published settings",
}
"""The meaning of each scale."""
# A class that has more than its even part of the test data by this much makes a better guess.
_UNEVEN = 0.05
_CALIBRATION = ("calibration_error", "calibrated_error")


def subtitle(groups: Sequence[Replicates]) -> str:
    """The number of runs and methods, what they learned, and the samples if all have the same.

    Args:
        groups: The methods of a page.
    """
    runs = [run for group in groups for run in group.runs]
    methods = counted(len({group.label for group in groups}), "method")
    purposes = list(dict.fromkeys(filter(None, map(_purpose, runs))))
    text = f"{counted(len(runs), 'run')} of {methods}"
    text += f", trained to {listed(purposes)}" if purposes else ""
    samples = {samples_text(run) for run in runs} - {""}
    return f"{text}; samples: {samples.pop()}" if len(samples) == 1 else text


def samples_text(run: Record) -> str:
    """How many samples each part of a run's data has; empty if it recorded none."""
    return ", ".join(f"{count:,.0f} {name}" for name, count in run.samples.items())


def scale_notes(groups: Iterable[Replicates]) -> list[str]:
    """Explain what the scales of the runs mean for their numbers.

    Args:
        groups: The methods of a page.
    """
    published = {group.task[1]: False for group in groups}
    for group in groups:
        # There are no published numbers for the user's own files.
        published[group.task[1]] |= not group.runs[0].own_data
    return [
        f"Scale {scale}: {SCALES[scale]}."
        + (" Not comparable with published numbers." if published[scale] else "")
        for scale in sorted(published.keys() & (SCALES.keys() - {"paper"}))
    ]


def data_title(run: Record) -> str:
    """The name of a run's data: the user's own files by their names, others by the data set."""
    own = dict(run.own_data)
    tested = own.pop("test_path", "")
    names = listed([*own.values()]) if own else run.data
    return f"{names}, tested on {tested}" if tested else names


def opening(groups: Sequence[Replicates]) -> str:
    """The result of a task in one sentence for every reader.

    Args:
        groups: The methods of one task, best first, as from `replicates`.

    Returns:
        The sentence; empty if no run recorded a known metric that is a number.
    """
    best = groups[0]
    metric, score = best.headline, best.score()
    if metric is None or score is None or not math.isfinite(score.mean):
        return ""
    claim, notes, tail = _CLAIMS[metric.name](best, score.mean)
    if metric.split != "test":
        claim, notes, tail = f"has a {metric.title} of {metric.text(score.mean)}", [], ", untested"
    notes = [*notes, f"mean of {len(best.runs)} seeds"] if len(best.runs) > 1 else notes
    text = f"{claim} ({'; '.join(notes)}){tail}." if notes else f"{claim}{tail}."
    if len(groups) > 1:
        return f"The best of {len(groups)} methods, {best.label}, {text}"
    alone = text.removeprefix("is ")
    return alone[0].upper() + alone[1:]


# The description of a method, the text in brackets, and the text after them.
_Claim = tuple[str, list[str], str]


def _right(group: Replicates, share: float) -> _Claim:
    run, weakest = group.runs[0], _weakest(group)
    count = sum(map(sum, run.confusion)) or int(run.samples.get("test", 0))
    tested = f" of {count:,} {_tested_things(run, count)}" if count else ""
    tail = f"; weakest: {weakest}" if weakest else ""
    return f"is right on {_percent(share)}{tested}", _chance(run), tail


def _tested_things(run: Record, count: int) -> str:
    if kind_of(run) == "images":
        return "test images"
    name = sample_name(run)
    return (
        "test series" if name == "labels" and count == run.samples.get("test") else f"test {name}"
    )


def _chance(run: Record) -> list[str]:
    """How often a guess would be right; empty if unknown."""
    counts = [sum(row) for row in run.confusion]
    if not sum(counts):
        return []
    guess, most = 1 / len(counts), max(counts) / sum(counts)
    if most <= guess + _UNEVEN:
        return [f"chance {_percent(guess)}"]
    return [f"always saying “{_class(run, counts.index(max(counts)))}”: {_percent(most)}"]


def _weakest(group: Replicates) -> str:
    """The class that is found least often, over all seeds; empty if none stands out."""
    shapes = {len(run.confusion) for run in group.runs}
    if len(shapes) != 1 or 0 in shapes:
        return ""
    found = {}
    for place in range(shapes.pop()):
        rows = [run.confusion[place] for run in group.runs]
        if all(map(sum, rows)):
            found[place] = mean([row[place] / sum(row) for row in rows])
    lowest = min(found.values(), default=0.0)
    if len(found) < 2 or lowest == max(found.values()):
        return ""
    names = [_class(group.runs[0], place) for place, share in found.items() if share == lowest]
    if len(names) > 3:
        names = [*names[:2], f"{len(names) - 2} more"]
    return f"{listed(names)} ({_percent(lowest)})"


def _class(run: Record, place: int) -> str:
    return run.classes[place] if place < len(run.classes) else f"class {place}"


def _ranking(group: Replicates, area: float) -> _Claim:
    classes = group.runs[0].classes
    pair = "cases of a class above others"
    if len(classes) == 2:
        pair = f"a case of “{classes[1]}” above one of “{classes[0]}”"
    claim = f"ranks {pair} {_percent(area)} of the time"
    tail = f", tested on {_tested(group, 'series')}" if _tested(group, "") else ""
    return claim, ["chance 50 %", f"AUROC {area:.2f}"], tail


def _error(group: Replicates, squared: float) -> _Claim:
    claim = (
        f"is typically {math.sqrt(squared):.2f} standard deviations off at the observed values of "
        f"{_tested(group, 'test series')}"
    )
    return claim, ["always saying a feature's mean: about 1"], ""


def _bits(group: Replicates, bits: float) -> _Claim:
    claim = f"needs {bits:.2f} bits for each pixel value of {_tested(group, 'test images')}"
    return claim, ["knowing nothing: 8 bits", "fewer is better"], ""


def _nats(group: Replicates, nats: float) -> _Claim:
    where = _tested(group, "test points")
    claim = f"has a mean negative log-likelihood of {nats:.2f} nats on {where}"
    return claim, ["less is better"], ""


def _loss(group: Replicates, loss: float) -> _Claim:
    return f"has a loss of {loss:.4g} on {_tested(group, 'test samples')}", ["less is better"], ""


def _tested(group: Replicates, noun: str) -> str:
    """The number of things a method was tested on, if its record has it."""
    count = group.runs[0].samples.get("test")
    return noun if count is None else f"{count:,.0f} {noun}"


def _percent(share: float) -> str:
    """A share in whole percent, which is not rounded to 0 or 100 %."""
    if 0.005 < share < 0.995 or share in (0.0, 1.0):
        return f"{100 * share:.0f} %"
    return "less than 1 %" if share < 0.5 else "more than 99 %"


_CLAIMS: dict[str, Callable[[Replicates, float], _Claim]] = {
    "accuracy": _right,
    "auroc": _ranking,
    "mse": _error,
    "bits_per_dim": _bits,
    "nll": _nats,
    "loss": _loss,
}


def calibration(run: Record) -> str:
    """A sentence on a classifier's calibration; empty if it was not measured."""
    error, after = (run.result.get(f"test_{name}") for name in _CALIBRATION)
    if error is None or not math.isfinite(error):
        return ""
    text = (
        f"How sure it says it is and how often it is right differ by {100 * error:.1f} percentage "
        "points on average (expected calibration error)."
    )
    if after is None or not math.isfinite(after):
        return text
    temperature = run.result.get("validation_temperature")
    by = f" by {temperature:.2f}" if isinstance(temperature, int | float) else ""
    return (
        f"{text} With its scores divided{by or ' by a temperature'}, which was fitted on the "
        f"validation data and is used in predictions, they differ by {100 * after:.1f} points."
    )


def coverage(run: Record) -> str:
    """A sentence on the coverage of a series model's intervals; empty if it has none."""
    share = run.result.get("test_coverage_90")
    if share is None or not math.isfinite(share):
        return ""
    return f"Its 90 % intervals cover {_percent(share)} of the values that were hidden from it."


def trust(run: Record) -> str:
    """Sentences on how reliable a model's own certainty is, as far as it was measured."""
    return " ".join(filter(None, (calibration(run), coverage(run))))


def listed(names: Sequence[str]) -> str:
    """Names in one phrase.

    Example:
        >>> listed(["node", "anode", "sonode"])
        'node, anode and sonode'
    """
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def summary(groups: Sequence[Replicates]) -> str:
    """The result of a task in sentences: the best method, its lead and its cost.

    Args:
        groups: The methods of one task, best first, as from `replicates`.
    """
    best, (_, scale, protocol) = groups[0], groups[0].task
    metric, score = best.headline, best.score()
    where = f"On {data_title(best.runs[0])} (scale {scale}{protocol and f', protocol {protocol}'})"
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
    """The sentence for rivals that have no finite mean."""
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
    test = name_of_test(*values)
    if chance < LIMIT:
        return f"Chance alone would give such a lead in {odds} cases ({test})."
    return f"It may be chance, which gives such a lead in {odds} cases ({test})."
