import math

from bfno.lab.runs.record import Record
from bfno.lab.views.exhibit import Flow, FlowImage, Mistake, Scatter, Spectrum, read_exhibit
from bfno.lab.views.report.exhibits import (
    ShownFlow,
    flow_data,
    flow_view,
    mistakes_view,
    scatter_view,
    spectra_view,
)
from tests.lab.views.exhibits import png, write_exhibit

PNG = png(2, 2)
RUN = Record("r", "d/m", "d", "m", "cpu", 0, classes=["cat", "dog"])
DIGITS = Record("r", "d/m", "d", "m", "cpu", 0, classes=list("0123456789"))


def _shown(tmp_path, **changes) -> ShownFlow:
    content = write_exhibit(tmp_path)
    if changes:
        write_exhibit(tmp_path, flow={**content["flow"], **changes})
    exhibit = read_exhibit(tmp_path)
    assert exhibit is not None
    assert exhibit.flow is not None
    return ShownFlow("m", {}, RUN, exhibit.flow)


def test_steps_are_placed_on_the_way_of_the_slider(tmp_path):
    shown = _shown(tmp_path, times=[0, 0.5, 1, 1.5, 2], steps=[0.0, 0.5, 2.0])
    view = flow_view([shown])
    assert view is not None and view["times"] == [0.0, 0.5, 1.0, 1.5, 2.0]
    assert view["methods"][0]["ticks"] == [0, 25, 100]
    assert view["methods"][0]["steps"] == 2


def test_the_slider_has_the_times_of_the_method_with_the_most(tmp_path):
    fine, coarse = tmp_path / "fine", tmp_path / "coarse"
    fine.mkdir()
    coarse.mkdir()
    rows = [[0.5, 0.5], [0.1, 0.9]]
    short = [{**write_exhibit(coarse)["flow"]["images"][0], "probabilities": rows}]
    shown = [_shown(coarse, times=[0, 1], images=short), _shown(fine)]
    view, data = flow_view(shown), flow_data(shown)
    assert view is not None and data is not None
    assert view["times"] == data["times"] == [0, 0.25, 0.5, 0.75, 1]
    assert [[moment["at"] for moment in method] for method in data["methods"]] == [
        [0, 0, 0, 1, 1],  # the nearest frame that there is
        [0, 0.25, 0.5, 0.75, 1],
    ]


def test_each_place_of_the_slider_knows_its_step(tmp_path):
    data = flow_data([_shown(tmp_path, steps=[0.0, 0.25, 0.6, 1.0])])
    assert data is not None
    assert [moment["step"] for moment in data["methods"][0]] == [
        *("step 1 of 3", "step 2 of 3", "step 2 of 3", "step 3 of 3"),
        "step 3 of 3",
    ]


def test_nothing_to_watch_is_no_slider(tmp_path):
    assert flow_view([_shown(tmp_path, images=[])]) is None
    assert flow_data([]) is None


def test_bars_are_the_classes_that_are_likely_at_some_time_and_the_true_one():
    rows = [[0.0] * 10 for _ in range(2)]
    for place, share in ((1, 0.5), (3, 0.3), (8, 0.2)):
        rows[0][place] = share
    for place, share in ((2, 0.6), (3, 0.4)):
        rows[1][place] = share
    flow = Flow([0, 1], [0, 1], 4, 4, [FlowImage(PNG, 7, rows)])
    view = flow_view([ShownFlow("m", {}, DIGITS, flow)])
    data = flow_data([ShownFlow("m", {}, DIGITS, flow)])
    assert view is not None and data is not None
    bars = view["methods"][0]["images"][0]["bars"]
    assert [(bar["name"], bar["true"], bar["last"]) for bar in bars] == [
        *(("2", False, 0.6), ("3", False, 0.4), ("7", True, 0.0)),
        ("1", False, 0.0),
    ]
    assert [moment["shares"] for moment in data["methods"][0]] == [
        [[0.0, 0.3, 0.0, 0.5]],
        [[0.6, 0.4, 0.0, 0.0]],
    ]


def test_what_is_no_number_neither_breaks_the_slider_nor_its_bars(tmp_path):
    rows = [[math.nan, 2.0]] * 5
    images = [{**write_exhibit(tmp_path)["flow"]["images"][0], "probabilities": rows}]
    shown = [_shown(tmp_path, images=images, steps=[0.0, math.inf, 1.0])]
    data = flow_data(shown)
    assert data is not None
    assert data["methods"][0][0]["step"] == "step 1 of 1"
    assert set(data["methods"][0][0]["shares"][0]) == {None, 1.0}
    assert flow_view([_shown(tmp_path, times=[0, 0.25, math.nan, 0.75, 1])]) is None


def test_errors_say_what_was_taken_for_what():
    (found,) = mistakes_view([Mistake(PNG, 0, 1, 0.934)], RUN)
    assert found == {"image": PNG, "caption": "cat taken for dog, 93\xa0% sure"}
    (unnamed,) = mistakes_view([Mistake(PNG, 5, 1, 1.0)], RUN)
    assert unnamed["caption"] == "5 taken for dog, 100\xa0% sure"
    (unsure,) = mistakes_view([Mistake(PNG, 0, 1, math.nan)], RUN)
    assert unsure["caption"] == "cat taken for dog, –\xa0% sure"


def test_points_fill_the_plane_with_glyphs_of_their_class():
    scatter = Scatter([(0.0, 0.0), (10.0, 5.0), (math.nan, 0.0)], [0, 1, 1], [0, 0, 1])
    view = scatter_view(scatter, RUN)
    assert view is not None
    found = [(point["x"], point["y"], point["class"]["glyph"]) for point in view["points"]]
    assert found == [(12, 388, "A"), (388, 12, "B")]
    assert [point["title"] for point in view["points"]] == ["cat", "dog taken for cat"]
    assert view["wrong"] == 1
    digits = scatter_view(Scatter([(0.0, 0.0)], [7], [7]), DIGITS)
    assert digits is not None and digits["points"][0]["class"]["glyph"] == "7"
    assert scatter_view(Scatter([], [], []), RUN) is None


def test_energies_are_drawn_by_their_logarithm():
    (view,) = spectra_view([Spectrum(1, [0.0, 1.0, 2.0], [100.0, 10.0, 1.0], [10.0, 0.0, 1.0])])
    assert (view["low"], view["high"], view["widest"]) == ("10⁰", "10²", "2")
    assert view["before"] == "0.0,0.0 120.0,60.0 240.0,120.0"
    assert view["after"] == "0.0,60.0 240.0,120.0"  # no energy has no logarithm
    assert spectra_view([Spectrum(1, [0.0], [0.0], [0.0])]) == []
