import base64
import io
import re
import xml.etree.ElementTree as ElementTree
from importlib import resources

import numpy as np
import pytest
from PIL import Image

from bfno.lab.runs.folder import read_run
from bfno.lab.views.figures.style import DARK_PALETTE, PALETTE, Look
from bfno.lab.views.figures.style import MARKERS as FIGURE_MARKERS
from bfno.lab.views.report.drawings import confusion_matrix, curve_drawings
from bfno.lab.views.report.page import _MARKERS, _mark
from tests.lab.views.runs import record, result, write_files, write_run

LOSS, METRIC, EVALUATIONS = range(3)


@pytest.fixture
def runs(tmp_path):
    methods = [("bfno-node", 0), ("bfno-node", 1), ("anode", 0)]
    return [read_run(write_run(tmp_path, method=method, seed=seed)) for method, seed in methods]


def _texts(svg: str | None) -> list[str]:
    """The texts of a figure, which must be well-formed XML without a script."""
    assert svg is not None
    root = ElementTree.fromstring(svg)
    tags = {element.tag.rpartition("}")[2] for element in root.iter()}
    assert tags <= {"svg", "defs", "style", "g", "path", "text", "use", "clipPath", "rect", "image"}
    return [element.text or "" for element in root.iter() if element.tag.endswith("}text")]


def test_the_same_runs_give_the_same_bytes_in_any_order(runs):
    assert curve_drawings(runs) == curve_drawings(runs[::-1])


@pytest.mark.parametrize("which", [LOSS, METRIC, EVALUATIONS])
def test_curves_name_their_axes_and_methods(runs, which):
    assert {"epoch", "bfno-node", "anode"} <= set(_texts(curve_drawings(runs)[which]))


def test_a_curve_goes_through_the_values_of_the_epochs(tmp_path):
    lines = [f'{{"epoch": {epoch}, "forward_nfe": {20 + 10 * epoch}}}' for epoch in (1, 2, 3)]
    content = {**record(), "result": result()}
    svg = curve_drawings([read_run(write_files(tmp_path / "run", content, lines))])[-1]
    assert svg is not None
    path = re.search(r'd="([^"]*)" clip-path[^>]*stroke: var\(--method-0', svg)
    assert path is not None
    points = re.findall(r"[ML] ([\d.]+) ([\d.]+)", path[1])
    (x1, y1), (x2, y2), (x3, y3) = ((float(x), float(y)) for x, y in points)
    # Equal steps in the data are equal steps on the page, up to the six decimals of SVG.
    assert (x3 - x2, y3 - y2) == pytest.approx((x2 - x1, y2 - y1), abs=1e-5)
    assert x2 > x1
    assert y2 < y1


def test_every_marker_of_the_figures_has_its_outline_on_a_page():
    assert set(_MARKERS) == set(FIGURE_MARKERS)


def test_a_page_dashes_a_line_as_figures_do():
    plain, dashed = Look(PALETTE[0], "o", "-"), Look(PALETTE[1], "s", (0, (5, 1.6)))
    assert [_mark(look, "a")["dashes"] for look in (plain, dashed)] == ["none", "10 3.2"]


def test_seeds_of_a_method_share_one_line_and_one_name(runs):
    assert _texts(curve_drawings(runs)[LOSS]).count("bfno-node") == 1


def test_without_epochs_there_is_nothing_to_draw(runs, tmp_path):
    folder = write_files(tmp_path / "new", record(method="new"), lines=[])
    assert curve_drawings([read_run(folder)]) == []


def test_values_that_are_not_finite_are_left_out(tmp_path):
    lines = ['{"epoch": 1, "train_loss": 2.0}', '{"epoch": 2, "train_loss": Infinity}']
    svg = curve_drawings([read_run(write_files(tmp_path / "run", record(), lines))])[LOSS]
    assert "training" in _texts(svg)


def test_losses_of_many_magnitudes_have_readable_ticks(tmp_path):
    lines = [f'{{"epoch": {epoch}, "train_loss": {10.0**-epoch}}}' for epoch in range(5)]
    texts = _texts(curve_drawings([read_run(write_files(tmp_path / "run", record(), lines))])[LOSS])
    assert "0.001" in texts
    assert not any("$" in text for text in texts)


