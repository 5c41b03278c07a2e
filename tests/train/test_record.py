"""What a record says of the circumstances of a run."""

import subprocess

from bfno.train import record
from bfno.train.session import start
from tests.train.runs import tiny


def test_the_commit_is_that_of_the_start(tmp_path, monkeypatch):
    record.source_commit.cache_clear()
    heads = iter(["first\n", "second\n"])

    def answer(*_, **__):
        return subprocess.CompletedProcess([], 0, stdout=next(heads))

    monkeypatch.setattr(record.subprocess, "run", answer)
    found = start(tiny({"train": {"epochs": 1}}), tmp_path / "run")
    record.source_commit.cache_clear()
    assert found["commit"] == "first"
