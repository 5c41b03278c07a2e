"""What classifiers show, as figures: features in the plane, spectra, and states over time."""

import base64
import io
from dataclasses import replace

import pytest
from PIL import Image

from bfno.lab.errors import DataError
from bfno.lab.runs.folder import read_run
from bfno.lab.views.exhibit import read_exhibit
from bfno.lab.views.figures.exhibits import flow_figure, spectra_figure, tsne_figure
from tests.lab.views.drawings import HOSTILE, pixels, shown, texts
from tests.lab.views.exhibits import TIMES, exhibit, write_exhibit
from tests.lab.views.runs import record, write_files, write_run

TEN = ["plane", "car", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "lorry"]


def _shown(folder, classes=2, **changes):
    write_exhibit(folder, classes, **changes)
    found = read_exhibit(folder)
    assert found is not None
    return read_run(folder), found


def test_every_method_has_a_panel_with_its_classes_by_name(tmp_path):
    runs = [
        _shown(write_run(tmp_path, method=method, classes=TEN, confusion=[]), 10)
        for method in ("bfno-node", "node")
    ]
    found = texts(tsne_figure(runs))
    assert {"bfno-node", "node", "taken for another class"} <= set(found)
    assert [found.count(name) for name in TEN] == [2] * 10


def test_errors_are_crossed_out(tmp_path):
    run, right = _shown(write_run(tmp_path))
    plain = replace(right.scatter, predicted=right.scatter.labels)
    with_errors = pixels(tsne_figure([(run, right)]))
    without = pixels(tsne_figure([(run, replace(right, scatter=plain))]))
    assert with_errors.shape == without.shape and (with_errors != without).any()


def test_names_of_classes_that_share_a_place_do_not_cover_each_other(tmp_path):
    content = exhibit(3)
    content["scatter"] |= {"points": [[0, 0], [0, 0], [0, 10]], "labels": [0, 1, 2]}
    content["scatter"]["predicted"] = [0, 1, 2]
    names = {"classes": ["a1", "b2", "c3"], "confusion": []}
    figure = tsne_figure([_shown(write_run(tmp_path, **names), 3, **content)])
    assert figure is not None
    heights = {}
    for line in figure.svg.splitlines():
        for name in names["classes"]:
            if f">{name}<" in line:
                heights[name] = float(line.split(' y="')[1].split('"')[0])
    assert heights["a1"] - heights["b2"] > 8  # points: about the height of the letters


def test_many_classes_are_not_named(tmp_path):
    folder = write_run(tmp_path, classes=[f"c{number}" for number in range(30)], confusion=[])
    assert "c3" not in texts(tsne_figure([_shown(folder, 30)]))


def test_energies_are_drawn_before_and_after_each_layer(tmp_path):
    found = texts(spectra_figure([_shown(write_run(tmp_path))]))
    assert {"bfno-node, layer 1", "bfno-node, layer 2", "cycles an image"} <= set(found)
    assert {"before the layer", "after the layer", "100", "10", "1"} <= set(found)
    assert not any("$" in text for text in found)


def test_layers_without_energy_are_drawn(tmp_path):
    silent = {"layer": 1, "frequencies": [0, 1], "before": [0, 0], "after": [0, 0]}
    assert texts(spectra_figure([_shown(write_run(tmp_path), spectra=[silent])]))


def test_who_shows_nothing_has_no_figure(tmp_path):
    nothing = {"scatter": {"points": [], "labels": [], "predicted": []}, "spectra": []}
    flow = {**exhibit()["flow"], "images": []}
    run, found = _shown(write_run(tmp_path), **nothing, flow=flow)
    assert tsne_figure([(run, found)]) is None
    assert spectra_figure([(run, found)]) is None
    assert flow_figure(run, found) is None
    assert tsne_figure([]) is None and spectra_figure([]) is None


def test_a_frame_has_the_probability_of_the_true_class_below_it(tmp_path):
    found = texts(flow_figure(*_shown(write_run(tmp_path))))
    assert {"cat", "dog", "time t", "step of the solver"} <= set(found)
    sure = [f"{(1 - time) / 2 + time:.0%}" for time in TIMES]
    assert [found.count(text) for text in sure] == [2] * len(TIMES)
    assert {f"{time:.2g}" for time in TIMES} <= set(found)


def test_of_many_frames_the_first_the_last_and_some_between_are_shown(tmp_path):
    content = exhibit()
    times = [index / 40 for index in range(41)]
    image = content["flow"]["images"][0]
    white = Image.new("L", (41 * 4, 4), 255)
    written = io.BytesIO()
    white.save(written, "PNG")
    image |= {"probabilities": [[0.5, 0.5]] * 41}
    image["frames"] = base64.b64encode(written.getvalue()).decode()
    content["flow"] |= {"times": times, "images": [image]}
    found = texts(flow_figure(*_shown(write_run(tmp_path), **content)))
    assert found.count("50%") == 6 and {"0", "1"} <= set(found)


def test_frames_stand_in_the_order_of_time(tmp_path):
    """The strip is a ramp from black to white, so each frame is lighter than the one before."""
    run, found = _shown(write_run(tmp_path))
    canvas = pixels(flow_figure(run, found)).mean(-1)
    height, width = canvas.shape
    row = canvas[round(0.39 * height)]  # through the middle of the first image
    values = [row[round((0.217 + 0.172 * frame) * width)] for frame in range(len(TIMES))]
    assert values == sorted(values) and len(set(values)) == len(TIMES)


def test_frames_that_do_not_fit_their_times_are_refused(tmp_path):
    content = exhibit()
    content["flow"]["width"] = 5
    with pytest.raises(DataError, match="frames cannot be read"):
        flow_figure(*_shown(write_run(tmp_path), **content))


@pytest.mark.parametrize("name", HOSTILE)
def test_any_name_is_drawn_as_it_is(tmp_path, name):
    content = {**record(), "method": name, "classes": [name, "b"]}
    run, found = _shown(write_files(tmp_path / "run", content))
    cut = name if len(name) <= 12 else name[:11] + "…"
    assert {shown(name), cut} <= set(texts(tsne_figure([(run, found)])))
    assert {f"{shown(name)} on digits (cpu)", cut} <= set(texts(flow_figure(run, found)))
    assert f"{shown(name)}, layer 1" in texts(spectra_figure([(run, found)]))
