"""Verdicts on the paper's claims follow from the runs alone."""

import dataclasses
import math
from typing import Any

import pytest
import scipy.stats

from bfno.lab.experiments.resolve import resolve
from bfno.lab.paper.claims import (
    PAPER_CLAIMS,
    Claim,
    claims_table,
    how_sure,
    is_full_size,
    judge_claims,
)
from bfno.lab.paper.numbers import paper_table
from bfno.lab.paper.sections import select_runs
from bfno.lab.runs.folder import read_runs
from bfno.lab.runs.variants import PROTOCOLS, Variant
from tests.lab.views.runs import epoch_lines, record, result, write_files

CLAIM = Claim("AFNO wins", "MNIST", "ablation-operator", "mnist", "afno-node")


def _runs(root, scores, key="test_accuracy", **changes):
    """Runs of the operators on MNIST with given scores, one per seed."""
    folders = []
    for method, values in scores.items():
        for seed, value in enumerate(values):
            found = {**result(), key: value}
            content = {**record("mnist", method, seed), "result": found, **changes}
            lines = epoch_lines(content["result"])
            folders.append(write_files(root / f"{method}-{seed}", content, lines))
    return read_runs(folders)


def _verdict(runs, claim=CLAIM, scale="cpu") -> Any:
    rows = claims_table(judge_claims(runs, scale, [claim])).rows
    return rows[0] if rows else None


@pytest.mark.parametrize(
    ("ours", "best", "expected"),
    [
        ([0.950, 0.951], [0.900, 0.901], "borne out: p < 0.001"),
        ([0.900, 0.901], [0.950, 0.951], "not borne out: p < 0.001"),
        ([0.95, 0.96], [0.90, 0.92], "leads, but not significantly (p = 0.092)"),
        ([0.90, 0.96], [0.94, 0.95], "behind, but not significantly (p = 1)"),
        ([0.95, 0.95], [0.95, 0.95], "a tie"),
        ([0.95], [0.90], "leads with one seed, which says little"),
        ([0.90], [0.95, 0.95], "behind with one seed, which says little"),
        ([math.nan, math.nan], [0.90, 0.91], "not borne out: it diverged or failed"),
        ([math.nan, 0.95], [0.90, 0.91], "1 of 2 seeds of AFNO-NODE diverged or failed"),
        ([0.95, 0.95], [0.90, math.inf], "1 of 2 seeds of FNO-NODE diverged or failed"),
        ([math.nan], [0.90, 0.91], "1 of 1 seed of AFNO-NODE diverged or failed"),
        ([0.95, 0.95], [0.90, 0.90], "leads, but all seeds are equal"),
        ([math.inf, math.inf], [0.90, 0.91], "not borne out: it diverged or failed"),
    ],
)
def test_a_verdict_weighs_the_lead_against_the_spread(tmp_path, ours, best, expected):
    runs = _runs(tmp_path, {"afno-node": ours, "fno-node": best, "bfno-node": [0.5, 0.5]})
    _, found, verdict = _verdict(runs)
    assert verdict == expected
    assert "diverged" in expected or "best other FNO-NODE" in found


def test_where_less_is_better_the_lowest_leads(tmp_path):
    claim = Claim("", "MNIST", "ablation-operator", "mnist", "afno-node", key="train_loss")
    scores = {"afno-node": [0.1, 0.101], "fno-node": [0.2, 0.2], "bfno-node": [0.9, 0.9]}
    assert _verdict(_runs(tmp_path, scores, "train_loss"), claim)[2] == "borne out: p = 0.0032"


@pytest.mark.parametrize("less_is_better", [True, False])
@pytest.mark.parametrize("lost", ["fno-node", "bfno-node"])
def test_a_rival_that_diverged_is_behind(tmp_path, less_is_better, lost):
    key = "train_loss" if less_is_better else "test_accuracy"
    claim = Claim("", "MNIST", "ablation-operator", "mnist", "afno-node", key=key)
    scores = {"afno-node": [0.5, 0.501], "fno-node": [0.6, 0.6], "bfno-node": [0.6, 0.6]}
    if not less_is_better:
        scores = {method: [1 - value for value in values] for method, values in scores.items()}
    found, verdict = _verdict(_runs(tmp_path, {**scores, lost: [math.nan, math.nan]}, key), claim)[
        1:
    ]
    assert "nan" not in found and verdict == "borne out: p = 0.0032"


