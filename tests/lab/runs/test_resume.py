"""A run that was stopped continues as if it had not been."""

import json
import shutil
import signal

import pytest
import torch

from bfno.lab.errors import ConfigError
from bfno.lab.runs import loop, session
from bfno.lab.runs.checkpoint import Checkpoint, Progress
from bfno.lab.runs.folder import RunFolder
from bfno.lab.runs.load import open_run
from bfno.lab.runs.loop import Watcher
from bfno.lab.runs.session import resume, start
from bfno.lab.runs.signals import Stopped
from tests.lab.runs.runs import StopAfter, metrics, result, tiny, weights

# 48 training images in batches of 8: ten epochs of six steps.
SIXTY_STEPS = {"train": {"epochs": 10}}
# Every step of the first two epochs and of the last, and the ends of some others; then all.
SOON = {*range(1, 14), 29, 30, 31, 36, *range(55, 61)}
STOPS = [one if one in SOON else pytest.param(one, marks=pytest.mark.slow) for one in range(1, 61)]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    run = tmp_path_factory.mktemp("run") / "whole"
    record = start(tiny(SIXTY_STEPS), run)
    assert record.steps == 60
    return run


@pytest.mark.parametrize("stop", STOPS)
def test_a_run_stopped_after_any_step_ends_with_the_same_bytes(tmp_path, uninterrupted, stop):
    with pytest.raises(Stopped):
        start(tiny(SIXTY_STEPS), tmp_path / "run", [StopAfter(stop)])
    resume(tmp_path / "run")
    assert weights(tmp_path / "run") == weights(uninterrupted)
    assert metrics(tmp_path / "run") == metrics(uninterrupted)
    assert result(tmp_path / "run") == result(uninterrupted)


def test_a_run_stopped_many_times_ends_with_the_same_bytes(tmp_path, uninterrupted):
    stops = iter([3, 6, 7, 30, 59, 60])
    with pytest.raises(Stopped):
        start(tiny(SIXTY_STEPS), tmp_path / "run", [StopAfter(next(stops))])
    for stop in stops:
        with pytest.raises(Stopped):
            resume(tmp_path / "run", watchers=[StopAfter(stop)])
    resume(tmp_path / "run")
    assert weights(tmp_path / "run") == weights(uninterrupted)
    assert metrics(tmp_path / "run") == metrics(uninterrupted)


def test_a_remembered_first_step_is_resumed_with_the_same_bytes(tmp_path):
    changes = {"solver": {"method": "bosh3", "first_step": "last"}}
    start(tiny(changes), tmp_path / "whole")
    with pytest.raises(Stopped):
        start(tiny(changes), tmp_path / "run", [StopAfter(8)])
    resume(tmp_path / "run")
    assert weights(tmp_path / "run") == weights(tmp_path / "whole")
    assert metrics(tmp_path / "run") == metrics(tmp_path / "whole")
    # Ten evaluations: without the one that estimates a first step, and without a careful step.
    assert json.loads(metrics(tmp_path / "run")[-1])["forward_nfe"] < 5


@pytest.mark.parametrize("forgotten", ["optimizer", "position", "order", "sums"])
def test_the_comparison_notices_what_a_checkpoint_forgets(
    tmp_path, monkeypatch, uninterrupted, forgotten
):
    with pytest.raises(Stopped):
        start(tiny(SIXTY_STEPS), tmp_path / "run", [StopAfter(10)])
    restore = loop.Trainer.restore

    def forgetful(self, checkpoint):
        restore(self, checkpoint)
        if forgotten == "optimizer":
            self.optimizer.optimizer.state.clear()
        elif forgotten == "position":
            self.progress.batch = 0
        elif forgotten == "order":
            monkeypatch.setattr(loop, "derive_seed", lambda *_: 0)
        else:
            self.progress.sums = dict.fromkeys(self.progress.sums, 0.0) | {"samples": 1e-9}

    monkeypatch.setattr(loop.Trainer, "restore", forgetful)
    resume(tmp_path / "run")
    same = weights(tmp_path / "run") == weights(uninterrupted)
    assert not (same and metrics(tmp_path / "run") == metrics(uninterrupted))


class _KillAfterEpoch(Watcher):
    """Ends the process, so to speak, once an epoch is saved."""

    def __init__(self, epoch):
        self.epoch = epoch

    def on_epoch(self, metrics):
        if metrics["epoch"] == self.epoch:
            raise KeyboardInterrupt


