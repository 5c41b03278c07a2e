"""Images that stay on disk train the same model as those in memory, also when a run continues."""

import json

import pytest
import torch
from PIL import Image

from bfno.lab.data import folders
from bfno.lab.experiments.resolve import resolve
from bfno.lab.runs.folder import RunFolder
from bfno.lab.runs.loop import Watcher
from bfno.lab.runs.session import resume, start


class _Stopper(Watcher):
    """Ends a training after some steps as a lost machine would."""

    def on_step(self, progress, steps):
        if progress.step == 5:
            raise KeyboardInterrupt


@pytest.fixture
def photos(tmp_path):
    generator = torch.Generator().manual_seed(0)
    for name in ("a", "b"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(30):
            pixels = torch.randint(0, 255, (6, 6, 3), generator=generator, dtype=torch.uint8)
            Image.fromarray(pixels.numpy()).save(tmp_path / "photos" / name / f"{number}.png")
    return tmp_path / "photos"


@pytest.mark.parametrize("experiment", ["folder/node", "folder-density/glow"])
def test_a_streamed_run_that_was_stopped_equals_one_in_memory(
    photos, tmp_path, monkeypatch, experiment
):
    changes = {
        "threads": 1,
        "data": {"size": 4, "train_limit": 40, "validation": 0.2},
        "train": {"epochs": 2, "batch": 8, "checkpoint_seconds": 0},
    }
    config = resolve(experiment, scale="smoke", data=photos, changes=changes)
    start(config, tmp_path / "memory")
    monkeypatch.setattr(folders, "_IN_MEMORY", 0)
    with pytest.raises(KeyboardInterrupt):
        start(config, tmp_path / "disk", [_Stopper()])
    resume(tmp_path / "disk")
    found = [RunFolder(tmp_path / name).checkpoints.newest()[0] for name in ("memory", "disk")]
    weights = [one.model for one in found if one is not None]
    assert len(weights) == 2
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    records = [
        json.loads((tmp_path / name / "record.json").read_text())["result"]
        for name in ("memory", "disk")
    ]
    assert records[0] == records[1]