def test_a_method_behind_one_other_is_behind_regardless_of_the_rest(tmp_path):
    scores = {"afno-node": [0.80, 0.81], "bfno-node": [0.95, 0.96], "fno-node": [0.9, math.nan]}
    assert _verdict(_runs(tmp_path, scores))[2].startswith("not borne out: p")


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ([0.5, 0.501], [math.inf, math.nan], "borne out: every other diverged or failed"),
        ([0.5], [math.nan, math.nan], "leads with one seed, which says little"),
        ([math.nan, math.nan], [math.nan, math.inf], "all diverged or failed"),
    ],
)
def test_where_every_other_diverged_one_seed_proves_nothing(tmp_path, ours, theirs, expected):
    runs = _runs(tmp_path, {"afno-node": ours, "fno-node": theirs, "bfno-node": theirs})
    _, found, verdict = _verdict(runs)
    assert verdict == expected
    assert found.endswith("(and 1 other)")


def test_fewer_seeds_than_another_method_has_are_told(tmp_path):
    runs = _runs(tmp_path, {"afno-node": [0.9], "fno-node": [0.8, 0.81], "bfno-node": [0.5, 0.5]})
    assert _verdict(runs)[1].startswith("AFNO-NODE 0.9000 (1 of 2 seeds), best other FNO-NODE 0.80")


def test_one_method_against_one_is_no_contest_for_the_best(tmp_path):
    claim = Claim("", "MNIST", "ablation-operator", "mnist", "afno-node", ("fno-node",))
    runs = _runs(tmp_path, {"afno-node": [0.9], "fno-node": [0.8]})
    assert _verdict(runs, claim)[1] == "AFNO-NODE 0.9000, FNO-NODE 0.8000"


def test_evaluations_of_another_solver_are_not_judged(tmp_path):
    solver = (("method", "dopri5"), ("gradient", "adjoint"))
    claim = Claim("", "MNIST", "ablation-operator", "mnist", "afno-node", solver=solver)
    runs = _runs(tmp_path, {"afno-node": [0.9], "fno-node": [0.8], "bfno-node": [0.7]})
    for run in runs:
        run.config["solver"] = {"method": "bosh3", "gradient": "direct"}
    both = "not comparable: solver.method and solver.gradient are not the paper's"
    assert _verdict(runs, claim)[2] == both
    for run in runs:
        run.config["solver"] = {"method": "dopri5", "gradient": "adjoint"}
    assert _verdict(runs, claim)[2].startswith("leads")
    runs[0].config["solver"] = {"method": "dopri5", "gradient": "direct"}
    assert _verdict(runs, claim)[2] == "not comparable: solver.gradient is not the paper's"


@pytest.mark.parametrize("data", ["mnist", "cifar10"])
def test_evaluations_are_judged_by_the_papers_solver_alone(data):
    for scale, changes, comparable in (
        ("cpu", {}, []),
        ("paper", {}, ["forward", "test"]),
        ("paper", {"solver": {"gradient": "adjoint"}}, ["forward", "backward", "test"]),
        ("paper", {"solver": {"first_step": "last"}}, []),
        ("cpu", PROTOCOLS["counted"].settings, ["forward", "backward", "test"]),
    ):
        config = resolve(f"{data}/bfno-node", scale=scale, changes=changes)
        solver = {name: getattr(config.solver, name) for name in type(config.solver).model_fields}
        claims = [one for one in PAPER_CLAIMS if one.data == data and one.metric.name == "nfe"]
        assert [
            claim.metric.split
            for claim in claims
            if all(solver[name] == value for name, value in claim.solver)
        ] == comparable


def test_those_who_are_as_good_as_the_best_other_are_counted(tmp_path):
    scores = {"afno-node": [0.9], "fno-node": [0.8], "bfno-node": [0.8]}
    found = _verdict(_runs(tmp_path, scores))[1]
    assert found == "AFNO-NODE 0.9000, best other FNO-NODE 0.8000 (and 1 other)"


