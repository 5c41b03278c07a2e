"""Several processes that train together: the same result as one, and none waits for the dead."""

import json
import math
import os
import shutil
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from safetensors.torch import load

from bfno.lab.cli import display
from bfno.lab.errors import ConfigError
from bfno.lab.experiments import processes as joined
from bfno.lab.experiments.images.task import ImageTask
from bfno.lab.runs.checkpoint import CheckpointStore
from bfno.lab.runs.folder import RunFolder
from bfno.lab.runs.loop import Watcher
from bfno.lab.runs.session import resume, start
from bfno.ode import SolverError, Stats, Status
from tests.lab.runs import launch
from tests.lab.runs.runs import metrics, result, tiny, weights

# An adaptive solver suits its steps to the samples that one process has; fixed steps do not.
FIXED = {"method": "rk4", "step": 0.25}
TIGHT = {"method": "dopri5", "rtol": 1e-6, "atol": 1e-6}

# Longer than any test takes to find and stop it.
ENDLESS = 100_000

LOST = "error: another process of this run: has died or hangs. Fix: look at its output, then "


def _config(experiment="digits/bfno-node", samples=41, batch=5, epochs=2, **changes):
    # A clipped gradient would hide that its share was weighed wrongly.
    train = {"epochs": epochs, "batch": batch, "eval_batch": 5, "clip": 1e6}
    return tiny(
        {
            "data": {"train_limit": samples, "validation": 0.0, "test_limit": 12},
            "solver": changes.get("solver", {"method": "midpoint"}),
            "train": {**train, **changes.get("train", {})},
        },
        experiment,
    )


def _epochs(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def _assert_same_curves(run: Path, other: Path) -> None:
    ours, theirs = _epochs(run), _epochs(other)
    assert len(ours) == len(theirs) > 0
    for mine, its in zip(ours, theirs, strict=True):
        for name in ("train_loss", "train_accuracy", "test_loss", "test_accuracy"):
            assert math.isclose(mine[name], its[name], abs_tol=1e-5), (name, mine, its)


def _assert_close(run: Path, other: Path) -> None:
    """The same curves, and the same weights, up to rounding."""
    _assert_same_curves(run, other)
    ours, theirs = (load(weights(one)["model.safetensors"]) for one in (run, other))
    for name, value in ours.items():
        torch.testing.assert_close(value, theirs[name], rtol=0, atol=1e-5)


def _assert_same(run: Path, other: Path) -> None:
    """The same, to the last bit."""
    assert weights(run) == weights(other)
    assert metrics(run) == metrics(other)
    assert result(run) == result(other)


def _steps(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "checkpoints").iterdir())


@pytest.mark.parametrize(
    ("experiment", "samples", "batch", "solver"),
    [
        ("digits/bfno-node", 48, 8, FIXED),
        ("digits/bfno-node", 46, 7, FIXED),  # one process has a sample more; the last batch has 4
        ("digits/bfno-node", 41, 5, FIXED),  # a last batch of one: the other process has none
        ("digits/hbnode", 43, 7, FIXED),
    ],
)
def test_two_processes_learn_what_one_learns(tmp_path, experiment, samples, batch, solver):
    config = _config(experiment, samples, batch, solver=solver)
    together = launch.fork_several(launch.words(config, tmp_path / "two"), tmp_path / "log")
    start(config, tmp_path / "one")
    assert launch.codes(together) == [0, 0], (tmp_path / "log0.err").read_text()
    assert json.loads((tmp_path / "two" / "record.json").read_text())["processes"] == 2
    _assert_close(tmp_path / "two", tmp_path / "one")


def test_two_processes_learn_what_one_learns_with_adaptive_steps(tmp_path):
    # Adam turns a gradient near zero into a whole step, whose direction is then a matter of
    # rounding. One that is clipped far below Adam's epsilon of 1e-8 it only scales. The weighing of
    # shares, which this partly hides, is tested above.
    config = _config(solver=TIGHT, train={"lr": 0.1, "clip": 1e-9})
    together = launch.fork_several(launch.words(config, tmp_path / "two"), tmp_path / "log")
    start(config, tmp_path / "one")
    assert launch.codes(together) == [0, 0]
    _assert_same_curves(tmp_path / "two", tmp_path / "one")


@pytest.mark.parametrize("name", ["ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED"])
def test_a_model_that_is_split_among_processes_is_refused(name, monkeypatch):
    monkeypatch.setenv(name, "true")
    with pytest.raises(ConfigError, match=f"{name}: splits the model among processes"):
        joined.Processes.join()
    monkeypatch.setenv(name, "false")
    assert joined.Processes.join().count == 1


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """Ten epochs of nine steps on two processes, and what these have printed and touched."""
    folder = tmp_path_factory.mktemp("two")
    command = launch.words(_config(epochs=10), folder / "run")
    processes = launch.fork_several(command, folder / "log", _report_writes)
    assert launch.codes(processes) == [0, 0]
    return folder / "run"


