"""Figures have one style, told apart by any eye, in few bytes."""

import io
import itertools

import numpy as np
import pytest
from PIL import Image

from bfno.lab.runs.archive import LARGEST_PICTURE
from bfno.lab.views.figures.style import DARK_PALETTE, PALETTE, drawn, looks

# Machado, Oliveira and Fernandes (2009): what people without one kind of cone see, in linear light.
EYES = {
    "all cones": np.eye(3),
    "protanopia": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    "deuteranopia": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "tritanopia": [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
}


def _lab(colour: str, eye: str) -> np.ndarray:
    """Lightness and two opponent colours, in which distances are about those that are seen."""
    light = np.array([int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)])
    light = np.where(light <= 0.04045, light / 12.92, ((light + 0.055) / 1.055) ** 2.4)
    seen = np.clip(np.array(EYES[eye]) @ light, 0, 1)
    to_xyz = np.array(
        [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    )
    xyz = to_xyz @ seen / [0.9505, 1.0, 1.089]
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("palette", [PALETTE, DARK_PALETTE])
@pytest.mark.parametrize("eye", EYES)
def test_any_eye_tells_the_nine_colours_apart(palette, eye):
    assert len(palette) == 9
    seen = [_lab(colour, eye) for colour in palette]
    # 2.3 is a just noticeable difference of large areas; lines are thin.
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)) > 10


def test_forty_methods_look_different_and_only_ours_is_of_the_first_colour():
    methods = ["bfno-node", *(f"method-{number:02}" for number in range(39))]
    found = looks(methods)
    assert len({(look.colour, look.marker) for look in found.values()}) == 40
    # Between markers a line has colour and dashes alone.
    assert len({(look.colour, look.dashes) for look in list(found.values())[:30]}) == 30
    assert [name for name, look in found.items() if look.colour == PALETTE[0]] == ["bfno-node"]


def test_ablations_leave_the_first_looks_to_the_methods_that_figures_compare():
    methods = ["node", "bfno-node", "anode"]
    ablations = ["bfno-node-branches1", "fno-node", "afno-node (model.width=8)"]
    assert list(looks([*ablations, *methods]).items())[:3] == list(looks(methods).items())


def test_a_picture_of_noise_is_made_small_enough():
    noise = np.random.default_rng(0).random((1200, 1200, 3))

    def paint(figure):
        figure.set_size_inches(8, 8)
        figure.subplots().imshow(noise, interpolation="none")

    figure = drawn("noise", paint)
    assert figure.png is not None and 50_000 < len(figure.png) <= LARGEST_PICTURE
    assert Image.open(io.BytesIO(figure.png)).size[0] > 100
