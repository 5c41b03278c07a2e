"""The ablations: how many branches, and which operator."""

import re

import pytest

from bfno.results.figures.ablations import branches_figure, main_methods, operators_figure
from bfno.results.record import read_run
from tests.results.drawings import texts
from tests.results.runs import record, result, write_run


def _run(root, method, seed=7, accuracy=0.9, branches=None):
    config = record(method=method, seed=seed)["config"]
    config["model"] = {"name": method, "field_options": {"branches": branches} if branches else {}}
    folder = write_run(root, "mnist", method, seed, result=result(accuracy), config=config)
    return read_run(folder)


@pytest.fixture
def branches(tmp_path):
    return [
        _run(
            tmp_path, f"bfno-node-branches{number}", seed, 0.9 + number / 100 + seed / 1000, number
        )
        for number in (1, 3, 4, 5)
        for seed in (1, 2)
    ] + [_run(tmp_path, "bfno-node", 1, 0.92, 2)]


def test_the_metric_stands_above_each_number_of_branches(branches):
    found = texts(branches_figure(branches))
    assert {"1", "2", "3", "4", "5", "branches L", "test accuracy", "parameters (k)"} <= set(found)


def test_the_line_goes_through_the_means_of_the_seeds(branches):
    figure = branches_figure([run for run in branches if run.method != "bfno-node"])
    assert figure is not None
    path = re.search(r'd="(M [^"]*)" clip-path[^>]*stroke: #0072b2; stroke-width: 1.4', figure.svg)
    assert path is not None
    points = [(float(x), float(y)) for x, y in re.findall(r"[ML] ([\d.]+) ([\d.]+)", path[1])]
    (x1, y1), (x3, y3), (x4, y4), (x5, y5) = points
    # Means rise by a hundredth a branch; up is down, and SVG has six decimals.
    assert (x3 - x1, y1 - y3) == pytest.approx((2 * (x5 - x4), 2 * (y4 - y5)), abs=1e-4)


def test_a_number_of_branches_with_two_methods_is_drawn_once(branches, tmp_path):
    twice = [*branches, _run(tmp_path, "bfno-node-branches2", 1, 0.5, 2)]
    figure, other = branches_figure(branches), branches_figure(twice)
    assert figure is not None and other is not None and figure.svg != other.svg
    assert texts(figure).count("2") == texts(other).count("2") == 1


def test_one_number_of_branches_or_unknown_ones_are_no_ablation(tmp_path, branches):
    assert branches_figure(branches[-1:]) is None
    unknown = [_run(tmp_path, "bfno-node-branches9"), _run(tmp_path, "bfno-node-branches8")]
    assert branches_figure(unknown) is None


def test_operators_are_drawn_over_the_epochs_and_in_the_end(tmp_path, branches):
    runs = [_run(tmp_path, method, 3) for method in ("fno-node", "afno-node")]
    found = texts(operators_figure([*runs, *branches]))
    assert {"bfno-node", "fno-node", "afno-node", "epoch", "in the end, mean ± std"} <= set(found)
    assert not any("branches" in text for text in found)


def test_one_operator_is_no_ablation(branches):
    assert operators_figure(branches) is None


def test_ablations_stay_out_of_other_figures_unless_there_is_nothing_else(tmp_path, branches):
    rivals = [_run(tmp_path, "node"), _run(tmp_path, "fno-node")]
    methods = {run.method for run in main_methods([*branches, *rivals])}
    assert methods == {"bfno-node", "node"}
    assert main_methods(branches) == branches
