import errno
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from bfno.lab.data import FolderSource, image_cache, load_folder_splits, telling
from bfno.lab.data.places import cache_folder
from bfno.lab.errors import DataError
from tests.lab.data.test_folders import save

SHAPE = (3, 4, 6)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return cache_folder() / "images"


@pytest.fixture
def decoded(monkeypatch) -> list[str]:
    """Names of the files that were decoded."""
    names, decode = [], image_cache.decode

    def noted(path, shape):
        names.append(path.name)
        return decode(path, shape)

    monkeypatch.setattr(image_cache, "decode", noted)
    return names


@pytest.fixture
def source(tmp_path) -> FolderSource:
    for label in range(2):
        for k in range(20):
            save(tmp_path / "photos" / "ab"[label] / f"{label}{k:02}.png", (100 * label + k, 0, 0))
    return FolderSource(tmp_path / "photos", SHAPE)


def files_in(cache: Path) -> list[Path]:
    return sorted(cache.rglob("*.bin"))


def seen(source: FolderSource) -> list[int]:
    splits = load_folder_splits(source)
    return sorted(
        value
        for split in (splits.train, splits.test)
        for value in split.images[:, 0, 0, 0].tolist()
    )


ALL = [*range(20), *range(100, 120)]


def test_the_second_start_decodes_nothing_and_sees_the_same(source, decoded):
    first = load_folder_splits(source)
    assert len(decoded) == 40
    second = load_folder_splits(source)
    assert len(decoded) == 40 and second.train.images.equal(first.train.images)
    load_folder_splits(FolderSource(source.folder, SHAPE, seed=9))
    load_folder_splits(FolderSource(source.folder, SHAPE, labelled=False))
    assert len(decoded) == 40
    load_folder_splits(FolderSource(source.folder, (1, 4, 6)))
    assert len(decoded) == 80


def test_new_and_changed_images_alone_are_decoded(source, decoded):
    load_folder_splits(source)
    decoded.clear()
    save(source.folder / "a" / "new.png", (50, 0, 0))
    save(source.folder / "a" / "003.png", (60, 0, 0))
    os.utime(source.folder / "b" / "104.png", ns=(1, 1))
    (source.folder / "b" / "105.png").unlink()
    expected = sorted((*(set(ALL) - {3, 105}), 50, 60))
    assert seen(source) == expected and sorted(decoded) == ["003.png", "104.png", "new.png"]


@pytest.mark.parametrize("damage", ["cut", "bit", "foreign", "empty", "other shape"])
def test_a_damaged_or_foreign_file_is_made_again_with_a_note(
    source, cache, decoded, caplog, damage
):
    load_folder_splits(source)
    (file,) = files_in(cache)
    content = bytearray(file.read_bytes())
    if damage == "cut":
        content = content[:-7]
    elif damage == "bit":
        content[100] ^= 1
    elif damage == "other shape":
        load_folder_splits(FolderSource(source.folder, (3, 8, 3)))
        (other,) = set(files_in(cache)) - {file}
        content = bytearray(other.read_bytes())
    else:
        content = bytearray(b"" if damage == "empty" else b"something else" * 20)
    file.write_bytes(content)
    decoded.clear()
    assert seen(source) == ALL and len(decoded) == 40
    told = f"{file.parent}: 1 file of decoded images was damaged or foreign and will be recreated"
    assert caplog.messages == [told]
    decoded.clear()
    assert seen(source) == ALL and decoded == []


def test_an_interrupted_start_continues_where_it_was(source, monkeypatch, decoded):
    monkeypatch.setattr(image_cache, "_MOST_IMAGES", 8)

    def stop(done, total):
        assert total == 40
        if done == 30:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), telling(stop):
        load_folder_splits(source)
    decoded.clear()
    told = []
    with telling(lambda done, total: told.append((done, total))):
        assert seen(source) == ALL
    assert len(decoded) == 16 and told[-1] == (16, 16)


def test_files_of_no_use_are_deleted(source, cache):
    load_folder_splits(source)
    old = files_in(cache)
    for path in source.folder.rglob("*.png"):
        os.utime(path, ns=(5, 5))
    assert seen(source) == ALL and not set(old) & set(files_in(cache))


