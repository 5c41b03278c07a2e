import pytest
import torch

from bfno.lab.data import ImageSet, Split, divide, resized
from bfno.lab.errors import ConfigError, DataError


def numbered(count: int, classes: int = 2, side: int = 2) -> Split:
    """Images whose pixels tell their place in the file."""
    images = torch.arange(count, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, side, side)
    return Split(images.contiguous(), torch.arange(count) % classes)


def image_set(train: int = 100, test: int = 20) -> ImageSet:
    return ImageSet(numbered(train), numbered(test), ("even", "odd"))


def places(split: Split | None) -> list[int]:
    assert split is not None
    return split.images[:, 0, 0, 0].tolist()


def test_without_settings_everything_stays_as_it_is():
    images = image_set()
    splits = divide(images)
    assert splits.train is images.train and splits.validation is None
    assert places(splits.test) == list(range(20)) and splits.classes == ("even", "odd")


def test_validation_and_training_share_no_image_and_lose_none():
    splits = divide(image_set(), validation=0.25)
    assert len(places(splits.validation)) == 25
    assert sorted(places(splits.train) + places(splits.validation)) == list(range(100))


def test_labels_follow_their_images():
    splits = divide(image_set(), validation=0.3, train_limit=50)
    for part in (splits.train, splits.validation, splits.test):
        assert part is not None
        assert (part.images[:, 0, 0, 0].long() % 2 == part.labels).all()


def test_the_seed_decides_and_nothing_else():
    torch.manual_seed(1)
    first = places(divide(image_set(), validation=0.2, seed=7).validation)
    torch.manual_seed(2)
    assert places(divide(image_set(), validation=0.2, seed=7).validation) == first
    assert places(divide(image_set(), validation=0.2, seed=8).validation) != first


def test_a_limit_keeps_a_random_part_that_validation_is_taken_from():
    splits = divide(image_set(), validation=0.5, train_limit=10)
    kept = places(splits.train) + places(splits.validation)
    assert len(places(splits.validation)) == 5 and len(set(kept)) == 10
    assert set(kept) == set(places(divide(image_set(), train_limit=10).train)) != set(range(10))


def test_a_larger_limit_keeps_everything():
    splits = divide(image_set(), train_limit=1000, test_limit=1000)
    assert len(splits.train) == 100 and len(splits.test) == 20


def test_the_test_limit_takes_the_first_images():
    assert places(divide(image_set(), test_limit=3).test) == [0, 1, 2]


def test_a_coarser_grid_averages_blocks():
    image = torch.tensor([[0, 2, 100, 100], [4, 6, 100, 101], [9, 9, 7, 7], [9, 9, 7, 8]])
    split = Split(image.to(torch.uint8).view(1, 1, 4, 4), torch.tensor([0]))
    assert resized(split, 2).images.tolist() == [[[[3, 100], [9, 7]]]]


def test_sizes_that_do_not_divide_are_interpolated_as_pillow_does():
    image = pytest.importorskip("PIL.Image")
    pixels = (torch.rand(28, 28) * 255).to(torch.uint8)
    split = Split(pixels.view(1, 1, 28, 28), torch.tensor([0]))
    for size in (12, 40):
        pillow = image.fromarray(pixels.numpy()).resize((size, size), image.Resampling.BILINEAR)
        expected = torch.tensor(list(pillow.tobytes())).view(size, size)
        # Pillow rounds after each axis, so the last bit may differ.
        assert (resized(split, size).images[0, 0].int() - expected).abs().max() <= 1


def test_resizing_in_pieces_changes_nothing():
    images = (torch.rand(1100, 1, 6, 6) * 255).to(torch.uint8)
    whole = resized(Split(images, torch.zeros(1100)), 4).images
    for index in (0, 511, 512, 1099):
        one = Split(images[index : index + 1], torch.zeros(1))
        assert torch.equal(resized(one, 4).images[0], whole[index])


def test_an_image_of_one_colour_keeps_it_at_any_size():
    for level in (0, 1, 254, 255):
        split = Split(torch.full((1, 3, 9, 9), level, dtype=torch.uint8), torch.tensor([0]))
        for size in (1, 3, 5, 20):
            assert (resized(split, size).images == level).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"validation": 1.0}, "validation: 1.0 is not a share"),
        ({"validation": -0.1}, "validation: -0.1 is not a share"),
        ({"validation": float("nan")}, "validation: nan is not a share"),
        ({"train_limit": 0}, "train_limit: 0 is less than 1"),
        ({"test_limit": -1}, "test_limit: -1 is less than 1"),
        ({"size": 0}, "size: 0 is less than 1"),
        (
            {"validation": 0.001},
            "validation images: 0.001 of .* leaves no validation image. Fix: add",
        ),
        ({"validation": 0.9, "train_limit": 2}, "training images: none are left"),
    ],
)
def test_a_setting_out_of_range_is_named(settings, message):
    with pytest.raises(ConfigError, match=message):
        divide(image_set(), **settings)


def test_an_empty_test_part_is_refused():
    with pytest.raises(
        ConfigError, match=r"test images: none are left\. Fix: add images, .* folder test"
    ):
        divide(ImageSet(numbered(4), numbered(0), ("a", "b")))


def test_one_class_is_refused_by_name():
    one = ImageSet(numbered(10, classes=1), numbered(2), ("cat", "dog"))
    with pytest.raises(DataError, match="all 10 are of one class, 'cat'"):
        divide(one)
