"""Runs of releases whose models had scalars that nothing uses are read as if they had none."""

import json
from dataclasses import replace

import pytest
import torch
import yaml

from bfno.lab.errors import ConfigError
from bfno.lab.experiments.resolve import changed_settings, read_experiment, resolve
from bfno.lab.runs.checkpoint import CheckpointStore
from bfno.lab.runs.folder import RunFolder
from bfno.lab.runs.load import open_run
from bfno.lab.runs.session import resume, start
from tests.conftest import REPOSITORY
from tests.lab.runs import runs

OLD = sorted((REPOSITORY / "results").rglob("record.json"))


def _age(folder) -> None:
    """Give a run the settings and the tensor that earlier releases wrote, and no identity."""
    file = folder / "config.yaml"
    settings = yaml.safe_load(file.read_text())
    settings["model"]["idle_scalars"] = 1
    file.write_text(yaml.safe_dump(settings, sort_keys=False))
    known, store = RunFolder(folder).checkpoints, CheckpointStore(folder / "checkpoints")
    (folder / "run.json").unlink()
    for step in store.steps():
        found = known.load(step)
        store.keep(set(store.steps()) - {step})
        state = {**found.state, "config": settings}
        store.save(replace(found, model={**found.model, "idle": torch.zeros(1)}, state=state))


def test_an_old_run_is_opened_and_continues_bit_for_bit(tmp_path):
    config = runs.tiny(experiment="digits/hbnode")
    start(config, tmp_path / "new")
    start(config, tmp_path / "old")
    _age(tmp_path / "old")
    expected, found = (open_run(tmp_path / name) for name in ("new", "old"))
    assert found.config == expected.config
    weights = expected.model.state_dict()
    assert all(
        torch.equal(value, weights[name]) for name, value in found.model.state_dict().items()
    )
    for name in ("new", "old"):
        resume(tmp_path / name, {"train": {"epochs": 3}})
    assert runs.weights(tmp_path / "old") == runs.weights(tmp_path / "new")
    records = [json.loads((tmp_path / name / "record.json").read_text()) for name in ("new", "old")]
    assert records[0]["parameters"] == records[1]["parameters"]


@pytest.mark.parametrize("file", OLD, ids=lambda file: file.parent.name)
def test_every_finished_run_of_the_results_is_its_preset(file):
    record = json.loads(file.read_text())
    config = read_experiment(record["config"], str(file))
    assert config.experiment == record["experiment"]
    assert changed_settings(config) == [
        change for change in record.get("changes", []) if "idle_scalars" not in change
    ]
    with torch.device("meta"):
        assert config.count(config.build(record)) == record["parameters"]


def test_idle_scalars_can_no_longer_be_requested():
    with pytest.raises(ConfigError, match=r"^model\.idle_scalars: is not a setting"):
        resolve("mnist/hbnode", changes={"model": {"idle_scalars": 1}})
