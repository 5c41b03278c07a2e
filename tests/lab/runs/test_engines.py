"""What campaigns require of engines, and the messages of engines that are missing or refuse."""

import _thread
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from bfno.lab.errors import ConfigError
from bfno.lab.runs.campaign import ray, running, worker
from bfno.lab.runs.campaign.choice import Choice
from bfno.lab.runs.campaign.duration import minutes_of
from bfno.lab.runs.campaign.engine import Order, QueueFull, Report
from bfno.lab.runs.campaign.ledger import read_note, write_note
from bfno.lab.runs.campaign.local import LocalEngine
from bfno.lab.runs.campaign.plan import plan
from bfno.lab.runs.campaign.running import Campaign, failure_code
from bfno.lab.runs.signals import Stopped
from tests.lab.runs import launch
from tests.lab.runs.campaigns import record, settings, write_run
from tests.lab.runs.fake_engine import LOST, QUEUED, RUNNING, FakeEngine

METHODS = ("node", "anode")


def _campaign(root: Path, engine: FakeEngine, slots: int | None = None) -> Campaign:
    experiments = [f"digits/{method}" for method in METHODS]
    return Campaign(plan(experiments, "smoke", [7], root), slots, None, engine)


def _finish(campaign: Campaign) -> list[str]:
    for _ in campaign.run():
        pass
    return [one.state for one in campaign.standings]


NAMES = [f"digits-{method}-s7" for method in METHODS]


def test_an_engine_with_a_queue_gets_all_runs_at_once(tmp_path):
    engine = FakeEngine()
    campaign = _campaign(tmp_path, engine)
    assert campaign.slots == 2
    assert _finish(campaign) == ["finished", "finished"]
    assert engine.given == [NAMES]
    assert [read_note(one.job.folder) for one in campaign.standings] == [None, None]


def test_no_more_are_given_at_a_time_than_asked(tmp_path):
    engine = FakeEngine()
    assert _finish(_campaign(tmp_path, engine, slots=1)) == ["finished", "finished"]
    assert engine.given == [NAMES[:1], NAMES[1:]]


def test_a_queued_run_says_what_it_waits_for(tmp_path):
    campaign = _campaign(tmp_path, FakeEngine(QUEUED, QUEUED, RUNNING, "finish"))
    rounds = campaign.run()
    first = next(rounds)[0]
    assert (first.state, first.why) == ("queued", "Priority")
    assert [one.state for one in next(rounds)] != ["queued", "queued"] or next(rounds)
    assert _exhausted(rounds) and first.state == "finished"


def _exhausted(rounds) -> bool:
    return not any(False for _ in rounds)


def test_a_lost_run_is_given_again_and_one_that_is_always_lost_fails(tmp_path):
    engine = FakeEngine(RUNNING, LOST)
    campaign = _campaign(tmp_path, engine)
    assert _finish(campaign) == ["failed", "failed"]
    assert engine.given == [NAMES] * 3
    assert campaign.standings[0].error.startswith("its job ended 3 times before an epoch did; see ")
    assert failure_code(campaign.standings) == 4


def test_a_lost_run_that_comes_further_each_time_is_not_given_up(tmp_path):
    engine = FakeEngine(RUNNING, LOST)
    campaign = _campaign(tmp_path, engine)
    for count, _ in enumerate(campaign.run(), 1):
        if len(engine.given) >= 6:
            engine.script = (RUNNING, "finish")
        for name in NAMES:
            with open(tmp_path / "smoke" / name / "metrics.jsonl", "a") as file:
                file.write(json.dumps({"epoch": count, "seconds": 0.1}) + "\n")
    assert [one.state for one in campaign.standings] == ["finished", "finished"]
    assert len(engine.given) > 6


def test_a_run_that_fails_by_itself_is_not_given_again(tmp_path):
    engine = FakeEngine(RUNNING, Report("over", 4))
    assert _finish(_campaign(tmp_path, engine)) == ["failed", "failed"]
    assert engine.given == [NAMES]


def test_a_full_queue_is_waited_for_while_runs_are_under_way(tmp_path, monkeypatch):
    monkeypatch.setattr(running, "_FULL_PAUSE", 0.0)
    engine = FakeEngine(RUNNING, RUNNING, RUNNING, "finish")
    campaign = _campaign(tmp_path, engine, slots=1)
    rounds = campaign.run()
    next(rounds)
    campaign.slots, engine.full = 2, 1
    assert _exhausted(rounds)
    assert engine.given == [NAMES[:1], NAMES[1:]]


