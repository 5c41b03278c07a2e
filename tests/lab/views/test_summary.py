import math
from pathlib import Path

from bfno.lab.runs.folder import read_run, read_runs
from bfno.lab.views.methods import replicates
from bfno.lab.views.summary import scale_notes, subtitle, summary
from tests.lab.views.runs import result, write_run


def _summary(tmp_path: Path, *runs: tuple[str, int, float]) -> str:
    read = [
        read_run(write_run(tmp_path, method=method, seed=seed, result=result(accuracy)))
        for method, seed, accuracy in runs
    ]
    return summary(replicates(read))


def test_the_summary_names_the_best_method_its_lead_and_its_cost(tmp_path):
    assert _summary(tmp_path, ("node", 7, 0.95), ("bfno-node", 7, 0.97), ("anode", 7, 0.9)) == (
        "On digits (scale cpu), bfno-node has the best test accuracy of 3 methods: 0.9700, which "
        "is 0.0200 above node with 0.9500. bfno-node takes 20.5 forward evaluations (against "
        "20.5), 18.0 backward evaluations per training step (against 18.0), 61 s of training "
        "(against 61) and 20,123 parameters (against 20,123). Without several seeds of both, "
        "chance is not ruled out."
    )


def test_the_summary_of_one_run_compares_nothing(tmp_path):
    text = _summary(tmp_path, ("node", 7, 0.95))
    assert text.startswith("On digits (scale cpu), node reaches a test accuracy of 0.9500. ")
    assert "against" not in text


def test_the_summary_says_when_a_lead_may_be_chance(tmp_path):
    wide = [("node", 0, 0.90), ("node", 1, 0.96), ("bfno-node", 0, 0.91), ("bfno-node", 1, 0.97)]
    text = _summary(tmp_path / "wide", *wide)
    assert "It may be chance, which gives such a lead in 84 of 100 cases (Welch's test" in text
    same = [("node", 0, 0.90), ("node", 1, 0.90), ("bfno-node", 0, 0.80), ("bfno-node", 1, 1.0002)]
    assert "in 100 of 100 cases" in _summary(tmp_path / "same", *same)
    clear = [("node", 0, 0.80), ("node", 1, 0.81), ("bfno-node", 0, 0.96), ("bfno-node", 1, 0.97)]
    text = _summary(tmp_path / "clear", *clear)
    assert "Chance alone would give such a lead in 0.19 of 100 cases" in text


def test_a_lead_is_the_difference_of_the_means_that_are_printed(tmp_path):
    text = _summary(tmp_path, ("node", 7, 0.90006), ("bfno-node", 7, 0.91004))
    assert "0.9100, which is 0.0099 above node with 0.9001." in text


def test_methods_whose_means_are_printed_alike_share_the_best(tmp_path):
    runs = [("node", 7, 0.95001), ("anode", 7, 0.95), ("sonode", 7, 0.94999), ("hbnode", 7, 0.9)]
    text = _summary(tmp_path, *runs)
    assert "node, anode and sonode share the best test accuracy, 0.9500." in text


def test_evaluations_of_a_method_that_solves_nothing_are_compared_with_none(tmp_path):
    solver = write_run(tmp_path, method="node", result=result(0.95))
    other = write_run(tmp_path, method="rnn", result=result(0.9, forward_nfe=0.0, backward_nfe=0.0))
    text = summary(replicates(read_runs([solver, other])))
    assert "node takes 20.5 forward evaluations, 18.0 backward" in text


def test_a_method_without_a_rival_that_has_numbers_is_not_compared(tmp_path):
    text = _summary(tmp_path / "none", ("node", 7, 0.95), ("anode", 7, math.nan))
    assert "node has a test accuracy of 0.9500; no other method has a number." in text
    some = [("node", 7, 0.95), ("anode", 7, 0.9), ("anode", 8, math.nan)]
    assert "no other method has a number for every seed." in _summary(tmp_path / "some", *some)
    text = _summary(tmp_path / "nobody", ("node", 7, math.nan))
    assert text == "On digits (scale cpu), no method has a test accuracy that is a number."


def test_the_subtitle_says_what_was_trained(tmp_path):
    counts = {"train": 10800, "test": 1000}
    images = [write_run(tmp_path, method=method, samples=counts) for method in ("node", "anode")]
    assert subtitle(replicates(read_runs(images))) == (
        "2 runs of 2 methods that classify images; samples: 10,800 train, 1,000 test"
    )
    other = write_run(tmp_path, "moons", result={"test_nll": 1.0}, samples={"train": 5, "test": 5})
    unknown = write_run(tmp_path, "other", result={"speed": 1.0})
    assert subtitle(replicates(read_runs([*images, other, unknown]))) == (
        "4 runs of 3 methods that classify images and learn densities"
    )
    assert subtitle(replicates(read_runs([unknown]))) == "1 run of 1 method"


def test_the_scale_of_small_runs_is_explained_once(tmp_path):
    runs = [write_run(tmp_path, method=method) for method in ("node", "anode")]
    (note,) = scale_notes(replicates(read_runs(runs)))
    assert note.startswith("Scale cpu: ") and "Not comparable with published numbers" in note
    assert scale_notes(replicates(read_runs([write_run(tmp_path, "d", scale="paper")]))) == []


def test_the_summary_says_when_two_methods_share_the_best(tmp_path):
    text = _summary(tmp_path, ("node", 7, 0.95), ("anode", 7, 0.95))
    assert "anode and node share the best test accuracy, 0.9500." in text