def test_where_nothing_can_be_kept_the_images_are_read_all_the_same(
    source, tmp_path, monkeypatch, caplog
):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert seen(source) == ALL
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith("decoded images are not kept for the next start: ")


def test_names_that_are_no_text_are_kept_too(source, decoded):
    save(source.folder / "a" / os.fsdecode(b"\xff\xfe.png"), (70, 0, 0))
    assert 70 in seen(source)
    decoded.clear()
    assert 70 in seen(source) and decoded == []


def test_bad_images_are_tried_again_at_every_start(source, decoded):
    bad = source.folder / "a" / "bad.png"
    bad.write_bytes(b"nothing")
    skipping = FolderSource(source.folder, SHAPE, corrupt="skip")
    assert seen(skipping) == ALL
    decoded.clear()
    assert seen(skipping) == ALL and decoded == ["bad.png"]


def test_large_parts_stay_on_disk_and_are_the_same(source, cache, monkeypatch):
    plain = load_folder_splits(source, validation=0.25)
    monkeypatch.setattr("bfno.lab.data.folders._IN_MEMORY", 0)
    stored = load_folder_splits(source, validation=0.25)
    for file in files_in(cache):
        file.unlink()  # what is open stays
    chosen = torch.tensor([5, 0, 7])
    for one, other in ((plain.train, stored.train), (plain.validation, stored.validation)):
        assert one is not None and other is not None
        assert type(other.images).__name__ == "StoredImages"
        assert other.images.shape == one.images.shape and other.labels.equal(one.labels)
        assert other.images[chosen % len(other)].equal(one.images[chosen % len(one)])


@pytest.fixture
def few_descriptors(monkeypatch) -> Iterator[None]:
    """Hardly more files may be open than are open now, and each cache file holds one image."""
    monkeypatch.setattr(image_cache, "_MOST_IMAGES", 1)
    monkeypatch.setattr(image_cache, "_MOST_THREADS", 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + 12, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("few_descriptors")
def test_more_files_than_may_be_open_are_read_and_none_is_lost(source, cache, caplog, monkeypatch):
    assert seen(source) == ALL and len(files_in(cache)) == 40
    monkeypatch.setattr("bfno.lab.data.folders._IN_MEMORY", 0)
    skipping = FolderSource(source.folder, SHAPE, corrupt="skip")
    assert seen(skipping) == ALL
    assert len(files_in(cache)) == 40 and caplog.messages == []


def test_a_file_that_the_disk_does_not_give_is_no_damaged_one(
    source, cache, decoded, caplog, monkeypatch
):
    load_folder_splits(source)
    (file,) = files_in(cache)
    decoded.clear()

    def failing(stream, *_):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(image_cache, "_checked_keys", failing)
        patched.setattr(image_cache, "write_atomically", failing)
        assert seen(source) == ALL and len(decoded) == 40
    assert files_in(cache) == [file]
    assert caplog.messages[0] == (
        f"{file.parent}: 1 file of decoded images could not be read (Input/output error); "
        "what it holds is decoded again"
    )
    decoded.clear()
    assert seen(source) == ALL and decoded == []


@pytest.mark.parametrize("corrupt", ["refuse", "skip"])
def test_trouble_of_the_system_is_never_taken_for_a_bad_image(source, monkeypatch, corrupt):
    from PIL import Image

    def failing(*_, **__):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(Image, "open", failing)
    with pytest.raises(DataError, match=r"cannot be opened \(too many open files\).*ulimit -n"):
        load_folder_splits(FolderSource(source.folder, SHAPE, corrupt=corrupt))


def test_a_file_that_was_replaced_is_not_read_for_another(source, cache, monkeypatch):
    monkeypatch.setattr("bfno.lab.data.folders._IN_MEMORY", 0)
    images = load_folder_splits(source).train.images
    monkeypatch.setattr("bfno.lab.data.stored._MOST_OPEN", 0)
    images[0]
    (file,) = files_in(cache)
    other = file.with_name("other")
    other.write_bytes(file.read_bytes())
    other.replace(file)
    with pytest.raises(DataError, match="was changed"):
        images[0]
    file.unlink()
    with pytest.raises(DataError, match="no such file"):
        images[0]
