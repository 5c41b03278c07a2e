"""The paper's claims next to the results of runs; the verdicts are computed, not typed."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from bfno.lab.paper.numbers import paper_table
from bfno.lab.paper.sections import has_changes, select_runs
from bfno.lab.runs.record import Record, flat_config
from bfno.lab.runs.variants import AS_DEFINED, PROTOCOLS, Variant
from bfno.lab.views.curves import epoch_values
from bfno.lab.views.layout import Column, Table
from bfno.lab.views.metrics import (
    LIMIT,
    Estimate,
    Metric,
    chance_of_lead,
    counted,
    find_metric,
    interval_of_lead,
    mean,
    odds,
)
from bfno.lab.views.summary import listed

__all__ = ["ONE_SEED", "PAPER_CLAIMS", "Claim", "Judgement", "Lead", "Outcome"]
__all__ += ["claims_table", "how_sure", "is_full_size", "judge_claims"]

_COLUMNS = (
    Column("claim", "the paper says", numeric=False),
    Column("found", "here", numeric=False),
    Column("verdict", "verdict", numeric=False),
)
Outcome = Literal["borne out", "not borne out", "undecided", "not comparable"]
"""What runs can say about a claim."""
ONE_SEED = "with one seed, which says little"
"""End of the reason if no run was repeated with another seed."""
Methods = dict[tuple[str, str], list[Record]]
"""Runs by the names of their data and their method."""


@dataclass(frozen=True)
class Claim:
    """One method is the best of several.

    Attributes:
        praise: What the paper says about the method, up to the data; `{way}` stands for `way`.
        on: The name of the data, as people write it.
        table: The table of the paper that compares the methods.
        data: Name of the data.
        method: The method that it praises.
        among: The methods that it is compared with; empty for all of the table.
        key: The metric, as in a record.
        every_epoch: Whether it is about every epoch, not only the last.
        solver: Solver settings that runs must have to be comparable.
        remark: A remark on the claim; empty for none.
        way: The pass whose evaluations it counts; empty if it is about something else.
    """

    praise: str
    on: str
    table: str
    data: str
    method: str
    among: tuple[str, ...] = ()
    key: str = "test_accuracy"
    every_epoch: bool = False
    solver: tuple[tuple[str, object], ...] = ()
    remark: str = ""
    way: str = ""

    @property
    def text(self) -> str:
        """The claim in words."""
        return self.on_all([self.on], [self.way])

    def on_all(self, names: Sequence[str], ways: Sequence[str]) -> str:
        """The claim in words, for several data sets and passes at once."""
        praise = self.praise.format(way=listed(ways))
        return f"{praise} on {listed(names)}" + (f" ({self.remark})" if self.remark else "")

    @property
    def subject(self) -> str:
        """Name of the data, which distinguishes images from their densities."""
        return paper_table(self.table).subject(self.data)

    @property
    def metric(self) -> Metric:
        """Its subject."""
        return find_metric(self.key)

    def rank(self, score: Estimate) -> float:
        """A number to sort by: the best score has the smallest; what diverged has the largest."""
        return self.metric.rank(score.mean)


def _claims() -> Iterator[Claim]:
    yield from _image_claims()
    yield from _ablation_claims()
    praise = "Latent-BFNO-NODE is the most accurate"
    yield Claim(praise, "HumanActivity", "2", "activity", "latent-bfno-node")
    praise, remark = "ACE-Latent-ODE has the highest AUROC", "0.001 above Latent-BFNO-NODE"
    of = ("PhysioNet", "3", "physionet", "ace-latent-ode")
    yield Claim(praise, *of, key="test_auroc", remark=remark)
    praise = "FFJORD-BFNO-RNODE has the fewest bits/dim"
    for data, name in (("mnist-density", "MNIST"), ("cifar10-density", "CIFAR-10")):
        yield Claim(praise, name, "4", data, "ffjord-bfno-rnode", key="test_bits_per_dim")


def _image_claims() -> Iterator[Claim]:
    yield Claim("AdamNODE is the most accurate", "MNIST", "1", "mnist", "adamnode")
    praise = "BFNO-NODE is more accurate than NODE"
    yield Claim(praise, "MNIST", "1", "mnist", "bfno-node", ("node",))
    for data, name in (("cifar10", "CIFAR-10"), ("cifar100", "CIFAR-100"), ("stl10", "STL-10")):
        yield Claim("BFNO-NODE is the most accurate", name, "1", data, "bfno-node")
    # Another solver or tolerance changes the count; other gradients do not change forward passes.
    solver = PROTOCOLS["counted"].settings["solver"]
    forward = tuple((name, value) for name, value in solver.items() if name != "gradient")
    passes = {"forward": forward, "backward": tuple(solver.items()), "test": forward}
    for data, name in (("mnist", "MNIST"), ("cifar10", "CIFAR-10"), ("cifar100", "CIFAR-100")):
        for way, needed in passes.items():
            praise, of = "BFNO-NODE takes the fewest {way} evaluations", (name, "1", data)
            yield Claim(praise, *of, "bfno-node", key=f"{way}_nfe", solver=needed, way=way)
    praise = "BFNO-NODE has the lowest training loss"
    yield Claim(praise, "STL-10", "1", "stl10", "bfno-node", key="train_loss")


def _ablation_claims() -> Iterator[Claim]:
    """Claims about data that we do not have can be tested on other data, too."""
    names = {"mnist": "MNIST", "cifar10": "CIFAR-10", "stl10": "STL-10"}
    names["fashion-mnist"] = "Fashion-MNIST"
    elsewhere = "the paper says so of STL-10"
    for data, name in names.items():
        # Its appendix has the operators on the first two as well.
        remark = elsewhere if data == "fashion-mnist" else ""
        praise = "BFNO beats FNO and AFNO at every epoch"
        of = (name, "ablation-operator", data, "bfno-node")
        yield Claim(praise, *of, every_epoch=True, remark=remark)
        remark = "" if data == "stl10" else elsewhere
        praise = "two branches are the best choice"
        yield Claim(praise, name, "ablation-branches", data, "bfno-node", remark=remark)


PAPER_CLAIMS = tuple(_claims())
"""The paper's claims that runs can test, in the order of its sections."""