def test_a_run_may_end_between_epochs_as_if_it_had_begun_with_so_many(tmp_path, caplog):
    start(tiny({"train": {"epochs": 2}}), tmp_path / "short")
    with pytest.raises(KeyboardInterrupt):
        start(tiny(SIXTY_STEPS), tmp_path / "run", [_KillAfterEpoch(2)])
    assert resume(tmp_path / "run", {"train": {"epochs": 2}, "threads": 1}).is_finished
    caplog.clear()
    open_run(tmp_path / "run")
    assert not caplog.messages
    assert weights(tmp_path / "run") == weights(tmp_path / "short")
    assert metrics(tmp_path / "run") == metrics(tmp_path / "short")
    assert result(tmp_path / "run") == result(tmp_path / "short")


@pytest.mark.parametrize(
    ("begun", "changes"),
    [
        ({"schedule": "cosine"}, {}),
        ({"warmup": 0.1}, {}),  # a share of all steps, which were more
        ({}, {"clip": 3.0}),
    ],
)
def test_a_run_does_not_end_early_if_it_would_have_been_another(tmp_path, begun, changes):
    with pytest.raises(KeyboardInterrupt):
        start(tiny({"train": {"epochs": 10, **begun}}), tmp_path / "run", [_KillAfterEpoch(2)])
    before = (tmp_path / "run" / "config.yaml").read_bytes()
    with pytest.raises(ConfigError, match="has finished its 2 epochs"):
        resume(tmp_path / "run", {"train": {"epochs": 2, **changes}})
    assert (tmp_path / "run" / "config.yaml").read_bytes() == before


def test_a_run_within_an_epoch_says_how_to_end_with_it(tmp_path):
    with pytest.raises(Stopped):
        start(tiny(SIXTY_STEPS), tmp_path / "run", [StopAfter(14)])
    with pytest.raises(ConfigError, match=r"is 2 steps into epoch 3.*--epochs 3"):
        resume(tmp_path / "run", {"train": {"epochs": 2}})
    assert resume(tmp_path / "run", {"train": {"epochs": 3}}).steps == 18


COSINE = {"train": {"epochs": 4, "schedule": "cosine", "warmup": 0.1}}
RESTARTED = {"train": {"epochs": 7, "schedule": "cosine", "warmup": 0.1, "restart": 4}}


