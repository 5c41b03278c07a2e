import json
import math

import pytest

from bfno.lab.runs.folder import read_runs
from bfno.lab.views.curves import charts, curve_table, curves, method_objects, plots, sparkline
from bfno.lab.views.layout import as_text
from bfno.lab.views.methods import replicates
from tests.lab.views.runs import epoch_lines, record, result, write_files, write_run


def test_the_headline_metric_comes_first_then_losses_and_evaluations_apart(tmp_path):
    found = charts(read_runs([write_run(tmp_path)]))
    assert [(chart["title"], list(chart["metrics"])) for chart in found] == [
        (
            "Learning",
            [
                *("test_accuracy", "validation_accuracy", "train_accuracy"),
                *("test_loss", "train_loss"),
            ],
        ),
        ("Cost", ["forward_nfe", "backward_nfe", "test_nfe"]),
    ]


def test_runs_without_epochs_have_no_charts(tmp_path):
    assert charts(read_runs([write_files(tmp_path / "run", record(), lines=[])])) == []


def test_seeds_have_a_curve_each_and_a_mean_to_look_at(tmp_path):
    folders = [
        write_run(tmp_path, seed=seed, result=result(accuracy))
        for seed, accuracy in ((7, 0.9), (8, 0.6))
    ]
    found = curves(replicates(read_runs(folders)), ["test_accuracy"])
    assert [(one["name"], one["main"]) for one in found] == [
        *(("seed 7", False), ("seed 8", False)),
        ("mean of 2 seeds", True),
    ]
    assert [round(value, 6) for _, value in found[-1]["points"]["test_accuracy"]] == [
        *(0.25, 0.5),
        0.75,
    ]


def test_a_mean_says_of_how_many_seeds_it_is(tmp_path):
    lines = {
        seed: [f'{{"epoch": 1, "train_loss": {seed}{more}}}']
        for seed, more in ((7, ', "test_loss": 1'), (8, ', "test_loss": NaN'), (9, ""))
    }
    runs = [
        write_files(tmp_path / str(seed), record(seed=seed), lines=line)
        for seed, line in lines.items()
    ]
    found = curves(replicates(read_runs(runs)), ["train_loss", "test_loss", "test_accuracy"])
    assert [(one["name"], one["points"]) for one in found if one["main"]] == [
        ("mean of 3 seeds", {"train_loss": [(1, 8)]}),
        ("seed 7", {"test_loss": [(1, 1)]}),
    ]


def test_values_that_are_no_numbers_leave_a_gap(tmp_path):
    lines = [
        '{"epoch": 1, "test_accuracy": 0.5}',
        '{"epoch": 2, "test_accuracy": NaN}',
        '{"epoch": 3, "test_accuracy": 0.75}',
    ]
    runs = read_runs([write_files(tmp_path / "run", record(), lines)])
    (found,) = curves(replicates(runs), ["test_accuracy", "train_loss"])
    assert found["points"] == {"test_accuracy": [(1, 0.5), (3, 0.75)]}


def test_a_curve_rises_from_its_lowest_to_its_highest_block():
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([7, 0]) == "█▁"


def test_a_curve_that_does_not_move_is_low_and_none_is_empty():
    assert sparkline([5.0, 5.0, 5.0]) == "▁▁▁"
    assert sparkline([]) == ""


def test_what_is_no_number_leaves_a_gap():
    assert sparkline([0.0, math.nan, math.inf, 1.0]) == "▁  █"
    assert sparkline([math.nan]) == " "
    assert sparkline([0.0, 1e308, 1.0, -1e308, 1e308]) == "▁ █  "  # sums of these overflow


def test_many_values_share_the_characters_there_are():
    assert sparkline([float(value) for value in range(800)], width=8) == "▁▂▃▄▅▆▇█"
    assert len(sparkline([1.0, 2.0] * 50)) == 24


def _runs(tmp_path):
    kinds = ("bfno-node", 7, 0.96), ("bfno-node", 8, 0.9), ("node", 7, 0.3)
    return read_runs(
        [
            write_run(tmp_path, method=method, seed=seed, result=result(accuracy))
            for method, seed, accuracy in kinds
        ]
    )