@dataclass(frozen=True)
class Lead:
    """How far a method is ahead of the best other, as a fraction of the other's score.

    Attributes:
        here: From the means over seeds; negative if the method is behind.
        interval: Its 95 % confidence interval, wider if the method is behind the best of several
            others, which may only be the luckiest; None with one seed.
        published: The same from the means that the paper prints; None if it prints none.
    """

    here: float
    interval: tuple[float, float] | None
    published: float | None


@dataclass(frozen=True)
class Judgement:
    """The verdict of runs on a claim.

    Attributes:
        claim: The claim.
        found: The scores.
        outcome: The conclusion from them.
        reason: Why.
        is_ahead: Whether the method leads, significantly or not.
        lead: How far the method leads; None if that is not a number.
    """

    claim: Claim
    found: str
    outcome: Outcome
    reason: str
    is_ahead: bool
    lead: Lead | None

    @property
    def verdict(self) -> str:
        """Outcome and reason; for undecided claims the reason says enough."""
        return self.reason if self.outcome == "undecided" else f"{self.outcome}: {self.reason}"


def judge_claims(
    runs: Sequence[Record],
    scale: str,
    claims: Sequence[Claim] = PAPER_CLAIMS,
    variant: Variant = AS_DEFINED,
) -> list[Judgement]:
    """Compare claims with the runs of one scale.

    It leaves out claims whose methods do not all have runs, and claims about anything that the
    variant's protocol does not measure.

    Args:
        runs: Any runs.
        scale: The scale of those that count.
        claims: The claims.
        variant: The changed settings of those that count; none means as experiments are defined.
    """
    methods: Methods = defaultdict(list)
    for run in select_runs((run for run in runs if run.scale == scale), variant).counted:
        methods[run.data, run.method].append(run)
    meant = [one for one in claims if variant.measures in ("", one.metric.name)]
    tested = [one for one in meant if has_changes(_compared(one, methods), variant)]
    return [found for claim in tested if (found := _judged(claim, methods)) is not None]


def _compared(claim: Claim, methods: Methods) -> list[Record]:
    return [run for method in _labels(claim) for run in methods.get((claim.data, method), [])]


def claims_table(judgements: Sequence[Judgement]) -> Table:
    """The claims with the verdict on each, the decided ones first."""
    ordered = sorted(judgements, key=lambda one: get_args(Outcome).index(one.outcome))
    return Table(_COLUMNS, tuple((one.claim.text, one.found, one.verdict) for one in ordered))


def is_full_size(scale: str, variant: Variant) -> bool:
    """Whether the models are as large, and the trainings as long, as the paper's."""
    return scale == "paper" and not any("train.epochs=" in one for one in variant.settings)


