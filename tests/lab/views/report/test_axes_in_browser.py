"""Axes of the report's charts in a real browser; skipped without chromium and playwright."""

import pytest

from bfno.lab.views.report.page import write_report
from tests.lab.views.browser import MISSING, browser
from tests.lab.views.runs import epoch_lines, record, write_files

pytestmark = pytest.mark.skipif(MISSING, reason="chromium or playwright is not installed")

LEVELS = "[...document.querySelectorAll('.level')].map(node => node.textContent)"


@pytest.fixture(scope="module")
def opened():
    with browser() as page:
        yield page


def test_values_that_differ_by_rounding_alone_are_drawn_as_one_level(opened, tmp_path):
    lines = [
        line.replace("0.3", "0.30000000000000004")
        for line in epoch_lines({"test_accuracy": 0.3}, 1)
    ]
    lines.append(lines[0].replace("0.30000000000000004", "0.3").replace('"epoch": 1', '"epoch": 2'))
    folder = write_files(tmp_path / "run", {**record(), "result": {"test_accuracy": 0.3}}, lines)
    opened.open(write_report([folder], tmp_path / "report.html"))
    assert (
        "0.4" in opened.find(LEVELS)
        and opened.find("document.querySelectorAll('.curve[data-method]').length") == 1
    )


def _levels(opened, folder, values: list[float], logarithmic: bool = False) -> list[str]:
    lines = [
        f'{{"epoch": {epoch}, "train_loss": {value}}}' for epoch, value in enumerate(values, 1)
    ]
    run = write_files(folder / "run", {**record(), "result": {"train_loss": 1.0}}, lines)
    opened.resize(1280)
    opened.open(write_report([run], folder / "report.html"))
    if logarithmic:
        opened.click(".chart input")
    inside = "[...document.querySelectorAll('.level')].every(one => one.getBBox().x >= 0)"
    assert opened.find(inside)
    return opened.find(LEVELS)


@pytest.mark.parametrize(
    ("values", "logarithmic", "expected"),
    [
        ([1234.5, 1234.54], False, ["1234.50", "1234.51", "1234.52", "1234.53", "1234.54"]),
        ([0.0, 2e-7], False, ["0", "5e-8", "1e-7", "1.5e-7", "2e-7"]),
        ([2e6, 4e6], False, ["2e+6", "2.5e+6", "3e+6", "3.5e+6", "4e+6"]),
        ([2e-5, 0.02], True, ["2e-5", "5e-5", "1e-4", "2e-4", "5e-4", "0.001", "0.002"]),
        ([1e-5, 1e3], True, ["1e-5", "1e-4", "0.001", "0.01", "0.1", "1", "10", "100", "1000"]),
    ],
)
@pytest.mark.slow
def test_an_axis_of_any_magnitude_can_be_read(opened, tmp_path, values, logarithmic, expected):
    found = _levels(opened, tmp_path, values, logarithmic)
    assert found[: len(expected)] == expected and len(found) <= 12


@pytest.mark.slow
def test_an_axis_of_very_many_magnitudes_has_few_labels(opened, tmp_path):
    found = _levels(opened, tmp_path, [1e-30, 1.0], logarithmic=True)
    assert 6 <= len(found) <= 12
