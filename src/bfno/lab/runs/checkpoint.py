"""Checkpoints: complete or absent, never another run's, never trusted without their hash.

A checkpoint is a folder of files and a manifest, which has the SHA-256 of each file and names their
run, step and settings. The manifest is written last, by a rename; a folder without one does not
count.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save as tensors_to_bytes
from torch import Tensor, nn
from torch.optim import Optimizer

from bfno.lab.errors import ConfigError, DataError
from bfno.lab.experiments.settings import CIRCUMSTANCES, migrated_weights
from bfno.lab.files import (
    read_plain,
    remove_file,
    remove_folder,
    remove_leftovers,
    sync_folder,
    write_atomically,
)
from bfno.lab.runs.record import flat_config

__all__ = [
    "Checkpoint",
    "CheckpointStore",
    "ForeignCheckpoint",
    "Progress",
    "load_optimizer",
    "load_weights",
    "optimizer_state",
    "settings_digest",
]

_logger = logging.getLogger(__name__)

FORMAT = 2
_MANIFEST = "manifest.json"
_FILES = _MODEL, _TRAINING, _STATE = ("model.safetensors", "training.safetensors", "state.json")
_BEST = {"by": str, "step": int, "metrics": dict, "confusion": list}


class ForeignCheckpoint(DataError):
    """A checkpoint is intact, but belongs to another run, step or experiment."""


class Progress(BaseModel):
    """Progress of a run; all of it is in a checkpoint.

    Attributes:
        epoch: Finished epochs.
        batch: Steps taken in the running epoch.
        step: Total number of steps taken.
        sums: Totals of the running epoch.
        seconds: Time that the running epoch has taken.
        total_seconds: Time that the finished epochs have taken.
        best: The best epoch so far: its metrics, its step and its confusion matrix.
        metrics_size: Bytes of the metrics file that belong to the finished epochs.
        history: Facts that its settings lack: settings that were different before it was resumed,
            each with the step until which they applied, and the file of its first weights.
        commits: Commits of the sources it was trained with, in order.
    """

    epoch: int = Field(default=0, ge=0)
    batch: int = Field(default=0, ge=0)
    step: int = Field(default=0, ge=0)
    sums: dict[str, float] = {}
    seconds: float = 0.0
    total_seconds: float = 0.0
    best: dict[str, Any] = {}
    metrics_size: int = Field(default=0, ge=0)
    history: list[str] = []
    commits: list[str] = []

    @field_validator("best")
    @classmethod
    def _is_an_epoch(cls, best: dict[str, Any]) -> dict[str, Any]:
        lacking = [name for name, kind in _BEST.items() if not isinstance(best.get(name), kind)]
        if best and lacking:
            raise ValueError(f"has no {lacking[0]}")
        metrics = best.get("metrics", {})
        if best and not isinstance(metrics.get("epoch"), int):
            raise ValueError("has no metrics.epoch")
        if any(not isinstance(value, int | float | None) for value in metrics.values()):
            raise ValueError("has a metric that is not a number")
        return best


class _State(BaseModel):
    """The required part of `state.json`; the rest are facts about the data."""

    model_config = ConfigDict(extra="allow")

    progress: Progress
    config: dict[str, Any]
    optimizer: list[dict[str, Any]] | None = None


class _File(BaseModel):
    bytes: int = Field(ge=0)
    sha256: str


class _Manifest(BaseModel):
    """The content of `manifest.json`; format 1 lacks run and settings."""

    format: int
    step: int
    files: dict[str, _File]
    run: str | None = None
    settings: str | None = None
    covered: dict[str, str] = {}

    @field_validator("files")
    @classmethod
    def _are_all_there(cls, files: dict[str, _File]) -> dict[str, _File]:
        if not files.keys() >= set(_FILES):
            raise ValueError("a file is missing")
        return files


@dataclass(frozen=True)
class Checkpoint:
    """The state that a run needs to continue.

    Attributes:
        step: Optimizer steps taken.
        model: The model's tensors.
        training: The optimizer's tensors.
        state: Everything else, as values of JSON: `progress`, `config`, `optimizer` and facts.
        covered: SHA-256 of other files of the run when it was saved, by name: the settings, and the
            metrics of finished epochs.
    """

    step: int
    model: Mapping[str, Tensor]
    training: Mapping[str, Tensor]
    state: Mapping[str, Any]
    covered: Mapping[str, str] = field(default_factory=dict)

    @property
    def progress(self) -> Progress:
        """Progress of the run when it was saved."""
        return Progress.model_validate(self.state["progress"])


class CheckpointStore:
    """The checkpoints of one run.

    Args:
        folder: Where they are; made on the first save.
        run: Identity of the run, which every checkpoint must have; None accepts any.
    """

    def __init__(self, folder: Path, run: str | None = None) -> None:
        self.folder, self.run = folder, run

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint; it does not count until it is completely on the disk.

        An intact one of the same step stays as it is: replacing it would leave neither for a
        moment, and the run continues from the same step in the same way.

        Raises:
            DataError: If it cannot be written; what was saved before is still there.
        """
        folder = self.place(checkpoint.step)
        if self._is_whole(checkpoint.step):
            return
        self._discard(folder)  # damaged, or left unfinished by a process that was killed
        contents = {
            _MODEL: tensors_to_bytes(_contiguous(checkpoint.model)),
            _TRAINING: tensors_to_bytes(_contiguous(checkpoint.training)),
            _STATE: json.dumps(dict(checkpoint.state), indent=1).encode(),
        }
        manifest = {
            "format": FORMAT,
            "run": self.run,
            "step": checkpoint.step,
            "settings": settings_digest(checkpoint.state["config"]),
            "covered": dict(checkpoint.covered),
            "files": {
                name: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
                for name, content in contents.items()
            },
        }
        for name, content in contents.items():
            # The disk has all names before that of the manifest, which vouches for them.
            write_atomically(folder / name, content, sync=name == _STATE)
        write_atomically(folder / _MANIFEST, json.dumps(manifest, indent=1).encode())

    def steps(self) -> list[int]:
        """Steps of the finished checkpoints, newest first; their content is not checked yet."""
        found = self.folder.glob(f"step-*/{_MANIFEST}")
        numbers = ((_number(path.parent), path.parent) for path in found)
        # A copy under a similar name, such as step-12, is not the checkpoint of a step.
        return sorted((step for step, place in numbers if self.place(step) == place), reverse=True)

    def uncounted(self) -> list[DataError]:
        """Describe what looks newer than the newest finished checkpoint, but is ignored."""
        newest, problems = max(self.steps(), default=-1), []
        for folder in sorted(self.folder.glob("step-*")):
            step = _number(folder)
            if step <= newest or not folder.is_dir():
                continue
            if folder == self.place(step):
                why = (
                    "is ignored because it has no manifest: it was never finished, or the manifest "
                    "was lost"
                )
            else:
                why = f"is ignored because its name is not {self.place(step).name}"
            problems.append(_damaged(folder, why))
        return problems

    def load(self, step: int) -> Checkpoint:
        """Read a checkpoint, and check every byte and its owner.

        Raises:
            ForeignCheckpoint: If it belongs to another run or step.
            DataError: If it is damaged, or has a newer format.
        """
        folder = self.place(step)
        manifest = _read_manifest(folder)
        self._check_identity(folder, step, manifest)
        contents = dict(_checked_contents(folder, manifest))
        state = _read_state(folder / _STATE, contents[_STATE])
        if state["progress"].get("step", 0) != step:
            raise _damaged(folder / _STATE, "is that of another step")
        if manifest.settings not in (None, settings_digest(state["config"])):
            raise ForeignCheckpoint(folder, "is that of other settings", "remove this checkpoint")
        try:
            model = tensors_from_bytes(contents[_MODEL])
            training = tensors_from_bytes(contents[_TRAINING])
        except Exception as error:
            raise _damaged(folder, f"cannot be parsed ({type(error).__name__})") from error
        return Checkpoint(step, model, training, state, manifest.covered)

    def newest(self) -> tuple[Checkpoint | None, list[DataError]]:
        """The newest intact checkpoint, and the faults of the newer ones.

        Raises:
            ForeignCheckpoint: If a checkpoint of another run is in the way.
        """
        problems = []
        for step in self.steps():
            try:
                return self.load(step), problems
            except ForeignCheckpoint:
                raise
            except DataError as error:
                problems.append(error)
        return None, problems

    def keep(self, steps: set[int]) -> None:
        """Delete every other checkpoint, finished or not."""
        kept, has_changed = {self.place(step) for step in steps}, False
        for folder in self.folder.glob("step-*"):
            remove_leftovers(folder)
            if folder not in kept:
                self._discard(folder)
                has_changed = True
        if has_changed:
            sync_folder(self.folder)

    def place(self, step: int) -> Path:
        """The folder of a checkpoint."""
        return self.folder / f"step-{step:08d}"

    def _discard(self, folder: Path) -> None:
        if folder.is_dir() and not folder.is_symlink():
            # Without its manifest it no longer counts, should the deletion be cut short.
            remove_file(folder / _MANIFEST)
        remove_folder(folder)

    def _check_identity(self, folder: Path, step: int, manifest: _Manifest) -> None:
        remove = "remove this checkpoint; the one before it will be used"
        if manifest.step != step:
            raise ForeignCheckpoint(folder, f"is the checkpoint of step {manifest.step}", remove)
        if manifest.run == self.run:
            return
        if self.run is not None:
            raise ForeignCheckpoint(folder, "is the checkpoint of another run", remove)
        why = "names the run that it belongs to, but there is no run.json to compare"
        raise ForeignCheckpoint(folder, why, "restore run.json from a copy of the run")

    def _is_whole(self, step: int) -> bool:
        try:
            self.load(step)
        except ForeignCheckpoint:  # is not ours to replace
            raise
        except DataError:
            return False
        return True


