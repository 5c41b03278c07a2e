"""`bfno export`: files that other programs run, and that answer as the run does."""

import importlib.util
import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from bfno.lab.cli import main
from bfno.lab.errors import ConfigError, DataError
from bfno.lab.experiments.experiment import ExportRequest
from bfno.lab.experiments.images import export as image_export
from bfno.lab.experiments.resolve import resolve
from bfno.lab.runs.load import open_run
from bfno.lab.runs.session import start
from tests.conftest import REPOSITORY
from tests.lab.cli.output import error_line
from tests.lab.runs.runs import tiny

# A program that cannot import bfno; behind it comes what it does.
ALONE = """
import sys
sys.modules["bfno"] = None
"""
RUN_PT2 = """
import json, numpy, torch
extra = {"bfno.json": ""}
program = torch.export.load(sys.argv[1], extra_files=extra).module()
numpy.save(sys.argv[3], program(torch.from_numpy(numpy.load(sys.argv[2]))).detach().numpy())
print(extra["bfno.json"])
"""
RUN_ONNX = """
import json, numpy, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1])
numpy.save(sys.argv[3], session.run(["probabilities"], {"images": numpy.load(sys.argv[2])})[0])
print(session.get_modelmeta().custom_metadata_map["bfno"])
"""
RUN_SCRIPT = """
import runpy
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], {}, "__main__")
"""
CLOSE = 1e-5  # what the program itself demands of a file


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run with fixed steps, two evaluations of one layer, which are exported soon."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    start(tiny(), folder)
    return folder


@pytest.fixture(scope="module")
def adaptive(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "adaptive"
    start(tiny({"solver": {"method": "dopri5"}}), folder)
    return folder


def check_alone(file, run, tmp_path):
    """Another process, without bfno, gets the run's own answers out of the file, and its facts."""
    model = open_run(run).model
    images = np.random.default_rng(0).integers(0, 256, (5, *model.in_shape), np.uint8)
    np.save(tmp_path / "in.npy", images)
    source = ALONE + (RUN_ONNX if file.suffix == ".onnx" else RUN_PT2)
    words = [file, tmp_path / "in.npy", tmp_path / "out.npy"]
    told = subprocess.run([sys.executable, "-c", source, *words], capture_output=True, check=True)
    facts = json.loads(told.stdout)
    portable = open_run(run).config.portable(
        open_run(run), ExportRequest((facts["solver"] or {}).get("steps"))
    )
    with torch.no_grad():
        wanted = portable.program(torch.from_numpy(images)).numpy()
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), wanted, rtol=0, atol=CLOSE)
    return facts


def test_a_pt2_file_runs_without_bfno_and_knows_its_facts(run, tmp_path, capsys):
    file = tmp_path / "new" / "model.pt2"
    assert main(["export", str(run), "-o", str(file)]) == 0
    printed = capsys.readouterr()
    assert "10 classes; any number of images of 1×4×4 bytes" in printed.out
    assert printed.err == f"note: {file.parent} does not exist and will be created\n"
    facts = check_alone(file, run, tmp_path)
    assert facts["classes"] == list("0123456789") and facts["experiment"] == "digits/bfno-node"
    assert facts["input"] == {"dtype": "uint8", "shape": ["batch", 1, 4, 4]}
    assert facts["solver"] == {"method": "midpoint", "step": None}
    assert facts["difference"]["scores"] == 0 and facts["difference"]["of"] == "validation images"
    before = file.read_bytes()
    assert main(["export", str(run), "-o", str(file)]) == 2
    assert "exists already. Fix: pass --force" in error_line(capsys)
    assert file.read_bytes() == before


def test_an_onnx_file_classifies_pictures_as_predict_does(run, tmp_path, capsys):
    file, picture = tmp_path / "model.onnx", tmp_path / "four.png"
    assert main(["export", str(run), "-o", str(file)]) == 0
    check_alone(file, run, tmp_path)
    pixels = np.random.default_rng(1).integers(0, 256, (16, 24, 3), np.uint8)
    Image.fromarray(pixels).save(picture)
    source = (
        ALONE + "import runpy; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], {}, '__main__')"
    )
    example = REPOSITORY / "examples" / "use_exported.py"
    words = [sys.executable, "-c", source, example, file, picture]
    told = subprocess.run(words, capture_output=True, check=True, text=True).stdout
    capsys.readouterr()
    assert main(["predict", str(run), str(picture), "--format", "json"]) == 0
    predicted = json.loads(capsys.readouterr().out)
    assert told.startswith(f"{picture}: {predicted['label']} (")


def portable(run, steps=None):
    opened = open_run(run)
    return opened, opened.config.portable(opened, ExportRequest(steps))


