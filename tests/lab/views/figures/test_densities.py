"""Pictures of densities, drawn from plain arrays."""

import io
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from PIL import Image

from bfno.lab.errors import ConfigError
from bfno.lab.views.figures.densities import (
    PlanePicture,
    check_picture,
    density_figure,
    image_columns,
    image_grid,
    write_picture,
)

SVG = "{http://www.w3.org/2000/svg}"


def _images(count: int, channels: int = 1, side: int = 8) -> np.ndarray:
    generator = np.random.default_rng(0)
    return generator.integers(0, 256, (count, channels, side, side), dtype=np.uint8)


def _picture(*, paths: bool = True) -> PlanePicture:
    generator = np.random.default_rng(0)
    points = generator.normal(size=(50, 2))
    axis = np.linspace(-3, 3, 20)
    density = np.exp(-(axis[:, None] ** 2) - axis**2)
    ways = np.stack([points, points / 2, points / 4])
    return PlanePicture((-3, 3, -3, 3), density, points, points, ways if paths else None)


def _pixels(png: bytes) -> np.ndarray:
    return np.array(Image.open(io.BytesIO(png)))


def _texts(svg: bytes) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def _taken_out(images: np.ndarray, columns: int | None, across: int) -> np.ndarray:
    """The images of a grid, `across` per row, found by where a grid of black ones is black."""
    canvas = _pixels(image_grid(images, columns))
    black = _pixels(image_grid(np.zeros_like(images), columns))
    ground = black.reshape(*black.shape[:2], -1)[..., 0] == 0
    starts = np.flatnonzero(np.diff(ground[0].astype(int), prepend=0) == 1)
    assert len(starts) == across
    side, factor = images.shape[-1], int(ground[0].sum()) // (across * images.shape[-1])
    span = np.arange(side) * factor + factor // 2
    places = [(starts[n // across], starts[n % across]) for n in range(len(images))]
    return np.stack([canvas[np.ix_(top + span, left + span)] for top, left in places])


@pytest.mark.parametrize(
    ("count", "columns", "expected"), [(64, None, 8), (10, 5, 5), (7, None, 3)]
)
def test_every_pixel_of_every_image_is_in_the_grid_unchanged(count, columns, expected):
    images = _images(count)
    assert np.array_equal(_taken_out(images, columns, expected), images[:, 0])
    assert 600 <= _pixels(image_grid(images, columns)).shape[1] <= 1000


def test_a_grid_of_colour_images_keeps_their_colours():
    images = _images(9, channels=3, side=32)
    assert np.array_equal(_taken_out(images, None, 3), images.transpose(0, 2, 3, 1))


def test_the_rest_of_the_last_row_is_white():
    canvas = _pixels(image_grid(np.zeros((3, 1, 8, 8), np.uint8)))
    half = canvas.shape[0] // 2
    assert (canvas[half + 20 :, half + 20 :] == 255).all()
    assert (canvas[: half - 20, : half - 20] == 0).all()


@pytest.mark.parametrize("side", [8, 28, 96])
def test_large_grids_of_any_images_stay_pictures(side):
    height, width = _pixels(image_grid(_images(256, side=side))).shape
    assert height == width and 600 <= width <= 1700


def test_one_image_is_a_grid():
    assert _pixels(image_grid(_images(1))).shape == (800, 800)


def test_more_images_than_fit_are_refused():
    with pytest.raises(ConfigError, match="ask for fewer"):
        image_grid(np.zeros((5000, 1, 2, 2), np.uint8))


def test_columns_are_named_and_show_exact_pixels():
    columns = {"real": _images(16), "ffjord-rnode": 255 - _images(16)}
    drawn = image_columns(columns, "svg")
    assert _texts(drawn) == ["real", "ffjord-rnode"]
    canvas = np.array(Image.open(io.BytesIO(image_columns(columns, "png"))).convert("L"))
    first = columns["real"][0, 0].repeat(13, 0).repeat(13, 1)  # 13: about 420 pixels for 4 images
    top, left = 48, 20  # below the name, inside the margin
    assert np.abs(canvas[top : top + 104, left : left + 104].astype(int) - first).max() <= 1


@pytest.mark.parametrize("name", ["<script>", "$x_$", "猫", "a" * 300, ']]>"--><b>'])
def test_any_name_of_a_run_is_drawn_as_it_is(name):
    shown = name if len(name) <= 24 else name[:23] + "…"
    assert shown in _texts(image_columns({name: _images(4)}, "svg"))


def test_points_have_a_panel_each_for_data_density_samples_and_paths():
    titles = {"data", "density", "samples", "paths from noise"}
    assert titles | {"noise", "sample"} <= set(_texts(density_figure(_picture(), "svg")))
    without = set(_texts(density_figure(_picture(paths=False), "svg")))
    assert titles - without == {"paths from noise"}


def test_the_density_is_the_right_way_up():
    """A mass in the upper left corner is drawn there: rows of the grid go up."""
    density = np.zeros((20, 20))
    density[15:, :5] = 1.0
    empty = np.empty((0, 2))
    drawn = density_figure(PlanePicture((-3, 3, -3, 3), density, empty, empty))
    canvas = _pixels(drawn)[..., :3].astype(int)
    # The bright end of the colour map is yellow, the dark one blue.
    rows, across = np.nonzero((canvas[..., 0] > 200) & (canvas[..., 2] < 120))
    blue_rows, blue_across = np.nonzero((canvas[..., 2] > 60) & (canvas[..., 0] < 20))
    assert rows.mean() < blue_rows.mean() and across.mean() < blue_across.mean()


def test_the_same_arrays_give_the_same_bytes():
    for kind in ("svg", "png"):
        assert density_figure(_picture(), kind) == density_figure(_picture(), kind)
        columns = {"real": _images(4)}
        assert image_columns(columns, kind) == image_columns(columns, kind)
    assert image_grid(_images(4)) == image_grid(_images(4))


def test_a_picture_that_is_there_is_kept_unless_forced(tmp_path):
    out = tmp_path / "out.png"
    out.write_text("mine")
    with pytest.raises(ConfigError, match="pass --force"):
        write_picture(b"new", out)
    assert out.read_text() == "mine"
    assert write_picture(b"new", out, force=True).read_bytes() == b"new"


def test_folders_on_the_way_are_made(tmp_path):
    assert write_picture(b"new", tmp_path / "a" / "b" / "out.png").read_bytes() == b"new"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("out.jpg", "end it in .png or .svg"),
        ("", "is a folder"),
        ("file/out.png", "is not a folder"),
        ("file/deeper/out.png", "is not a folder"),
    ],
)
def test_what_cannot_be_written_is_refused_before_the_work(tmp_path, name, message):
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(ConfigError, match=message):
        check_picture(tmp_path / name, force=True)
