"""Images without classes: any folder will do."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from bfno.lab.data import ImageSet, Split, divide, load_folder
from bfno.lab.errors import DataError


def _save(file: Path, level: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((4, 4), level, dtype=np.uint8)).save(file)


def _levels(split: Split) -> list[int]:
    return split.images[:, 0, 0, 0].tolist()


def test_images_at_any_depth_are_found_in_the_order_of_their_paths(tmp_path):
    for level, name in enumerate(["a.png", "b/c/d.png", "b/e.PNG", "z.png", ".hidden/f.png"]):
        _save(tmp_path / name, level)
    (tmp_path / "notes.txt").write_text("no image")
    found = load_folder(tmp_path, labelled=False, test_fraction=0.25)
    assert sorted(_levels(found.train) + _levels(found.test)) == [0, 1, 2, 3]
    assert _levels(found.train) == sorted(_levels(found.train)) and len(found.test) == 1
    assert found.classes == () and not found.train.labels.any()


def test_parts_for_training_and_testing_are_kept_apart(tmp_path):
    for level in range(3):
        _save(tmp_path / "train" / f"{level}.png", level)
    _save(tmp_path / "test" / "cats" / "3.png", 3)
    found = load_folder(tmp_path, labelled=False)
    assert (_levels(found.train), _levels(found.test)) == ([0, 1, 2], [3])


def test_unreadable_images_are_named_or_left_out(tmp_path):
    for level in range(3):
        _save(tmp_path / f"{level}.png", level)
    (tmp_path / "bad.png").write_text("no image")
    with pytest.raises(DataError, match=r"bad\.png"):
        load_folder(tmp_path, labelled=False)
    found = load_folder(tmp_path, labelled=False, corrupt="skip")
    assert found.skipped == ("bad.png",)
    assert sorted(_levels(found.train) + _levels(found.test)) == [0, 1, 2]


def test_images_of_one_class_are_divided_only_where_labels_do_not_matter():
    part = Split(torch.zeros(8, 1, 4, 4, dtype=torch.uint8), torch.zeros(8, dtype=torch.int64))
    images = ImageSet(part, part, ("only",))
    with pytest.raises(DataError, match="all 6 are of one class"):
        divide(images, validation=0.25)
    assert len(divide(images, validation=0.25, labelled=False).train) == 6
