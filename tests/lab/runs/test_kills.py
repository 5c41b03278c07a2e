"""Signals and kills at any moment, and two who want the same run."""

import contextlib
import math
import os
import random
import re
import signal
import time
from pathlib import Path

import pytest

from bfno.lab.cli import display
from bfno.lab.errors import ConfigError
from bfno.lab.files import write_atomically
from bfno.lab.runs import signals
from bfno.lab.runs.folder import RunFolder
from bfno.lab.runs.loop import Watcher
from bfno.lab.runs.session import resume, start
from tests.lab.runs import interrupted, launch
from tests.lab.runs.runs import metrics, result, tiny, weights

# Ten epochs of six steps.
SHORT = {"train": {"epochs": 10}}
# Longer than any test takes to find and stop it.
ENDLESS = {"train": {"epochs": 100_000}}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    run = tmp_path_factory.mktemp("run") / "whole"
    start(tiny(SHORT), run)
    return run


def _assert_same(run: Path, other: Path) -> None:
    assert weights(run) == weights(other)
    assert metrics(run) == metrics(other)
    assert result(run) == result(other)


class _Held(Watcher):
    """Stays in the eighth step until signals have come, and writes how many did to a file.

    What is timed by sleeping instead is over too early or too late on a busy machine.
    """

    def __init__(self, signals: float) -> None:
        self.signals, self.heard = signals, Path(os.environ["HEARD"])

    def on_step(self, progress, steps):
        if progress.step != 8:
            return
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        signal.set_wakeup_fd(writing)  # which gets a byte for each
        self._tell(0)
        count = 0
        while count < self.signals:
            os.read(reading, 1)
            count += 1
            self._tell(count)
        signal.set_wakeup_fd(-1)

    def _tell(self, count: int) -> None:
        write_atomically(self.heard, str(count).encode())


def _hold(signals: float) -> None:
    original, held = display.watchers, _Held(signals)
    display.watchers = lambda *arguments: [*original(*arguments), held]


def _hold_until_a_signal() -> None:
    _hold(1)


class _FileClock:
    """Shows the time that is written in a file."""

    @staticmethod
    def monotonic() -> float:
        return float(Path(os.environ["CLOCK"]).read_text())


def _hold_for_ever() -> None:
    signals.time = _FileClock  # pyright: ignore[reportAttributeAccessIssue]
    _hold(math.inf)