def test_a_seed_that_is_there_twice_counts_once(tmp_path):
    scores = {"afno-node": [0.9, 0.8], "fno-node": [0.7, 0.7], "bfno-node": [0.1, 0.1]}
    runs = _runs(tmp_path, scores)
    again = [dataclasses.replace(run, name=f"z-{run.name}") for run in runs if run.seed == 1]
    assert _verdict([*again, *runs]) == _verdict(runs)


def test_a_claim_is_left_out_until_every_method_has_run(tmp_path):
    assert _verdict(_runs(tmp_path, {"afno-node": [0.9], "fno-node": [0.8]})) is None


def test_runs_of_other_scales_or_with_changed_settings_do_not_count(tmp_path):
    scores = {"afno-node": [0.9], "fno-node": [0.8], "bfno-node": [0.7]}
    runs = _runs(tmp_path / "plain", scores)
    assert _verdict(runs) is not None
    assert _verdict(runs, scale="paper") is None
    assert _verdict(_runs(tmp_path / "changed", scores, changes=["train.lr=1"])) is None


def test_runs_with_other_gradients_are_judged_apart(tmp_path):
    solver = (("gradient", "adjoint"),)
    claim = Claim("", "MNIST", "ablation-operator", "mnist", "afno-node", solver=solver)
    changes = ['solver.gradient="adjoint"']
    scores = {"afno-node": [0.9], "fno-node": [0.8], "bfno-node": [0.7]}
    runs = _runs(tmp_path, scores, changes=changes)
    for run in runs:
        run.config.setdefault("solver", {})["gradient"] = "adjoint"
    assert _verdict(runs, claim) is None
    variant = Variant.of(changes)
    table = claims_table(judge_claims(runs, "cpu", [claim], variant))
    assert table.rows[0][2] == "leads with one seed, which says little"


def test_a_lead_is_a_fraction_of_the_best_others_score(tmp_path):
    scores = {"afno-node": [0.96, 0.98], "fno-node": [0.90, 0.94], "bfno-node": [0.5, 0.6]}
    lead = judge_claims(_runs(tmp_path, scores), "cpu", [CLAIM])[0].lead
    assert lead is not None and lead.interval is not None and lead.published is None
    assert lead.here == pytest.approx(0.05 / 0.92)
    found: Any = scipy.stats.ttest_ind([0.96, 0.98], [0.90, 0.94], equal_var=False)
    ends = found.confidence_interval(0.95)
    assert lead.interval == pytest.approx((ends.low / 0.92, ends.high / 0.92))
    # Of several others one may be ahead by luck, which makes the interval wider.
    behind = dataclasses.replace(CLAIM, method="bfno-node")
    lead = judge_claims(_runs(tmp_path / "again", scores), "cpu", [behind])[0].lead
    assert lead is not None and lead.interval is not None
    wide: Any = scipy.stats.ttest_ind([0.5, 0.6], [0.96, 0.98], equal_var=False)
    ends = wide.confidence_interval(1 - 0.05 / 2)
    assert lead.interval == pytest.approx((ends.low / 0.97, ends.high / 0.97))


def test_where_less_is_better_the_lead_and_its_interval_change_their_sign(tmp_path):
    claim = Claim(
        "", "MNIST", "ablation-operator", "mnist", "afno-node", ("fno-node",), key="train_loss"
    )
    scores = {"afno-node": [1.8, 2.0], "fno-node": [2.4, 2.6]}
    lead = judge_claims(_runs(tmp_path, scores, "train_loss"), "cpu", [claim])[0].lead
    assert lead is not None and lead.interval is not None
    assert lead.here == pytest.approx(0.6 / 2.5)
    low, high = lead.interval
    assert low < lead.here < high and low + high == pytest.approx(2 * lead.here)


