"""Whole data sets on disk: found, checked and loaded."""

import gzip
import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from bfno.lab.data import DATA_SETS, ImageSet, check, data_folder, load, locate, read_image, store
from bfno.lab.errors import ConfigError, DataError
from tests.lab.data import official


def expected(count: int, shape: tuple[int, int, int], first: int = 0) -> torch.Tensor:
    channels, height, width = shape
    return torch.tensor(
        [
            [
                [[official.pixel(i, c, row, q) for q in range(width)] for row in range(height)]
                for c in range(channels)
            ]
            for i in range(first, first + count)
        ],
        dtype=torch.uint8,
    )


def write_set(name: str, folder: Path) -> Path:
    if name in official.FILES:
        return official.write_files(folder, official.FILES[name]())
    return official.write_mnist(folder)


def assert_official_pixels(name: str, images: ImageSet) -> None:
    shape = DATA_SETS[name].shape
    assert images.train.images.dtype == torch.uint8 and images.train.labels.dtype == torch.int64
    # The test batch of CIFAR-10 continues the numbering of the training batches.
    first = len(images.train) if name == "cifar10" else 0
    assert torch.equal(images.train.images, expected(len(images.train), shape))
    assert torch.equal(images.test.images, expected(len(images.test), shape, first))


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10", "cifar100", "stl10"])
def test_every_pixel_is_in_its_place(tmp_path, name):
    write_set(name, tmp_path / name)
    images = load(name, tmp_path, official=False)
    assert_official_pixels(name, images)
    assert images.classes == DATA_SETS[name].class_names


def test_labels_are_those_of_the_files(tmp_path):
    for name in ("mnist", "cifar10", "cifar100", "stl10"):
        write_set(name, tmp_path / name)
    found = {name: load(name, tmp_path, official=False) for name in os.listdir(tmp_path)}
    assert found["mnist"].train.labels.tolist() == [*range(10), 0, 1]
    assert found["cifar10"].train.labels.tolist() == list(range(10))
    assert found["cifar100"].train.labels.tolist() == [99, 98, 97, 96]
    assert found["stl10"].train.labels.tolist() == [0, 1, 2]
    assert found["cifar100"].test.labels.tolist() == [50, 51, 52]


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "stl10"])
def test_the_archive_alone_is_enough(tmp_path, name):
    archive = DATA_SETS[name].archive
    assert archive is not None
    (tmp_path / archive.name).write_bytes(official.official_archive(name))
    assert_official_pixels(name, load(name, tmp_path, official=False))
    assert [path.name for path in tmp_path.iterdir()] == [archive.name]


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
@pytest.mark.parametrize("channels_last", [True, False])
def test_an_npz_file_is_enough(tmp_path, name, channels_last):
    pixels = expected(4, (3, 32, 32)).numpy()
    pixels = pixels.transpose(0, 2, 3, 1) if channels_last else pixels
    labels = np.array([3, 1, 2, 0], dtype=">i2")
    np.savez_compressed(
        tmp_path / f"{name}.npz",
        train_images=np.asfortranarray(pixels),
        train_labels=labels,
        test_images=pixels[:2],
        test_labels=labels[:2].astype(np.uint64),
    )
    images = load(name, tmp_path, official=False)
    assert torch.equal(images.train.images, expected(4, (3, 32, 32)))
    assert images.train.labels.tolist() == [3, 1, 2, 0] and len(images.test) == 2
    assert [file.state for file in check(name, tmp_path)] == ["ok"]
    with pytest.raises(DataError, match="holds 4 and 2 images, not as many as CIFAR"):
        load(name, tmp_path, official=True)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("dotted", [True, False])
def test_idx_files_may_be_packed_or_spelled_with_a_dot(tmp_path, packed, dotted):
    official.write_mnist(tmp_path / "mnist", packed=packed)
    for path in (tmp_path / "mnist").iterdir() if dotted else ():
        path.rename(path.with_name(path.name.replace("-idx", ".idx")))
    assert_official_pixels("mnist", load("mnist", tmp_path, official=False))


@pytest.mark.parametrize(
    "place", [".", "cifar10", "cifar-10-batches-bin", "cifar10/cifar-10-batches-bin"]
)
def test_a_set_is_found_where_people_put_it(tmp_path, place):
    official.write_files(tmp_path / place, official.cifar10_files())
    assert locate("cifar10", tmp_path) == tmp_path / place


