"""What each reader says about files that are not as they should be."""

import gzip
import io
import struct
import zipfile

import numpy as np
import pytest

from bfno.lab.data import load, stl10_folds
from bfno.lab.errors import DataError
from tests.lab.data import official
from tests.lab.data.unpacking import counted

IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
IDX = [
    (IMAGES, b"", "ends within its header"),
    (IMAGES, official.idx_images(12)[:-1], "is cut off: its header declares 9,424 bytes"),
    (IMAGES, official.idx_images(12) + b"!", "is too long: its header declares 9,424 bytes"),
    (IMAGES, official.idx_images(12, magic=0x801), "begins with 0x00000801, not with 0x00000803"),
    (IMAGES, struct.pack(">IIII", 0x803, 0, 28, 28), "holds nothing"),
    (IMAGES, struct.pack(">IIII", 0x803, 2**32 - 1, 2**32 - 1, 2**32 - 1), "is cut off"),
    (IMAGES, struct.pack(">IIII", 0x803, 1, 4, 4) + bytes(16), "holds images of 4 × 4 pixels"),
    (LABELS, official.idx_labels(11), "holds 11 labels for 12 images"),
    (LABELS, official.idx_labels(12)[:-1] + b"\x0a", "label 10 of image 11 is none of the 10"),
    (LABELS, official.idx_labels(12, magic=0x803), "begins with 0x00000803"),
]


@pytest.mark.parametrize(("file", "data", "message"), IDX, ids=[case[2][:20] for case in IDX])
@pytest.mark.parametrize("packed", [True, False])
def test_a_wrong_idx_file_is_named(tmp_path, file, data, message, packed):
    official.write_mnist(tmp_path)
    (tmp_path / f"{file}.gz").write_bytes(gzip.compress(data))
    if not packed:
        (tmp_path / f"{file}.gz").unlink()
        (tmp_path / file).write_bytes(data)
    with pytest.raises(DataError, match=message) as caught:
        load("mnist", tmp_path, official=False)
    assert file in str(caught.value.what) and "bfno data get mnist" in caught.value.fix


def test_a_cut_off_gz_file_is_named(tmp_path):
    official.write_mnist(tmp_path)
    path = tmp_path / f"{IMAGES}.gz"
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(DataError, match=r"ubyte\.gz: is damaged \(Compressed file ended"):
        load("mnist", tmp_path, official=False)


def test_a_gz_bomb_stops_at_the_official_size(tmp_path):
    official.write_mnist(tmp_path)
    bomb = gzip.compress(official.idx_labels(12)) + gzip.compress(bytes(10**8), 9) * 5
    (tmp_path / f"{LABELS}.gz").write_bytes(bomb)
    with counted(gzip.GzipFile) as pieces, pytest.raises(DataError, match="is too long"):
        load("mnist", tmp_path, official=False)
    assert 60_000 < sum(pieces) < 200_000  # of 500 MB


BINARY = [
    ("cifar10", "data_batch_2.bin", b"", "is cut off: 0 bytes are not whole images"),
    ("cifar10", "data_batch_2.bin", bytes(3072), "is cut off: 3,072 bytes"),
    ("cifar10", "test_batch.bin", b"\x0a" + bytes(3072), "label 10 of image 0"),
    ("cifar100", "train.bin", b"\x00\x64" + bytes(3072), "label 100 of image 0"),
    ("cifar100", "train.bin", bytes(3073), "is cut off"),
    ("stl10", "train_X.bin", bytes(27647), "is cut off"),
    ("stl10", "train_y.bin", bytes([1, 0, 3]), "label -1 of image 1"),
    ("stl10", "train_y.bin", bytes([1, 2, 11]), "label 10 of image 2"),
    ("stl10", "test_y.bin", bytes([1]), "holds 1 labels for 2 images"),
]


@pytest.mark.parametrize(("name", "file", "data", "message"), BINARY)
def test_a_wrong_binary_file_is_named(tmp_path, name, file, data, message):
    official.write_files(tmp_path, {**official.FILES[name](), file: data})
    with pytest.raises(DataError, match=message) as caught:
        load(name, tmp_path, official=False)
    assert caught.value.what == str(tmp_path / file)


def test_folds_are_indices_into_the_training_images(tmp_path):
    lines = [" ".join(str((fold + 5 * k) % 5000) for k in range(1000)) for fold in range(10)]
    (tmp_path / "fold_indices.txt").write_text("\n".join(lines) + "\n")
    folds = stl10_folds(tmp_path)
    assert len(folds) == 10 and folds[3][:3].tolist() == [3, 8, 13]