def test_a_queue_that_is_full_from_the_beginning_is_an_error_and_nothing_is_lost(tmp_path):
    engine = FakeEngine()
    engine.full = 1
    with pytest.raises(QueueFull, match="is full"):
        _finish(_campaign(tmp_path, engine))
    assert _finish(_campaign(tmp_path, engine)) == ["finished", "finished"]


def test_a_program_that_is_started_again_follows_what_was_given(tmp_path):
    engine = FakeEngine(*[RUNNING] * 4, "finish")
    killed = _campaign(tmp_path, engine).run()
    next(killed)
    again = _campaign(tmp_path, engine)
    assert _finish(again) == ["finished", "finished"]
    assert engine.given == [NAMES] and engine.cancelled == []
    killed.close()


def test_a_note_whose_order_is_over_is_forgotten(tmp_path):
    engine = FakeEngine()
    assert _finish(_campaign(tmp_path, engine)) == ["finished", "finished"]
    folder = tmp_path / "smoke" / NAMES[0]
    write_note("fake", Order(folder, (), (), "b", 0))  # the program was killed before it looked
    assert _finish(_campaign(tmp_path, engine)) == ["there", "there"]
    assert read_note(folder) is None and engine.cancelled == []


def test_a_note_of_another_engine_or_none_is_not_followed(tmp_path):
    engine = FakeEngine()
    folder = tmp_path / "smoke" / NAMES[0]
    write_note("slurm", Order(folder, (), (), "b", 0))
    (tmp_path / "smoke" / NAMES[1]).mkdir()
    (tmp_path / "smoke" / NAMES[1] / "job.json").write_text("[")
    assert _finish(_campaign(tmp_path, engine)) == ["finished", "finished"]
    assert engine.given == [NAMES]


def test_a_signal_cancels_once_and_waits_for_the_end(tmp_path):
    engine = FakeEngine(RUNNING)
    campaign = _campaign(tmp_path, engine)
    rounds = campaign.run()
    next(rounds)
    signal.raise_signal(signal.SIGTERM)
    with pytest.raises(Stopped):
        _exhausted(rounds)
    assert engine.cancelled == NAMES
    assert [one.state for one in campaign.standings] == ["stopped", "stopped"]


# -- what a machine does with an order -----------------------------------------------------------


@pytest.fixture
def order(tmp_path):
    return Order(tmp_path / "run", ("train", "x"), ("resume", "y"), "b", 0)


def _carry_out(order: Order, monkeypatch) -> list[str] | None:
    """The words with which the program was run; None if it was not."""
    called, taken = [], []
    take_turn = worker._take_turn
    monkeypatch.setattr(worker, "end_with", lambda parent: None)
    monkeypatch.setattr(worker, "_take_turn", lambda *a: taken.append(take_turn(*a)) or taken[0])
    monkeypatch.setattr(worker.runpy, "run_module", lambda *_, **__: called.append(sys.argv[1:]))
    words = [str(order.folder), json.dumps(order.begin), json.dumps(order.go_on)]
    monkeypatch.setattr(sys, "argv", ["-c", "1", *words])
    try:
        worker.carry_out()
    finally:  # as at the end of the process
        monkeypatch.setattr(worker, "_take_turn", take_turn)
        for turn in filter(None, taken):
            os.close(turn)
    return called[0] if called else None


def test_machines_begin_continue_or_do_nothing_as_the_folder_says(tmp_path, order, monkeypatch):
    assert _carry_out(order, monkeypatch) == ["train", "x"]
    order.folder.rename(tmp_path / "old")
    write_run(order.folder, settings("node"), finished=False)
    assert _carry_out(order, monkeypatch) == ["resume", "y"]
    (order.folder / "record.json").write_text(json.dumps(record(settings("node"))))
    assert _carry_out(order, monkeypatch) is None


def test_an_order_that_was_given_twice_is_carried_out_once(order, monkeypatch):
    monkeypatch.setattr(worker, "_PATIENCE", 0.0)
    assert not worker.is_at_work(order.folder)
    turn = worker._take_turn(order.folder, end=0.0)
    assert turn is not None and worker.is_at_work(order.folder)
    with pytest.raises(SystemExit) as left:
        _carry_out(order, monkeypatch)
    assert isinstance(left.value.code, int) and worker.exit_code(left.value.code) is None
    os.close(turn)
    assert not worker.is_at_work(order.folder)


def test_stopped_runs_are_to_continue_and_failed_ones_are_not():
    assert [worker.exit_code(code) for code in (0, 4, -9, 143, -15)] == [0, 4, -9, None, None]


