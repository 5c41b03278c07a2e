import csv
import math

import pytest

from bfno.lab.errors import ConfigError
from bfno.lab.paper.comparison import paper_comparison
from bfno.lab.paper.numbers import paper_table
from bfno.lab.paper.overview import standing_here
from bfno.lab.runs.record import Record
from bfno.lab.runs.variants import Variant
from bfno.lab.views.layout import FORMATS, Table, as_csv, as_text
from bfno.lab.views.metrics import Estimate

NAMES = ("1", "2", "3", "4", "ablation-operator", "ablation-branches")


def _run(experiment: str, seed: int = 7, score: float = 0.9, **values) -> Record:
    data, _, method = experiment.partition("/")
    values = {
        "scale": "cpu",
        "parameters": 1000,
        "chosen_by": "validation_accuracy",
        "result": {"test_accuracy": score, "test_auroc": score},
        "commit": "a7adaec3f0c54f51",
        **values,
    }
    return Record(f"{data}-{method}-s{seed}", experiment, data, method, seed=seed, **values)


def _cell(table: Table, label: str, key: str):
    keys = [column.key for column in table.columns]
    (row,) = [row for row in table.rows if row[0] == label]
    return row[keys.index(key)]


def test_runs_stand_beside_the_numbers_of_the_paper():
    runs = [_run("mnist/node", seed, score) for seed, score in ((7, 0.90), (8, 0.92), (9, 0.94))]
    table = paper_comparison("1", runs, "cpu")
    assert [column.key for column in table.columns] == [
        "method",
        "mnist_parameters_here_cpu",
        "mnist_parameters_published",
        "mnist_test_accuracy_here_cpu",
        "mnist_seeds",
        "mnist_hardware",
        "mnist_commits",
        "mnist_test_accuracy_published",
    ]
    assert _cell(table, "NODE", "mnist_parameters_here_cpu") == 1000
    assert _cell(table, "NODE", "mnist_seeds") == (7, 8, 9)
    assert _cell(table, "NODE", "mnist_hardware") == "not recorded"
    assert _cell(table, "NODE", "mnist_commits") == "a7adaec3"
    assert _cell(table, "NODE", "mnist_parameters_published") == 85_316
    assert str(_cell(table, "NODE", "mnist_test_accuracy_here_cpu")) == "0.9200 ± 0.0200"
    assert str(_cell(table, "NODE", "mnist_test_accuracy_published")) == "0.9531 ± 0.0042"
    assert _cell(table, "ANODE", "mnist_test_accuracy_here_cpu") is None
    assert [row[0] for row in table.rows][-1] == "BFNO-NODE"


@pytest.mark.parametrize("scale", ["smoke", "cpu", "paper"])
@pytest.mark.parametrize("name", NAMES)
def test_what_was_measured_here_never_stands_under_a_heading_of_the_paper(name, scale):
    empty = paper_comparison(name, [], scale)
    (data,) = {column.key.partition("_")[0] for column in empty.columns[1:2]}
    methods = {"2": "gru-d", "3": "gru-d", "4": "glow"}
    experiment = f"{data}/{methods.get(name, 'bfno-node')}"
    result = dict.fromkeys(
        ("test_accuracy", "test_auroc", "test_bits_per_dim", "test_bits_per_dim_center"), 0.123
    )
    run = _run(experiment, scale=scale, parameters=123, result=result)
    table = paper_comparison(name, [run], scale)
    found = 0
    for row in table.rows:
        for column, cell in zip(table.columns, row, strict=True):
            is_ours = cell == 123 or (isinstance(cell, Estimate) and cell.mean == 0.123)
            found += is_ours
            if is_ours:
                assert f"here ({scale} scale)" in column.title
                assert column.key.endswith(f"_here_{scale}")
            assert ("in the paper" in column.title) == column.key.endswith("_published")
    assert found == 2 + (name == "4")


def test_runs_of_another_scale_or_with_changed_settings_do_not_count():
    runs = [
        _run("mnist/node", scale="smoke"),
        _run("mnist/anode", changes=["train.lr=0.5"]),
        _run("mnist/no-method-of-the-table"),
    ]
    table = paper_comparison("1", runs, "cpu", data=["mnist"])
    assert all(row[3] is None for row in table.rows)
    assert "No run is finished." in table.notes