@pytest.mark.parametrize(
    ("text", "lead"),
    [
        ("BFNO-NODE is the most accurate on CIFAR-10", (0.6289 - 0.6264) / 0.6264),
        ("BFNO-NODE is more accurate than NODE on MNIST", (0.9752 - 0.9531) / 0.9531),
        ("FFJORD-BFNO-RNODE has the fewest bits/dim on MNIST", (0.97 - 0.88) / 0.97),
    ],
)
def test_the_lead_in_the_paper_is_that_of_the_scores_it_prints(tmp_path, text, lead):
    claim = next(one for one in PAPER_CLAIMS if one.text == text)
    table = paper_table(claim.table)
    folders = []
    for row in table.selected(claim.among and (claim.method, *claim.among)):
        experiment = row.experiment(claim.data)
        if experiment and not row.control:
            content = record(claim.data, experiment.partition("/")[2], 7)
            content["result"] = {**result(), claim.key: 0.5}
            folders.append(write_files(tmp_path / row.method, content))
    found = judge_claims(read_runs(folders), "cpu", [claim])[0].lead
    assert found is not None and found.published == pytest.approx(lead)


def test_every_epoch_means_every_epoch(tmp_path):
    claim = Claim("", "MNIST", "ablation-operator", "mnist", "afno-node", every_epoch=True)
    scores = {"afno-node": [0.9, 0.901], "fno-node": [0.8, 0.8], "bfno-node": [0.1, 0.1]}
    runs = _runs(tmp_path, scores)
    _, found, verdict = _verdict(runs, claim)
    assert found.endswith("ahead in 3 of 3 epochs") and verdict == "borne out: p = 0.0032"
    for run in runs:
        if run.method == "fno-node":
            run.epochs[0]["test_accuracy"] = 0.99
    _, found, verdict = _verdict(runs, claim)
    assert found.endswith("ahead in 2 of 3 epochs")
    assert verdict == "leads at the end (p = 0.0032), but not in every epoch"
    assert judge_claims(runs, "cpu", [claim])[0].outcome == "undecided"
    for run in runs:
        if run.method == "fno-node":
            run.epochs.clear()
    found, verdict = _verdict(runs, claim)[1:]
    assert found.endswith("ahead in 0 of 3 epochs") and "not in every epoch" in verdict


def test_who_leads_has_to_beat_every_other_and_not_the_best_alone(tmp_path):
    scores = {"afno-node": [0.60, 0.61], "fno-node": [0.52, 0.521], "bfno-node": [0.8, 0.2]}
    _, found, verdict = _verdict(_runs(tmp_path / "wild", scores))
    assert "best other FNO-NODE" in found and verdict == "leads, but not significantly (p = 0.79)"
    alone = _runs(tmp_path / "alone", {**scores, "bfno-node": [0.5]})
    assert _verdict(alone)[2] == "leads with one seed, which says little"


def test_runs_of_an_older_recipe_are_left_out_and_named(tmp_path):
    scores = {"afno-node": [0.9, 0.9], "fno-node": [0.8, 0.8], "bfno-node": [0.1, 0.1]}
    runs = _runs(tmp_path / "new", scores)
    old = _runs(tmp_path / "old", {"afno-node": [0.2]})[0]
    old = dataclasses.replace(old, name="a")
    for run in (old, *runs):
        run.config.setdefault("train", {})["epochs"] = 3 if run is old else 6
    assert _verdict([old, *runs]) == _verdict(runs)
    assert select_runs([old, *runs]).outliers == [old]


@pytest.mark.parametrize("claim", PAPER_CLAIMS, ids=lambda claim: claim.text)
def test_claims_speak_of_methods_and_data_of_their_tables(claim):
    table = paper_table(claim.table)
    assert claim.data in table.titles
    methods = {(row.experiment(claim.data) or "").partition("/")[2] for row in table.rows}
    assert {claim.method, *claim.among} <= methods


@pytest.mark.parametrize(
    ("scale", "changes", "expected"),
    [
        ("paper", [], True),
        ("paper", ['data.protocol="published"'], True),
        ("paper", ["train.epochs=1"], False),
        ("cpu", [], False),
    ],
)
def test_small_models_and_short_trainings_have_a_caveat(scale, changes, expected):
    assert is_full_size(scale, Variant.of(changes)) is expected
    assert ("Small models cannot refute" in how_sure(expected)) is not expected
