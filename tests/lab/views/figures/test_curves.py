"""Methods compared over the epochs and against their cost."""

import json
import re

import pytest

from bfno.lab.runs.folder import read_run
from bfno.lab.views.figures.curves import (
    EPOCH_FIGURES,
    cost_figure,
    epoch_figure,
    headline_figure,
)
from bfno.lab.views.figures.style import PALETTE, Methods
from bfno.lab.views.metrics import HEADLINES
from tests.lab.views.drawings import HOSTILE, shown, texts
from tests.lab.views.runs import epoch_lines, record, result, write_files, write_run

METHODS = ["bfno-node", "adamnode", "anode", "ghbnode", "gnesterovnode", "hbnode"]
METHODS += ["nesterovnode", "node", "sonode"]
ACCURACY = HEADLINES[0]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    return [
        read_run(write_run(root, data, method, result=result(0.9 + place / 100)))
        for data in ("digits", "mnist")
        for place, method in enumerate(METHODS)
    ]


def _lines(svg: str) -> list[tuple[str, list[tuple[float, float]]]]:
    """The colour of each line of the panels, and its points."""
    found = re.findall(r'd="(M [^"]*)" clip-path[^>]*stroke: (#\w+)', svg)
    return [
        (colour, [(float(x), float(y)) for x, y in re.findall(r"[ML] ([\d.]+) ([\d.]+)", path)])
        for path, colour in found
        if colour in PALETTE
    ]


def test_nine_methods_on_two_data_sets_have_a_panel_each_and_one_legend(runs):
    figure = headline_figure(Methods.of(runs), ACCURACY)
    found = texts(figure)
    assert {"digits (cpu)", "mnist (cpu)", "epoch", "test accuracy", *METHODS} <= set(found)
    assert [found.count(method) for method in METHODS] == [1] * 9
    assert figure is not None
    colours = [colour for colour, points in _lines(figure.svg) if len(points) == 3]
    assert sorted(colours) == sorted(PALETTE * 2)


def test_the_epochs_begin_with_the_first(runs):
    found = texts(headline_figure(Methods.of(runs[:2]), ACCURACY))
    assert {"1", "2", "3"} <= set(found) and "0" not in found


def test_many_epochs_are_counted_in_round_numbers_from_one(tmp_path):
    content = {**record(), "epochs": 160}
    folder = write_files(tmp_path / "run", content, epoch_lines(result(), epochs=160))
    found = texts(headline_figure(Methods.of([read_run(folder)]), ACCURACY))
    assert [text for text in found if text.isdecimal()][:9] == [
        *("1", "20", "40", "60", "80", "100", "120", "140", "160")
    ]


def test_a_band_reaches_from_the_lowest_to_the_highest_seed(tmp_path):
    values = {1: 0.5, 2: 0.9, 3: 0.85}
    folders = [
        write_run(tmp_path, seed=seed, result=result(value)) for seed, value in values.items()
    ]
    figure = headline_figure(Methods.of([read_run(folder) for folder in folders]), ACCURACY)
    assert "bands: lowest to highest seed" in texts(figure)
    assert figure is not None
    band = re.search(
        r'd="(M [^"]*)z\s*"/>\s*</defs>\s*<g clip-path.*\s*.* y="([\d.]+)"', figure.svg
    )
    assert band is not None
    ground = float(band[2])
    corners = [(float(x), float(y)) for x, y in re.findall(r"([-\d.]+) ([-\d.]+)", band[1])]
    (line,) = [points for _, points in _lines(figure.svg) if len(points) == 3]
    last, mean = line[-1]
    low, high = (
        ground + pick(y for x, y in corners if x == pytest.approx(last)) for pick in (max, min)
    )
    # Up is down: the mean 0.75 stands at five eighths of the way from 0.5 to 0.9.
    assert (low - mean) / (low - high) == pytest.approx(0.625, abs=1e-5)


def test_one_seed_has_no_band(runs):
    assert "bands: lowest to highest seed" not in texts(headline_figure(Methods.of(runs), ACCURACY))


def test_many_methods_have_no_bands_which_would_cover_each_other(tmp_path):
    methods = ("node", "anode", "sonode", "hbnode", "ghbnode", "bfno-node")
    runs = [
        read_run(write_run(tmp_path, "mnist", method, seed, result=result(0.8 + seed / 100)))
        for method in methods
        for seed in (1, 2)
    ]
    few, many = (headline_figure(Methods.of(some), ACCURACY) for some in (runs[2:], runs))
    assert few is not None and many is not None
    assert "bands: lowest to highest seed" in texts(few) and "opacity: 0.14" in few.svg
    assert "means over seeds" in texts(many) and "opacity: 0.14" not in many.svg