def _rates(run):
    return [json.loads(line)["lr"] for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_more_epochs_of_a_finished_cosine_say_at_which_rate_they_continue(tmp_path, caplog):
    start(tiny(COSINE), tmp_path / "run")
    assert "cosine" not in caplog.text
    resume(tmp_path / "run", {"train": {"epochs": 7}})
    told = [one for one in caplog.messages if "the cosine schedule of 4 epochs" in one]
    assert len(told) == 1 and "stretched to 7" in told[0] and "--set train.restart=4" in told[0]


def test_a_schedule_that_restarts_after_a_finished_one_is_that_of_one_run(tmp_path, caplog):
    start(tiny(RESTARTED), tmp_path / "whole")
    start(tiny(COSINE), tmp_path / "parts")
    with pytest.raises(Stopped):
        resume(tmp_path / "parts", {"train": {"epochs": 7, "restart": 4}}, [StopAfter(32)])
    resume(tmp_path / "parts")
    assert "the cosine schedule" not in caplog.text
    assert weights(tmp_path / "parts") == weights(tmp_path / "whole")
    assert metrics(tmp_path / "parts") == metrics(tmp_path / "whole")
    rates = _rates(tmp_path / "whole")
    assert rates[3] < 0.1 * rates[4] < rates[4]


def test_the_rate_of_an_epoch_is_that_of_its_last_step(tmp_path):
    start(tiny({"train": {"epochs": 2, "decay": 0.5, "decay_every": 6}}), tmp_path / "run")
    assert _rates(tmp_path / "run") == pytest.approx([0.01, 0.005])


class _DuringEvaluation(Watcher):
    """Sends a signal at the end of an epoch, which the evaluation then gets."""

    def on_step(self, progress, steps):
        if progress.step == 12:
            signal.raise_signal(signal.SIGINT)


def test_a_signal_in_an_evaluation_repeats_only_the_evaluation(tmp_path, monkeypatch):
    whole, run = tmp_path / "whole", tmp_path / "run"
    start(tiny(), whole)
    obey = loop.Trainer._obey
    calls = []

    def late(self):
        # Deaf until the evaluation has begun: after the twelfth step come two checks of training.
        calls.append(self.progress.step)
        if calls.count(12) > 1:
            obey(self)

    monkeypatch.setattr(loop.Trainer, "_obey", late)
    with pytest.raises(Stopped) as stopped:
        start(tiny(), run, [_DuringEvaluation()])
    assert stopped.value.exit_code == 130
    monkeypatch.undo()
    resume(run)
    assert weights(run) == weights(whole)
    assert metrics(run) == metrics(whole)
    assert result(run) == result(whole)


def test_a_damaged_checkpoint_is_passed_over_and_named(tmp_path, uninterrupted, caplog):
    run = tmp_path / "run"
    with pytest.raises(Stopped):
        start(tiny(SIXTY_STEPS), run, [StopAfter(20)])
    damaged = run / "checkpoints" / "step-00000020" / "model.safetensors"
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    resume(run)
    assert "step-00000020" in caplog.text and "SHA-256" in caplog.text
    assert weights(run) == weights(uninterrupted)
    assert metrics(run) == metrics(uninterrupted)


def test_a_run_without_any_checkpoint_starts_over(tmp_path, uninterrupted):
    run = tmp_path / "run"
    with pytest.raises(Stopped):
        start(tiny(SIXTY_STEPS), run, [StopAfter(9)])
    shutil.rmtree(run / "checkpoints")
    resume(run)
    assert metrics(run) == metrics(uninterrupted)


def test_weights_that_came_without_an_optimizer_are_trained_on(tmp_path):
    whole, run = tmp_path / "whole", tmp_path / "run"
    start(tiny({"train": {"epochs": 1}}), whole)
    trained = RunFolder(whole).checkpoints.newest()[0]
    assert trained is not None
    state = {**trained.state, "progress": Progress().model_dump()}
    del state["optimizer"]
    folder = RunFolder(run)
    folder.create()
    folder.write_config(tiny({"train": {"epochs": 2}, "threads": 1}))
    folder.save(Checkpoint(0, trained.model, {}, state))
    record = resume(run)
    assert record.steps == 12
    first = json.loads(metrics(run)[0])["train_loss"]
    assert first < json.loads(metrics(whole)[0])["train_loss"]


def test_more_epochs_continue_a_finished_run(tmp_path, uninterrupted):
    start(tiny({"train": {"epochs": 4}}), tmp_path / "run")
    resume(tmp_path / "run", {"train": {"epochs": 10}})
    assert weights(tmp_path / "run") == weights(uninterrupted)
    assert metrics(tmp_path / "run") == metrics(uninterrupted)


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [("model", "width", 4), ("data", "validation", 0.3), ("data", "size", 8), ("", "seed", 4)],
)
def test_changes_that_make_another_experiment_are_refused_by_name(tmp_path, section, key, value):
    start(tiny({"train": {"epochs": 1}}), tmp_path / "run")
    change = {section: {key: value}} if section else {key: value}
    with pytest.raises(ConfigError, match=f"{key}: is {value}"):
        resume(tmp_path / "run", change)
    # The same by editing the file.
    file = tmp_path / "run" / "config.yaml"
    old = json.dumps(tiny().as_dict()[section][key] if section else tiny().as_dict()[key])
    file.write_text(file.read_text().replace(f"{key}: {old}", f"{key}: {value}"))
    with pytest.raises(ConfigError, match=f"{key}: is {value}"):
        resume(tmp_path / "run")


@pytest.fixture
def three_cores(monkeypatch):
    """Three threads and three cores for large models, and every model is large."""
    monkeypatch.setattr(session, "_WORTH_SHARING", 1)
    monkeypatch.setattr(session, "own_cores", lambda: [0, 1, 2])
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def _threads_of(folder):
    return RunFolder(folder).read_config().threads


@pytest.mark.parametrize(
    ("worth", "free", "threads"), [(1 << 30, 8, 1), (1, 8, 3), (1, 2, 2), (1, 1, 1)]
)
@pytest.mark.usefixtures("three_cores")
def test_threads_are_as_many_as_serve_the_model_and_others_leave_cores_free(
    tmp_path, monkeypatch, caplog, worth, free, threads
):
    monkeypatch.setattr(session, "_WORTH_SHARING", worth)
    monkeypatch.setattr(session, "free_cores", lambda: free)
    start(tiny({"threads": None, "train": {"epochs": 1}}), tmp_path / "run")
    assert torch.get_num_threads() == 3, "the next run of this program looks for itself"
    assert _threads_of(tmp_path / "run") == threads
    assert (f"{threads} of 3 threads" in caplog.text) == (free < 3)