def test_as_few_steps_are_chosen_as_keep_the_tolerance(adaptive):
    opened, found = portable(adaptive)
    facts, solver = found.facts["difference"], opened.config.solver
    assert found.facts["solver"]["method"] == "rk4"
    with torch.no_grad():
        largest = opened.model(found.example.float() / 255).abs().max()
    # Twice: the run's own solve has an error of that size, too.
    assert 0 < facts["scores"] <= 2 * (solver.atol + solver.rtol * 2 * largest)
    assert 0 <= facts["changed_classes"] <= 1 and facts["samples"] == 12
    finer = portable(adaptive, steps=40)[1].facts
    assert finer["solver"] == {"method": "rk4", "steps": 40}


def test_steps_that_solve_equations_are_replaced(tmp_path):
    start(tiny({"solver": {"method": "radauIIA3", "step": 0.25}}), tmp_path / "run")
    found = portable(tmp_path / "run")[1].facts
    assert found["solver"]["method"] == "rk4" and found["difference"]["scores"] > 0


def test_steps_that_are_never_enough_are_an_error(adaptive, monkeypatch):
    monkeypatch.setattr(image_export, "_COUNTS", (1,))
    monkeypatch.setattr(image_export, "_METHOD", "euler")
    opened = open_run(adaptive)
    for parameter in opened.model.block.parameters():
        parameter.data.mul_(2)  # a steeper field
    with pytest.raises(ConfigError, match=r"1 fixed steps miss .* times .*--steps"):
        opened.config.portable(opened, ExportRequest())


def test_without_its_data_a_run_is_compared_on_noise(adaptive, monkeypatch, caplog):
    def gone(*_, **__):
        raise DataError("photos", "is gone", "bring it back")

    monkeypatch.setattr(image_export, "divided_images", gone)
    assert portable(adaptive)[1].facts["difference"]["of"] == "random images"
    assert "photos: is gone; the steps are compared on random images" in caplog.text


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("model.tflite", "its ending does not name a format. Fix: end it in .onnx or .pt2"),
        ("model", "its ending does not name a format"),
        ("folder.pt2", "is a folder. Fix: name a file"),
        ("file/model.pt2", "file is not a folder. Fix: name a file in a folder"),
    ],
)
def test_a_wrong_file_is_refused_before_any_work(run, tmp_path, capsys, out, message):
    (tmp_path / "folder.pt2").mkdir()
    (tmp_path / "file").touch()
    assert main(["export", str(run), "-o", str(tmp_path / out)]) == 2
    assert message in error_line(capsys)


def test_a_missing_package_is_named(run, tmp_path, capsys, monkeypatch):
    there = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "onnxscript" else there(name)
    )
    assert main(["export", str(run), "-o", str(tmp_path / "model.onnx")]) == 2
    assert "needs onnxscript, which is not installed. Fix: pip install 'bfno[export]'" in (
        error_line(capsys)
    )


def test_an_unfinished_run_is_refused(run, tmp_path, capsys):
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    (copy / "record.json").unlink()
    assert main(["export", str(copy), "-o", str(tmp_path / "model.pt2")]) == 2
    assert "bfno resume" in error_line(capsys)
    assert not (tmp_path / "model.pt2").exists()


@pytest.mark.parametrize("experiment", ["moons/ffjord", "series/gru-d", "digits-density/realnvp"])
def test_other_kinds_say_why_not(experiment):
    config = resolve(experiment, scale="smoke")
    with pytest.raises(ConfigError, match="cannot be exported"):
        config.portable(None, ExportRequest())


def test_steps_of_a_network_without_equation_are_refused(tmp_path):
    changes = {"threads": 1, "train": {"epochs": 1}, "data": {"train_limit": 40}}
    start(resolve("digits/cnn", scale="smoke", changes=changes), tmp_path / "run")
    with pytest.raises(ConfigError, match="--steps: has no effect: digits/cnn solves no equation"):
        portable(tmp_path / "run", steps=3)


@pytest.mark.slow
@pytest.mark.parametrize("ending", [".onnx", ".pt2"])
@pytest.mark.parametrize(
    "method", ["cnn", "bfno-net", "fno-node", "afno-node", "sonode", "gnesterovnode", "adamnode"]
)
def test_every_kind_of_classifier_is_exported(method, ending, tmp_path):
    changes = {"seed": 3, "threads": 1, "train": {"epochs": 1}, "data": {"train_limit": 60}}
    start(resolve(f"digits/{method}", scale="smoke", changes=changes), tmp_path / "run")
    file = tmp_path / f"model{ending}"
    assert main(["export", str(tmp_path / "run"), "-o", str(file)]) == 0
    check_alone(file, tmp_path / "run", tmp_path)
