"""Damaged files of every kind either load to valid tensors or are refused in one line."""

import gzip
import io
import struct
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from bfno.lab.data import DATA_SETS, ImageSet, load, read_image
from bfno.lab.errors import DataError
from tests.lab.data import official
from tests.lab.data.mutations import mutated

Image = pytest.importorskip("PIL.Image")
# Of work on the smallest files; more means that a reader believes what a header says. It is time of
# the processor, hundreds of times what they need, for a busy machine lets every reader wait.
SECONDS = 2.0

Load = Callable[[Path], ImageSet | torch.Tensor]


def fuzz(load: Load, path: Path, good: bytes, seeds: range, classes: int = 10) -> int:
    """Damage the file once for each seed; how many times it was refused."""
    refused = 0
    for seed in seeds:
        path.write_bytes(mutated(good, seed))
        started = time.process_time()
        try:
            assert_valid(load(path), classes)
        except DataError as error:
            assert "\n" not in str(error), seed
            refused += 1
        assert time.process_time() - started < SECONDS, seed
    path.write_bytes(good)
    assert_valid(load(path), classes)
    return refused


def assert_valid(found: ImageSet | torch.Tensor, classes: int) -> None:
    if isinstance(found, torch.Tensor):
        assert found.dtype == torch.uint8
        return
    for split in (found.train, found.test):
        assert split.images.dtype == torch.uint8 and split.labels.dtype == torch.int64
        assert len(split.images) == len(split.labels) > 0
        assert split.labels.min() >= 0 and split.labels.max() < classes


def set_up(case: str, folder: Path) -> tuple[Load, Path, bytes, int]:
    """What loads the case, the file that is damaged, its right bytes, the number of classes."""
    if case in IMAGES:
        good = image_bytes(case)
        return lambda path: read_image(path, (3, 8, 8)), folder / f"image.{case}", good, 10
    name, file = SETS[case]
    if name == "mnist":
        official.write_mnist(folder, packed=file.endswith(".gz"))
        good = (folder / file).read_bytes()
    elif file.endswith(".tar.gz"):
        good = official.official_archive(name)
    elif file.endswith(".npz"):
        good = npz_bytes()
    else:
        official.write_files(folder, official.FILES[name]())
        good = (folder / file).read_bytes()
    load_set: Load = lambda path: load(name, folder, official=False)  # noqa: E731
    return load_set, folder / file, good, DATA_SETS[name].classes


SETS = {
    "idx images": ("mnist", "train-images-idx3-ubyte"),
    "idx labels": ("mnist", "train-labels-idx1-ubyte"),
    "packed idx images": ("mnist", "train-images-idx3-ubyte.gz"),
    "packed idx labels": ("mnist", "t10k-labels-idx1-ubyte.gz"),
    "cifar10 batch": ("cifar10", "data_batch_4.bin"),
    "cifar100 file": ("cifar100", "train.bin"),
    "stl10 labels": ("stl10", "train_y.bin"),
    "archive": ("cifar100", "cifar-100-binary.tar.gz"),
    "npz": ("cifar10", "cifar10.npz"),
}
IMAGES = ("png", "jpg", "bmp", "gif", "webp", "tif")
CASES = [*SETS, *IMAGES]


def npz_bytes() -> bytes:
    buffer = io.BytesIO()
    images, labels = np.zeros((3, 3, 32, 32), np.uint8), np.arange(3)
    np.savez(
        buffer, train_images=images, train_labels=labels, test_images=images, test_labels=labels
    )
    return buffer.getvalue()


def image_bytes(suffix: str) -> bytes:
    buffer = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 3), np.uint8)
    kind = {"jpg": "JPEG", "tif": "TIFF"}.get(suffix, suffix.upper())
    exif = Image.Exif()
    exif[0x0112] = 6
    options = {} if suffix in ("bmp", "gif") else {"exif": exif}
    Image.fromarray(pixels).save(buffer, kind, **options)
    return buffer.getvalue()


@pytest.mark.parametrize("case", CASES)
def test_damaged_files_load_or_are_refused(tmp_path, case):
    load_case, path, good, classes = set_up(case, tmp_path)
    assert fuzz(load_case, path, good, range(20), classes) > 0


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_many_damaged_files_load_or_are_refused(tmp_path, case):
    load_case, path, good, classes = set_up(case, tmp_path)
    assert fuzz(load_case, path, good, range(1000, 1150), classes) > 0


def sloppy_reader(path: Path) -> ImageSet:
    """Reads labels as people often do: no check of sizes, counts or values."""
    data = gzip.decompress(path.read_bytes())
    _, count = struct.unpack(">II", data[:8])
    labels = torch.tensor(list(data[8 : 8 + count]))
    part = load("digits").train
    split = type(part)(torch.zeros(len(labels), 1, 8, 8, dtype=torch.uint8), labels)
    return ImageSet(split, split, tuple("0123456789"))


def test_the_harness_catches_a_reader_that_lets_errors_through(tmp_path):
    good = gzip.compress(official.idx_labels(12))
    with pytest.raises((struct.error, EOFError, OSError, zlib.error)):
        fuzz(sloppy_reader, tmp_path / "labels.gz", good, range(50))


def test_the_harness_catches_a_reader_that_lets_wrong_labels_through(tmp_path):
    def careless(path: Path) -> ImageSet:
        try:
            return sloppy_reader(path)
        except Exception as error:
            raise DataError(path, "is damaged", "get it again") from error

    packed = gzip.compress(official.idx_labels(12))

    def unpacked(path: Path) -> ImageSet:
        path.write_bytes(gzip.compress(path.read_bytes()))
        return careless(path)

    with pytest.raises(AssertionError):
        fuzz(unpacked, tmp_path / "labels", gzip.decompress(packed), range(50))


def test_the_harness_catches_a_reader_that_hangs(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.lab.data.test_fuzz.SECONDS", -1.0)
    load_case, path, good, classes = set_up("idx labels", tmp_path)
    with pytest.raises(AssertionError):
        fuzz(load_case, path, good, range(1), classes)
