import os

import numpy as np
import pytest
import torch

from bfno.lab.data import stored
from bfno.lab.data.images import Split, resized
from bfno.lab.data.stored import Rows, Shelf, StoredImages
from bfno.lab.errors import DataError

SHAPE = (2, 3, 4)
SIZE = 24


@pytest.fixture
def plain():
    return torch.arange(10 * SIZE, dtype=torch.uint8).view(10, *SHAPE)


@pytest.fixture
def images(plain, tmp_path, monkeypatch):
    """The same on disk and in memory, the last ones first; even small slices stay there."""
    monkeypatch.setattr(stored, "_SMALL", 0)
    content = plain.numpy().tobytes()
    file = tmp_path / "images"
    file.write_bytes(b"junk" + content[: 6 * SIZE])
    shelves = [Shelf(file), Shelf(content[6 * SIZE :])]
    start = np.array([4 + k * SIZE for k in range(6)] + [k * SIZE for k in range(4)])
    return StoredImages(Rows(shelves, np.array([0] * 6 + [1] * 4), start, SHAPE))


def test_they_look_like_a_tensor(images, plain):
    assert isinstance(images, torch.Tensor) and len(images) == 10
    assert images.shape == plain.shape and images.dtype == torch.uint8
    assert images[0].numel() == SIZE and "StoredImages((10, 2, 3, 4))" in repr(images)


@pytest.mark.parametrize("inference", [True, False])
def test_an_index_reads_those_images(images, plain, inference):
    with torch.inference_mode(inference):
        for which in (torch.tensor([7, 0, 7]), plain[:, 0, 0, 0] > 100, torch.tensor([-1])):
            found = images[which]
            assert type(found) is torch.Tensor and found.equal(plain[which])
        assert images[3].equal(plain[3]) and images[[1, 2]].equal(plain[[1, 2]])


@pytest.mark.parametrize("inference", [True, False])
def test_slices_and_parts_stay_where_they_are(images, plain, inference):
    with torch.inference_mode(inference):
        for which in (slice(2, 8), slice(None, -3), slice(0, 99), slice(1, 9, 2)):
            part = images[which]
            assert isinstance(part, StoredImages) and part[:][torch.arange(len(part))].equal(
                plain[which]
            )
        for part, same in zip(images.split(4), plain.split(4), strict=True):
            assert isinstance(part, StoredImages) and part.to("cpu", torch.float32).equal(
                same.float()
            )


def test_numbers_and_lists_read_no_other_images(images, plain, monkeypatch):
    read, whole = [], Rows.read
    monkeypatch.setattr(Rows, "read", lambda rows: read.append(len(rows)) or whole(rows))
    mask = [True] + [False] * 9
    one = (3, -1, np.int64(4), torch.tensor(5), torch.tensor(-2, dtype=torch.int32))
    for which in (*one, [1, 2], [-1], [], mask, np.array([7, 0]), np.array(mask)):
        found = images[which]
        assert type(found) is torch.Tensor and found.equal(plain[which])
    assert read == [1] * 5 + [2, 1, 0, 1, 2, 1]
    for which in (10, -11, [0, 10], torch.tensor(10)):
        with pytest.raises(IndexError):
            images[which]
    for which in (True, None, torch.tensor(True), torch.tensor([[0], [1]])):
        assert images[which].equal(plain[which])
    bytes_ = torch.tensor(mask, dtype=torch.uint8)  # a mask, for torch
    with pytest.warns(UserWarning, match="uint8"):
        assert images[bytes_].equal(plain[bytes_])


def test_everything_else_reads_them_all(images, plain):
    assert images.float().mean() == plain.float().mean()
    assert torch.cat([images, plain]).equal(torch.cat([plain, plain]))
    assert images[:, 0].equal(plain[:, 0]) and images.clone().equal(plain)
    assert (images.numpy() == plain.numpy()).all() and images.tolist() == plain.tolist()
    small = resized(Split(images, torch.arange(10)), 2)
    assert small.images.equal(resized(Split(plain, torch.arange(10)), 2).images)


def test_small_slices_are_read_at_once(images, plain, monkeypatch):
    monkeypatch.setattr(stored, "_SMALL", 3 * SIZE)
    assert type(images[:3]) is torch.Tensor and images[:3].equal(plain[:3])
    assert isinstance(images[:4], StoredImages)


def test_a_file_that_was_cut_off_is_an_error_and_not_the_end(images, tmp_path):
    os.truncate(tmp_path / "images", 40)
    with pytest.raises(DataError, match=r"images: cannot be read \(it was cut off\)"):
        images[torch.tensor([5])]