def test_the_folder_is_the_given_one_then_the_environment_then_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BFNO_DATA", "from-environment")
    assert data_folder(tmp_path) == tmp_path
    assert data_folder(None) == Path("from-environment")
    monkeypatch.setenv("BFNO_DATA", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for platform, home in [("linux", tmp_path), ("darwin", Path.home() / "Library" / "Caches")]:
        monkeypatch.setattr(sys, "platform", platform)
        assert data_folder(None) == home / "bfno"


def test_digits_need_no_files(tmp_path):
    images = load("digits", tmp_path)
    again = load("digits", tmp_path)
    assert check("digits", tmp_path) == [] and store.get("digits", tmp_path) == tmp_path
    assert (len(images.train), len(images.test)) == (1438, 359)
    assert images.train.images.max() == 255 and images.train.images.min() == 0
    assert torch.equal(images.test.images, again.test.images)
    # A fifth of each class, to within one image.
    share = images.test.labels.bincount() / (images.train.labels.bincount() / 4)
    assert (share - 1).abs().max() < 0.03


def test_digits_keep_scikit_learns_levels():
    from sklearn.datasets import load_digits

    levels = torch.from_numpy(load_digits(return_X_y=True)[0])
    images = load("digits")
    back = torch.cat([images.train.images, images.test.images]).double().mul(16 / 255).round()
    assert sorted(back.flatten(1).tolist()) == sorted(levels.tolist())


MISSING = {
    "sklearn.datasets": ("scikit-learn", lambda folder: load("digits")),
    "PIL": ("Pillow", lambda folder: read_image(folder / "image.png", (3, 4, 4))),
    "pooch": ("pooch", lambda folder: store.get("mnist", folder)),
}


@pytest.mark.parametrize("module", MISSING)
def test_a_missing_library_is_named_with_its_remedy(tmp_path, monkeypatch, module):
    library, use = MISSING[module]
    (tmp_path / "image.png").touch()
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=rf"{library}, which is missing.*'bfno\[train\]'"):
        use(tmp_path)


def test_a_set_that_is_not_there_says_what_to_put_where(tmp_path):
    with pytest.raises(DataError) as caught:
        load("mnist", tmp_path)
    text = str(caught.value)
    assert text.startswith(f"{tmp_path / 'mnist'}: MNIST is missing. Fix: `bfno data get mnist`")
    assert all(file.name in text for file in DATA_SETS["mnist"].files) and "\n" not in text


def test_an_incomplete_set_names_what_is_lacking(tmp_path):
    official.write_files(tmp_path, official.cifar10_files())
    (tmp_path / "data_batch_3.bin").unlink()
    (tmp_path / "test_batch.bin").unlink()
    with pytest.raises(DataError, match=r"lacks data_batch_3\.bin, test_batch\.bin of CIFAR-10"):
        load("cifar10", tmp_path)


@pytest.mark.parametrize(
    ("name", "pickled"),
    [
        ("cifar10", "cifar-10-batches-py"),
        ("cifar10", "data_batch_1"),
        ("cifar100", "cifar-100-python"),
    ],
)
def test_pickles_are_named_and_never_opened(tmp_path, name, pickled):
    (tmp_path / pickled).mkdir()
    with pytest.raises(DataError, match=r"in pickles, which are never opened.*binary\.tar\.gz"):
        load(name, tmp_path)


def test_only_official_files_pass_where_that_is_asked_for(tmp_path):
    official.write_mnist(tmp_path)
    with pytest.raises(DataError, match=r"is not the official file \(truncated\)"):
        load("mnist", tmp_path, official=True)
    assert len(load("mnist", tmp_path, official=False).train) == 12


@pytest.mark.parametrize("name", ["mnist", "cifar10", "cifar100", "stl10"])
def test_a_set_of_ones_own_in_the_official_layout_is_taken_with_a_note(tmp_path, caplog, name):
    if name == "mnist":
        official.write_mnist(tmp_path)
    else:
        official.write_files(tmp_path, official.FILES[name]())
    assert len(load(name, tmp_path).test) > 0
    assert "no official file" in caplog.text


def test_one_file_cut_off_among_official_ones_is_refused(tmp_path, monkeypatch):
    files = official.cifar10_files(each=4)
    data_set = DATA_SETS["cifar10"]
    contents = tuple(replace(f, size=len(files[f.name]), digest=None) for f in data_set.contents)
    sets = {**DATA_SETS, "cifar10": replace(data_set, contents=contents)}
    monkeypatch.setattr("bfno.lab.data.catalogue.DATA_SETS", sets)
    official.write_files(tmp_path, files)
    assert len(load("cifar10", tmp_path).test) == 4
    cut = files["data_batch_3.bin"][: 2 * 3073]  # exactly two of its four images
    official.write_files(tmp_path, {"data_batch_3.bin": cut})
    with pytest.raises(DataError, match=r"data_batch_3\.bin: is not the official file"):
        load("cifar10", tmp_path)