def how_sure(full_size: bool) -> str:
    """The meaning of a verdict, for runs of the full size or smaller ones."""
    small = (
        " Small models cannot refute claims about large ones, nor short trainings claims about "
        "long ones."
    )
    return (
        f"A claim is *borne out* if its method leads every other with p < {LIMIT:g}, and *not "
        f"borne out* if it is behind the best other with p < {LIMIT:g}, corrected for the number "
        "of others. Otherwise it is *undecided*, neither shown nor contradicted, or *not "
        "comparable* if the paper counted evaluations with other solver settings. p is that of "
        "Welch's t-test over the seeds or, for evaluations that are the same with every seed, of "
        "an exact test of their order; it is not corrected for the number of claims. Runs that "
        "diverged or failed come last. "
        f"Two or three seeds can prove only large differences.{'' if full_size else small}"
    )


Scores = Mapping[str, Sequence[float]]
"""Scores of each method, one per seed; one that is not finite has diverged."""


def _judged(claim: Claim, methods: Methods) -> Judgement | None:
    labels = _labels(claim)
    runs = {method: methods.get((claim.data, method), []) for method in labels}
    found = {method: [_measured(claim, run) for run in runs[method]] for method in labels}
    scores = {
        method: [value for value in values if value is not None] for method, values in found.items()
    }
    if not all(scores.values()):
        return None
    most = max(map(len, scores.values()))
    means = {method: _estimate(claim, values, most) for method, values in scores.items()}
    others = [method for method in labels if method != claim.method]
    rival = min(others, key=lambda method: claim.rank(means[method]))
    best = "best other " if len(others) > 1 else ""
    told = {
        method: f"{labels[method]} {score if math.isfinite(score.mean) else _lost(scores[method])}"
        for method, score in means.items()
    }
    text = f"{told[claim.method]}, {best}{told[rival]}"
    equal = sum(claim.rank(means[method]) == claim.rank(means[rival]) for method in others) - 1
    text += f" (and {counted(equal, 'other')})" if equal else ""
    lead = _lead(claim, means[claim.method], means[rival])
    relative = _relative_lead(claim, lead, scores, rival)
    if differing := _differing(claim, itertools.chain(*runs.values())):
        are = "are" if len(differing) > 1 else "is"
        reason = f"{listed(differing)} {are} not the paper's"
        return Judgement(claim, text, "not comparable", reason, lead > 0, relative)
    outcome, reason = _verdict(claim, scores, labels, lead, rival)
    if claim.every_epoch:
        epochs, led = _epochs_led(claim, runs)
        text += f"; ahead in {led} of {epochs} epochs"
        if outcome == "borne out" and (led < epochs or not epochs):
            reason = f"leads at the end ({reason}), but not in every epoch"
            outcome = "undecided"
    return Judgement(claim, text, outcome, reason, lead > 0, relative)


def _lost(scores: Sequence[float]) -> str:
    lost = sum(not math.isfinite(score) for score in scores)
    return f"diverged or failed with {lost} of {counted(len(scores), 'seed')}"


def _measured(claim: Claim, run: Record) -> float | None:
    """The score that a claim is about; NaN for a training that failed."""
    return math.nan if run.has_failed else run.result.get(claim.key)


def _differing(claim: Claim, runs: Iterable[Record]) -> list[str]:
    """The solver settings of a claim that some run does not have."""
    found = [flat_config(run.config) for run in runs]
    return [
        f"solver.{name}"
        for name, value in claim.solver
        if any(settings.get(f"solver.{name}") != value for settings in found)
    ]


def _relative_lead(claim: Claim, lead: float, scores: Scores, rival: str) -> Lead | None:
    unit = abs(mean(scores[rival]))
    if not math.isfinite(lead) or not unit:
        return None
    interval = interval_of_lead(scores[claim.method], scores[rival], _factor(scores, lead))
    if interval is not None:
        low, high = (end / unit for end in interval)
        interval = (low, high) if claim.metric.higher_is_better else (-high, -low)
    return Lead(lead / unit, interval, _published_lead(claim))


def _factor(scores: Scores, lead: float) -> int:
    """The number by which the chance of a difference from the best other is multiplied.

    One of several others may be the best by luck, so a method that is behind needs this correction.
    A method that leads has to beat every other and needs none.
    """
    return 1 if lead > 0 else len(scores) - 1


