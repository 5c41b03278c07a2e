"""Several processes that train a flow together."""

import hashlib
import json

import pytest

from bfno.lab.cli import display
from bfno.lab.runs.loop import Trainer
from tests.lab.experiments.density.runs import tiny
from tests.lab.runs import launch, runs


def _tell_weights() -> None:
    """Let every process print what its model has become."""
    fit = Trainer.fit

    def telling(self):
        progress = fit(self)
        # Not the running statistics, which are those of the samples that a process saw last.
        weights = (value.detach().numpy().tobytes() for value in self._bare_model.parameters())
        content = b"".join(weights)
        print(f"weights {hashlib.sha256(content).hexdigest()}")
        return progress

    Trainer.fit = telling  # pyright: ignore[reportAttributeAccessIssue]


def _stop_before_an_evaluation() -> None:
    """Stop when the fourth step, the last one of the first epoch, is taken."""
    original = display.watchers
    display.watchers = lambda *arguments: [*original(*arguments), runs.StopAfter(4)]


def _told(log) -> str:
    return next(line for line in log.read_text().splitlines() if line.startswith("weights"))


@pytest.mark.parametrize("method", ["glow", "realnvp", "ffjord-rnode"])
def test_two_processes_have_equal_weights_and_continue_bit_for_bit(tmp_path, method):
    # A last batch of one sample: the other process has none. Both evaluate.
    changes = {"data": {"train_limit": 61}, "train": {"average": 0.9, "eval_batch": 5}}
    config = tiny(f"digits-density/{method}", changes)
    words = launch.words(config, tmp_path / "whole")
    together = launch.fork_several(words, tmp_path / "log", _tell_weights)
    assert launch.codes(together) == [0, 0], (tmp_path / "log0.err").read_text()
    assert _told(tmp_path / "log0.out") == _told(tmp_path / "log1.out")
    record = json.loads((tmp_path / "whole" / "record.json").read_text())
    assert record["processes"] == 2 and record["status"] == "finished"

    words = launch.words(config, tmp_path / "parts")
    stopped = launch.fork_several(words, tmp_path / "first", _stop_before_an_evaluation)
    assert launch.codes(stopped) == [143, 143]
    again = launch.fork_several(["resume", str(tmp_path / "parts")], tmp_path / "second")
    assert launch.codes(again) == [0, 0]
    assert runs.weights(tmp_path / "parts") == runs.weights(tmp_path / "whole")
    assert runs.metrics(tmp_path / "parts") == runs.metrics(tmp_path / "whole")