def test_models_without_runs_have_their_size_unless_settings_may_change_it():
    def sizes(scale, *changes):
        variant = Variant(changes)
        table = paper_comparison("1", [], scale, data=["mnist"], variant=variant)
        return {row[0]: row[1] for row in table.rows}

    at_full_size = sizes("paper")
    assert at_full_size["NODE"] == 85_316 and at_full_size["BFNO-NODE"] == 61_901
    # The control's size is the paper's, which BFNO-NODE's is not.
    assert at_full_size["BFNO-NODE, 3 more channels"] == 85_706
    assert "BFNO-NODE, 3 more channels" not in sizes("cpu")
    assert sizes("paper", "train.epochs=1") == at_full_size
    assert set(sizes("paper", "model.width=5").values()) == {None}
    published = paper_comparison("3", [], "cpu", variant=Variant(('data.protocol="published"',)))
    assert {row[1] for row in published.rows} == {None}


def test_of_two_runs_of_one_seed_one_counts_in_any_order():
    twins = [_run("mnist/node", score=score) for score in (0.8, 0.9)]
    other = Record(**{**vars(twins[1]), "name": "zzz"})
    for runs in ([twins[0], other], [other, twins[0]]):
        table = paper_comparison("1", runs, "cpu")
        assert _cell(table, "NODE", "mnist_test_accuracy_here_cpu") == Estimate(0.8, None, 4)


def test_fewer_seeds_than_asked_for_are_said_in_the_cell():
    runs = [_run("mnist/node", 7), _run("mnist/node", 8), _run("mnist/anode", 8)]
    table = paper_comparison("1", runs, "cpu", seeds=[7, 8, 9])
    assert "(2 of 3 seeds)" in str(_cell(table, "NODE", "mnist_test_accuracy_here_cpu"))
    assert "(1 of 3 seeds)" in str(_cell(table, "ANODE", "mnist_test_accuracy_here_cpu"))
    # Without a wish, the seeds that there are count.
    table = paper_comparison("1", runs, "cpu")
    assert "seeds" not in str(_cell(table, "NODE", "mnist_test_accuracy_here_cpu"))
    assert _cell(table, "ANODE", "mnist_seeds") == (8,)


def test_the_best_of_each_column_is_marked_unless_it_stands_alone():
    runs = [_run("mnist/node", score=0.8), _run("mnist/bfno-node", score=0.9)]
    table = paper_comparison("1", runs, "cpu")
    keys = [column.key for column in table.columns]
    best = {(table.rows[row][0], keys[column]) for row, column in table.best}
    assert best == {
        ("BFNO-NODE", "mnist_test_accuracy_here_cpu"),
        ("AdamNODE", "mnist_test_accuracy_published"),
    }
    alone = paper_comparison("1", runs[:1], "cpu")
    assert {column for _, column in alone.best} == {keys.index("mnist_test_accuracy_published")}


def test_of_bits_the_fewest_are_best_and_both_conventions_are_shown():
    runs = [
        _run(
            f"mnist-density/{method}",
            result={"test_bits_per_dim": b, "test_bits_per_dim_center": c},
        )
        for method, b, c in (("glow", 2.0, 1.5), ("ffjord", 1.9, 1.6), ("realnvp", math.nan, 1.7))
    ]
    table = paper_comparison("4", runs, "cpu")
    text = as_text(table)
    assert "bits/dim (uniform)" in text and "bits/dim (center)" in text
    assert "parameters\nin the paper" not in [column.title for column in table.columns]
    keys = [column.key for column in table.columns]
    best = {(table.rows[row][0], keys[column]) for row, column in table.best}
    assert ("FFJORD", "mnist-density_test_bits_per_dim_here_cpu") in best
    assert ("Glow", "mnist-density_test_bits_per_dim_center_here_cpu") in best
    assert ("FFJORD-BFNO-RNODE", "mnist-density_test_bits_per_dim_published") in best


def test_an_infinite_score_or_one_that_lacks_seeds_is_not_the_best():
    scores = (("glow", 7, -math.inf), ("realnvp", 7, 1.0), ("ffjord", 7, 1.9), ("ffjord", 8, 1.9))
    scores += (("ffjord-rnode", 7, 2.0), ("ffjord-rnode", 8, 2.0), ("glow", 8, 2.0))
    runs = [
        _run(f"mnist-density/{method}", seed, result={"test_bits_per_dim": bits})
        for method, seed, bits in scores
    ]
    table = paper_comparison("4", runs, "cpu")
    column = [one.key for one in table.columns].index("mnist-density_test_bits_per_dim_here_cpu")
    assert [table.rows[row][0] for row, place in table.best if place == column] == ["FFJORD"]
    assert "A score that lacks seeds is never bold, even if it is the best." in table.notes


