from pathlib import Path

from bfno.results.record import read_run
from bfno.results.report.summary import summary
from bfno.results.tables import replicates
from tests.results.runs import result, write_run


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
        "20.5), 18.0 backward evaluations a training step (against 18.0), 61 s of training "
        "(against 61) and 20,123 parameters (against 20,123). Without several seeds of both, "
        "chance is not ruled out."
    )


def test_the_summary_of_one_run_compares_nothing(tmp_path):
    text = _summary(tmp_path, ("node", 7, 0.95))
    assert text.startswith("On digits (scale cpu), node reaches a test accuracy of 0.9500. ")
    assert "against" not in text


def test_the_summary_says_when_a_lead_may_be_chance(tmp_path):
    wide = [("node", 0, 0.90), ("node", 1, 0.96), ("bfno-node", 0, 0.91), ("bfno-node", 1, 0.97)]
    assert "it may be chance" in _summary(tmp_path / "wide", *wide)
    clear = [("node", 0, 0.80), ("node", 1, 0.81), ("bfno-node", 0, 0.96), ("bfno-node", 1, 0.97)]
    assert "larger than both standard deviations" in _summary(tmp_path / "clear", *clear)


def test_the_summary_says_when_two_methods_share_the_best(tmp_path):
    text = _summary(tmp_path, ("node", 7, 0.95), ("anode", 7, 0.95))
    assert "anode and node share the best test accuracy, 0.9500." in text