# -- words ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "minutes"),
    [("1", 1), ("0:30", 1), ("90:00", 90), ("1:30:00", 90), ("2-0", 2880), ("1-1:30:1", 1531)],
)
def test_times_are_read_as_slurm_writes_them(text, minutes):
    assert minutes_of(text) == minutes


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"on": "moon"}, "--on moon: is not a place to train"),
        ({"on": "ray:"}, "write local, slurm, ray or ray://HOST:PORT"),
        ({"time": "1:00"}, "--time: means nothing here, only with --on slurm"),
        ({"on": "ray", "partition": "x"}, "--partition: means nothing here"),
        ({"gpus": 1}, "--gpus: means nothing here"),
        ({"on": "slurm", "gpus": 0}, "--gpus 0: is too few"),
        ({"on": "ray", "gpus": -1}, "--gpus -1: is too few"),
        ({"partition": "short"}, "--partition: means nothing here, only with --on slurm"),
        ({"on": "ray", "time": "60"}, "--time: means nothing here"),
        ({"on": "slurm", "time": ""}, "is not a time: ''"),
        ({"on": "slurm", "time": "4h"}, "is not a time: '4h'"),
        ({"on": "slurm", "time": "-5"}, "is not a time: '-5'"),
        ({"on": "slurm", "time": "1:2:3:4"}, "is not a time"),
        ({"on": "slurm", "time": "1-"}, "is not a time"),
        ({"on": "slurm", "time": "٤"}, "is not a time"),  # a digit, but none that Slurm knows
        ({"on": "slurm", "time": "9" * 400}, "is not a time"),
        ({"on": "slurm", "time": "00:00:00"}, "is not a time"),
        ({"on": "slurm", "time": "soon"}, "is not a time: 'soon'"),
        ({"on": "slurm", "time": "0"}, "is not a time"),
        ({"on": "slurm", "time": "UNLIMITED"}, "has no end"),
        ({"on": "slurm", "partition": " "}, "--partition: is empty"),
    ],
)
def test_a_wrong_choice_is_reported_in_one_line(words, message):
    with pytest.raises(ConfigError) as refused:
        Choice(**words)
    assert message in str(refused.value) and "\n" not in str(refused.value)


def test_no_engine_is_imported_unless_asked_for(tmp_path):
    program = (
        "import sys, bfno.lab.cli.table\n"
        "from bfno.lab.runs.campaign import choice, ledger, worker\n"
        "print({'submitit', 'ray', 'bfno.lab.runs.campaign.slurm'} & {*sys.modules})\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "set()\n", done.stderr
    assert isinstance(Choice().engine(tmp_path), LocalEngine)


@pytest.mark.parametrize(("on", "package"), [("slurm", "submitit"), ("ray", "ray")])
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    on, package, tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=rf"{package} is not installed.*bfno\[{on}\]"):
        Choice(on).engine(tmp_path)


# -- Slurm that refuses --------------------------------------------------------------------------


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Programs that answer as Slurm's do; a test writes their answers."""
    pytest.importorskip("submitit", reason="needs submitit: pip install 'bfno[slurm]'")
    folder = tmp_path / "bin"
    folder.mkdir()

    def answer(name: str, line: str, code: int = 0) -> None:
        file = folder / name
        stream = 2 if code else 1
        file.write_text(
            f"#!/bin/sh\nif [ -n '{line}' ]; then echo '{line}' >&{stream}; fi\nexit {code}\n"
        )
        file.chmod(0o755)

    monkeypatch.setenv("PATH", str(folder))
    for name in ("srun", "squeue", "scancel"):
        answer(name, "")
    answer("sinfo", "short|short*|1:00:00|8:00:00")
    answer("sbatch", "Submitted batch job 12")
    return answer


@pytest.mark.parametrize("program", ["sbatch", "srun", "squeue", "scancel", "sinfo"])
def test_without_slurm_the_fix_is_to_go_where_it_is(programs, tmp_path, program):
    (tmp_path / "bin" / program).unlink()
    with pytest.raises(ConfigError, match=rf"there is no Slurm here \(no {program}\)"):
        Choice("slurm").engine(tmp_path)


def test_a_folder_whose_name_slurm_would_change_is_refused(programs, tmp_path):
    with pytest.raises(ConfigError, match=r"50%j: .* Fix: choose another folder"):
        Choice("slurm").engine(tmp_path / "50%j")


