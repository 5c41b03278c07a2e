"""The ablations: how many branches, and which operator."""

import re
from dataclasses import replace

import pytest

from bfno.lab.runs.folder import read_run
from bfno.lab.views.figures.ablations import branches_figure, operators_figure
from bfno.lab.views.figures.style import Methods
from tests.lab.views.drawings import texts
from tests.lab.views.runs import record, result, write_run


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
    found = texts(branches_figure(Methods.of(branches)))
    assert {"1", "2", "3", "4", "5", "branches L", "test accuracy", "parameters (k)"} <= set(found)


def test_the_line_goes_through_the_means_of_the_seeds(branches):
    figure = branches_figure(Methods.of(run for run in branches if run.method != "bfno-node"))
    assert figure is not None
    path = re.search(r'd="(M [^"]*)" clip-path[^>]*stroke: #0072b2; stroke-width: 1.4', figure.svg)
    assert path is not None
    points = [(float(x), float(y)) for x, y in re.findall(r"[ML] ([\d.]+) ([\d.]+)", path[1])]
    (x1, y1), (x3, y3), (x4, y4), (x5, y5) = points
    # Means rise by a hundredth a branch; up is down, and SVG has six decimals.
    assert (x3 - x1, y1 - y3) == pytest.approx((2 * (x5 - x4), 2 * (y4 - y5)), abs=1e-4)


def test_a_number_of_branches_with_two_methods_is_drawn_once(branches, tmp_path):
    twice = [*branches, _run(tmp_path, "bfno-node-branches2", 1, 0.5, 2)]
    figure, other = (branches_figure(Methods.of(runs)) for runs in (branches, twice))
    assert figure is not None and other is not None and figure.svg != other.svg
    assert texts(figure).count("2") == texts(other).count("2") == 1


def test_one_number_of_branches_or_unknown_ones_are_no_ablation(tmp_path, branches):
    assert branches_figure(Methods.of(branches[-1:])) is None
    unknown = [_run(tmp_path, "bfno-node-branches9"), _run(tmp_path, "bfno-node-branches8")]
    assert branches_figure(Methods.of(unknown)) is None


def test_operators_are_drawn_over_the_epochs_and_in_the_end(tmp_path, branches):
    runs = [_run(tmp_path, method, 3) for method in ("fno-node", "afno-node")]
    found = texts(operators_figure(Methods.of([*runs, *branches])))
    assert {"bfno-node", "fno-node", "afno-node", "epoch", "in the end, mean ± std"} <= set(found)
    assert not any("branches" in text for text in found)


def test_one_operator_is_no_ablation(branches):
    assert operators_figure(Methods.of(branches)) is None


def test_an_operator_without_a_result_is_no_ablation(tmp_path, branches):
    folder = write_run(tmp_path, "mnist", "fno-node", 7, result={})
    assert operators_figure(Methods.of([*branches, read_run(folder)])) is None


def test_a_point_of_fewer_seeds_than_the_others_says_how_many(tmp_path, branches):
    found = texts(branches_figure(Methods.of(branches)))
    assert found.count("1 seed") == 1 and "2 seeds" not in found
    runs = [_run(tmp_path, "fno-node", seed) for seed in (3, 4, 5)]
    runs += [_run(tmp_path, "afno-node", seed) for seed in (3, 4)]
    found = texts(operators_figure(Methods.of([*runs, *branches])))
    assert found.count("1 seed") == found.count("2 seeds") == 1 and "3 seeds" not in found


def test_points_of_as_many_seeds_need_no_number(branches):
    figure = branches_figure(Methods.of(run for run in branches if run.method != "bfno-node"))
    assert not any("seed" in text for text in texts(figure))


def test_the_number_of_seeds_stands_above_its_point_inside_the_panel(branches):
    """The point of one seed is the highest, so that its text needs room of its own."""
    config = {**branches[-1].config, "seed": 9}
    best = replace(branches[-1], seed=9, config=config, result=result(0.99))
    figure = branches_figure(Methods.of([*branches[:-1], best]))
    assert figure is not None
    (text,) = re.findall(r' y="([\d.]+)"[^>]*>1 seed<', figure.svg)
    marks = re.findall(r'<use [^>]*y="([\d.]+)" style="fill: #0072b2; stroke: #000000', figure.svg)
    highest = min(float(mark) for mark in marks)
    top = float(re.findall(r' y="([\d.]+)"[^>]*>Branches on mnist', figure.svg)[0])
    assert top + 8 < float(text) < highest - 4


def test_ablations_stay_out_of_other_figures_unless_there_is_nothing_else(tmp_path, branches):
    rivals = [_run(tmp_path, "node"), _run(tmp_path, "fno-node")]
    methods = Methods.of([*branches, *rivals])
    assert {group.label for group in methods.main().groups} == {"bfno-node", "node"}
    assert Methods.of(branches).main() == Methods.of(branches)
