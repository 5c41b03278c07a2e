import csv
import io
import itertools
import math
import random
import subprocess
import sys

import pytest

from bfno.lab.runs.folder import read_runs
from bfno.lab.runs.record import Record
from bfno.lab.views.layout import as_csv, as_markdown, as_text, cell_text
from bfno.lab.views.methods import replicates
from bfno.lab.views.metrics import Estimate
from bfno.lab.views.tables import comparison, comparisons, method_table, per_class
from tests.lab.views.runs import result, write_run

GOLDEN = """\
method     data    parameters    test accuracy    training loss  NFE forward  NFE backward    NFE test     seconds  peak MiB     seed
---------- ------- ----------- ---------------- ---------------- ------------ ------------- ----------- ----------- --------- -------
bfno-node  digits      20,123  0.9600 ± 0.0200  0.0500 ± 0.0000   22.0 ± 2.0    18.0 ± 0.0  20.0 ± 0.0  62.0 ± 2.0   100 ± 0  3 seeds
node       digits           –           0.9300           0.0500         20.5          18.0        20.0           –         –        0

method  data       parameters  test AUROC  training loss  seconds  peak MiB  seed
------- ---------- ----------- ----------- -------------- -------- --------- ----
gru-d   physionet       5,000      0.7500         0.4000  1,234.5       512     1
"""  # noqa: E501


def _runs() -> list[Record]:
    seeds = [
        _run(
            "bfno-node",
            seed,
            result=result(accuracy, forward_nfe=nfe),
            parameters=20123,
            seconds=seconds,
            peak_memory=100 * 2**20,
        )
        for seed, accuracy, nfe, seconds in (
            (0, 0.94, 20, 60),
            (1, 0.96, 22, 62),
            (2, 0.98, 24, 64),
        )
    ]
    series = _run(
        "gru-d",
        1,
        data="physionet",
        result={"test_auroc": 0.75, "train_loss": 0.4},
        parameters=5000,
        seconds=1234.5,
        peak_memory=512 * 2**20,
    )
    return [*seeds, _run("node", 0, result=result(0.93)), series]


def _run(method: str, seed: int, data: str = "digits", **values) -> Record:
    values = {"config": {"model": {"width": 32}, "seed": seed}, "scale": "cpu", **values}
    return Record(f"{data}-{method}-s{seed}", f"{data}/{method}", data, method, seed=seed, **values)


def _text(runs: list[Record]) -> str:
    return "\n".join(map(as_text, comparisons(runs)))


def test_the_comparison_is_this_text():
    assert _text(_runs()) == GOLDEN


def test_the_comparison_does_not_depend_on_the_order_of_the_runs():
    runs = _runs()
    for seed in range(10):
        random.Random(seed).shuffle(runs)
        assert _text(runs) == GOLDEN


def test_mean_and_deviation_are_those_of_the_seeds():
    rows = list(csv.DictReader(io.StringIO(as_csv(comparison(_runs())))))
    # (0.94 + 0.96 + 0.98) / 3 and √((0.02² + 0² + 0.02²) / 2), up to the rounding of their sums.
    assert float(rows[0]["test_accuracy"]) == pytest.approx(0.96, abs=1e-15)
    assert float(rows[0]["test_accuracy_std"]) == pytest.approx(0.02, abs=1e-15)
    assert (rows[0]["forward_nfe"], rows[0]["forward_nfe_std"]) == ("22.0", "2.0")
    assert rows[0]["seed"] == "0 1 2"
    assert (rows[1]["test_accuracy"], rows[1]["test_accuracy_std"]) == ("0.93", "")


def test_a_measurement_that_some_seeds_lack_is_taken_over_the_others():
    estimate = Estimate.of([1.0, None, 4.0], digits=1)
    assert estimate == Estimate(2.5, math.sqrt(4.5), 1)
    assert Estimate.of([None], digits=1) is None


def test_an_estimate_does_not_depend_on_the_order_of_the_seeds():
    shares = [0.4612, 0.4704, 0.4594, 0.4672]  # their mean is where digits are rounded
    orders = itertools.permutations(shares)
    assert len({str(Estimate.of(order, digits=4)) for order in orders}) == 1


@pytest.mark.parametrize("values", [[math.nan, 1.0], [math.inf, -math.inf], [1e308, 1e308, -1e308]])
def test_measurements_of_a_diverged_run_are_printed(values):
    assert str(Estimate.of(values, digits=2))


def test_the_best_of_each_task_is_bold_in_markdown():
    images, series = (as_markdown(table).splitlines() for table in comparisons(_runs()))
    assert images[2].startswith("| bfno-node | digits | 20,123 | **0.9600 ± 0.0200** |")
    assert "**" not in "".join([*images[3:], *series])  # the only run on physionet has no rival
    assert [len({line.count("|") for line in lines}) for lines in (images, series)] == [1, 1]