def test_the_queue_is_asked_for_jobs_of_the_user_that_the_kernel_knows(
    programs, tmp_path, order, monkeypatch
):
    monkeypatch.setenv("LOGNAME", "somebody-else")
    engine = Choice("slurm").engine(tmp_path)
    asked = tmp_path / "asked"
    (tmp_path / "bin" / "squeue").write_text(f"#!/bin/sh\necho $* > {asked}\n")
    engine.state(order)
    assert f"--user={os.getuid()}" in asked.read_text().split()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            {"partition": "short,long"},
            "--partition long: is not a partition of this cluster.*short",
        ),
        ({"time": "9:00:00"}, "--time: is longer than the 480 minutes that the partition allows"),
    ],
)
def test_what_the_cluster_does_not_have_is_refused_before_anything_is_submitted(
    words, message, programs, tmp_path
):
    with pytest.raises(ConfigError, match=message):
        Choice("slurm", **words).engine(tmp_path)


def test_a_slurm_that_does_not_answer_is_reported(programs, tmp_path):
    programs("sinfo", "slurm_load_partitions: Unable to contact slurm controller", 1)
    with pytest.raises(ConfigError, match=r"Slurm does not answer: .*Unable to contact"):
        Choice("slurm").engine(tmp_path)


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("sbatch: error: AssocMaxSubmitJobLimit", QueueFull),
        ("sbatch: error: QOSMaxSubmitJobPerUserLimit", QueueFull),
        ("sbatch: error: Invalid account or account/partition combination", ConfigError),
    ],
)
def test_what_sbatch_refuses_is_one_line(said, kind, programs, tmp_path, order, capfd):
    programs("sbatch", said, 1)
    engine = Choice("slurm").engine(tmp_path)
    with pytest.raises(ConfigError, match=said.removeprefix("sbatch: error: ")) as refused:
        engine.submit([order])
    assert type(refused.value) is kind and "\n" not in str(refused.value)
    assert capfd.readouterr().err == ""


def test_jobs_are_followed_by_the_queue_and_the_note(programs, tmp_path, order):
    engine = Choice("slurm", time="30").engine(tmp_path)
    write_note("slurm", order)
    programs("squeue", "12|bfno-b|N/A|PENDING|Priority")
    engine.submit([order])
    assert engine.state(order) == Report("queued", why="Priority")
    engine = Choice("slurm").engine(tmp_path)
    programs("squeue", "12_0|bfno-b|0|RUNNING|None")
    assert engine.state(order) == Report("running")
    engine = Choice("slurm").engine(tmp_path)
    programs("squeue", "12_1|bfno-b|1|RUNNING|None")
    assert engine.state(order) == Report("over")
    write_note("slurm", order, code=4)
    assert engine.state(order) == Report("over", 4)
    write_note("slurm", Order(order.folder, (), (), "later", 0), code=4)
    assert engine.state(order) == Report("over")


def test_a_queue_that_does_not_answer_ends_no_job(programs, tmp_path, order, caplog):
    engine = Choice("slurm").engine(tmp_path)
    programs("squeue", "slurm_load_jobs error: Unable to contact slurm controller", 1)
    assert engine.state(order) == Report("queued", why="Slurm does not answer")
    assert "Unable to contact" in caplog.text


def test_a_job_that_saved_nothing_since_it_began_does_not_go_back_to_the_queue(
    order, monkeypatch, tmp_path
):
    pytest.importorskip("submitit", reason="needs submitit: pip install 'bfno[slurm]'")
    from bfno.lab.runs.campaign import slurm

    job = slurm.SlurmJob(order)
    with subprocess.Popen(["sleep", "100"]) as child:
        job._child = child
        assert job.checkpoint() is None
    assert child.returncode == -signal.SIGTERM
    (order.folder / "checkpoints" / "step-1").mkdir(parents=True)
    again = job.checkpoint().function
    assert isinstance(again, slurm.SlurmJob) and again._order == order and again._child is None


# -- Ray that does not answer --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("ray://127.0.0.1:{port}", "127.0.0.1:{port} does not answer"),
        ("ray://head", "is not an address. Fix: write HOST:PORT"),
        ("ray://[", "is not an address"),
    ],
)
def test_an_address_that_does_not_answer_is_reported(address, message, tmp_path):
    pytest.importorskip("ray", reason="needs ray: pip install 'bfno[ray]'")
    port = launch.free_port()
    with pytest.raises(ConfigError) as refused:
        Choice(address.format(port=port)).engine(tmp_path)
    assert message.format(port=port) in str(refused.value)


@pytest.mark.slow
def test_a_cancelled_task_ends_its_training(order, monkeypatch):
    # Workers of a test run ignore it, which would hide what is sent below.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    child = subprocess.Popen(["sleep", "20"])
    monkeypatch.setattr(ray, "start_worker", lambda order: child)
    # What Ray does; unlike a signal, it wakes nobody.
    timer = threading.Timer(0.1, _thread.interrupt_main)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        ray.train(order)
    timer.join()
    signal.signal(signal.SIGINT, before)
    assert child.returncode == -signal.SIGTERM