def _report_writes() -> None:
    """Let every process but the first complain of each file that it changes."""

    def audit(event, arguments):
        writes = event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        changes = event in ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate")
        if (writes or changes) and str(arguments[0]) != os.devnull:
            os.write(2, f"{event} {arguments[0]}\n".encode())

    if os.environ["RANK"] != "0":
        sys.addaudithook(audit)


def test_only_the_first_process_writes_and_prints(uninterrupted):
    log = uninterrupted.parent
    assert (log / "log1.out").read_text() == "" and (log / "log1.err").read_text() == ""
    lines = (log / "log0.out").read_text().splitlines()
    assert len(lines) == 13  # a header, ten epochs, the result and what to do with it
    assert (log / "log0.err").read_text() == ""


@pytest.mark.parametrize("told", [(0, 1), (0,), (1,)])
def test_a_signal_to_any_process_stops_all_and_loses_nothing(tmp_path, told):
    run = tmp_path / "run"
    processes = launch.fork_several(launch.words(_config(epochs=ENDLESS), run), tmp_path / "log")
    launch.wait_for(launch.has_trained(run), "the first epoch")
    for rank in told:
        processes[rank].terminate()
    assert launch.codes(processes) == [143, 143]
    said = [(tmp_path / f"log{rank}.err").read_text() for rank in (0, 1)]
    assert said == ["stopped by SIGTERM; `bfno resume` continues from here\n", ""]
    assert not (run / "record.json").exists()
    _assert_goes_on(run)


def test_a_remembered_first_step_is_that_of_the_first_process_in_all(tmp_path):
    run, solver = tmp_path / "run", {"method": "bosh3", "first_step": "last"}
    command = launch.words(_config(epochs=ENDLESS, solver=solver), run)
    processes = launch.fork_several(command, tmp_path / "log")
    launch.wait_for(launch.has_trained(run), "the first epoch")
    processes[0].terminate()  # most likely within an epoch, where processes have other batches
    assert launch.codes(processes) == [143, 143]
    _assert_goes_on(run, solver=solver)


def _assert_goes_on(run: Path, **changes) -> None:
    """A run that was stopped takes the steps that one takes that never was."""
    epochs = RunFolder(run).checkpoints.steps()[0] // 9 + 2
    words = ["resume", str(run), "-s", f"train.epochs={epochs}"]
    again = launch.fork_several(words, run.with_name("again"))
    assert launch.codes(again) == [0, 0]
    whole = run.with_name("whole")
    command = launch.words(_config(epochs=epochs, **changes), whole)
    never = launch.fork_several(command, run.with_name("never"))
    assert launch.codes(never) == [0, 0]
    _assert_same(run, whole)


@pytest.mark.slow
def test_the_launcher_hands_on_a_signal_and_the_run_continues(tmp_path):
    run = tmp_path / "run"
    started = launch.torchrun(launch.words(_config(epochs=ENDLESS), run))
    launch.wait_for(launch.has_trained(run), "the first epoch")
    started.terminate()
    _, _, err = launch.finish(started)
    assert err.count("stopped by SIGTERM") == 1
    assert not (run / "record.json").exists()
    _assert_goes_on(run)


@pytest.mark.slow
def test_the_echo_of_a_signal_does_not_cut_the_save(tmp_path):
    # Ctrl-C reaches the launcher and its processes, to which the launcher then sends another.
    run = tmp_path / "run"
    started = launch.torchrun(launch.words(_config(epochs=ENDLESS), run))
    launch.wait_for(launch.has_trained(run), "the first epoch")
    os.killpg(started.pid, signal.SIGINT)
    _, _, err = launch.finish(started)
    assert err.count("stopped by SIGINT") == 1
    _assert_goes_on(run)
    more = ["resume", str(run), "-s", f"train.epochs={len(_epochs(run)) + 1}"]
    code, out, _ = launch.finish(launch.torchrun(more))
    assert code == 0
    assert out.count("test accuracy") == 1 and out.count("bfno predict") == 1


class _AtStep(Watcher):
    """Sends one process a signal after a step."""

    def __init__(self, step: int, rank: int, number: int) -> None:
        self.step, self.rank, self.number = step, rank, number

    def on_step(self, progress, steps):
        if progress.step == self.step and os.environ["RANK"] == str(self.rank):
            os.kill(os.getpid(), self.number)


def _watch(watcher: Watcher) -> None:
    original = display.watchers
    display.watchers = lambda *arguments: [*original(*arguments), watcher]


def _kill(rank: int) -> None:
    """Kill a process; the others, which would wait for days, have to notice it by themselves."""
    joined._PATIENCE = timedelta(days=1)
    _watch(_AtStep(3, rank, signal.SIGKILL))


def _kill_the_second() -> None:
    _kill(1)


def _kill_the_first() -> None:
    _kill(0)


def _stop_and_save_slowly() -> None:
    _watch(_AtStep(3, 0, signal.SIGTERM))
    original = CheckpointStore.save

    def save(self, checkpoint):
        time.sleep(2)
        original(self, checkpoint)

    CheckpointStore.save = save


