"""What the paper claims of its method, next to what runs show; verdicts are computed, not typed."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from bfno.lab.paper.numbers import paper_table
from bfno.lab.paper.sections import select_runs
from bfno.lab.runs.record import Record, flat_config
from bfno.lab.runs.variants import AS_DEFINED, Variant
from bfno.lab.views.curves import epoch_values
from bfno.lab.views.layout import Column, Table
from bfno.lab.views.metrics import LIMIT, Estimate, Metric, chance_of_lead, find_metric, mean

__all__ = ["PAPER_CLAIMS", "Claim", "judge_claims"]

_COLUMNS = (
    Column("claim", "the paper says", numeric=False),
    Column("found", "here", numeric=False),
    Column("verdict", "verdict", numeric=False),
)
Methods = dict[tuple[str, str], list[Record]]
"""Runs by the names of their data and their method."""


@dataclass(frozen=True)
class Claim:
    """One method is the best of several.

    Attributes:
        text: The claim in words.
        table: The table of the paper that compares the methods.
        data: Name of the data.
        method: The method that it praises.
        among: The methods that it is compared with; empty for all of the table.
        key: The metric, as in a record.
        every_epoch: Whether it is said of every epoch and not of the end alone.
        gradient: How the runs must have computed their gradients to be comparable; empty for any.
    """

    text: str
    table: str
    data: str
    method: str
    among: tuple[str, ...] = ()
    key: str = "test_accuracy"
    every_epoch: bool = False
    gradient: str = ""

    @property
    def metric(self) -> Metric:
        """What it is about."""
        return find_metric(self.key)

    def rank(self, score: Estimate) -> float:
        """A number to sort by: the best score has the smallest; what diverged has the largest."""
        return self.metric.rank(score.mean) if math.isfinite(score.mean) else math.inf


def _claims() -> Iterator[Claim]:
    yield from _image_claims()
    for data, name in (("mnist", "MNIST"), ("cifar10", "CIFAR-10"), ("stl10", "STL-10")):
        text = f"BFNO beats FNO and AFNO at every epoch on {name}"
        yield Claim(text, "ablation-operator", data, "bfno-node", every_epoch=True)
        text = f"two branches are the best number on {name} (the paper: on STL-10)"
        yield Claim(text, "ablation-branches", data, "bfno-node")
    text = "Latent-BFNO-NODE is the most accurate on HumanActivity"
    yield Claim(text, "2", "activity", "latent-bfno-node")
    text = "ACE-Latent-ODE has the highest AUROC on PhysioNet (Latent-BFNO-NODE: 0.001 less)"
    yield Claim(text, "3", "physionet", "ace-latent-ode", key="test_auroc")
    for data, name in (("mnist-density", "MNIST"), ("cifar10-density", "CIFAR-10")):
        text = f"FFJORD-BFNO-RNODE has the fewest bits/dim on {name}"
        yield Claim(text, "4", data, "ffjord-bfno-rnode", key="test_bits_per_dim")


def _image_claims() -> Iterator[Claim]:
    yield Claim("AdamNODE is the most accurate on MNIST", "1", "mnist", "adamnode")
    text = "BFNO-NODE is more accurate than NODE on MNIST"
    yield Claim(text, "1", "mnist", "bfno-node", ("node",))
    for data, name in (("cifar10", "CIFAR-10"), ("cifar100", "CIFAR-100"), ("stl10", "STL-10")):
        yield Claim(f"BFNO-NODE is the most accurate on {name}", "1", data, "bfno-node")
    passes = {"forward_nfe": "forward", "backward_nfe": "backward", "test_nfe": "test"}
    for data, name in (("mnist", "MNIST"), ("cifar10", "CIFAR-10"), ("cifar100", "CIFAR-100")):
        for key, words in passes.items():
            text = f"BFNO-NODE takes the fewest {words} evaluations on {name}"
            gradient = "adjoint" if words == "backward" else ""
            yield Claim(text, "1", data, "bfno-node", key=key, gradient=gradient)
    text = "BFNO-NODE has the lowest training loss on STL-10"
    yield Claim(text, "1", "stl10", "bfno-node", key="train_loss")


PAPER_CLAIMS = tuple(_claims())
"""The paper's claims that runs can bear out, in the order of its sections."""


