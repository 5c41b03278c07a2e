"""Runs of densities in reports: both figures by their names, samples, and nothing about classes."""

import base64
import re

import pytest

from bfno.lab.errors import DataError
from bfno.lab.runs.folder import read_run
from bfno.lab.runs.record import Record
from bfno.lab.views.methods import kind_of
from bfno.lab.views.report.drawings import curve_drawings
from bfno.lab.views.report.page import write_report
from tests.lab.views.runs import record, write_files

IMAGES = {
    "train_loss": 1.3,
    "train_bits_per_dim": 1.2,
    "validation_bits_per_dim": 1.15,
    "test_bits_per_dim": 1.1,
    "test_bits_per_dim_center": 0.9,
    "test_nfe": 80.0,
}
POINTS = {"train_loss": 2.0, "test_nll": 1.25, "test_nfe": 20.0}


def _write(folder, method: str = "ffjord", data: str = "mnist-density", result: dict = IMAGES):
    judged = next(key for key in result if key in ("test_bits_per_dim", "test_nll"))
    by = judged.replace("test", "validation")
    changes = {"result": result, "judged_by": judged, "chosen_by": by, "confusion": []}
    return write_files(
        folder / f"{data}-{method}", {**record(data, method), **changes, "classes": None}
    )


def test_a_density_is_described_by_both_figures_and_no_classes(tmp_path):
    better = {**IMAGES, "test_bits_per_dim": 1.0}
    folders = [_write(tmp_path), _write(tmp_path, "ffjord-bfno-rnode", result=better)]
    page = write_report(folders, tmp_path / "report.html").read_text()
    for text in (
        "ffjord-bfno-rnode has the best test bits/dim (uniform) of 2 methods: 1.000, which is "
        "0.100 below ffjord with 1.100.",
        '<th scope="col" class="number">test bits/dim (center)</th>',
        "<dt>test bits/dim (uniform)</dt><dd>1</dd>",
        "<dt>test bits/dim (center)</dt><dd>0.9</dd>",
    ):
        assert text in page
    for text in ("<h3>Classes</h3>", "precision", "accuracy", "<h3>Samples</h3>"):
        assert text not in page


def test_points_are_judged_by_their_likelihood(tmp_path):
    folder = _write(tmp_path, data="moons", result=POINTS)
    page = write_report([folder], tmp_path / "report.html").read_text()
    assert "On moons (scale cpu), ffjord reaches a test NLL of 1.2500." in page
    assert "<dt>test NLL</dt><dd>1.25</dd>" in page and "bits/dim" not in page


def test_curves_of_a_density_are_named_by_its_figure(tmp_path):
    svg = curve_drawings([read_run(_write(tmp_path))])[1]
    assert svg is not None and {"training", "test", "Bits/dim (uniform)"} <= set(
        re.findall(r">([^<]+)</text>", svg)
    )


def test_a_report_embeds_the_samples_of_a_run(tmp_path):
    folder, other = _write(tmp_path), _write(tmp_path, "ffjord-rnode")
    picture = b"\x89PNG not really"
    (folder / "figures").mkdir()
    (folder / "figures" / "samples.png").write_bytes(picture)
    page = write_report([other, folder], tmp_path / "report.html").read_text()
    found = re.findall(r'<img alt="[^"]+" src="data:image/png;base64,([^"]+)">', page)
    assert [base64.b64decode(text) for text in found] == [picture]
    before = page[: page.index("<h3>Samples</h3>")]
    assert before.rindex("ffjord on mnist-density") > before.rfind("ffjord-rnode on mnist-density")


def test_samples_that_are_too_large_are_refused_with_the_command_that_draws_them(tmp_path):
    folder = _write(tmp_path)
    (folder / "figures").mkdir()
    with open(folder / "figures" / "samples.png", "wb") as file:
        file.truncate(9 * 2**20)
    with pytest.raises(DataError, match="bfno sample --force"):
        write_report([folder], tmp_path / "report.html")


@pytest.mark.parametrize(
    ("result", "config", "expected"),
    [
        (IMAGES, {}, "densities"),
        (POINTS, {}, "densities"),
        ({"test_accuracy": 0.9}, {"data": {"protocol": "sound"}}, "series"),
        ({"test_accuracy": 0.9}, {}, "images"),
    ],
)
def test_the_kind_of_a_run_is_known_by_what_it_measured(result, config, expected):
    run = Record("r", "d/m", "d", "m", "cpu", 0, result=result, config=config)
    assert kind_of(run) == expected