def settings_digest(config: Mapping[str, Any]) -> str:
    """SHA-256 of a run's settings, without circumstances such as threads and paths."""
    flat = flat_config(config)
    kept = (flat.keys() - CIRCUMSTANCES) | {"seed"}
    said = {name: value for name, value in flat.items() if name in kept}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def load_weights(model: nn.Module, checkpoint: Checkpoint) -> None:
    """Load exactly the weights of a checkpoint into a model.

    Raises:
        ConfigError: If the checkpoint belongs to another model.
    """
    weights = migrated_weights(checkpoint.model)
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    different = sorted(
        name for name in {*expected, *found} if expected.get(name) != found.get(name)
    )
    if different:
        name = different[0]
        shapes = f"{found.get(name, 'absent')} instead of {expected.get(name, 'absent')}"
        raise ConfigError(
            f"checkpoint of step {checkpoint.step}",
            f"is that of another model: {len(different)} tensors differ, {name} is {shapes}",
            "use the config.yaml that it was trained with",
        )
    model.load_state_dict(weights)


def optimizer_state(optimizer: Optimizer) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """The optimizer's tensors by number of parameter and name, and its settings."""
    state = optimizer.state_dict()
    tensors = {
        f"{number}.{name}": value
        for number, values in state["state"].items()
        for name, value in values.items()
    }
    return tensors, state["param_groups"]