def test_no_process_leaves_before_the_state_is_saved(tmp_path):
    # A launcher would end the process that still writes as soon as another has left.
    run = tmp_path / "run"
    command = launch.words(_config(), run)
    processes = launch.fork_several(command, tmp_path / "log", _stop_and_save_slowly)
    launch.wait_for(lambda: not launch.lives(processes[1]), "the end of the second")
    assert RunFolder(run).checkpoints.steps() == [3]
    assert launch.codes(processes) == [143, 143]


def _freeze_the_second() -> None:
    _watch(_AtStep(3, 1, signal.SIGSTOP))


def test_the_death_of_a_process_ends_the_others_and_loses_no_step(tmp_path, uninterrupted):
    run = tmp_path / "run"
    command = launch.words(_config(epochs=10), run)
    processes = launch.fork_several(command, tmp_path / "log", _kill_the_second)
    assert launch.codes(processes) == [1, -signal.SIGKILL]
    assert (tmp_path / "log0.err").read_text() == f"{LOST}bfno resume {run}\n"
    assert _steps(run) == ["step-00000003"]
    alone = shutil.copytree(run, tmp_path / "alone")
    together = launch.fork_several(["resume", str(run)], tmp_path / "again")
    resume(alone)
    assert launch.codes(together) == [0, 0]
    _assert_same(run, uninterrupted)
    _assert_close(alone, uninterrupted)


def test_the_death_of_the_process_that_writes_ends_the_others(tmp_path):
    run = tmp_path / "run"
    command = launch.words(_config(), run)
    processes = launch.fork_several(command, tmp_path / "log", _kill_the_first)
    assert launch.codes(processes) == [-signal.SIGKILL, 1]
    assert (tmp_path / "log1.err").read_text() == f"{LOST}bfno resume {run}\n"
    assert resume(run).status == "finished"


@pytest.mark.slow
def test_the_launcher_of_a_dead_process_does_not_hang(tmp_path, uninterrupted):
    run, driver = tmp_path / "run", tmp_path / "driver.py"
    driver.write_text(
        "import sys\n"
        "from bfno.lab.cli import main\n"
        "from tests.lab.experiments import test_processes\n"
        "test_processes._kill_the_second()\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    options = ["--nproc-per-node", "2", "--master-port", str(launch.free_port()), str(driver)]
    started = launch.program(
        [*options, *launch.words(_config(epochs=10), run)],
        module="torch.distributed.run",
        PYTHONPATH=str(Path(__file__).parents[3]),
    )
    code, _, err = launch.finish(started)
    assert code == 1
    assert err.count(LOST) == 1
    assert _steps(run) == ["step-00000003"]
    assert launch.finish(launch.torchrun(["resume", str(run)]))[0] == 0
    _assert_same(run, uninterrupted)


@pytest.mark.slow
def test_a_process_that_hangs_is_given_up(tmp_path):
    run = tmp_path / "run"
    command = launch.words(_config(), run)
    processes = launch.fork_several(command, tmp_path / "log", _freeze_the_second)
    begun = time.monotonic()
    assert launch.codes(processes[:1]) == [1]
    assert time.monotonic() - begun > 50, "a slow process must not be taken for a dead one"
    processes[1].kill()
    assert (tmp_path / "log0.err").read_text() == f"{LOST}bfno resume {run}\n"
    assert _steps(run) == ["step-00000003"]


def _spoil(outcome) -> None:
    """Let the fourth step of the second process end differently."""
    original, calls = ImageTask.loss, []

    def loss(self, *arguments):
        calls.append(None)
        found = original(self, *arguments)
        return outcome(*found) if len(calls) == 4 and os.environ["RANK"] == "1" else found

    setattr(ImageTask, "loss", loss)  # noqa: B010 - the loop passes its arguments by place


def _lose_the_number() -> None:
    _spoil(lambda loss, sums: (loss * math.nan, sums))


def _give_up(*_) -> None:
    raise SolverError(Status.STEP_LIMIT, "t = 0.5", Stats())


def _fail_the_solver() -> None:
    _spoil(_give_up)


@pytest.mark.parametrize("hook", [_lose_the_number, _fail_the_solver])
def test_a_failure_in_one_process_stops_all_before_the_step(tmp_path, uninterrupted, hook):
    run = tmp_path / "run"
    command = launch.words(_config(epochs=10), run)
    processes = launch.fork_several(command, tmp_path / "log", hook)
    assert launch.codes(processes) == [4, 4]
    said = [(tmp_path / f"log{rank}.err").read_text() for rank in (0, 1)]
    assert all(one.startswith("error: step 4 of digits/bfno-node: ") for one in said)
    assert all(one.count("\n") == 1 for one in said)
    # The third step may be what spoilt the fourth one's loss.
    assert _steps(run) == ["step-00000002"]
    again = launch.fork_several(["resume", str(run)], tmp_path / "again")
    assert launch.codes(again) == [0, 0]
    _assert_same(run, uninterrupted)


@pytest.mark.parametrize(
    ("size", "several"), [(None, False), ("", False), ("1", False), ("2", True)]
)
def test_an_environment_tells_whether_there_are_several_processes(monkeypatch, size, several):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    if size is not None:
        monkeypatch.setenv("WORLD_SIZE", size)
    assert joined.is_one_of_several() == several
