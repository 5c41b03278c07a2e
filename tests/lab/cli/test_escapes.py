"""Names come from outside: none of them steers the terminal, or is a formula in a table."""

import csv
import io
import json
import os
import subprocess
import sys

import pytest
import torch
from PIL import Image

from bfno.lab.cli import main

NASTY = "=red\x1b[31m\u202e"
SHOWN = r"=red\x1b[31m\u202e"
TINY = ["--scale", "smoke", "--set", "train.epochs=1", "--set", "threads=1"]


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Pictures of two classes, one with a name that a terminal would obey."""
    folder, noise = tmp_path_factory.mktemp("photos"), torch.Generator().manual_seed(0)
    for name in (NASTY, "blue"):
        (folder / name).mkdir()
        for number in range(8):
            pixels = torch.randint(0, 256, (8, 8, 3), generator=noise, dtype=torch.uint8)
            Image.fromarray(pixels.numpy()).save(folder / name / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def run(photos, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / f"run-{NASTY}"
    words = ["train", "folder/bfno-node", "--folder", str(photos), "--out", str(folder), *TINY]
    assert main(words) == 0
    return folder


def _printed(capsys, words: list[str], code: int = 0) -> str:
    assert main(words) == code
    printed = capsys.readouterr()
    found = printed.out + printed.err
    assert all(letter.isprintable() or letter in "\r\n" for letter in found), ascii(found)
    return found


def test_eval_shows_classes_escaped(run, capsys):
    found = _printed(capsys, ["eval", str(run)])
    assert SHOWN in found and "blue" in found


@pytest.mark.parametrize("layout", ["table", "csv", "json"])
def test_predict_shows_classes_and_files_escaped(run, photos, capsys, layout):
    file = photos / NASTY / "0.png"
    found = _printed(capsys, ["predict", str(run), str(file), "--format", layout])
    if layout == "json":
        assert json.loads(found)["file"] == str(file)
        return
    assert SHOWN in found
    if layout == "csv":
        head, row = csv.reader(io.StringIO(found, newline=""))
        assert f"'{SHOWN}" in head and not any(cell.startswith("=") for cell in (*head, *row))


def test_predict_explains_a_bad_file_with_its_name_escaped(run, tmp_path, capsys):
    file = tmp_path / f"{NASTY}.png"
    file.write_text("nothing")
    assert f"{SHOWN}.png" in _printed(capsys, ["predict", str(run), str(file)], 3)


@pytest.mark.parametrize("command", ["compare", "report", "figures"])
def test_commands_about_runs_print_no_name_raw(run, tmp_path, capsys, command):
    out = [] if command == "compare" else ["-o", str(tmp_path / NASTY / "new")]
    _printed(capsys, [command, str(run), *out])


@pytest.mark.parametrize(
    "words", [["compare"], ["eval"], ["resume"], ["train"], ["data", "get"], ["table"], []]
)
def test_an_error_shows_the_word_escaped(capsys, words):
    name = NASTY.removeprefix("=")
    assert main([*words, name]) != 0
    error = capsys.readouterr().err
    assert SHOWN.removeprefix("=") in error
    assert error.count("\n") == 1 and error.removesuffix("\n").isprintable()


def test_a_traceback_is_escaped_too(capsys):
    assert main(["--debug", "compare", NASTY]) == 2
    error = capsys.readouterr().err
    assert "Traceback" in error and "\x1b" not in error


def test_a_stream_without_the_letters_gets_them_escaped(tmp_path):
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    words = [sys.executable, "-m", "bfno", "data", "list"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and r"28\xd728\xd71" in done.stdout