def test_a_run_whose_settings_changed_on_the_way_is_left_out_and_named():
    plain = [_run("mnist/node", seed) for seed in (7, 8)]
    changed = _run("mnist/node", 9, history=["train.lr=0.9 until step 12"])
    table = paper_comparison("1", [*plain, changed], "cpu")
    why = "it had other settings before it was resumed (train.lr=0.9 until step 12)"
    assert f"mnist-node-s9: left out, {why}." in table.notes
    alone = paper_comparison("1", [changed], "cpu")
    assert "No run is finished." in alone.notes
    seeds = [column.key for column in table.columns].index("mnist_seeds")
    assert [row[seeds] for row in table.rows if row[0] == "NODE"] == [(7, 8)]


def test_notes_tell_scale_seeds_hardware_commit_and_choice_of_the_epoch():
    hardware = {"processor": "A Processor", "cores": 2, "gpus": ["A Card"]}
    runs = [
        _run("mnist/node", 7, hardware=hardware, threads=1),
        _run("mnist/node", 8, hardware=hardware, threads=1, commit="b" * 40),
        _run("mnist/anode", 7, commit=None, chosen_by="last epoch"),
    ]
    text = " ".join(paper_comparison("1", runs, "cpu").notes)
    assert "Here: cpu scale" in text and "Seeds 7, 8" in text
    assert "A Processor with 2 cores, A Card, one thread per run (2 runs)" in text
    assert "not recorded (1 run)" in text
    assert "Commit: a7adaec3 (1 run), bbbbbbbb (1 run), not recorded (1 run)" in text
    assert "the epoch that was best by validation accuracy (2 runs)" in text
    assert "the last epoch, without validation data (1 run)" in text


def test_notes_do_not_deny_validation_data_where_the_last_epoch_was_asked_for():
    found = {"test_accuracy": 0.9, "validation_accuracy": 0.9}
    run = _run("mnist/anode", 7, chosen_by="last epoch", result=found)
    text = " ".join(paper_comparison("1", [run], "cpu").notes)
    assert "Scores are from the last epoch." in text


def test_notes_tell_what_the_paper_quotes_and_what_an_auroc_is_worth():
    table = paper_comparison("3", [_run("physionet/latent-ode")], "cpu")
    text = " ".join(table.notes)
    assert "Rubanova et al., 2019" in text and "Jhin et al., 2021" in text
    assert "sees only the initial state" in text and "Protocol sound" in text
    quoted = {row[0]: str(row[-1]).endswith("*") for row in table.rows}
    assert quoted["ODE-RNN"] and not quoted["Latent-BFNO-NODE (ODE enc.)"]


def test_a_control_is_shown_once_it_has_runs_and_does_not_count():
    runs = [_run("mnist/node", score=0.8), _run("mnist/bfno-node", score=0.9)]
    assert len(paper_comparison("1", runs, "cpu").rows) == 9
    budget = _run("mnist/bfno-node-budget", score=0.95, parameters=85_706)
    table = paper_comparison("1", [*runs, budget], "cpu")
    *others, last = table.rows
    assert len(others) == 9 and last[:3] == ("BFNO-NODE, 3 more channels", 85_706, None)
    assert _cell(table, str(last[0]), "mnist_test_accuracy_published") is None
    failed = {("mnist/bfno-node-budget", 7): "why"}
    assert len(paper_comparison("1", runs, "cpu", failures=failed).rows) == 10
    # Whose lead says nothing about the paper's method.
    standing = standing_here(paper_table("1"), "mnist", [*runs, budget])
    assert str(standing) == "BFNO-NODE 0.9000, first of 2 (7 without a score)"


PUBLISHED = Variant(('data.protocol="published"',))


def test_a_table_says_which_protocol_it_shows_and_mixes_no_two():
    runs = [
        _run("physionet/gru-d", score=0.7),
        _run("physionet/gru-d", score=0.9, changes=[*PUBLISHED.changes]),
        _run("physionet/latent-ode", changes=[*PUBLISHED.changes, "train.lr=0.5"]),
    ]
    sound = paper_comparison("3", runs, "cpu")
    published = paper_comparison("3", runs, "cpu", variant=PUBLISHED)
    assert str(_cell(sound, "GRU-D", "physionet_test_auroc_here_cpu")) == "0.7000"
    assert str(_cell(published, "GRU-D", "physionet_test_auroc_here_cpu-published")) == "0.9000"
    for table, own, other in ((sound, "sound", "published"), (published, "published", "sound")):
        text = " ".join(table.notes)
        assert f"Protocol {own}" in text and f"Protocol {other}" not in text
        assert _cell(table, "Latent-ODE (ODE enc.)", table.columns[2].key) is None
    assert published.columns[2].title.endswith("AUROC\nhere (cpu scale)\nprotocol published")
    assert str(_cell(published, "GRU-D", "physionet_test_auroc_published")) == "0.818 ± 0.008 *"


