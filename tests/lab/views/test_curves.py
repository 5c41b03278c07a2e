from bfno.lab.views.curves import charts, curves
from bfno.lab.views.methods import replicates
from bfno.lab.views.record import read_runs
from tests.lab.views.runs import record, result, write_files, write_run


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
