"""What a record says of the circumstances of a run."""

import subprocess
import sys
from pathlib import Path

import pytest

from bfno.lab.runs import record
from bfno.lab.runs.session import start
from tests.lab.runs.runs import tiny


@pytest.fixture(autouse=True)
def asked_anew():
    """No test sees the commit that another was told, and leaves none behind."""
    record.source_commit.cache_clear()
    yield
    record.source_commit.cache_clear()


def test_the_commit_is_that_of_the_start(tmp_path, monkeypatch):
    heads = iter(["first\n", "second\n"])

    def answer(command, **_):
        return subprocess.CompletedProcess([], 0, next(heads) if "rev-parse" in command else "")

    monkeypatch.setattr(record.subprocess, "run", answer)
    found = start(tiny({"train": {"epochs": 1}}), tmp_path / "run")
    assert found.commit == "first"


def _git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=Ann", "-c", "user.email=ann@example.org", "-c", "commit.gpgsign=false"]
    command = ["git", "-C", str(folder), *who, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout with a file that is changed by hand, to which the sources seem to belong."""
    inner = tmp_path / "src"
    inner.mkdir()
    (inner / "file.py").write_text("one\n")
    (tmp_path / "notes.md").write_text("one\n")
    _git(tmp_path, "init", "--quiet")
    _git(tmp_path, "add", ".")
    _git(tmp_path, "commit", "--quiet", "-m", "First")
    monkeypatch.setattr(record, "__file__", str(inner / "record.py"))
    return tmp_path


def test_a_clean_checkout_is_named_by_its_commit_alone(checkout):
    (checkout / "data.csv").write_text("nobody has asked for it to be tracked")
    assert record.source_commit() == _git(checkout, "rev-parse", "HEAD")


@pytest.mark.parametrize("staged", [False, True])
def test_a_commit_whose_files_were_changed_says_so(checkout, staged):
    (checkout / "src" / "file.py").write_text("two\n")
    if staged:
        _git(checkout, "add", ".")
    assert record.source_commit() == _git(checkout, "rev-parse", "HEAD") + "+changes"


def test_sources_outside_of_a_checkout_have_no_commit(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.setattr(record, "__file__", str(tmp_path / "record.py"))
    assert record.source_commit() is None


def test_the_peak_of_memory_is_not_that_of_the_program_that_started_the_run():
    child = "from bfno.lab.runs.record import peak_memory; print(peak_memory())"
    parent = f"""
import subprocess, sys
held = b"1" * (400 << 20)
print(subprocess.run([sys.executable, "-c", {child!r}], capture_output=True, text=True).stdout)
"""
    found = subprocess.run(
        [sys.executable, "-c", parent], capture_output=True, text=True, check=True
    )
    assert int(found.stdout) < 200 << 20  # this module imports no torch
