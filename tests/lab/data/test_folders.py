import logging
import os
import shutil
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bfno.lab.data import (
    FolderSource,
    folders,
    images_below,
    load_folder,
    load_folder_splits,
    load_folder_test,
    read_image,
)
from bfno.lab.errors import ConfigError, DataError

Image = pytest.importorskip("PIL.Image")


def save(path: Path, value: Any = 0, size=(6, 4), mode="RGB", **options) -> Path:
    """An image of one colour; `size` is width and height."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value).save(path, **options)
    return path


def pets(folder: Path, each: int = 5, parts=("",)) -> Path:
    for part in parts:
        for label, name in enumerate(["cat", "dog"]):
            for k in range(each):
                save(folder / part / name / f"{k}.png", (100 * label + k, 0, 0))
    return folder


def reds(split) -> list[int]:
    return sorted(split.images[:, 0, 0, 0].tolist())


def test_two_parts_are_taken_as_they_are(tmp_path):
    images = load_folder(pets(tmp_path, parts=("train", "test")))
    assert images.classes == ("cat", "dog") and len(images.train) == len(images.test) == 10
    assert images.train.images.shape == (10, 3, 4, 6) and images.train.images.dtype == torch.uint8
    assert (images.train.images[:, 0, 0, 0].long() // 100 == images.train.labels).all()


@pytest.mark.parametrize("parts", [("",), ("train",)])
def test_one_part_is_divided_class_by_class(tmp_path, parts):
    images = load_folder(pets(tmp_path, each=10, parts=parts), test_fraction=0.3)
    assert images.test.labels.tolist() == [0] * 3 + [1] * 3
    assert reds(images.train) + reds(images.test) != reds(images.test) + reds(images.train)
    assert sorted(reds(images.train) + reds(images.test)) == [*range(10), *range(100, 110)]


def test_the_division_depends_on_the_seed_and_not_on_the_file_system(tmp_path, monkeypatch):
    pets(tmp_path, each=10)
    first = reds(load_folder(tmp_path, seed=3).test)
    listed = Path.iterdir
    monkeypatch.setattr(Path, "iterdir", lambda path: sorted(listed(path), reverse=True))
    assert reds(load_folder(tmp_path, seed=3).test) == first
    assert reds(load_folder(tmp_path, seed=4).test) != first


def test_the_default_size_is_the_common_one_or_32(tmp_path):
    pets(tmp_path)
    assert load_folder(tmp_path).train.images.shape[2:] == (4, 6)
    save(tmp_path / "dog" / "other.png", size=(7, 7))
    assert load_folder(tmp_path).train.images.shape[2:] == (32, 32)
    assert load_folder(tmp_path, size=5).train.images.shape[2:] == (5, 5)
    assert load_folder(tmp_path, size=(5, 9)).train.images.shape[2:] == (5, 9)
    for name in ("a", "b"):
        save(tmp_path / "large" / name / "1.png", size=(97, 97))
        save(tmp_path / "large" / name / "2.png", size=(97, 97))
    assert load_folder(tmp_path / "large").train.images.shape[2:] == (32, 32)


def test_images_are_grey_if_all_are_stored_so(tmp_path):
    for name in ("a", "b"):
        save(tmp_path / name / "1.png", 7, mode="L")
        save(tmp_path / name / "2.png", 1, mode="1")
    assert load_folder(tmp_path).train.images.shape[1] == 1
    assert load_folder(tmp_path, colour=True).train.images.shape[1] == 3
    save(tmp_path / "a" / "3.png", (1, 2, 3))
    assert load_folder(tmp_path).train.images.shape[1] == 3
    assert load_folder(tmp_path, colour=False).train.images.shape[1] == 1


def test_hidden_files_and_other_files_are_left_out_in_one_line(tmp_path, caplog):
    pets(tmp_path)
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "readme.txt").write_text("no image")
    for name in (".a.png", "notes.txt", "model.pkl"):
        (tmp_path / "cat" / name).write_bytes(b"no image")
    (tmp_path / "cat" / "folder.png").mkdir()
    os.mkfifo(tmp_path / "cat" / "fifo.png")
    (tmp_path / "emu").mkdir()
    save(tmp_path / "stray.png")
    images = load_folder(tmp_path)
    assert images.classes == ("cat", "dog") and len(images.train) + len(images.test) == 10
    assert caplog.messages == [
        f"{tmp_path}: left out 2 hidden files or folders (.hidden, cat/.a.png), "
        "4 files of other kinds (cat/fifo.png, cat/model.pkl, cat/notes.txt, …), "
        "1 image outside of the class folders (stray.png), 1 class folder without images (emu)"
    ]


@pytest.mark.parametrize("labelled", [True, False])
def test_images_in_nested_folders_count_with_and_without_classes(tmp_path, labelled, caplog):
    pets(tmp_path)
    save(tmp_path / "cat" / "2023" / "may" / "x.png", (9, 0, 0))
    save(tmp_path / "dog" / "y" / "x.png", (109, 0, 0))
    images = load_folder(tmp_path, labelled=labelled)
    assert sorted(reds(images.train) + reds(images.test)) == [*range(5), 9, *range(100, 105), 109]
    assert caplog.messages == []
    if labelled:
        for split in (images.train, images.test):
            assert (split.images[:, 0, 0, 0].long() // 100 == split.labels).all()


def test_what_is_beside_train_and_test_is_said(tmp_path, caplog):
    pets(tmp_path, parts=("train", "test"))
    save(tmp_path / "extra" / "more" / "1.png")
    save(tmp_path / "1.png")
    (tmp_path / "train" / "elsewhere").symlink_to(tmp_path / "extra")
    (tmp_path / "train" / "cat" / "linked").symlink_to(tmp_path / "extra")
    (tmp_path / "test" / "elsewhere").symlink_to(tmp_path / "extra")
    images = load_folder(tmp_path)
    assert images.classes == ("cat", "dog", "elsewhere")  # the folder of a class may be a link
    assert caplog.messages == [
        f"{tmp_path}: left out 2 images outside of the folders train and test "
        "(1.png, extra/more/1.png), 1 linked folder (train/cat/linked)"
    ]


def test_names_in_any_script_and_links_in_a_circle_do_no_harm(tmp_path):
    save(tmp_path / "кошка" / "ä ö.png")
    save(tmp_path / "犬🐶" / "1.JPEG")
    (tmp_path / "犬🐶" / "again.png").symlink_to("again.png")
    (tmp_path / "loop").symlink_to("loop")
    assert load_folder(tmp_path).classes == ("кошка", "犬🐶")
    (tmp_path / "up").symlink_to(tmp_path)
    assert load_folder(tmp_path).classes == ("кошка", "犬🐶")


PNG = b"\x89PNG\r\n\x1a\n"


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def huge_png(path: Path, width: int, height: int) -> Path:
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    data = zlib.compress(bytes(1_000_000), 9)
    path.write_bytes(PNG + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b""))
    return path


@pytest.mark.parametrize("side", [7_072, 10_000, 60_000])
def test_more_than_fifty_megapixels_are_refused_before_decoding(tmp_path, side):
    path = huge_png(tmp_path / "huge.png", side, side)
    with pytest.raises(DataError, match=r"huge\.png: has more than 50 megapixels"):
        read_image(path, (3, 8, 8))


def test_a_bad_image_is_named_with_the_number_of_others(tmp_path):
    pets(tmp_path)
    for name in ("8.png", "9.png"):
        (tmp_path / "dog" / name).write_bytes(b"no image at all")
    whole = (tmp_path / "cat" / "3.png").read_bytes()
    (tmp_path / "cat" / "3.png").write_bytes(whole[:-30])
    with pytest.raises(DataError) as caught:
        load_folder(tmp_path)
    text = str(caught.value)
    assert text.startswith(
        f"{tmp_path / 'cat' / '3.png'}: cannot be read as an image (image file is"
    )
    assert ", and 2 more cannot be read." in text and "data.corrupt=skip" in text
    assert "\n" not in text


def test_a_test_part_that_comes_or_goes_changes_the_division(tmp_path):
    pets(tmp_path, parts=("train",))
    drawn = load_folder_splits(FolderSource(tmp_path, (3, 6, 4))).division
    pets(tmp_path, parts=("test",))
    own = load_folder_splits(FolderSource(tmp_path, (3, 6, 4))).division
    assert len({drawn, own, ""}) == 3
    assert folders.drawn_division(FolderSource(tmp_path, (3, 6, 4))) is None
    shutil.rmtree(tmp_path / "test")
    assert folders.drawn_division(FolderSource(tmp_path, (3, 6, 4))) == drawn


def test_bad_images_are_left_out_if_asked(tmp_path, caplog):
    pets(tmp_path)
    (tmp_path / "dog" / "9.png").write_bytes(b"no image at all")
    whole = (tmp_path / "cat" / "3.png").read_bytes()
    (tmp_path / "cat" / "3.png").write_bytes(whole[:-30])
    with caplog.at_level(logging.WARNING):
        images = load_folder(tmp_path, corrupt="skip")
    assert images.skipped == ("cat/3.png", "dog/9.png")
    assert len(images.train) + len(images.test) == 9
    named = "2 unreadable images (cat/3.png, dog/9.png)"
    assert caplog.messages == [f"{tmp_path}: left out {named}"]


@pytest.mark.parametrize("parts", [("",), ("train/", "test/")])
def test_copies_of_training_images_among_the_test_images_are_told(tmp_path, parts, caplog):
    noise = np.random.RandomState(0).randint(0, 256, (2, 8, 6, 4, 3), np.uint8)
    for name, images in zip(("cat", "dog"), noise, strict=True):
        for number, image in enumerate(images):
            for copy in range(2):
                place = tmp_path / parts[copy % len(parts)] / name / f"{number}-{copy}.png"
                place.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(image).save(place)
        save(tmp_path / parts[0] / name / "blank.png")
        save(tmp_path / parts[-1] / name / "blank-too.png")
    splits = load_folder_splits(FolderSource(tmp_path, (3, 6, 4)))
    learned = {image.numpy().tobytes() for image in splits.train.images}
    tested = [image.numpy().tobytes() for image in splits.test.images if image.any()]
    copies = sum(image in learned for image in tested)
    assert copies > 0
    assert caplog.messages == [
        f"{tmp_path}: {copies} of {len(splits.test)} test images have the same pixels as a "
        "training image; remove copies, or the scores are too good"
    ]


def test_a_class_of_bad_images_only_is_refused(tmp_path):
    pets(tmp_path)
    (tmp_path / "emu").mkdir()
    (tmp_path / "emu" / "1.png").write_bytes(b"")
    with pytest.raises(DataError, match="no image of class 'emu' can be read"):
        load_folder(tmp_path, corrupt="skip")


def test_a_class_that_loses_its_only_image_of_a_part_is_reported_but_no_error(tmp_path, caplog):
    pets(tmp_path)
    source = FolderSource(tmp_path, SHAPE, corrupt="skip", test_fraction=0.1)
    _, test = folders._Folder(source).parts()
    (bad,) = [file.name for file in test if file.label == 0]
    (tmp_path / bad).write_bytes(b"")
    splits = load_folder_splits(source)
    assert 0 in splits.train.labels and 0 not in splits.test.labels
    assert len(splits.train) + len(splits.test) == 9
    note = f"{tmp_path}: no test image of class 'cat' can be read (of 1)"
    assert note in caplog.messages
    caplog.clear()
    assert 0 not in load_folder_test(source)[0].labels and note in caplog.messages


def test_a_part_of_bad_images_only_is_refused(tmp_path):
    for part in ("train", "test"):
        pets(tmp_path / part)
    for file in (tmp_path / "test").rglob("*.png"):
        file.write_bytes(b"")
    source = FolderSource(tmp_path, SHAPE, corrupt="skip")
    for load in (load_folder_splits, load_folder_test):
        with pytest.raises(DataError, match="no test image can be read"):
            load(source)


def test_a_kind_of_tif_that_pillow_complains_about_is_refused_in_silence(tmp_path, caplog):
    data = bytearray(save(tmp_path / "image.tif", (1, 2, 3)).read_bytes())
    entry = data.index(struct.pack("<HHIH", 277, 3, 1, 3))  # samples a pixel
    data[entry + 8 : entry + 10] = struct.pack("<H", 2048)
    (tmp_path / "image.tif").write_bytes(data)
    with pytest.raises(DataError, match="is damaged, or not a PNG"):
        read_image(tmp_path / "image.tif", (3, 4, 4))
    assert caplog.messages == []


def test_a_folder_of_another_form_is_refused(tmp_path):
    with pytest.raises(DataError, match="nowhere: is not a folder"):
        load_folder(tmp_path / "nowhere")
    with pytest.raises(DataError, match="has no class folders"):
        load_folder(tmp_path)
    save(tmp_path / "cat" / "1.png")
    with pytest.raises(DataError, match=r"has 1 class folder\."):
        load_folder(tmp_path)
    (tmp_path / "dog").mkdir()
    with pytest.raises(DataError, match=r"has 2 class folders, 1 without images \(dog\)\."):
        load_folder(tmp_path)


@pytest.mark.parametrize("labelled", [True, False])
def test_a_refusal_for_want_of_images_says_what_is_there_instead(tmp_path, labelled, caplog):
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.heic").write_bytes(b"of a telephone")
    with pytest.raises(DataError, match=r"images"):
        load_folder(tmp_path, labelled=labelled)
    assert "2 files of other kinds (cat/1.heic, dog/1.heic)" in caplog.text
    with pytest.raises(DataError, match=r"holds no images\. Fix: .* in it \(\.bmp, .*, \.webp\)"):
        images_below(tmp_path)


def test_parts_must_have_the_same_classes(tmp_path):
    pets(tmp_path, parts=("train", "test"))
    save(tmp_path / "test" / "emu" / "1.png")
    with pytest.raises(DataError, match="train and test differ in the classes emu"):
        load_folder(tmp_path)


def test_a_validation_folder_is_not_silently_ignored(tmp_path):
    pets(tmp_path, parts=("train", "val"))
    with pytest.raises(DataError, match=r"has train and val, but no test\. Fix: rename val"):
        load_folder(tmp_path)


@pytest.mark.parametrize(
    "settings", [{"size": 0}, {"size": (3, 0)}, {"test_fraction": 1.0}, {"corrupt": "ignore"}]
)
def test_a_setting_out_of_range_is_named(tmp_path, settings):
    with pytest.raises(ConfigError, match=next(iter(settings))):
        load_folder(pets(tmp_path), **settings)


KINDS = [
    ("L", 200, "png", (200, 200, 200)),
    ("RGB", (10, 20, 30), "png", (10, 20, 30)),
    ("RGB", (10, 20, 30), "bmp", (10, 20, 30)),
    ("RGB", (10, 20, 30), "tif", (10, 20, 30)),
    ("RGBA", (10, 20, 30, 0), "png", (255, 255, 255)),
    ("RGBA", (0, 0, 0, 51), "png", (204, 204, 204)),
    ("RGBA", (10, 20, 30, 255), "webp", (10, 20, 30)),
    ("LA", (0, 51), "png", (204, 204, 204)),
    ("P", 0, "gif", (0, 0, 0)),
    ("1", 1, "png", (255, 255, 255)),
    ("I;16", 257 * 90, "png", (90, 90, 90)),
    ("I;16", 65535, "tif", (255, 255, 255)),
    ("CMYK", (0, 255, 255, 0), "tif", (255, 0, 0)),
]


@pytest.mark.parametrize(("mode", "value", "suffix", "expected"), KINDS)
def test_every_kind_of_image_is_converted(tmp_path, mode, value, suffix, expected):
    options = {"lossless": True} if suffix == "webp" else {}
    path = save(tmp_path / f"image.{suffix}", value, mode=mode, **options)
    image = read_image(path, (3, 4, 6))
    assert tuple(image[:, 1, 2].tolist()) == expected and image.shape == (3, 4, 6)


def test_floating_point_images_are_refused_by_kind(tmp_path):
    path = save(tmp_path / "image.tif", 0.5, mode="F")
    with pytest.raises(DataError, match=r"image\.tif: its pixels are floating-point numbers\. Fix"):
        read_image(path, (1, 4, 6))


def test_an_empty_file_and_one_of_another_format_are_told_apart(tmp_path):
    path = tmp_path / "image.png"
    path.write_bytes(b"")
    with pytest.raises(DataError, match=r"image\.png: is empty\. Fix"):
        read_image(path, (1, 4, 6))
    path.write_bytes(b"no image at all")
    with pytest.raises(
        DataError, match=r"image\.png: is damaged, or not a PNG, .* or TIFF image\. Fix"
    ):
        read_image(path, (1, 4, 6))


def test_more_than_sixteen_bits_are_refused(tmp_path):
    path = save(tmp_path / "image.tif", 70_000, mode="I")
    with pytest.raises(DataError, match="its grey levels have more than 16 bits"):
        read_image(path, (1, 4, 6))


def test_pixels_stay_in_their_places(tmp_path):
    pixels = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
    Image.fromarray(pixels).save(tmp_path / "image.png")
    image = read_image(tmp_path / "image.png", (3, 4, 6))
    assert torch.equal(image, torch.from_numpy(pixels).permute(2, 0, 1))


@pytest.mark.parametrize("mode", ["L", "I;16"])
def test_images_are_turned_as_their_camera_was(tmp_path, mode):
    scale = 257 if mode == "I;16" else 1
    pixels = (np.arange(24).reshape(4, 6) * scale).astype(np.uint16 if scale > 1 else np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter, clockwise
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for k in (1, 2):
            Image.fromarray(pixels).save(tmp_path / name / f"{k}.png", exif=exif)
    images = load_folder(tmp_path)
    expected = np.rot90(pixels // scale, -1)
    assert images.train.images[0, 0].tolist() == expected.tolist()


def test_shrinking_averages_blocks(tmp_path):
    Image.fromarray(np.array([[0, 2], [4, 6]], np.uint8)).save(tmp_path / "image.png")
    assert read_image(tmp_path / "image.png", (1, 1, 1)).item() == 3


def test_one_pixel_and_one_line_are_images_too(tmp_path):
    for size in ((1, 1), (1, 300), (300, 1)):
        path = save(tmp_path / "image.png", (9, 8, 7), size=size)
        assert (read_image(path, (3, 8, 8)).amax((1, 2)) == torch.tensor([9, 8, 7])).all()


@pytest.mark.parametrize("suffix", [".jfif", ".JPE", ".tiff"])
def test_every_usual_ending_of_a_format_is_an_image(tmp_path, suffix):
    for name in ("cat", "dog"):
        path = save(tmp_path / name / "1.tif" if suffix == ".tiff" else tmp_path / name / "1.jpg")
        path.rename(path.with_suffix(suffix))
    assert len(images_below(tmp_path)) == 2


def test_a_wrong_suffix_does_not_matter_but_other_formats_do(tmp_path):
    save(tmp_path / "image.png", (1, 2, 3)).rename(tmp_path / "image.jpg")
    assert read_image(tmp_path / "image.jpg", (3, 4, 6))[:, 0, 0].tolist() == [1, 2, 3]
    save(tmp_path / "image.ppm", (1, 2, 3)).rename(tmp_path / "image.png")
    with pytest.raises(DataError, match="is damaged, or not a PNG, JPEG"):
        read_image(tmp_path / "image.png", (3, 4, 6))


def test_a_file_for_prediction_must_be_there_and_fit(tmp_path):
    with pytest.raises(DataError, match="is missing or not a file"):
        read_image(tmp_path / "missing.png", (3, 4, 4))
    with pytest.raises(DataError, match="is missing or not a file"):
        read_image(tmp_path, (3, 4, 4))
    with pytest.raises(ConfigError, match="no image has"):
        read_image(save(tmp_path / "image.png"), (2, 4, 4))


SHAPE = (3, 4, 6)


def zoo(folder: Path, counts: tuple[int, ...] = (40, 40, 40, 40)) -> Path:
    """Classes a, b, c, ... of which each image tells its class in red and its number in green."""
    for label, count in enumerate(counts):
        for k in range(count):
            save(folder / "abcdefgh"[label] / f"{k:03}.png", (label, k, 0))
    return folder


def tally(split) -> list[int]:
    assert split.labels.equal(split.images[:, 0, 0, 0].long())
    return split.labels.bincount(minlength=4).tolist()


def test_every_limit_is_a_draw_with_the_classes_in_proportion(tmp_path):
    source = FolderSource(zoo(tmp_path), SHAPE, seed=5)
    splits = load_folder_splits(source, validation=0.25, train_limit=48, test_limit=8)
    assert tally(splits.train) == [9, 9, 9, 9] and tally(splits.validation) == [3, 3, 3, 3]
    assert tally(splits.test) == [2, 2, 2, 2]
    assert tally(load_folder_test(source, 20)[0]) == [5, 5, 5, 5]
    other = load_folder_splits(FolderSource(tmp_path, SHAPE, seed=6), train_limit=48)
    assert {*map(tuple, other.train.images[:, :2, 0, 0].tolist())} != {
        *map(tuple, splits.train.images[:, :2, 0, 0].tolist())
    }


def test_any_beginning_of_a_part_is_a_draw_too(tmp_path):
    splits = load_folder_splits(FolderSource(zoo(tmp_path), SHAPE), validation=0.2)
    for part in (splits.train, splits.validation, splits.test):
        assert part is not None
        counts = part.labels[:8].bincount(minlength=4).tolist()
        assert min(counts) >= 1 and max(counts) <= 3


def test_training_and_testing_again_see_the_same_images_in_the_same_order(tmp_path):
    source = FolderSource(zoo(tmp_path), SHAPE, seed=3)
    for limit in (None, 9):
        splits = load_folder_splits(source, test_limit=limit)
        assert load_folder_test(source, limit)[0].images.equal(splits.test.images)


def test_unlabelled_images_are_drawn_from_the_whole_folder(tmp_path):
    zoo(tmp_path)
    splits = load_folder_splits(FolderSource(tmp_path, SHAPE, labelled=False), train_limit=40)
    assert len(set(splits.train.images[:, 0, 0, 0].tolist())) == 4
    assert not splits.train.labels.any()


def test_a_limit_reads_no_other_image(tmp_path, monkeypatch):
    zoo(tmp_path)
    read = []
    decode = folders.decode_images.__globals__["decode"]
    monkeypatch.setitem(
        folders.decode_images.__globals__, "decode", lambda *given: read.append(1) or decode(*given)
    )
    load_folder_splits(FolderSource(tmp_path, SHAPE), train_limit=10, test_limit=6)
    assert len(read) == 16


def test_runs_of_earlier_releases_keep_their_rules(tmp_path, caplog):
    zoo(tmp_path)
    save(tmp_path / "a" / "nested" / "000.png", (0, 99, 0))
    (tmp_path / "b" / "bad.png").write_bytes(b"")
    old = FolderSource(tmp_path, SHAPE, rules=1, corrupt="skip")
    splits = load_folder_splits(old, train_limit=60, test_limit=10)
    assert splits.test.labels.tolist() == [0] * 8 + [1] * 2  # the first ones, sorted by class
    assert splits.train.labels.tolist() == sorted(splits.train.labels.tolist())
    assert load_folder_test(old, 10)[0].images.equal(splits.test.images)
    assert tally(load_folder_test(old, 12, drawn=True)[0]) == [3, 3, 3, 3]
    told = "left out 1 image in a nested folder (a/nested/000.png), 1 unreadable image (b/bad.png)"
    assert {message.partition(": ")[2] for message in caplog.messages} == {told}


def test_unreadable_images_do_not_change_the_division_of_the_others(tmp_path):
    zoo(tmp_path)
    source = FolderSource(tmp_path, SHAPE, corrupt="skip")
    before = load_folder_splits(source).test.images
    (tmp_path / "a" / "000.png").write_bytes(b"")
    (tmp_path / "c" / "007.png").write_bytes(b"")
    after = {*map(tuple, load_folder_splits(source).test.images[:, :2, 0, 0].tolist())}
    assert after <= {*map(tuple, before[:, :2, 0, 0].tolist())} and len(after) >= len(before) - 2
