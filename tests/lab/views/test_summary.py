import math
from pathlib import Path
from typing import Any

import pytest

from bfno.lab.runs.folder import read_run, read_runs
from bfno.lab.views.methods import replicates
from bfno.lab.views.summary import (
    calibration,
    data_title,
    opening,
    scale_notes,
    subtitle,
    summary,
    trust,
)
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
    equal = [("node", 0, 0.80), ("node", 1, 0.80), ("bfno-node", 0, 0.96), ("bfno-node", 1, 0.96)]
    text = _summary(tmp_path / "equal", *equal)
    assert "in 33 of 100 cases (an exact test of the seeds' order)" in text


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
        "2 runs of 2 methods, trained to classify images; samples: 10,800 train, 1,000 test"
    )
    other = write_run(tmp_path, "moons", result={"test_nll": 1.0}, samples={"train": 5, "test": 5})
    unknown = write_run(tmp_path, "other", result={"speed": 1.0})
    assert subtitle(replicates(read_runs([*images, other, unknown]))) == (
        "4 runs of 3 methods, trained to classify images and learn densities"
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


def _opening(tmp_path: Path, *runs: dict[str, Any]) -> str:
    folders = [
        write_run(tmp_path, **{"method": f"method-{place}", **changes})
        for place, changes in enumerate(runs)
    ]
    return opening(replicates(read_runs(folders)))


PETS = {
    "classes": ["cat", "frog", "horse", "ship"],
    "confusion": [[20, 3, 2, 2], [4, 18, 3, 2], [9, 9, 6, 3], [1, 2, 4, 20]],
    "result": result(64 / 108),
}


def test_the_first_sentence_says_how_often_a_classifier_is_right_and_where_it_is_weak(tmp_path):
    assert _opening(tmp_path, PETS) == (
        "Right on 59 % of 108 test images (chance 25 %); weakest: horse (22 %)."
    )


def test_of_several_methods_the_first_sentence_is_about_the_best(tmp_path):
    worse = PETS | {"result": result(0.5)}
    assert _opening(tmp_path, worse, PETS) == (
        "The best of 2 methods, method-1, is right on 59 % of 108 test images (chance 25 %); "
        "weakest: horse (22 %)."
    )


def test_several_seeds_are_a_mean(tmp_path):
    seeds = [PETS | {"method": "node", "seed": seed} for seed in (1, 2)]
    assert "(chance 25 %; mean of 2 seeds); weakest: horse" in _opening(tmp_path, *seeds)


def test_where_one_class_is_frequent_to_say_it_always_is_the_better_guess(tmp_path):
    rare = {"classes": ["well", "ill"], "confusion": [[88, 2], [6, 4]], "result": result(0.92)}
    assert _opening(tmp_path, rare) == (
        "Right on 92 % of 100 test images (always saying “well”: 90 %); weakest: ill (40 %)."
    )


@pytest.mark.parametrize(
    ("confusion", "expected"),
    [
        ([[5, 0, 0], [0, 5, 0], [0, 0, 5]], ""),
        ([[5, 0, 0], [5, 0, 0], [5, 0, 0]], "; weakest: b and c (0 %)"),
        ([[5, 0, 0], [0, 0, 0], [0, 4, 1]], "; weakest: c (20 %)"),  # of b, none was tested
        ([], ""),
    ],
)
def test_the_weakest_class_is_the_one_that_is_found_the_least_often(tmp_path, confusion, expected):
    run = {"classes": ["a", "b", "c"], "confusion": confusion, "result": result(0.5)}
    assert _opening(tmp_path, run).partition("weakest")[2] == expected.partition("weakest")[2] + (
        "." if expected else ""
    )


def test_many_weakest_classes_are_counted(tmp_path):
    size = 6
    confusion = [[4] + [0] * (size - 1) for _ in range(size)]
    run = {"classes": list("abcdef"), "confusion": confusion, "result": result(1 / size)}
    assert _opening(tmp_path, run).endswith("; weakest: b, c and 3 more (0 %).")


def test_a_share_is_not_rounded_to_perfection(tmp_path):
    run = PETS | {"result": result(0.999), "confusion": []}
    assert _opening(tmp_path, run) == "Right on more than 99 %."


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"result": {"test_auroc": 0.8157}, "classes": ["survived", "died"]},
            "Ranks a case of “died” above one of “survived” 82 % of the time (chance 50 %; "
            "AUROC 0.82), tested on 800 series.",
        ),
        (
            {"result": {"test_mse": 0.25}, "classes": []},
            "Typically 0.50 standard deviations off at the observed values of 800 test series "
            "(always saying a feature's mean: about 1).",
        ),
        (
            {"result": {"test_bits_per_dim": 3.456}, "classes": []},
            "Needs 3.46 bits for each pixel value of 800 test images (knowing nothing: 8 bits; "
            "fewer is better).",
        ),
        (
            {"result": {"test_nll": 1.5}, "classes": []},
            "Has a mean negative log-likelihood of 1.50 nats on 800 test points (less is better).",
        ),
        ({"result": {"test_loss": 0.5}}, "Has a loss of 0.5 on 800 test samples (less is better)."),
        ({"result": {"test_accuracy": math.nan}}, ""),
        ({"result": {"speed": 1.0}}, ""),
    ],
)
def test_every_kind_of_model_has_its_first_sentence(tmp_path, changes, expected):
    run = {"confusion": [], "samples": {"test": 800}, **changes}
    assert _opening(tmp_path, run) == expected