@pytest.mark.usefixtures("three_cores")
def test_other_programs_are_not_blamed_for_cores_that_are_not_ours(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(session, "own_cores", lambda: [1, 2])
    monkeypatch.setattr(session, "free_cores", lambda: 2)
    start(tiny({"threads": None, "train": {"epochs": 1}}), tmp_path / "run")
    assert _threads_of(tmp_path / "run") == 2 and not caplog.text


@pytest.mark.usefixtures("three_cores")
def test_with_samples_in_memory_others_do_not_matter(tmp_path, monkeypatch):
    monkeypatch.setattr(session, "free_cores", lambda: 1)
    config = tiny({"threads": None, "train": {"epochs": 1}})
    start(config, tmp_path / "run", data=config.load())
    assert _threads_of(tmp_path / "run") == 3


@pytest.mark.usefixtures("three_cores")
def test_a_run_keeps_its_threads_if_none_are_asked_for(tmp_path):
    start(tiny({"threads": 2, "train": {"epochs": 1}}), tmp_path / "run")
    record = resume(tmp_path / "run", {"threads": None, "train": {"epochs": 2}})
    assert _threads_of(tmp_path / "run") == record.threads == 2


@pytest.mark.usefixtures("three_cores")
def test_a_run_that_cannot_begin_does_not_look_for_cores(tmp_path, monkeypatch):
    monkeypatch.setattr(session, "free_cores", lambda: pytest.fail("it looked"))
    config = tiny({"threads": None, "train": {"epochs": 1}})
    start(tiny({"train": {"epochs": 1}}), tmp_path / "run")
    with pytest.raises(ConfigError, match="this folder already holds a run"):
        start(config, tmp_path / "run")


def test_a_record_tells_what_was_otherwise_before_a_run_was_resumed(tmp_path):
    run = tmp_path / "run"
    start(tiny(), run)
    assert resume(run, {"train": {"epochs": 3}}).history == []  # as if it had begun with three
    fast = {"train": {"epochs": 4, "lr": 0.5}}
    with pytest.raises(Stopped):  # before any checkpoint of its own
        resume(run, fast, [StopAfter(19)])
    back = resume(run, {"train": {"lr": 0.01, "epochs": 5}})
    changed = ["train.lr=0.01 until step 18", "train.lr=0.5 until step 19"]
    assert (
        back.history == changed
        and back.changes == start(tiny({"train": {"epochs": 5}}), tmp_path / "other").changes
    )
    assert resume(run, {"train": {"epochs": 6}}).history == changed


def test_more_epochs_of_a_schedule_that_knows_its_end_are_told(tmp_path):
    start(tiny({"train": {"schedule": "cosine"}}), tmp_path / "run")
    found = resume(tmp_path / "run", {"train": {"epochs": 3}})
    assert found.history == ["train.epochs=2 until step 12"]


def test_a_record_names_all_commits_that_a_run_was_trained_with(tmp_path, monkeypatch):
    monkeypatch.setattr(session, "source_commit", lambda: "one")
    assert start(tiny(), tmp_path / "run").commit == "one"
    monkeypatch.setattr(session, "source_commit", lambda: "two")
    for epochs in (3, 4):
        assert resume(tmp_path / "run", {"train": {"epochs": epochs}}).commit == "one and two"


def test_what_makes_no_difference_to_the_steps_before_is_no_history(tmp_path):
    patient = {"train": {"patience": 1, "epochs": 3}}
    start(tiny(patient), tmp_path / "patient")
    changes = {"train": {"patience": None, "epochs": 4, "checkpoint_seconds": 5.0}}
    assert resume(tmp_path / "patient", changes).history == []
    start(tiny({"train": {"schedule": "cosine"}}), tmp_path / "anew")
    assert resume(tmp_path / "anew", {"train": {"epochs": 4, "restart": 2}}).history == []


def test_a_resume_without_a_step_leaves_record_and_commit_as_they_were(tmp_path, monkeypatch):
    monkeypatch.setattr(session, "source_commit", lambda: "one")
    start(tiny(), tmp_path / "run")
    monkeypatch.setattr(session, "source_commit", lambda: "two")
    found = resume(tmp_path / "run", {"train": {"checkpoint_seconds": 5.0}})
    assert (found.commit, found.history) == ("one", [])


def test_a_run_of_a_release_that_kept_no_commits_is_not_said_to_be_of_this_one(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(session, "source_commit", lambda: None)
    start(tiny(), tmp_path / "run")
    monkeypatch.setattr(session, "source_commit", lambda: "two")
    assert resume(tmp_path / "run").commit == "unknown"
    assert resume(tmp_path / "run", {"train": {"epochs": 3}}).commit == "unknown and two"