def test_a_confusion_matrix_shows_counts_and_classes(runs):
    texts = _texts(confusion_matrix(runs[0]))
    assert {"cat", "dog", "8", "2", "1", "9", "true class", "predicted class"} <= set(texts)


def _first_taken_for_last(folder, size: int) -> str:
    """A matrix whose only count is where the first row and the last column meet."""
    counts = [[0] * size for _ in range(size)]
    counts[0][-1] = 7
    names = [f"n{number}" for number in range(size)]
    svg = confusion_matrix(read_run(write_run(folder, classes=names, confusion=counts)))
    assert svg is not None
    return svg


def test_the_first_class_of_few_is_on_top(tmp_path):
    svg = _first_taken_for_last(tmp_path, size=3)
    side = float(re.findall(r'viewBox="0 0 ([\d.]+) ', svg)[0])
    (place,) = re.findall(r'x="([\d.]+)" y="([\d.]+)"[^>]*>7</text>', svg)
    x, y = map(float, place)
    assert x > 0.6 * side and y < 0.4 * side


def test_the_first_class_of_many_is_on_top(tmp_path):
    svg = _first_taken_for_last(tmp_path, size=21)
    image, content = re.findall(r'(<image [^>]*href="data:image/png;base64,([^"]+)"[^>]*>)', svg)[0]
    opacity = np.asarray(Image.open(io.BytesIO(base64.b64decode(content))))[..., 3]
    # matplotlib writes images upside down and has the reader turn them.
    seen = opacity[::-1] if "scale(1 -1)" in image else opacity
    rows, columns = np.nonzero(seen)
    assert rows.max() < 0.1 * len(seen) and columns.min() > 0.9 * len(seen)


def _brightness(colour: tuple[float, ...]) -> float:
    parts = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in colour]
    return sum(part * weight for part, weight in zip(parts, (0.2126, 0.7152, 0.0722), strict=True))


@pytest.mark.parametrize("dark", [False, True])
def test_counts_can_be_read_on_the_strongest_cell(tmp_path, dark):
    from matplotlib.colors import to_rgb

    svg = _first_taken_for_last(tmp_path, size=3)
    assert "fill: var(--ink" in re.findall(r"<text [^>]*>7</text>", svg)[0]
    share = max(map(float, re.findall(r"fill-opacity: ([\d.]+)", svg)))
    sheet = resources.files("bfno.lab.views.report").joinpath("report.css").read_text()
    ink, paper = (
        to_rgb(re.findall(rf"--{name}: light-dark\((#\w+), (#\w+)\)", sheet)[0][dark])
        for name in ("ink", "paper")
    )
    cell = to_rgb((DARK_PALETTE if dark else PALETTE)[0])
    behind = tuple(
        share * one + (1 - share) * other for one, other in zip(cell, paper, strict=True)
    )
    low, high = sorted((_brightness(ink), _brightness(behind)))
    assert (high + 0.05) / (low + 0.05) >= 4.5


def test_a_hundred_classes_fit_into_one_image(tmp_path):
    counts = [[int(row == column) for column in range(100)] for row in range(100)]
    names = [str(number) for number in range(100)]
    run = read_run(write_run(tmp_path, classes=names, confusion=counts))
    svg = confusion_matrix(run)
    assert svg is not None
    assert svg == confusion_matrix(run)
    assert len(svg) < 100_000


@pytest.mark.parametrize(
    "name", ["$x_$", "<script>", "#0072b2", 'a id="b"', "猫", "a" * 300, "\\frac{", "]]>", "--><b>"]
)
def test_any_name_of_a_class_or_method_is_drawn(tmp_path, name):
    folder = write_files(tmp_path / "run", {**record(), "method": name, "classes": [name, "b"]})
    run = read_run(folder)
    shown = name if len(name) <= 24 else name[:23] + "…"
    assert shown in _texts(confusion_matrix(run))
    assert shown in _texts(curve_drawings([run])[LOSS])


def test_a_style_of_the_user_changes_nothing(runs):
    import matplotlib

    plain = curve_drawings(runs)
    with matplotlib.rc_context({"axes.grid": False, "font.size": 30, "figure.dpi": 30}):
        assert curve_drawings(runs) == plain
        assert matplotlib.rcParams["font.size"] == 30
