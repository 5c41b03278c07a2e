"""Checkpoints survive kills, full disks and bit rot."""

import errno
import json
import os
import random
from pathlib import Path

import pytest
import torch

from bfno.lab import files
from bfno.lab.errors import DataError
from bfno.lab.runs.checkpoint import FORMAT, Checkpoint, CheckpointStore
from tests.lab.runs.disk import RecordingOS


def _checkpoint(step: int) -> Checkpoint:
    tensors = {"weight": torch.full((3, 5), float(step)), "steps": torch.tensor(step)}
    moments = {"0.exp_avg": torch.arange(4.0) + step}
    state = {"progress": {"step": step}, "config": {"seed": 3}, "loss": 0.1 + step}
    return Checkpoint(step, tensors, moments, {**state, "words": ["ä", None]})


def _assert_same(found: Checkpoint, expected: Checkpoint) -> None:
    assert found.step == expected.step and found.state == expected.state
    for ours, theirs in ((found.model, expected.model), (found.training, expected.training)):
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def _newest(folder) -> Checkpoint:
    checkpoint, _ = CheckpointStore(folder).newest()
    assert checkpoint is not None
    return checkpoint


def test_a_checkpoint_comes_back_to_the_last_bit(tmp_path):
    store = CheckpointStore(tmp_path)
    assert store.newest() == (None, [])
    for step in (7, 12):
        store.save(_checkpoint(step))
    assert store.steps() == [12, 7]
    _assert_same(_newest(tmp_path), _checkpoint(12))
    _assert_same(store.load(7), _checkpoint(7))


class _Killed(BaseException):
    """Stands for a process that is no more: nothing after it runs, no handler either."""


def _fail_at(monkeypatch, number: int, failure: BaseException) -> list[int]:
    """Let the file operation of this number fail, a write halfway through it."""
    count = [0]

    def note(kind: str) -> None:
        count[0] += 1
        # The dead do not clean up.
        if count[0] == number or (count[0] > number and isinstance(failure, _Killed)):
            raise failure

    monkeypatch.setattr(files, "os", RecordingOS(Path("/"), note))
    return count


def _operations_of_a_save(tmp_path) -> int:
    store = CheckpointStore(tmp_path / "counted")
    store.save(_checkpoint(4))
    with pytest.MonkeyPatch.context() as patch:
        count = _fail_at(patch, 10_000, _Killed())
        store.save(_checkpoint(5))
    return count[0]


def test_a_kill_at_every_file_operation_leaves_the_old_or_the_new_checkpoint(tmp_path):
    operations = _operations_of_a_save(tmp_path)
    assert operations >= 20  # four files: open, write, two syncs and a rename each
    outcomes = set()
    for number in range(1, operations + 1):
        folder = tmp_path / str(number)
        CheckpointStore(folder).save(_checkpoint(4))
        with pytest.MonkeyPatch.context() as patch, pytest.raises(_Killed):
            _fail_at(patch, number, _Killed())
            CheckpointStore(folder).save(_checkpoint(5))
        found = _newest(folder)
        _assert_same(found, _checkpoint(found.step))
        outcomes.add(found.step)
        # The next process removes leftovers and continues.
        store = CheckpointStore(folder)
        store.save(_checkpoint(5))
        store.keep({5})
        _assert_same(_newest(folder), _checkpoint(5))
        left = [path.name for path in folder.rglob("*") if path.is_file()]
        assert len(left) == 4 and not any("partial" in name for name in left)
    assert outcomes == {4, 5}


def test_the_kill_harness_catches_a_writer_in_place(tmp_path, monkeypatch):
    def in_place(path, content, **_):
        path.parent.mkdir(parents=True, exist_ok=True)
        files._write(files.os.open(path, os.O_WRONLY | os.O_CREAT), content)

    monkeypatch.setattr("bfno.lab.runs.checkpoint.write_atomically", in_place)
    torn = 0
    for number in range(1, 20):
        folder = tmp_path / str(number)
        with pytest.MonkeyPatch.context() as patch, pytest.raises((_Killed, StopIteration)):
            _fail_at(patch, number, _Killed())
            CheckpointStore(folder).save(_checkpoint(5))
            raise StopIteration
        # A torn manifest under its final name claims to be a checkpoint.
        torn += (
            CheckpointStore(folder).steps() == [5] and CheckpointStore(folder).newest()[0] is None
        )
    assert torn > 0


