"""Pictures and tables of reconstructed series, drawn from plain numbers."""

import csv
import io
import math
import re
import xml.etree.ElementTree as ElementTree
from itertools import pairwise

import pytest

from bfno.lab.errors import ConfigError
from bfno.lab.views.figures.series import (
    check_new,
    reconstruction_csv,
    reconstruction_figure,
    write_reconstruction,
)

SVG = "{http://www.w3.org/2000/svg}"
LEGEND = {"observed", "expected value", "lowest to highest sample"}
BEYOND = "after the last observation"


def example_series(
    name: str = "p1", features: tuple[str, ...] = ("HR", "pH"), until: float = 4.0
) -> dict:
    at = [until * step / 8 for step in range(9)]
    curve = {
        "times": [0.0, 1.0, 4.0],
        "values": [1.0, 3.0, 2.0],
        "at": at,
        "mean": [math.sin(time) + 2 for time in at],
        "low": [math.sin(time) + 1.5 for time in at],
        "high": [math.sin(time) + 2.5 for time in at],
        "rmse": 0.5,
    }
    return {"series": name, "end": 4.0, "curves": dict.fromkeys(features, curve)}


def _texts(svg: bytes) -> list[str]:
    root = ElementTree.fromstring(svg)
    tags = {element.tag.removeprefix(SVG) for element in root.iter()}
    assert tags <= {"svg", "defs", "style", "g", "path", "text", "use", "clipPath", "rect"}
    return [element.text or "" for element in root.iter(f"{SVG}text")]


def test_the_same_series_give_the_same_bytes():
    for kind in ("svg", "png"):
        drawn = {reconstruction_figure([example_series()], kind) for _ in range(2)}
        assert len(drawn) == 1


def test_a_figure_names_series_features_and_what_is_drawn():
    texts = _texts(reconstruction_figure([example_series("p1"), example_series("p2")]))
    assert {"p1", "p2", "HR", "pH", "time", *LEGEND} <= set(texts)
    assert texts.count("HR") == 1 and texts.count("time") == 2


def test_the_ground_is_shaded_only_beyond_the_last_observation():
    assert BEYOND not in _texts(reconstruction_figure([example_series()]))
    drawn = reconstruction_figure([example_series(until=8.0)])
    assert BEYOND in _texts(drawn)
    assert drawn.count(b"stroke-dasharray: 1.1,1.815") == 2  # a dotted line in each panel


def test_the_line_goes_through_the_means():
    one = example_series(features=("x",))
    squares = [float(step**2) for step in range(9)]
    one["curves"]["x"] |= dict.fromkeys(("mean", "low", "high"), squares)
    svg = reconstruction_figure([one]).decode()
    lines = re.findall(r'd="(M [^"]*)" clip-path[^>]*stroke: #0072b2', svg)
    points = [(float(x), float(y)) for x, y in re.findall(r"[ML] ([\d.]+) ([\d.]+)", lines[-1])]
    # Steps of 1, 3, 5, … in the data are such on the page, where up is down.
    steps = [(x - before, height - y) for (before, height), (x, y) in pairwise(points)]
    across, up = steps[0]
    assert len(steps) == 8 and across > 0 and up > 0
    expected = [(across, up * (2 * number + 1)) for number in range(8)]
    assert all(a == pytest.approx(b, abs=1e-4) for a, b in zip(steps, expected, strict=True))


def test_a_line_that_runs_away_does_not_flatten_the_observations():
    one = example_series(features=("x",), until=8.0)
    one["curves"]["x"]["high"] = [2.5] * 5 + [1e9] * 4
    ticks = [
        text for text in _texts(reconstruction_figure([one])) if re.fullmatch(r"[−\d.]+", text)
    ]
    assert all(float(text.replace("−", "-")) < 10 for text in ticks)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_values_that_are_not_finite_are_drawn_as_gaps(value):
    one = example_series(features=("x",))
    one["curves"]["x"] |= {"low": [value] * 9, "high": [value] * 9, "mean": [value] * 9}
    assert "x" in _texts(reconstruction_figure([one]))