def _published_lead(claim: Claim) -> float | None:
    """The lead by the paper's scores, if it prints those of all methods."""
    paper, compared = paper_table(claim.table), _labels(claim)
    if paper.metrics[0] != claim.key:
        return None
    means = {}
    for row in paper.rows:
        method = (row.experiment(claim.data) or "").partition("/")[2]
        if method in compared and (cell := row.cells.get(claim.data)) and cell.mean is not None:
            means[method] = cell.mean
    if means.keys() < compared.keys():
        return None
    ours = claim.metric.rank(means.pop(claim.method))
    best = min(means.values(), key=claim.metric.rank)
    return (claim.metric.rank(best) - ours) / abs(best)


def _lead(claim: Claim, ours: Estimate, other: Estimate) -> float:
    """How much better one is than the other; a diverged one is behind, NaN if both have."""
    return claim.rank(other) - claim.rank(ours)


def _labels(claim: Claim) -> dict[str, str]:
    """The paper's names of the methods that a claim compares, by their names in experiments."""
    labels = {}
    for row in paper_table(claim.table).rows:
        if row.control:
            continue
        method = (row.experiment(claim.data) or "").partition("/")[2]
        if method and (not claim.among or method in (claim.method, *claim.among)):
            labels[method] = row.label
    return labels


def _estimate(claim: Claim, values: Sequence[float], most: int) -> Estimate:
    """The mean over seeds, which says so if other methods have more of them."""
    found = Estimate.of(values, claim.metric.digits)
    assert found is not None, "there are values"
    return found.with_seeds(len(values), most)


def _verdict(
    claim: Claim, scores: Scores, labels: Mapping[str, str], lead: float, rival: str
) -> tuple[Outcome, str]:
    """The verdict that follows from a lead, and its significance."""
    # A method that is behind one other is behind, regardless of the rest.
    decisive = [claim.method] if lead < 0 else [*scores]
    unclear = [
        f"{lost} of {counted(len(values), 'seed')} of {labels[method]} diverged or failed"
        for method in decisive
        if (values := scores[method])
        and (lost := sum(not math.isfinite(value) for value in values))
        and lost < max(len(values), 2)
    ]
    if unclear:
        return "undecided", "; ".join(unclear)
    if lead == 0:
        return "undecided", "a tie"
    if math.isnan(lead):
        return "undecided", "all diverged or failed"
    stands = "leads" if lead > 0 else "behind"
    if lead == -math.inf:
        return "not borne out", "it diverged or failed"
    if lead == math.inf and len(scores[claim.method]) == 1:
        return "undecided", f"{stands} {ONE_SEED}"
    if lead == math.inf:
        return "borne out", "every other diverged or failed"
    ours, best = scores[claim.method], scores[rival]
    # Evaluations may well be equal; scores are equal only if a model has learned nothing.
    if claim.metric.name != "nfe" and len(set(ours)) == len(set(best)) == 1 < len(ours):
        return "undecided", f"{stands}, but all seeds are equal"
    chance = _chance(claim, scores, lead, rival)
    if chance is None:
        return "undecided", f"{stands} {ONE_SEED}"
    if chance >= LIMIT:
        return "undecided", f"{stands}, but not significantly ({odds(chance)})"
    return ("borne out" if lead > 0 else "not borne out"), odds(chance)


def _chance(claim: Claim, scores: Scores, lead: float, rival: str) -> float | None:
    """The chance of a lead over the others, or of being so far behind the best of them."""
    ours = scores[claim.method]
    if lead < 0:
        return chance_of_lead(ours, scores[rival], _factor(scores, lead))
    others = [values for method, values in scores.items() if method != claim.method]
    finite = [values for values in others if all(map(math.isfinite, values))]
    chances = [chance_of_lead(ours, values) for values in finite]
    known = [chance for chance in chances if chance is not None]
    return max(known) if len(known) == len(chances) else None


def _epochs_led(claim: Claim, runs: Mapping[str, Sequence[Record]]) -> tuple[int, int]:
    """Number of epochs of any method, and of those in which the claim's method leads."""
    curves = {
        method: {epoch: mean(values) for epoch, values in epoch_values(members, claim.key).items()}
        for method, members in runs.items()
    }
    ours = curves.pop(claim.method)
    epochs = set(ours).union(*curves.values())
    sign = 1 if claim.metric.higher_is_better else -1
    led = [
        epoch
        for epoch in epochs
        if epoch in ours
        and all(
            epoch in curve and sign * (ours[epoch] - curve[epoch]) > 0 for curve in curves.values()
        )
    ]
    return len(epochs), len(led)