def test_a_full_disk_at_every_write_is_one_line_and_loses_nothing(tmp_path):
    full = OSError(errno.ENOSPC, "No space left on device")
    for number in range(1, _operations_of_a_save(tmp_path) + 1):
        folder = tmp_path / str(number)
        CheckpointStore(folder).save(_checkpoint(4))
        with (
            pytest.MonkeyPatch.context() as patch,
            pytest.raises(DataError, match="Fix: ") as error,
        ):
            _fail_at(patch, number, full)
            CheckpointStore(folder).save(_checkpoint(5))
        assert "\n" not in str(error.value)
        found = _newest(folder)
        _assert_same(found, _checkpoint(found.step))
        assert not list(folder.rglob("*.partial"))


def test_a_whole_checkpoint_of_the_same_step_is_never_replaced(tmp_path):
    store = CheckpointStore(tmp_path)
    store.save(_checkpoint(4))
    other = Checkpoint(4, {"weight": torch.zeros(1)}, {}, _checkpoint(4).state)
    store.save(other)
    _assert_same(_newest(tmp_path), _checkpoint(4))
    (tmp_path / "step-00000004" / "state.json").write_text("{}")
    store.save(other)
    _assert_same(_newest(tmp_path), other)


def _mutate(content: bytes, chance: random.Random) -> bytes:
    changed = bytearray(content)
    kind = chance.choice(["flip", "truncate", "zero", "swap", "extend"])
    place = chance.randrange(len(changed))
    if kind == "flip":
        changed[place] ^= 1 << chance.randrange(8)
    elif kind == "truncate":
        del changed[place:]
    elif kind == "zero":
        changed[place : place + 64] = bytes(len(changed[place : place + 64]))
    elif kind == "swap":
        half = len(changed) // 2
        changed = changed[half:] + changed[:half]
    else:
        changed += bytes(chance.randrange(1, 9))
    return bytes(changed)


def _count_accepted(folder, trials: int) -> int:
    """How many damaged checkpoints are taken for whole although their content differs."""
    store = CheckpointStore(folder)
    contents = {file: file.read_bytes() for file in sorted(folder.rglob("*.*"))}
    chance, accepted = random.Random(0), 0
    for _ in range(trials):
        file = chance.choice(list(contents))
        file.write_bytes(_mutate(contents[file], chance))
        try:
            _assert_same(store.load(3), _checkpoint(3))
        except DataError:
            pass
        except AssertionError:
            accepted += 1
        file.write_bytes(contents[file])
    return accepted


@pytest.fixture
def saved(tmp_path):
    CheckpointStore(tmp_path).save(_checkpoint(3))
    return tmp_path


def test_no_damage_is_accepted(saved):
    assert _count_accepted(saved, 500) == 0


@pytest.mark.slow
def test_no_damage_is_accepted_in_ten_thousand_trials(saved):
    assert _count_accepted(saved, 10_000) == 0


def test_damage_is_accepted_if_the_hash_is_not_checked(saved, monkeypatch):
    from bfno.lab.runs import checkpoint

    monkeypatch.setattr(
        checkpoint,
        "_checked_contents",
        lambda folder, _: ((name, (folder / name).read_bytes()) for name in checkpoint._FILES),
    )
    assert _count_accepted(saved, 500) > 0


def test_a_checkpoint_of_a_newer_format_is_refused_naming_both(tmp_path):
    store = CheckpointStore(tmp_path)
    store.save(_checkpoint(3))
    path = tmp_path / "step-00000003" / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps({**manifest, "format": FORMAT + 1}))
    with pytest.raises(DataError, match=f"format {FORMAT + 1}.*up to {FORMAT}.*update bfno"):
        store.load(3)