@pytest.mark.parametrize(
    "text", ["", "1 2 3\n" * 10, "x " * 1000, "5000 " * 999 + "0\n", "9" * 5000, "\xff"]
)
def test_wrong_folds_are_refused(tmp_path, text):
    (tmp_path / "fold_indices.txt").write_text(text * 10)
    with pytest.raises(DataError, match=r"fold_indices\.txt"):
        stl10_folds(tmp_path)


def test_missing_folds_are_named(tmp_path):
    with pytest.raises(DataError, match=r"fold_indices\.txt: is missing"):
        stl10_folds(tmp_path)


def arrays(**changed):
    images, labels = np.zeros((3, 32, 32, 3), np.uint8), np.arange(3)
    whole = {"train_images": images, "train_labels": labels}
    return {**whole, "test_images": images, "test_labels": labels, **changed}


NPZ = [
    (arrays(train_images=np.zeros((3, 32, 32, 3))), "train_images is float64"),
    (
        arrays(train_images=np.zeros((3, 28, 28), np.uint8)),
        r"train_images is uint8 of shape \(3, 28",
    ),
    (arrays(train_images=np.zeros((0, 32, 32, 3), np.uint8)), "train_images is uint8 of shape"),
    (arrays(train_labels=np.zeros(3)), "train_labels is float64"),
    (arrays(train_labels=np.zeros((3, 1), int)), "train_labels is int64 of shape"),
    (arrays(train_labels=np.arange(2)), "holds 2 labels for 3 images"),
    (arrays(test_labels=np.array([0, -1, 0])), "label -1 of image 1"),
    (arrays(train_labels=np.array(["a", "b", "c"])), "train_labels is <U1"),
    (arrays(train_images=np.array([{}])), "train_images declares object"),
]


@pytest.mark.parametrize(("content", "message"), NPZ, ids=[case[1] for case in NPZ])
def test_a_wrong_npz_file_is_named(tmp_path, content, message):
    np.savez(tmp_path / "cifar10.npz", allow_pickle=True, **content)
    with pytest.raises(DataError, match=message):
        load("cifar10", tmp_path, official=False)


def npz(path, header: bytes, data: bytes = b"", version: bytes = b"\x01\x00") -> None:
    array = b"\x93NUMPY" + version + struct.pack("<H", len(header)) + header + data
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for part in ("train_images", "train_labels", "test_images", "test_labels"):
            archive.writestr(f"{part}.npy", array)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("{'descr':'|u1','fortran_order':False,'shape':(99999999999,32,32,3)}", "declares uint8"),
        ("{'descr':'|u1','fortran_order':False,'shape':(-1,32,32,3)}", "declares uint8"),
        ("{'descr':'|O','fortran_order':False,'shape':(1,)}", "declares object"),
        ("{'descr':'|u1','fortran_order':False,'shape':(1,32,32,3)}", "not as long as its header"),
        ("__import__('os').system('touch canary')", "is damaged"),
        ("{'descr':'|u1'}", "is damaged"),
        ("(" * 5000, "is damaged"),
    ],
)
def test_an_npz_header_is_not_believed(tmp_path, monkeypatch, header, message):
    monkeypatch.chdir(tmp_path)
    npz(tmp_path / "cifar10.npz", header.encode() + b"\n", bytes(10))
    with pytest.raises(DataError, match=message):
        load("cifar10", tmp_path, official=False)
    assert not (tmp_path / "canary").exists()


@pytest.mark.parametrize(("images", "most"), [(50_000, 2 * 10**7 + 200), (1, 4000)])
def test_an_npz_bomb_is_refused_at_its_first_array(tmp_path, images, most):
    # Four arrays of 20 MB each, whose headers declare more than that or far less.
    header = b"{'descr':'|u1','fortran_order':False,'shape':(%d,32,32,3)}\n" % images
    npz(tmp_path / "cifar10.npz", header, bytes(2 * 10**7))
    refused = pytest.raises(DataError, match="not as long as its header")
    with counted(zipfile.ZipExtFile) as pieces, refused:
        load("cifar10", tmp_path, official=False)
    assert 0 < sum(pieces) < most


def test_an_npz_file_that_lacks_an_array_or_is_none_is_named(tmp_path):
    path = tmp_path / "cifar10.npz"
    np.savez(path, train_images=np.zeros(1))
    with pytest.raises(DataError, match="lacks the array train_labels"):
        load("cifar10", tmp_path, official=False)
    npz(path, b"{}", version=b"\x03\x00")
    with pytest.raises(DataError, match="unknown version"):
        load("cifar10", tmp_path, official=False)
    for data in (b"", b"PK", io.BytesIO().getvalue() + b"no zip"):
        path.write_bytes(data)
        with pytest.raises(DataError, match=r"cifar10\.npz: is damaged"):
            load("cifar10", tmp_path, official=False)