def test_the_lower_bits_per_dimension_come_first():
    runs = [
        _run(method, 0, data="density", result={"test_bits_per_dim": bits})
        for method, bits in (("a", 1.1), ("b", 0.9), ("c", math.nan))
    ]
    assert [row[0] for row in comparison(runs).rows] == ["b", "a", "c"]


def test_densities_show_both_figures_and_are_judged_by_the_one_that_is_a_bound():
    runs = [
        _run(method, 0, data="mnist-density", result=dict(zip(keys, values, strict=True)))
        for keys in [("test_bits_per_dim", "test_bits_per_dim_center")]
        for method, values in (("a", (1.1, 0.8)), ("b", (1.0, 0.9)))
    ]
    lines = as_markdown(comparison(runs)).splitlines()
    titles = "| test bits/dim (uniform) | test bits/dim (center) |"
    assert titles in lines[0]
    assert "| **1.000** | 0.900 |" in lines[2] and "| 1.100 | 0.800 |" in lines[3]


def test_images_series_and_densities_never_share_a_table():
    series = {"data": {"protocol": "sound"}}
    runs = [
        _run("node", 0, result=result()),
        _run("gru-d", 0, data="activity", config=series, result={"test_accuracy": 0.8}),
        _run("gru-d", 0, data="physionet", config=series, result={"test_auroc": 0.8}),
        _run("ffjord", 0, data="digits-density", result={"test_bits_per_dim": 3.0}),
        _run("ffjord", 0, data="moons", result={"test_nll": 1.2}),
        _run("unknown", 0, data="other", result={"speed": 1.0}),
        _run("anode", 0, data="mnist", result=result()),
    ]
    tables = [[row[1] for row in table.rows] for table in comparisons(runs)]
    alone = [["digits-density"], ["moons"], ["activity"], ["physionet"], ["other"]]
    assert sorted(tables) == sorted([*alone, ["digits", "mnist"]])
    # No column is empty for want of a metric that only others have.
    for table in comparisons(runs):
        titles = [column.title for column in table.columns]
        assert len({"test accuracy", "test AUROC", "test NLL"} & set(titles)) <= 1


def test_variants_of_a_method_are_told_apart_by_their_settings():
    runs = [
        _run(
            "bfno-node", seed, config={"model": {"branches": count}, "seed": seed}, result=result()
        )
        for count in (1, 2)
        for seed in (0, 1)
    ]
    table = comparison(runs)
    labels = [row[0] for row in table.rows]
    assert labels == ["bfno-node (model.branches=1)", "bfno-node (model.branches=2)"]
    assert [row[-1] for row in table.rows] == [(0, 1), (0, 1)]


def test_seeds_from_machines_with_other_threads_and_folders_are_replicates():
    configs = [{"seed": seed, "threads": 2 + seed, "data": {"dir": f"/{seed}"}} for seed in (0, 1)]
    runs = [_run("node", config["seed"], config=config) for config in configs]
    assert [row[-1] for row in comparison(runs).rows] == [(0, 1)]


@pytest.mark.parametrize("key", ["folder", "path", "test_path"])
def test_seeds_are_replicates_wherever_their_files_lie(key):
    homes = ("/home/ann", "/mnt/bob", "")
    configs = [{"data": {key: f"{home}/birds"}, "seed": seed} for seed, home in enumerate(homes)]
    runs = [_run("node", config["seed"], config=config) for config in configs]
    assert [row[-1] for row in comparison(runs).rows] == [(0, 1, 2)]
    other = _run("node", 3, config={"data": {key: "/home/ann/cats"}, "seed": 3})
    assert [row[-1] for row in comparison([*runs, other]).rows] == [(0, 1, 2), (3,)]


def test_tables_are_made_without_loading_torch():
    program = "import sys, bfno.lab.views.tables; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_a_record_from_before_a_setting_existed_is_a_replicate():
    old = _run("node", 0, config={"train": {"lr": 0.1}, "seed": 0})
    new = _run("node", 1, config={"train": {"lr": 0.1, "average": None}, "seed": 1})
    assert [len(group.runs) for group in replicates([old, new])] == [2]
    other = {"train": {"lr": 0.1, "average": 0.9}, "seed": 2}
    changed = _run("node", 2, config=other, changes=["train.average=0.9"])
    assert [len(group.runs) for group in replicates([old, new, changed])] == [2, 1]


def test_a_record_that_lacks_a_setting_does_not_hide_that_others_differ_in_it():
    configs = [{"solver": {}}, {"solver": {"rtol": 0.5}}, {"solver": {"rtol": 1e-9}}]
    runs = [_run("node", seed, config=config) for seed, config in enumerate(configs)]
    assert [len(group.runs) for group in replicates(runs)] == [1, 1, 1]