def test_series_are_counted_as_series(tmp_path):
    config = {"data": {"protocol": "sound"}}
    run = PETS | {"config": config, "samples": {"test": 108}}
    assert "59 % of 108 test series (chance" in _opening(tmp_path, run)


OWN = {"data": {"name": "folder", "folder": "/home/me/photos"}}


def test_ones_own_data_have_their_own_name_and_no_published_numbers(tmp_path):
    run = read_run(write_run(tmp_path, "folder", config=OWN))
    assert data_title(run) == "photos"
    (note,) = scale_notes(replicates([run]))
    assert note.startswith("Scale cpu: ") and "published" not in note
    both = replicates([run, read_run(write_run(tmp_path, "mnist"))])
    assert "published" in scale_notes(both)[0]


def test_a_test_table_of_ones_own_is_named(tmp_path):
    config = {"data": {"path": "a/patients.csv", "test_path": "b/later.csv"}}
    run = read_run(write_run(tmp_path, "series", config=config))
    assert data_title(run) == "patients.csv, tested on later.csv"


def test_calibration_is_reported_before_and_after_scaling(tmp_path):
    errors = {"test_calibration_error": 0.081, "test_calibrated_error": 0.021}
    folder = write_run(tmp_path, result=result(**errors, validation_temperature=1.43))
    assert calibration(read_run(folder)) == (
        "How sure it says it is and how often it is right differ by 8.1 percentage points on "
        "average (expected calibration error). With its scores divided by 1.43, which was fitted "
        "on the validation data and is used in predictions, they differ by 2.1 points."
    )


def test_calibration_that_was_not_measured_is_not_told(tmp_path):
    assert calibration(read_run(write_run(tmp_path))) == ""
    only = {"test_calibration_error": 0.3}
    text = calibration(read_run(write_run(tmp_path, method="other", result=result(**only))))
    assert text.endswith(
        "differ by 30.0 percentage points on average (expected calibration error)."
    )


def test_intervals_are_told_by_what_they_cover(tmp_path):
    run = read_run(write_run(tmp_path, result=result(test_coverage_90=0.91)))
    assert trust(run) == "Its 90 % intervals cover 91 % of the values that were hidden from it."
    assert trust(read_run(write_run(tmp_path, method="other"))) == ""
