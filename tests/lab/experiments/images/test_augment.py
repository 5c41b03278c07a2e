"""Changes of training images: which pixels they show, and that they can be repeated."""

import pytest
import torch

from bfno.lab.experiments.images.augment import AugmentSettings, augmented, mixing
from bfno.lab.runs.session import resume, start
from bfno.lab.runs.signals import Stopped
from tests.lab.runs.runs import StopAfter, metrics, tiny, weights


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def _numbered(count: int = 64, side: int = 8) -> torch.Tensor:
    """Images of which each pixel tells its row in one channel and its column in another."""
    places = torch.arange(side, dtype=torch.uint8)
    rows, columns = places[:, None].expand(side, side), places.expand(side, side)
    return torch.stack((rows, columns)).repeat(count, 1, 1, 1)


def test_nothing_is_changed_by_default():
    images = _numbered()
    assert augmented(images, AugmentSettings()) is images
    assert mixing(5, AugmentSettings())[0] == 1


def test_a_flip_mirrors_about_half_of_the_images_left_to_right():
    images = _numbered()
    found = augmented(images, AugmentSettings(flip=True))
    is_mirrored = (found == images.flip(-1)).all(dim=(1, 2, 3))
    assert ((found == images).all(dim=(1, 2, 3)) | is_mirrored).all()
    assert 16 < is_mirrored.sum() < 48


def test_a_shift_moves_the_image_and_mirrors_the_margin():
    found = augmented(_numbered(), AugmentSettings(shift=0.25))
    offsets = set()
    for image in found.int():
        row = image[0, :, 0]
        moved = [r for r in range(-2, 3) if torch.equal(row, _mirrored(torch.arange(8) + r))]
        assert len(moved) == 1
        offsets.add(moved[0])
    assert offsets == {-2, -1, 0, 1, 2}


def _mirrored(places: torch.Tensor) -> torch.Tensor:
    return torch.where(places < 0, -1 - places, torch.where(places > 7, 15 - places, places)).int()


def test_a_zoom_shows_a_part_of_the_image_in_order():
    found = augmented(_numbered(), AugmentSettings(zoom=0.5)).int()
    spans = found[:, 0, -1, 0] - found[:, 0, 0, 0]
    assert (found[:, 0].diff(dim=1) >= 0).all() and (found[:, 1].diff(dim=2) >= 0).all()
    assert spans.min() <= 4 and spans.max() == 7


def test_a_blend_leaves_each_image_its_own_label():
    shares = [mixing(8, AugmentSettings(mix=0.4))[0] for _ in range(200)]
    assert min(shares) >= 0.5 and max(shares) < 1
    assert sorted(mixing(8, AugmentSettings(mix=0.4))[1].tolist()) == list(range(8))


def test_a_resumed_run_sees_the_same_changed_images(tmp_path):
    changes = {
        "augment": {"flip": True, "shift": 0.25, "zoom": 0.3, "mix": 0.4},
        "train": {"label_smoothing": 0.1, "class_weights": "balanced", "schedule": "cosine"},
    }
    config = tiny(changes)
    start(config, tmp_path / "whole")
    with pytest.raises(Stopped):
        start(config, tmp_path / "stopped", [StopAfter(9)])
    resume(tmp_path / "stopped")
    assert weights(tmp_path / "whole") == weights(tmp_path / "stopped")
    assert metrics(tmp_path / "whole") == metrics(tmp_path / "stopped")
