"""Copies of metrics in other programs: complete when these work, harmless when they do not."""

import importlib
import importlib.util
import json
import logging
import struct
import sys
import types

import pytest

from bfno.lab.errors import ConfigError, NumericalError
from bfno.lab.experiments.images.task import ImageTask
from bfno.lab.runs import logs
from bfno.lab.runs.logs import LOGS, MetricsLog, MLflowLog, make_logs
from bfno.lab.runs.session import resume, start
from bfno.lab.runs.signals import Stopped
from bfno.ode import SolverError, Stats, Status
from tests.lab.runs.runs import StopAfter, metrics, tiny, weights

SECRET = "hunter2"


def needs(name: str) -> None:
    log = LOGS[name]
    for package in log.needs:
        pytest.importorskip(package, reason=f"the extra `{log.extra}` is not installed")


def losses(run):
    return [json.loads(line)["train_loss"] for line in metrics(run)]


class Kept(MetricsLog):
    """Keeps what a log would write."""

    name, needs, extra = "kept", (), "none"

    def _open(self):
        self.opened = self._settings(), self._identity()
        self.written = []

    def _write(self, metrics):
        self.written.append(metrics)

    def _close(self, result):
        self.result = result

    def _break_off(self, status):
        self.status = status


class Broken(MetricsLog):
    """Cannot reach its server, whose address holds a password."""

    name, needs, extra = "broken", (), "none"
    calls = 0

    def _open(self):
        Broken.calls += 1
        raise ConnectionError(f"https://me:{SECRET}@server is away")

    def _write(self, metrics):
        raise AssertionError("it is not open")

    def _close(self, result):
        raise AssertionError("it is not open")

    def _break_off(self, status):
        raise AssertionError("it is not open")


class Client:
    """Stands for MLflow's client: keeps the state of its only run."""

    state = ""

    def __init__(self, tracking_uri):
        pass

    def get_experiment_by_name(self, name):
        return types.SimpleNamespace(experiment_id="1")

    def search_runs(self, experiments, tag):
        found = types.SimpleNamespace(run_id="a"), types.SimpleNamespace(params={})
        return [types.SimpleNamespace(info=found[0], data=found[1])] if Client.state else []

    def create_run(self, experiment, run_name, tags):
        Client.state = "RUNNING"
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id="a"))

    def update_run(self, run, status):
        Client.state = status

    def set_terminated(self, run, status="FINISHED"):
        Client.state = status

    def log_batch(self, run, **values):
        assert Client.state == "RUNNING"


@pytest.fixture
def client(monkeypatch):
    """A log of MLflow whose client keeps the state of the run, without the package."""
    entities = dict.fromkeys(("Metric", "Param", "RunTag"), lambda *values: values)
    modules = {
        "mlflow.tracking": types.SimpleNamespace(MlflowClient=Client),
        "mlflow.entities": types.SimpleNamespace(**entities),
    }
    monkeypatch.setattr(MLflowLog, "needs", ())
    monkeypatch.setattr(Client, "state", "")
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return Client


def test_a_log_gets_settings_every_epoch_and_the_result(tmp_path):
    log = Kept(tmp_path / "run")
    record = start(tiny(), tmp_path / "run", [log])
    settings, identity = log.opened
    assert settings["train.lr"] == 0.01 and settings["seed"] == 3
    assert identity == json.loads((tmp_path / "run" / "run.json").read_text())["id"]
    assert [one["epoch"] for one in log.written] == [1, 2]
    assert log.result == record.result
    again = Kept(tmp_path / "run")
    resume(tmp_path / "run", {"train": {"epochs": 3}}, [again])
    assert again.opened[1] == identity and [one["epoch"] for one in again.written] == [3]


