"""What came out of runs, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bfno.results.layout import Estimate, cell_text
from bfno.results.tables import Replicates

__all__ = ["summary"]


def summary(groups: Sequence[Replicates]) -> str:
    """What came out, in words: the best method of a task, its lead and its cost.

    Args:
        groups: The methods of one task, best first, as from `replicates`.
    """
    best, (data, scale, protocol) = groups[0], groups[0].task
    metric, score = best.runs[0].headline, best.score()
    where = f"On {data} (scale {scale}{protocol and f', protocol {protocol}'})"
    if metric is None or score is None:
        return f"{where}, no run recorded a metric that we know."
    seeds = f" over {len(best.runs)} seeds" if len(best.runs) > 1 else ""
    rivals = [group for group in groups[1:] if group.runs[0].headline == metric]
    if not rivals:
        text = f"{where}, {best.label} reaches a {metric.title} of {score}{seeds}."
        return f"{text} {_cost(best, None)}".strip()
    rival, other = rivals[0], rivals[0].score()
    lead = metric.rank(other.mean) - metric.rank(score.mean) if other else 0.0
    if lead == 0:
        text = f"{where}, {best.label} and {rival.label} share the best {metric.title}, {score}."
        return f"{text} {_cost(best, rival)}".strip()
    text = (
        f"{where}, {best.label} has the best {metric.title} of {len(rivals) + 1} methods: "
        f"{score}{seeds}, which is {Estimate(lead, None, metric.digits)} "
        f"{'above' if metric.higher_is_better else 'below'} {rival.label} with {other}."
    )
    return f"{text} {_cost(best, rival)} {_certainty(lead, score, other)}"


def _cost(best: Replicates, rival: Replicates | None) -> str:
    """A sentence on evaluations, time and size, next to those of another method."""
    measures = {
        "{} forward evaluations": lambda group: group.result("forward_nfe", 1),
        "{} backward evaluations a training step": lambda group: group.result("backward_nfe", 1),
        "{} s of training": lambda group: Estimate.of((run.seconds for run in group.runs), 0),
        "{} parameters": lambda group: group.runs[0].parameters,
    }
    parts = []
    for words, read in measures.items():
        ours, theirs = read(best), rival and read(rival)
        # A recurrent model solves nothing; to praise it for that says nothing.
        if ours is not None and str(ours) != "0.0":
            against = f" (against {_mean(theirs)})" if theirs is not None else ""
            parts.append(words.format(_mean(ours)) + against)
    if not parts:
        return ""
    listed = " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))
    return f"{best.label} takes {listed}."


def _mean(value: Estimate | int) -> str:
    return str(replace(value, std=None)) if isinstance(value, Estimate) else cell_text(value)


def _certainty(lead: float, score: Estimate, other: Estimate | None) -> str:
    if other is None or score.std is None or other.std is None:
        return "Without several seeds of both, chance is not ruled out."
    if lead > score.std + other.std:
        return "The lead is larger than both standard deviations over the seeds together."
    return "The lead is no larger than the standard deviations over the seeds: it may be chance."