def test_a_series_of_one_moment_is_drawn():
    point = {"times": [4.0], "values": [1.0], "at": [4.0, 4.0]}
    point |= {key: [1.0, 1.0] for key in ("mean", "low", "high")}
    one = {"series": "a", "end": 4.0, "curves": {"x": {**point, "rmse": 0.0}}}
    assert "x" in _texts(reconstruction_figure([one]))


@pytest.mark.parametrize("name", ["<script>", "$x_$", "猫", "a" * 300, ']]>"--><b>', "&amp;"])
def test_any_name_is_drawn_as_it_is(name):
    shown = name if len(name) <= 24 else name[:23] + "…"
    texts = _texts(reconstruction_figure([example_series(name, (name,))]))
    assert texts.count(shown) == 2


def test_a_picture_of_points_is_one():
    assert reconstruction_figure([example_series()], "png").startswith(b"\x89PNG")


def test_too_many_panels_are_refused():
    with pytest.raises(ConfigError, match="name fewer series or features"):
        reconstruction_figure([example_series(str(number)) for number in range(51)])


def test_the_table_has_a_line_for_each_time():
    text = reconstruction_csv([example_series("p,1", ("HR",)), example_series("p2")])
    rows = list(csv.DictReader(io.StringIO(text)))
    columns = ["series", "feature", "time", "mean", "low", "high", "lower", "upper"]
    assert list(rows[0]) == columns
    assert len(rows) == 9 + 18 and rows[0]["lower"] == rows[0]["upper"] == ""
    assert (rows[0]["series"], rows[-1]["series"], rows[-1]["feature"]) == ("p,1", "p2", "pH")
    assert float(rows[1]["mean"]) == math.sin(0.5) + 2  # full precision


def with_interval(**changes) -> dict:
    one = example_series(features=("x",), **changes) | {"level": 0.8, "hidden": "extrapolation"}
    curve = one["curves"]["x"]
    one["curves"]["x"] = curve | {
        "lower": [mean - 9 for mean in curve["mean"]],
        "upper": [mean + 9 for mean in curve["mean"]],
        "hidden_times": [2.0, 3.0],
        "hidden_values": [2.5, 2.7],
    }
    return one


def test_an_interval_is_drawn_in_the_place_of_the_samples_range_and_says_its_level():
    drawn = reconstruction_figure([with_interval()])
    texts = _texts(drawn)
    assert "80 % interval" in texts and "lowest to highest sample" not in texts
    ticks = [float(text.replace("−", "-")) for text in texts if re.fullmatch(r"[−\d.]+", text)]
    assert max(ticks) >= 10 and min(ticks) <= -5  # the whole interval has room


def test_hidden_values_look_different_and_the_row_says_what_was_hidden():
    texts = _texts(reconstruction_figure([with_interval()]))
    assert "hidden from the model" in texts and "extrapolation" in texts
    assert "hidden from the model" not in _texts(reconstruction_figure([example_series()]))


def test_the_table_has_the_interval_and_which_rows_were_hidden():
    rows = list(csv.DictReader(io.StringIO(reconstruction_csv([with_interval()]))))
    assert rows[0]["hidden"] == "extrapolation"
    assert float(rows[0]["upper"]) - float(rows[0]["lower"]) == pytest.approx(18)


@pytest.mark.parametrize("name", ["out.svg", "out.PNG", "sub/out.csv"])
def test_the_ending_says_what_is_written(tmp_path, name):
    out = write_reconstruction([example_series()], tmp_path / name)
    start = {".svg": b"<svg", ".png": b"\x89PNG", ".csv": b"series,"}[out.suffix.lower()]
    assert out.read_bytes().startswith(start)


def test_a_file_that_is_there_is_kept_unless_forced(tmp_path):
    out = tmp_path / "out.svg"
    out.write_text("mine")
    with pytest.raises(ConfigError, match="pass --force"):
        write_reconstruction([example_series()], out)
    assert out.read_text() == "mine"
    write_reconstruction([example_series()], out, force=True)
    assert out.read_bytes() == reconstruction_figure([example_series()])


@pytest.mark.parametrize(
    ("name", "message"), [("out.pdf", "end it in .svg or .png"), ("", "folder")]
)
def test_what_cannot_be_written_is_refused_before_the_work(tmp_path, name, message):
    with pytest.raises(ConfigError, match=message):
        check_new(tmp_path / name, ("svg", "png"), force=True)