def judge_claims(
    runs: Sequence[Record],
    scale: str,
    claims: Sequence[Claim] = PAPER_CLAIMS,
    variant: Variant = AS_DEFINED,
) -> Table:
    """Compare claims with the runs of one scale; claims without runs of all methods are left out.

    Args:
        runs: Any runs.
        scale: Which of them count.
        claims: What is claimed.
        variant: The changed settings of those that count; none means as experiments are defined.
    """
    methods: Methods = defaultdict(list)
    for run in select_runs((run for run in runs if run.scale == scale), variant).counted:
        methods[run.data, run.method].append(run)
    rows = [row for claim in claims if (row := _judged(claim, methods)) is not None]
    return Table(_COLUMNS, tuple(rows), notes=(_note(scale, variant),))


def _note(scale: str, variant: Variant) -> str:
    how = ", ".join(filter(None, [f"Scale {scale}", variant.title]))
    full = "" if scale == "paper" else " Such runs cannot refute what the paper says of full size."
    return (
        f"{how}.{full} A claim is borne out if the method leads and chance alone would "
        f"give such a lead with a probability p of less than {LIMIT:g}, by Welch's test over the "
        "seeds, times the number of rivals. Two or three seeds can prove only large differences."
    )


def _judged(claim: Claim, methods: Methods) -> tuple[str, str, str] | None:
    labels = _labels(claim)
    runs = {method: methods.get((claim.data, method), []) for method in labels}
    scores = {method: _estimate(claim, members) for method, members in runs.items()}
    known = {method: score for method, score in scores.items() if score is not None}
    if len(known) < len(labels):
        return None
    ours = known.pop(claim.method)
    rival = min(known, key=lambda method: claim.rank(known[method]))
    lead = _lead(claim, ours, known[rival])
    best = "best other " if len(known) > 1 else ""
    found = f"{labels[claim.method]} {ours}, {best}{labels[rival]} {known[rival]}"
    if claim.gradient and any(
        _gradient(run) != claim.gradient for some in runs.values() for run in some
    ):
        return claim.text, found, f"not comparable: the paper's gradients are {claim.gradient}"
    values = [[run.result.get(claim.key) for run in runs[one]] for one in (claim.method, rival)]
    verdict = _verdict(lead, chance_of_lead(*values, rivals=len(known)))
    if claim.every_epoch:
        epochs, led = _epochs_led(claim, runs)
        found += f"; ahead in {led} of {epochs} epochs"
        if lead > 0 and led < epochs:
            verdict = f"at the end, but not in every epoch: {verdict}"
    return claim.text, found, verdict


def _lead(claim: Claim, ours: Estimate, other: Estimate) -> float:
    """How much better it is than another; what has diverged is behind."""
    rank, other_rank = claim.rank(ours), claim.rank(other)
    return -math.inf if rank == math.inf else other_rank - rank


def _labels(claim: Claim) -> dict[str, str]:
    """Names that the paper gives to the methods it compares, by their names in experiments."""
    labels = {}
    for row in paper_table(claim.table).rows:
        if row.control:
            continue
        method = (row.experiment(claim.data) or "").partition("/")[2]
        if method and (not claim.among or method in (claim.method, *claim.among)):
            labels[method] = row.label
    return labels


def _estimate(claim: Claim, runs: Sequence[Record]) -> Estimate | None:
    return Estimate.of((run.result.get(claim.key) for run in runs), claim.metric.digits)


def _verdict(lead: float, chance: float | None) -> str:
    """In words, how sure a lead is."""
    if lead == 0:
        return "a tie"
    if math.isinf(lead):
        return "borne out: every other diverged" if lead > 0 else "not borne out: it diverged"
    if chance is None:
        return f"{'leads' if lead > 0 else 'behind'} with one seed, which says little"
    odds = "p < 0.001" if chance < 0.001 else f"p = {chance:.2g}"
    if chance >= LIMIT:
        return f"{'leads' if lead > 0 else 'behind'}, but it may be chance ({odds})"
    return f"{'borne out' if lead > 0 else 'not borne out'} ({odds})"


def _gradient(run: Record) -> object:
    return flat_config(run.config).get("solver.gradient")


def _epochs_led(claim: Claim, runs: Mapping[str, Sequence[Record]]) -> tuple[int, int]:
    """Number of epochs that all have, and of those in which the claim's method leads."""
    curves = {
        method: {epoch: mean(values) for epoch, values in epoch_values(members, claim.key).items()}
        for method, members in runs.items()
    }
    ours = curves.pop(claim.method)
    epochs = set(ours).intersection(*curves.values())
    sign = 1 if claim.metric.higher_is_better else -1
    led = [
        epoch
        for epoch in epochs
        if all(sign * (ours[epoch] - curve[epoch]) > 0 for curve in curves.values())
    ]
    return len(epochs), len(led)
