"""A child of a campaign is the program that its parent is, wherever it is started."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import bfno
from bfno.lab.runs.campaign.child import child_command

SOURCES = Path(bfno.__file__).parents[1]
PACKAGES = Path(yaml.__file__).parents[1]
# The names of experiments are read from YAML files, so that this refusal needs the module.
UNKNOWN = ["train", "digits/nod", "--scale", "smoke"]


@pytest.fixture
def folder(tmp_path):
    """A folder with files that would be imported in the place of others if it were searched."""
    for name in ("yaml.py", "runpy.py", "threading.py"):
        (tmp_path / name).write_text("raise SystemExit('this is the wrong module')\n")
    return tmp_path


def _run(folder: Path, options: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    python, *rest = child_command(UNKNOWN)
    known = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(
        [python, *options, *rest],
        cwd=folder,
        env={**known, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ([], None),
        # Without `site`, nothing that is installed is found: neither packages nor this one.
        (["-S"], f"{SOURCES}{os.pathsep}{PACKAGES}"),
        (["-S"], str(PACKAGES)),
    ],
    ids=["installed", "named by PYTHONPATH", "not to be found"],
)
def test_a_child_runs_the_program_and_not_what_lies_in_the_current_folder(folder, options, path):
    done = _run(folder, options, **({} if path is None else {"PYTHONPATH": path}))
    assert "wrong module" not in done.stderr
    assert done.returncode == 2 and "digits/nod" in done.stderr, done.stderr


def test_a_folder_that_the_user_names_is_searched(folder):
    done = _run(folder, [], PYTHONPATH=str(folder))
    assert "wrong module" in done.stderr


def test_a_list_of_processes_tells_what_a_child_does():
    command = child_command(UNKNOWN)
    assert command[0] == sys.executable and command[-5:] == [str(os.getpid()), *UNKNOWN]
    assert "bfno.lab.runs.campaign.child" in " ".join(command)
    assert "\n" not in " ".join(command)