def _has_heard(file: Path, count: int, process):
    """Whether a process has got this number of signals, or has ended and will get none."""
    is_heard = lambda: file.exists() and file.read_text() == str(count)  # noqa: E731
    return lambda: is_heard() or not launch.lives(process)


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_a_signal_to_the_program_saves_the_step_and_says_so(tmp_path, number):
    run = tmp_path / "run"
    started = launch.program(launch.words(tiny(ENDLESS), run))
    launch.wait_for(launch.has_trained(run), "the first epoch")
    started.send_signal(number)
    code, _, err = launch.finish(started)
    assert code == 128 + number
    assert err == f"stopped by {number.name}; `bfno resume` continues from here\n"
    stopped = RunFolder(run).checkpoints.steps()[0]
    # Three epochs more, compared with a run that was never stopped.
    more = {"train": {"epochs": stopped // 6 + 3}}
    resume(run, more)
    start(tiny(more), tmp_path / "whole")
    _assert_same(run, tmp_path / "whole")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_within_a_step_waits_for_its_end(tmp_path, uninterrupted, number):
    run = tmp_path / "run"
    command, heard = launch.words(tiny(SHORT), run), tmp_path / "heard"
    process = launch.fork(command, tmp_path / "log", _hold_until_a_signal, HEARD=str(heard))
    launch.wait_for(_has_heard(heard, 0, process), "the eighth step")
    launch.send(process, number)
    assert launch.codes([process]) == [128 + number]
    assert not (run / "record.json").exists()
    assert RunFolder(run).checkpoints.steps()[0] == 8
    assert launch.codes([launch.fork(["resume", str(run)], tmp_path / "again")]) == [0]
    _assert_same(run, uninterrupted)


def test_a_second_signal_does_not_wait_but_an_echo_is_none(tmp_path):
    run, heard, clock = (tmp_path / name for name in ("run", "heard", "clock"))
    process = launch.fork(
        launch.words(tiny(ENDLESS), run),
        tmp_path / "log",
        _hold_for_ever,
        HEARD=str(heard),
        CLOCK=str(clock),
    )
    launch.wait_for(_has_heard(heard, 0, process), "the eighth step")
    # An echo comes within half a second.
    for count, seconds in enumerate(("100", "100.1", "100.4"), 1):
        clock.write_text(seconds)
        launch.send(process, signal.SIGINT)
        launch.wait_for(_has_heard(heard, count, process), f"signal {count}")
        assert launch.lives(process)
    clock.write_text("100.6")
    launch.send(process, signal.SIGINT)
    assert launch.codes([process]) == [-signal.SIGINT]
    assert "Traceback" not in (tmp_path / "log.err").read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("module", ["typer", "pydantic_core", "torch._C", "sklearn.datasets"])
def test_a_signal_during_the_imports_shows_no_traceback(tmp_path, number, module):
    started = launch.program(
        launch.words(tiny(ENDLESS), tmp_path / "run"),
        module=interrupted.__name__,
        **{interrupted.MODULE: module, interrupted.NUMBER: str(int(number))},
    )
    code, out, err = launch.finish(started)
    assert code in (128 + number, -number)
    assert (out, err) == ("", "")


def test_a_run_in_training_refuses_a_second_process_and_names_the_first(tmp_path):
    run = tmp_path / "run"
    first = launch.fork(launch.words(tiny(ENDLESS), run), tmp_path / "first")
    launch.wait_for(launch.has_trained(run), "the first epoch")
    code, _, err = launch.finish(launch.program(["resume", str(run)]))
    assert code == 2
    assert re.fullmatch(rf"error: .*is in use by process {first.pid} on .*\. Fix: .*\n", err)
    first.kill()
    first.join()
    steps = RunFolder(run).checkpoints.steps()[0]
    assert resume(run, {"train": {"epochs": steps // 6 + 1}}).status == "finished"


def test_a_folder_is_held_by_one_and_free_when_it_is_left(tmp_path):
    holder = f"in use by process {os.getpid()} on"
    for _ in range(2):
        RunFolder(tmp_path).check_free()
        with RunFolder(tmp_path):
            with pytest.raises(ConfigError, match=holder):
                RunFolder(tmp_path).__enter__()
            with pytest.raises(ConfigError, match=holder):
                RunFolder(tmp_path).check_free()


def _often(epochs: int):
    return tiny({"train": {"epochs": epochs, "checkpoint_seconds": 0}})


def _go_on(run: Path, epochs: int) -> list[str]:
    """What a user would type after a kill: resume, or train if nothing had begun."""
    if not (run / "config.yaml").exists():
        return launch.words(_often(epochs), run)
    return ["resume", str(run), "-s", f"train.epochs={epochs}"]


def _kill_after(process, seconds: float) -> None:
    """Kill a process, unless it ends before."""
    end = time.monotonic() + seconds
    while launch.lives(process) and time.monotonic() < end:
        time.sleep(0.002)
    with contextlib.suppress(ProcessLookupError):
        launch.send(process, signal.SIGKILL)


def _attempt(command: list[str], log: Path, is_real: bool, chance: random.Random) -> bool:
    """Run a command and kill it after some time; whether it came to that."""
    if is_real:
        process = launch.program(command)
        _kill_after(process, chance.uniform(0.1, 8))
        code, _, err = launch.finish(process)
    else:
        process = launch.fork(command, log)
        _kill_after(process, chance.uniform(0.02, 1.0))
        code = launch.codes([process])[0]
        file = log.with_suffix(".err")
        err = file.read_text() if file.exists() else ""
    assert code in (-signal.SIGKILL, 0)
    assert err == "", "a run that was killed is an ordinary run"
    return code != 0


def _leftovers(run: Path) -> list[Path]:
    """Checks that what a kill has left can be used; returns what it has left half done."""
    if not (run / "config.yaml").exists():
        return []
    folder = RunFolder(run)
    folder.read_config()
    for step in folder.checkpoints.steps():
        folder.checkpoints.load(step)
    started = (path for path in run.glob("checkpoints/step-*") if path.is_dir())
    return [path for path in started if not (path / "manifest.json").exists()]


def _survive(run: Path, kills: int, real: int, chance: random.Random, hit: bool = False) -> int:
    """Kill a run many times, first as a program of its own; how many kills hit a checkpoint.

    If one has to be hit, there are more kills until it is: when they come is up to the machine.
    """
    epochs, done, hits = 4, 0, 0
    while done < kills or (hit and not hits and done < 10 * kills):
        command = _go_on(run, epochs)
        if _attempt(command, run.with_name("log"), done < real, chance):
            done += 1
            hits += bool(_leftovers(run))
        else:
            epochs += 4
    last = {"train": {"epochs": epochs + 2, "checkpoint_seconds": 1000}}
    if not (run / "config.yaml").exists():
        start(tiny(last), run)
    resume(run, last)
    start(tiny(last), run.with_name("whole"))
    _assert_same(run, run.with_name("whole"))
    assert not _leftovers(run) and not list(run.rglob("*.partial*"))
    return hits


def test_a_run_killed_a_few_times_ends_with_the_same_bytes(tmp_path):
    _survive(tmp_path / "run", 5, 0, random.Random(0))


@pytest.mark.slow
def test_a_run_killed_fifty_times_ends_with_the_same_bytes(tmp_path):
    hits = _survive(tmp_path / "run", 50, 12, random.Random(1), hit=True)
    assert hits > 0, "no kill has come while a checkpoint was written"
