"""Checkpoints: whole or absent, never torn, and never trusted without their hash.

A checkpoint is a folder of files and a manifest with the SHA-256 of each. The manifest is written
last, by a rename; a folder without one does not count.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save as tensors_to_bytes
from torch import Tensor

from bfno.lab.errors import DataError
from bfno.lab.files import remove_leftovers, write_atomically

__all__ = ["Checkpoint", "CheckpointStore"]

FORMAT = 1
_MANIFEST = "manifest.json"
_FILES = _MODEL, _TRAINING, _STATE = ("model.safetensors", "training.safetensors", "state.json")


@dataclass(frozen=True)
class Checkpoint:
    """What a run needs to go on.

    Attributes:
        step: Optimizer steps taken.
        model: The model's tensors.
        training: The optimizer's tensors.
        state: Everything else, as values of JSON.
    """

    step: int
    model: Mapping[str, Tensor]
    training: Mapping[str, Tensor]
    state: Mapping[str, Any]


class CheckpointStore:
    """The checkpoints of one run.

    Args:
        folder: Where they are; made on the first save.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint; until it is whole on the disk, it does not count.

        A whole one of the same step stays as it is: to replace it would mean to have neither for
        a moment, and from the same step the run continues in the same way.

        Raises:
            DataError: If it cannot be written; what was saved before is still there.
        """
        folder = self._folder(checkpoint.step)
        if self._is_whole(checkpoint.step):
            return
        if folder.exists():  # damaged, or left unfinished by a process that was killed
            shutil.rmtree(folder)
        contents = {
            _MODEL: tensors_to_bytes(_contiguous(checkpoint.model)),
            _TRAINING: tensors_to_bytes(_contiguous(checkpoint.training)),
            _STATE: json.dumps(dict(checkpoint.state), indent=1).encode(),
        }
        manifest = {
            "format": FORMAT,
            "step": checkpoint.step,
            "files": {
                name: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
                for name, content in contents.items()
            },
        }
        for name, content in contents.items():
            write_atomically(folder / name, content)
        write_atomically(folder / _MANIFEST, json.dumps(manifest, indent=1).encode())

    def steps(self) -> list[int]:
        """Steps of the finished checkpoints, newest first; their content is not yet checked."""
        found = (path.parent.name for path in self.folder.glob(f"step-*/{_MANIFEST}"))
        numbers = (name.removeprefix("step-") for name in found)
        return sorted((int(number) for number in numbers if number.isdecimal()), reverse=True)

    def load(self, step: int) -> Checkpoint:
        """Read a checkpoint and check every byte of it.

        Raises:
            DataError: If it is damaged, or of a newer format.
        """
        folder = self._folder(step)
        contents = dict(_checked_contents(folder))
        try:
            return Checkpoint(
                step,
                tensors_from_bytes(contents[_MODEL]),
                tensors_from_bytes(contents[_TRAINING]),
                json.loads(contents[_STATE]),
            )
        except Exception as error:
            raise _damaged(folder, f"cannot be parsed ({type(error).__name__})") from error

    def newest(self) -> tuple[Checkpoint | None, list[DataError]]:
        """The newest checkpoint that is whole, and what is wrong with the ones passed over."""
        problems = []
        for step in self.steps():
            try:
                return self.load(step), problems
            except DataError as error:
                problems.append(error)
        return None, problems

    def keep(self, steps: set[int]) -> None:
        """Delete every other checkpoint, finished or not."""
        for folder in self.folder.glob("step-*"):
            remove_leftovers(folder)
            if folder not in {self._folder(step) for step in steps}:
                # Without its manifest it no longer counts, should the deletion be cut short.
                (folder / _MANIFEST).unlink(missing_ok=True)
                shutil.rmtree(folder, ignore_errors=True)

    def _is_whole(self, step: int) -> bool:
        try:
            self.load(step)
        except DataError:
            return False
        return True

    def _folder(self, step: int) -> Path:
        return self.folder / f"step-{step:08d}"


def _contiguous(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


def _checked_contents(folder: Path) -> Iterator[tuple[str, bytes]]:
    for name, expected in _manifest_files(folder).items():
        try:
            content = (folder / name).read_bytes()
        except OSError as error:
            raise _damaged(folder / name, "cannot be read") from error
        if hashlib.sha256(content).hexdigest() != expected:
            raise _damaged(folder / name, "differs from its SHA-256")
        yield name, content


def _manifest_files(folder: Path) -> dict[str, str]:
    path = folder / _MANIFEST
    try:
        manifest = json.loads(path.read_bytes())
        written_by = int(manifest["format"])
        hashes = {name: str(manifest["files"][name]["sha256"]) for name in _FILES}
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise _damaged(path, "is not a manifest") from error
    if written_by > FORMAT:
        why = f"has format {written_by}, this release of bfno reads up to {FORMAT}"
        raise DataError(path, why, "update bfno")
    return hashes


def _damaged(path: Path, why: str) -> DataError:
    return DataError(path, why, "remove this checkpoint; the one before it will be used")