def test_methods_show_metric_loss_and_evaluations_with_first_and_last_value(tmp_path):
    table = curve_table(replicates(_runs(tmp_path)))
    assert table is not None
    heading = as_text(table).splitlines()[0]
    assert heading.endswith(" NFE forward") and "training loss" in heading
    costs = ["0.0167 → 0.0500", "6.8 → 20.5"]
    assert [(row[0], *row[2::2]) for row in table.rows] == [
        ("bfno-node", "0.3100 → 0.9300", *costs),
        ("node", "0.1000 → 0.3000", *costs),
    ]
    shapes = [str(curve) for row in table.rows for curve in row[1::2]]
    assert {(len(shape), shape[0], shape[-1]) for shape in shapes} == {(3, "▁", "█")}


def test_what_is_too_small_to_print_is_not_drawn(tmp_path):
    lines = epoch_lines(result(), epochs=2)
    steady = [line.replace('"train_loss": 0.025', '"train_loss": 0.05000001') for line in lines]
    runs = read_runs([write_files(tmp_path / "run", record(), steady)])
    table = curve_table(replicates(runs))
    assert table is not None and table.rows[0][3:5] == ("▁▁", "0.0500 → 0.0500")


def _with_evaluations(folder, *forward: float, **others):
    """A run with these forward evaluations in its epochs, and none backward."""
    costs = [{"forward_nfe": nfe, "backward_nfe": 0.0, "test_nfe": 14.0} for nfe in forward]
    lines = [
        json.dumps({"epoch": epoch, "train_loss": 1 / epoch, **cost})
        for epoch, cost in enumerate(costs, 1)
    ]
    return write_files(folder, {**record(), **others}, lines)


@pytest.mark.parametrize("steady", [14.0, 0.0])
def test_evaluations_that_never_change_have_no_chart(tmp_path, steady):
    runs = read_runs([_with_evaluations(tmp_path / "run", steady, steady, steady)])
    assert [chart["title"] for chart in charts(runs)] == ["Learning"]
    assert [plot.title for plot in plots(runs)] == ["Loss"]
    table = curve_table(replicates(runs))
    assert table is not None and "NFE" not in as_text(table)
    # Programs get them all the same.
    (method,) = method_objects(runs)
    assert method["epochs"]["forward_nfe"] == [(1, steady), (2, steady), (3, steady)]


def test_evaluations_that_change_for_one_method_have_a_chart_for_all(tmp_path):
    folders = [
        _with_evaluations(tmp_path / "steady", 14.0, 14.0, 14.0, method="node"),
        _with_evaluations(tmp_path / "growing", 14.0, 20.0, 26.0),
    ]
    assert charts(read_runs(folders))[1]["metrics"] == {"forward_nfe": "NFE forward"}


def test_runs_without_epochs_have_no_curves(tmp_path):
    runs = read_runs([write_files(tmp_path / "run", record(), lines=[])])
    assert curve_table(replicates(runs)) is None


def test_programs_get_every_method_with_its_spread_and_its_curves(tmp_path):
    ours, plain = method_objects(_runs(tmp_path))
    assert (ours["method"], ours["data"], ours["scale"], ours["seeds"]) == (
        *("bfno-node", "digits", "cpu"),
        [7, 8],
    )
    assert ours["judged_by"] == "test_accuracy"
    assert round(ours["result"]["test_accuracy"]["mean"], 6) == 0.93
    assert round(ours["result"]["test_accuracy"]["std"], 6) == round(0.03 * math.sqrt(2), 6)
    assert plain["result"]["test_accuracy"] == {"mean": 0.3, "std": None}
    assert [epoch for epoch, _ in ours["epochs"]["test_accuracy"]] == [1, 2, 3]


def test_a_model_without_an_ode_has_no_curve_of_evaluations(tmp_path):
    folders = [
        _with_evaluations(tmp_path / "ode", 14.0, 20.0),
        _with_evaluations(tmp_path / "cnn", 0.0, 0.0, method="cnn"),
    ]
    groups = replicates(read_runs(folders))
    drawn = curves(groups, ["train_loss", "forward_nfe"])
    shown = {groups[one["method"]].label: {*one["points"]} for one in drawn}
    assert shown == {"bfno-node": {"train_loss", "forward_nfe"}, "cnn": {"train_loss"}}