def test_a_table_says_which_settings_all_of_its_runs_share():
    variant = Variant.of(['data.sets=["a", "b"]', *PUBLISHED.changes])
    run = _run("physionet/gru-d", changes=[*variant.changes])
    table = paper_comparison("3", [run], "cpu", variant=variant)
    assert "Every run here has data.sets=a,b." in table.notes
    assert any("as in the paper, sets a and b: a fifth" in note for note in table.notes)
    sound = paper_comparison("3", [], "cpu", variant=Variant(('data.sets=["b"]',)))
    assert any(note.startswith("Protocol sound, set b: ") for note in sound.notes)
    assert _cell(table, "GRU-D", "physionet_parameters_here_cpu-published-sets-a-b") == 1000
    assert "No run is finished." in paper_comparison("3", [run], "cpu", variant=PUBLISHED).notes


def test_every_table_that_has_protocols_has_notes_for_each_but_the_plain_usual_one():
    series, images = ["sound", "published"], ["usual", "counted"]
    known = {"2": series, "3": series, "4": []}
    for name in NAMES:
        protocols = paper_table(name).protocols
        assert list(protocols) == known.get(name, images)
        for key, notes in protocols.items():
            assert key == "usual" or f"Protocol {key}" in notes[0]


def test_pooled_samples_are_not_called_rows():
    config = {"data": {"protocol": "published"}}
    run = _run("activity/gru-d", confusion=[[30]], config=config, changes=[*PUBLISHED.changes])
    table = paper_comparison("2", [run], "cpu", variant=PUBLISHED)
    assert "HumanActivity: 30 test rows × latent samples." in table.notes


def test_a_slice_of_human_activity_is_not_hidden():
    run = _run("activity/gru-d", confusion=[[800, 50], [50, 100]], samples={"test": 20})
    text = " ".join(paper_comparison("2", [run], "cpu").notes)
    assert "HumanActivity: 20 test windows of 50 rows, 1,000 test rows." in text
    assert "This is a slice of HumanActivity, not the official file of 164,860 readings" in text
    whole = _run("activity/gru-d", confusion=[[9]], samples={"train": 4_000, "test": 900})
    assert "slice" not in " ".join(paper_comparison("2", [whole], "cpu").notes)


def test_notes_tell_what_was_trained_on_and_who_was_trained_otherwise():
    samples = {"train": 5_400, "validation": 600, "test": 10_000}
    runs = [
        _run(
            f"mnist/{method}",
            config={"data": {"size": 14}, "train": {"epochs": epochs, "lr": 0.02}},
            samples=samples,
        )
        for method, epochs in (("node", 3), ("anode", 3), ("sonode", 6))
    ]
    assert (
        "Training on mnist: images of 14 × 14 pixels, 5,400 samples for training, 600 samples for "
        "validation, 10,000 samples for testing, 3 epochs (sonode: 6), highest learning rate 0.02."
    ) in paper_comparison("1", runs, "cpu").notes
    once = _run("mnist/node", config={"train": {"epochs": 1}})
    assert "Training on mnist: 1 epoch." in paper_comparison("1", [once], "cpu").notes


def test_what_lacks_seeds_is_not_the_best():
    runs = [_run("mnist/node", seed, 0.8) for seed in (7, 8)]
    runs += [_run("mnist/anode", seed, 0.7) for seed in (7, 8)]
    table = paper_comparison("1", [*runs, _run("mnist/sonode", 7, 0.9)], "cpu")
    column = [one.key for one in table.columns].index("mnist_test_accuracy_here_cpu")
    assert [table.rows[row][0] for row, place in table.best if place == column] == ["NODE"]


def test_below_a_heading_columns_that_the_paper_leaves_empty_are_left_out():
    run = _run("fashion-mnist/node")
    plain = paper_comparison("1", [run], "cpu")
    short = paper_comparison("1", [run], "cpu", has_heading=True)
    assert any(column.key.endswith("published") for column in plain.columns)
    assert not any(column.key.endswith("published") for column in short.columns)
    assert {column.group for column in short.columns} == {""}
    assert not any("how many runs its deviations" in note for note in short.notes)