def test_lines_that_cannot_be_told_apart_are_counted(runs):
    found = texts(epoch_figure(Methods.of(runs), "nfe-forward"))
    assert found.count("9 alike") == 2
    assert not any("alike" in text for text in texts(headline_figure(Methods.of(runs), ACCURACY)))


@pytest.mark.parametrize("name", EPOCH_FIGURES)
def test_every_quantity_over_the_epochs_is_drawn(runs, name):
    shown = Methods.of(runs[:3] if "test" in name else runs)
    assert EPOCH_FIGURES[name].axis in texts(epoch_figure(shown, name))


def test_methods_without_a_solver_are_no_lines_of_evaluations(tmp_path):
    content = {**record(method="glow"), "result": result(forward_nfe=0.0)}
    glow = read_run(write_files(tmp_path / "glow", content))
    assert epoch_figure(Methods.of([glow]), "nfe-forward") is None
    ours = read_run(write_run(tmp_path))
    found = texts(epoch_figure(Methods.of([glow, ours]), "nfe-forward"))
    assert "bfno-node" in found and "glow" not in found


def test_what_only_the_validation_measured_says_so(tmp_path):
    lines = [json.dumps({"epoch": epoch, "validation_accuracy": 0.5}) for epoch in (1, 2)]
    run = read_run(write_files(tmp_path / "run", record(), lines))
    assert "validation accuracy" in texts(headline_figure(Methods.of([run]), ACCURACY))


def test_without_epochs_or_rivals_there_is_nothing_to_compare(tmp_path):
    run = read_run(write_files(tmp_path / "run", record(), []))
    assert headline_figure(Methods.of([run]), ACCURACY) is None
    assert epoch_figure(Methods.of([run]), "train-loss") is None
    assert cost_figure(Methods.of([run])) is None
    assert headline_figure(Methods.of([]), ACCURACY) is None


def test_cost_is_reported_in_seconds_and_in_evaluations(runs):
    found = texts(cost_figure(Methods.of(runs)))
    assert found.count("seconds per epoch") == found.count("NFE per training step") == 2
    assert set(METHODS) <= set(found)


def _run_of(folder, method, seconds):
    lines = [{"epoch": epoch, **each} for epoch, each in enumerate(seconds, start=1)]
    content = record(method=method)
    return read_run(write_files(folder / method, content, [json.dumps(line) for line in lines]))


def test_a_method_of_unknown_cost_is_left_out_of_that_panel(tmp_path):
    runs = [_run_of(tmp_path, method, [{}]) for method in ("bfno-node", "node")]
    found = texts(cost_figure(Methods.of(runs)))
    assert "NFE per training step" in found and "seconds per epoch" not in found


def test_an_epoch_during_which_the_machine_slept_does_not_count_as_cost(tmp_path):
    slept = [{"seconds": value} for value in (10.0, 11.0, 4000.0)]
    quick = [{"seconds": value} for value in (9.0, 10.0, 8.0)]
    runs = [_run_of(tmp_path, "bfno-node", slept), _run_of(tmp_path, "node", quick)]
    drawn = texts(cost_figure(Methods.of(runs)))
    numbers = [float(text) for text in drawn if re.fullmatch(r"[\d.]+", text)]
    assert max(numbers) < 100


@pytest.mark.parametrize("name", HOSTILE)
def test_any_name_of_a_method_or_of_data_is_drawn_as_it_is(tmp_path, name):
    runs = [
        read_run(write_files(tmp_path / str(place), {**record(method=method), "data": name}))
        for place, method in enumerate((name, "node"))
    ]
    found = texts(headline_figure(Methods.of(runs), ACCURACY))
    assert shown(name) in found and f"{shown(name)} (cpu)" in found
    assert shown(name) in texts(cost_figure(Methods.of(runs)))


def test_the_order_of_the_runs_changes_no_byte(runs):
    assert headline_figure(Methods.of(runs), ACCURACY) == headline_figure(
        Methods.of(runs[::-1]), ACCURACY
    )
    assert cost_figure(Methods.of(runs)) == cost_figure(Methods.of(runs[::-1]))