def load_optimizer(optimizer: Optimizer, checkpoint: Checkpoint) -> None:
    """Give an optimizer the state that `optimizer_state` took from another."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in checkpoint.training.items():
        number, _, name = key.partition(".")
        state.setdefault(int(number), {})[name] = value
    groups = checkpoint.state["optimizer"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def _contiguous(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


def _checked_contents(folder: Path, manifest: _Manifest) -> Iterator[tuple[str, bytes]]:
    for name in _FILES:
        try:
            content = read_plain(folder / name)
        except (OSError, DataError) as error:
            raise _damaged(folder / name, "cannot be read") from error
        if hashlib.sha256(content).hexdigest() != manifest.files[name].sha256:
            raise _damaged(folder / name, "differs from its SHA-256")
        yield name, content


def _number(folder: Path) -> int:
    """The step in the name of a checkpoint's folder; -1 if there is none."""
    number = folder.name.removeprefix("step-")
    # No run takes more steps than fit into 18 digits.
    return int(number) if number.isdecimal() and len(number) < 19 else -1


def _read_manifest(folder: Path) -> _Manifest:
    path = folder / _MANIFEST
    try:
        values = json.loads(read_plain(path))
        written_by = int(values["format"])
        if written_by > FORMAT:
            why = f"has format {written_by}, this release of bfno reads up to {FORMAT}"
            raise DataError(path, why, "update bfno")
        return _Manifest.model_validate(values)
    except DataError:
        raise
    except FileNotFoundError:
        raise _damaged(folder, "is missing") from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise _damaged(path, "is not a manifest") from error


def _read_state(path: Path, content: bytes) -> dict[str, Any]:
    try:
        state = json.loads(content)
        _State.model_validate(state)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(map(str, first["loc"])) or "it"
        why = first["msg"].removeprefix("Value error, ").lower()
        raise _damaged(path, f"cannot be understood: {name}: {why}") from None
    except (ValueError, RecursionError):
        raise _damaged(path, "is not JSON") from None
    return state


def _damaged(path: Path, why: str) -> DataError:
    return DataError(path, why, "remove this checkpoint; the one before it will be used")