def test_a_run_whose_settings_most_others_do_not_share_is_left_out_and_named():
    runs = [_run("mnist/node", seed, 0.9, config={"train": {"lr": 0.02}}) for seed in (7, 9)]
    odd = _run("mnist/node", 8, 0.1, config={"train": {"lr": 0.5}})
    table = paper_comparison("1", [odd, *runs], "cpu")
    found = str(_cell(table, "NODE", "mnist_test_accuracy_here_cpu"))
    assert found == "0.9000 ± 0.0000 (2 of 3 seeds)"
    assert any(note.startswith("mnist-node-s8: left out") for note in table.notes)


def test_a_seed_without_the_metric_is_missing_in_the_count():
    runs = [_run("mnist/node", 7), _run("mnist/node", 8, result={"test_loss": 1.0})]
    found = _cell(paper_comparison("1", runs, "cpu"), "NODE", "mnist_test_accuracy_here_cpu")
    assert str(found) == "0.9000 (1 of 2 seeds)"


def test_sources_that_had_changed_since_their_commit_are_told():
    run = _run("mnist/node", commit="a7adaec3f0c54f51+changes")
    notes = " ".join(paper_comparison("1", [run], "cpu").notes)
    assert "Commit: a7adaec3+changes." in notes


def test_a_method_whose_predictions_depend_on_each_other_is_marked():
    run = _run("activity/ace-latent-ode", config={"model": {"generator": "ace"}})
    table = paper_comparison("2", [run, _run("activity/gru-d")], "cpu")
    labels = [row[0] for row in table.rows]
    assert "ACE-Latent-ODE †" in labels and "GRU-D" in labels
    assert any("transductive" in note for note in table.notes)


def test_a_failed_run_is_reported_in_its_cell_and_below():
    why = {("mnist/node", 7): "step 5: the loss is not a finite number"}
    table = paper_comparison("1", [], "cpu", [7], ["mnist"], failures=why)
    assert _cell(table, "NODE", "mnist_test_accuracy_here_cpu") == "failed"
    assert _cell(table, "ANODE", "mnist_test_accuracy_here_cpu") is None
    assert "mnist/node with seed 7 failed: step 5: the loss is not a finite number" in table.notes


def test_data_beyond_the_paper_have_empty_columns_of_it():
    table = paper_comparison("1", [_run("digits/node")], "cpu")
    assert _cell(table, "NODE", "digits_test_accuracy_published") is None
    assert "The paper has no results on digits." in table.notes


def test_the_branches_share_the_run_of_table_1():
    runs = [_run("mnist/bfno-node"), _run("mnist/bfno-node-branches3")]
    table = paper_comparison("ablation-branches", runs, "cpu")
    has_score = {row[0]: row[3] is not None for row in table.rows}
    assert has_score == {
        "L = 1": False,
        "L = 2": True,
        "L = 3": True,
        "L = 4": False,
        "L = 5": False,
    }
    assert _cell(table, "L = 2", "mnist_parameters_published") == 85_591


def test_only_the_named_methods_and_data_are_shown():
    runs = [_run("mnist/node"), _run("cifar10/node"), _run("mnist/anode")]
    table = paper_comparison("1", runs, "cpu", data=["cifar10"], methods=["node"])
    assert [row[0] for row in table.rows] == ["NODE"]
    assert {column.group for column in table.columns} == {"", "CIFAR-10"}
    with pytest.raises(ConfigError, match="nearest: node"):
        paper_comparison("1", runs, "cpu", methods=["noode"])


@pytest.mark.parametrize("layout", FORMATS)
def test_every_format_tells_the_same_numbers(layout):
    runs = [_run("mnist/node", seed, score) for seed, score in ((7, 0.9125), (8, 0.9375))]
    text = FORMATS[layout](paper_comparison("1", runs, "cpu"))
    plus_minus = " $\\pm$ " if layout == "latex" else " ± "
    if layout == "csv":
        (row,) = [row for row in csv.DictReader(text.splitlines()) if row["method"] == "NODE"]
        assert float(row["mnist_test_accuracy_here_cpu"]) == 0.925
        assert float(row["mnist_test_accuracy_here_cpu_std"]) == pytest.approx(0.0176776695)
        assert row["mnist_seeds"] == "7 8"
    else:
        assert f"0.9250{plus_minus}0.0177" in text and f"0.9531{plus_minus}0.0042" in text


def test_the_table_is_the_same_for_runs_in_any_order():
    runs = [_run("mnist/node", seed, seed / 10) for seed in (7, 8, 9)]
    tables = [as_csv(paper_comparison("1", order, "cpu")) for order in (runs, runs[::-1])]
    assert tables[0] == tables[1]