def test_a_log_that_fails_says_so_once_and_changes_nothing(tmp_path, caplog):
    Broken.calls = 0
    start(tiny(), tmp_path / "plain")
    with caplog.at_level(logging.WARNING):
        start(tiny(), tmp_path / "logged", [Broken(tmp_path / "logged")])
    told = [one.getMessage() for one in caplog.records if "--log" in one.getMessage()]
    assert told == ["--log broken: failed (ConnectionError); the training goes on without this log"]
    assert SECRET not in caplog.text and Broken.calls == 1
    assert metrics(tmp_path / "plain") == metrics(tmp_path / "logged")
    assert weights(tmp_path / "plain") == weights(tmp_path / "logged")


def test_mlflow_knows_how_each_part_of_a_training_ended(tmp_path, monkeypatch, client):
    def give_up(*_):
        raise SolverError(Status.STEP_LIMIT, "t = 0.5", Stats())

    run = tmp_path / "run"
    with pytest.raises(Stopped):
        start(tiny(), run, [*make_logs(["mlflow"], run), StopAfter(2)])
    assert client.state == "KILLED"
    with monkeypatch.context() as patch, pytest.raises(NumericalError):
        patch.setattr(ImageTask, "evaluate", give_up)
        resume(run, watchers=make_logs(["mlflow"], run))
    assert client.state == "FAILED"
    resume(run, watchers=make_logs(["mlflow"], run))
    assert client.state == "FINISHED"


def test_a_log_that_is_open_is_broken_off_and_only_then(tmp_path, caplog):
    log = Kept(tmp_path / "run")
    with pytest.raises(Stopped):
        start(tiny(), tmp_path / "run", [log, StopAfter(2)])
    assert log.status == "KILLED" and not hasattr(log, "result")
    finished = Kept(tmp_path / "run")
    resume(tmp_path / "run", watchers=[finished])
    assert finished.result and not hasattr(finished, "status")
    with pytest.raises(Stopped):  # a log that could not be opened has nothing to end
        start(tiny(), tmp_path / "other", [Broken(tmp_path / "other"), StopAfter(2)])
    assert "AssertionError" not in caplog.text


