"""Output that cannot be written is one line and an exit code, never an internal error."""

import os
import subprocess
import sys

import pytest

NEEDS_FULL = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")


def _shell(words: str, **environment: str) -> tuple[int, str, str]:
    """Run the program with redirections of a shell; exit code, output and errors."""
    command = ["sh", "-c", f"{sys.executable} -m bfno {words}"]
    known = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    known |= environment
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=known)
    return done.returncode, done.stdout, done.stderr


@NEEDS_FULL
@pytest.mark.parametrize("words", ["--version", "--help"])
@pytest.mark.parametrize("buffers", [{}, {"PYTHONUNBUFFERED": "1"}], ids=["buffered", "not"])
def test_output_to_a_full_disk_is_one_line(words, buffers):
    code, _, err = _shell(f"{words} > /dev/full", **buffers)
    assert code == 3 and err.count("\n") == 1
    assert err.startswith("error: output: cannot be written: no space left on device. Fix: ")


def test_a_closed_output_is_one_line():
    code, _, err = _shell("--version >&-")
    assert code == 3 and err.count("\n") == 1
    assert err.startswith("error: standard output: is closed. Fix: ")


@pytest.mark.parametrize(("words", "code"), [("data list", 0), ("train nothing/at-all", 2)])
@pytest.mark.parametrize("where", ["2>&-", pytest.param("2> /dev/full", marks=NEEDS_FULL)])
def test_without_a_place_for_errors_the_exit_code_says_it(words, code, where):
    found, out, err = _shell(f"{words} {where}")
    assert (found, err) == (code, "") and bool(out) == (code == 0)