def test_check_tells_the_state_of_each_file(tmp_path):
    official.write_files(tmp_path, official.stl10_files())
    (tmp_path / "train_y.bin").write_bytes(bytes(5000))
    (tmp_path / "test_y.bin").write_bytes(bytes(8001))
    assert [file.state for file in check("stl10", tmp_path)] == [
        "truncated",
        "wrong checksum",
        "truncated",
        "too long",
    ]
    assert {file.state for file in check("mnist", tmp_path)} == {"missing"}


def test_check_calls_a_broken_file_unreadable(tmp_path):
    official.write_mnist(tmp_path)
    (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(b"\x1f\x8b broken")
    found = {file.path.name: file for file in check("mnist", tmp_path)}
    assert found["train-labels-idx1-ubyte.gz"].state == "unreadable"


def test_check_compares_an_archive(tmp_path):
    path = tmp_path / "cifar-10-binary.tar.gz"
    path.write_bytes(official.official_archive("cifar10"))
    assert [file.state for file in check("cifar10", tmp_path)] == ["truncated"]
    with pytest.raises(DataError, match="does not have the published checksum"):
        load("cifar10", tmp_path)


def test_class_names_come_from_the_file_beside_the_images(tmp_path):
    official.write_files(tmp_path, official.cifar10_files())
    (tmp_path / "batches.meta.txt").write_text("\n".join("abcdefghij") + "\n\n")
    assert load("cifar10", tmp_path, official=False).classes == tuple("abcdefghij")
    for wrong in (b"a\nb\n", b"a\n" * 10, b"\xff\xfe"):
        (tmp_path / "batches.meta.txt").write_bytes(wrong)
        with pytest.raises(DataError, match=r"batches\.meta\.txt"):
            load("cifar10", tmp_path, official=False)


@pytest.mark.parametrize("name", ["a\0b", "x" * 5000])
def test_a_folder_that_cannot_exist_is_not_there(name):
    with pytest.raises(DataError, match="MNIST is missing"):
        load("mnist", Path(name))
    with pytest.raises(DataError, match="cannot be written"):
        store.get("mnist", Path(name))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_says_so(tmp_path):
    official.write_mnist(tmp_path)
    (tmp_path / "train-labels-idx1-ubyte.gz").chmod(0)
    with pytest.raises(DataError, match="cannot be read: permission denied"):
        load("mnist", tmp_path)


def test_real_mnist_is_whole(shared_folder):
    images = load("mnist", shared_folder / "data")
    assert images.train.images.shape == (60_000, 1, 28, 28)
    assert images.train.labels[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    # Mean and deviation that everybody normalises MNIST with.
    pixels = images.train.images.double().div_(255)
    assert pixels.mean().item() == pytest.approx(0.1307, abs=5e-5)
    assert pixels.std().item() == pytest.approx(0.3081, abs=5e-5)


def test_a_flipped_bit_in_the_real_files_is_noticed(shared_folder, tmp_path):
    for path in (shared_folder / "data" / "mnist").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    packed = tmp_path / "t10k-images-idx3-ubyte.gz"
    data = bytearray(gzip.decompress(packed.read_bytes()))
    data[123_456] ^= 1
    packed.with_suffix("").write_bytes(data)
    packed.unlink()
    with pytest.raises(DataError, match=r"t10k-images-idx3-ubyte: .*\(wrong checksum\)"):
        load("mnist", tmp_path)


def test_real_cifar10_is_whole():
    try:
        locate("cifar10")
    except DataError:
        pytest.skip("needs CIFAR-10 in the folder that BFNO_DATA names, which is not there")
    images = load("cifar10")
    assert images.train.labels.bincount().tolist() == [5000] * 10
    # Means of red, green and blue that everybody normalises CIFAR-10 with.
    means = images.train.images.double().mean((0, 2, 3)).div(255)
    assert means.tolist() == pytest.approx([0.4914, 0.4822, 0.4465], abs=5e-5)


def test_a_data_set_without_files_is_not_taken_for_the_digits(monkeypatch):
    digits = DATA_SETS["digits"]
    monkeypatch.setitem(DATA_SETS, "letters", replace(digits, name="letters"))
    with pytest.raises(ConfigError, match="letters: has neither files"):
        load("letters")