def test_an_option_that_a_layer_is_not_given_is_a_difference():
    plain = _run("node", 0, config={"model": {"field_options": {"branches": 2}}})
    linear = {"model": {"field_options": {"branches": 2, "skip": "linear"}}}
    groups = replicates([plain, _run("node", 1, config=linear)])
    assert [len(group.runs) for group in groups] == [1, 1]


def test_one_seed_twice_is_not_two_seeds():
    runs = [_run("node", 0, result=result(value)) for value in (0.9, 0.8)]
    assert [row[-1] for row in comparison(runs).rows] == [(0,), (0,)]
    more = [*runs, _run("node", 1, result=result(0.85)), _run("node", 2, result=result(0.8))]
    assert {row[-1] for row in comparison(more).rows} == {(0,), (0, 1, 2)}


def test_runs_of_another_scale_have_their_own_row():
    runs = [_run("node", seed, scale=scale) for seed, scale in ((0, "cpu"), (1, "paper"))]
    table = comparison(runs)
    assert [row[2] for row in table.rows] == ["cpu", "paper"]
    assert table.columns[2].key == "scale"


def test_names_cannot_break_out_of_a_markdown_row():
    text = as_markdown(comparison([_run("a|b*<i>", 0)]))
    assert "| a\\|b\\*&lt;i&gt; |" in text


def test_precision_and_recall_are_shares_of_columns_and_rows():
    run = _run(
        "node", 0, classes=["cat", "dog", "eel"], confusion=[[8, 2, 0], [1, 9, 0], [0, 0, 0]]
    )
    assert as_text(per_class(run)) == (
        "class  precision  recall  test samples\n"
        "------ ---------- ------- ------------\n"
        "cat        0.889   0.800            10\n"
        "dog        0.818   0.900            10\n"
        "eel            –       –             0\n"
    )


def _table(tmp_path, **costs: dict[str, float]):
    runs = [
        write_run(tmp_path, method=method, result=result(0.9 + place / 100, **cost))
        for place, (method, cost) in enumerate(costs.items())
    ]
    return method_table(replicates(read_runs(runs)))


def test_the_result_comes_right_after_the_method_and_parameters_after_the_loss(tmp_path):
    table = _table(tmp_path, node={}, anode={})
    assert [column.key for column in table.columns][:5] == [
        *("method", "test_accuracy", "train_loss", "parameters"),
        "forward_nfe",
    ]
    assert [cell_text(cell) for cell in table.rows[0]][:4] == [
        "anode",
        "0.9100",
        "0.0500",
        "20,123",
    ]
    assert table.best == {(0, 1)}


def test_what_the_heading_says_is_no_column(tmp_path):
    config = {"data": {"protocol": "sound"}}
    folder = write_run(tmp_path, "physionet", result={"test_auroc": 0.8}, config=config)
    table = method_table(replicates(read_runs([folder])))
    keys = {column.key for column in table.columns}
    assert not keys & {"data", "scale", "protocol"} and "test_auroc" in keys


def test_evaluations_that_never_happen_are_left_out_and_explained(tmp_path):
    table = _table(tmp_path, node={"backward_nfe": 0.0}, anode={"backward_nfe": 0.0})
    keys = [column.key for column in table.columns]
    assert "backward_nfe" not in keys and "forward_nfe" in keys
    steps = "the gradient goes through the solver's own steps."
    assert table.notes == (f"NFE backward is 0 and left out: {steps}",)


def test_evaluations_that_some_make_are_shown_and_explained(tmp_path):
    table = _table(tmp_path, node={"backward_nfe": 0.0}, anode={})
    assert "backward_nfe" in [column.key for column in table.columns]
    steps = "the gradient goes through the solver's own steps."
    assert table.notes == (f"Where only NFE backward is 0, {steps}",)


NOTHING = {"forward_nfe": 0.0, "backward_nfe": 0.0, "test_nfe": 0.0}


def test_a_model_without_a_solver_has_no_gradient_through_one(tmp_path):
    assert _table(tmp_path, rnn=NOTHING, node={}).notes == ()


def test_models_without_an_ode_have_no_columns_of_evaluations(tmp_path):
    folders = [write_run(tmp_path, method="rnn", result=result(0.9, **NOTHING))]
    titles = [column.title for column in comparison(read_runs(folders)).columns]
    assert "test accuracy" in titles and not any("NFE" in title for title in titles)


def test_beside_models_with_an_ode_they_have_none_to_count(tmp_path):
    table = _table(tmp_path, rnn=NOTHING, node={})
    place = [column.key for column in table.columns].index("forward_nfe")
    assert {row[0]: cell_text(row[place]) for row in table.rows} == {"node": "20.5", "rnn": "–"}


def test_no_two_columns_have_the_same_name(tmp_path):
    for table in comparisons(_runs()):
        titles = [column.title for column in table.columns]
        assert len(set(titles)) == len(titles)