def test_a_stopped_training_leaves_whole_event_files(tmp_path, monkeypatch):
    needs("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    closed, close = [], SummaryWriter.close
    monkeypatch.setattr(SummaryWriter, "close", lambda self: (closed.append(1), close(self)))
    run = tmp_path / "run"
    with pytest.raises(Stopped):
        start(tiny(), run, [*make_logs(["tensorboard"], run), StopAfter(2)])
    assert closed


def test_only_the_first_process_writes(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    Broken.calls = 0
    log = Broken(tmp_path)
    log.on_start(1)
    assert Broken.calls == 0


@pytest.mark.parametrize("name", LOGS)
def test_a_missing_package_is_refused_with_its_extra(tmp_path, monkeypatch, name):
    monkeypatch.setattr(importlib.util, "find_spec", lambda package: None)
    with pytest.raises(ConfigError, match=rf"--log {name}: .* Fix: pip install 'bfno\[\w+\]'"):
        make_logs([name], tmp_path)


def test_logs_are_chosen_by_name(tmp_path):
    with pytest.raises(ConfigError, match=r"--log paper: is not a log\. Fix: write --log tensor"):
        make_logs(["paper"], tmp_path)
    assert make_logs([], tmp_path) == []


def test_tensorboard_gets_every_metric(tmp_path):
    needs("tensorboard")
    run = tmp_path / "run"
    made = make_logs(["tensorboard", "tensorboard"], run)
    assert len(made) == 1
    record = start(tiny(), run, made)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(run / "tensorboard"))
    found.Reload()
    assert [event.value for event in found.Scalars("train_loss")] == pytest.approx(losses(run))
    names = {"test_accuracy", "forward_nfe", "backward_nfe", "seconds", "peak_memory"}
    assert names <= set(found.Tags()["scalars"])
    (result,) = found.Scalars("result/test_accuracy")
    assert result.value == pytest.approx(record.result["test_accuracy"])


@pytest.mark.slow
def test_mlflow_has_one_run_for_all_parts_of_a_training(tmp_path, monkeypatch):
    needs("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "runs" / "one"
    start(tiny(), run, make_logs(["mlflow"], run))
    record = resume(run, {"train": {"epochs": 3}}, make_logs(["mlflow"], run))
    mlflow = importlib.import_module("mlflow.tracking")
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/runs/mlflow.db")
    experiment = client.get_experiment_by_name("bfno")
    assert experiment is not None
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.run_name == "one" and found.info.status == "FINISHED"
    assert found.data.params["train.lr"] == "0.01" and found.data.params["train.epochs"] == "2"
    assert found.data.tags["resumed.train.epochs"] == "3"
    history = client.get_metric_history(found.info.run_id, "train_loss")
    assert [one.step for one in history] == [1, 2, 3]
    assert [one.value for one in history] == losses(run)
    kept = found.data.metrics["result_test_accuracy"]
    assert kept == record.result["test_accuracy"]
    assert {one.name for one in tmp_path.iterdir()} == {"runs"}  # nothing is left lying about


@pytest.mark.slow
def test_a_server_that_is_away_stops_no_training(tmp_path, monkeypatch, caplog, capfd):
    needs("mlflow")
    # Port 9 is not in use: the connection is refused at once.
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://me:{SECRET}@127.0.0.1:9")
    run = tmp_path / "run"
    with caplog.at_level(logging.WARNING, logger=logs.__name__):
        start(tiny(), run, make_logs(["mlflow"], run))
    assert len(losses(run)) == 2
    assert sum("--log mlflow: failed" in one.getMessage() for one in caplog.records) == 1
    printed = capfd.readouterr()
    assert SECRET not in caplog.text + printed.out + printed.err


@pytest.mark.slow
def test_wandb_keeps_a_run_offline_and_continues_with_it(tmp_path, monkeypatch, capfd):
    needs("wandb")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setenv("WANDB_API_KEY", SECRET * 6)
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "runs" / "one"
    start(tiny(), run, make_logs(["wandb"], run))
    record = resume(run, {"train": {"epochs": 3}}, make_logs(["wandb"], run))
    identity = json.loads((run / "run.json").read_text())["id"]
    parts = sorted((run / "wandb").glob(f"offline-run-*-{identity}/*.wandb"))
    assert len(parts) == 2  # both of the same run, which `wandb sync` combines
    first, second = map(_wandb_content, parts)
    assert first["settings"]["train.lr"] == 0.01 and second["settings"]["train.epochs"] == 3
    assert [*first["losses"], *second["losses"]] == losses(run)
    assert second["summary"]["test_accuracy"] == record.result["test_accuracy"]
    printed = capfd.readouterr()
    assert SECRET not in printed.out + printed.err
    assert {one.name for one in tmp_path.iterdir()} == {"runs"}


def _leveldb_records(content):
    """The records of a LevelDB log: in blocks of 32 KiB, each a checksum, a length and a kind."""
    at, data = 7, b""  # behind the mark of wandb
    while at < len(content):
        left = 32768 - at % 32768
        if left < 7:  # too short for the head of a record
            at += left
            continue
        length, kind = struct.unpack_from("<HB", content, at + 4)
        data += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield data
            data = b""


def _wandb_content(file):
    """What a file that wandb keeps offline says: settings, losses, last summary."""
    messages = importlib.import_module("wandb.proto.wandb_internal_pb2")
    found = {"settings": {}, "losses": [], "summary": {}}
    for data in _leveldb_records(file.read_bytes()):
        record = messages.Record()
        record.ParseFromString(data)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            update = record.run.config.update
            found["settings"] |= {one.key: json.loads(one.value_json) for one in update}
        if kind == "history":
            for one in record.history.item:
                if "train_loss" in (one.key, *one.nested_key):
                    found["losses"].append(json.loads(one.value_json))
        if kind == "summary":
            for one in record.summary.update:
                name = one.key or ".".join(one.nested_key)
                found["summary"][name] = json.loads(one.value_json)
    return found
