"""Image classification: the sizes of every model, as data.

Every cell of the paper's first table and of its ablations is here with the count the paper prints,
and the same methods for two more data sets.
This module imports no torch, so that a program can list the presets at once.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bfno.lab.errors import ConfigError

__all__ = [
    "IMAGE_DATA",
    "IMAGE_PRESETS",
    "PAPER_DATA",
    "ImageData",
    "ImageModel",
    "ImagePreset",
    "find_image_preset",
]


@dataclass(frozen=True)
class ImageData:
    """What a model has to know of a data set.

    Attributes:
        shape: Channels, height and width of an image.
        classes: Number of classes.
    """

    shape: tuple[int, int, int]
    classes: int


@dataclass(frozen=True)
class ImageModel:
    """The parts of a classifier and their sizes; any dynamics goes with any field.

    Attributes:
        dynamics: Name of the dynamics, see `bfno.lab.experiments.presets.build.DYNAMICS`.
        field: Name of the field: conv, bfno, fno or afno.
        channels: Channels of the state's position.
        width: Channels inside the field.
        depth: Number of operator layers; a convolutional field has no choice of it.
        field_options: Further arguments of the operator layers.
        dynamics_options: Further arguments of the dynamics.
        idle_scalars: Scalars that a published count includes although nothing uses them.
    """

    dynamics: str
    field: str
    channels: int
    width: int
    depth: int = 3
    field_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    dynamics_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    idle_scalars: int = 0


@dataclass(frozen=True)
class ImagePreset:
    """One model for one data set.

    Attributes:
        data: Name of the data set.
        method: Name of the method.
        model: The model's parts and sizes.
        parameters: Size of the model by `count_parameters`.
        published: Size that the paper prints, if it does.
    """

    data: str
    method: str
    model: ImageModel
    parameters: int
    published: int | None = None


IMAGE_DATA: Mapping[str, ImageData] = {
    "mnist": ImageData((1, 28, 28), 10),
    "cifar10": ImageData((3, 32, 32), 10),
    "cifar100": ImageData((3, 32, 32), 100),
    "stl10": ImageData((3, 96, 96), 10),
    "fashion-mnist": ImageData((1, 28, 28), 10),
    "digits": ImageData((1, 8, 8), 10),
}
PAPER_DATA = ("mnist", "cifar10", "cifar100", "stl10")

# Method: dynamics, then state channels, width and published size for each data set in the order
# above. All of these sizes are matched exactly.
_Cell = tuple[int, int, int]
_BASELINES: dict[str, tuple[str, tuple[_Cell, _Cell, _Cell, _Cell]]] = {
    "node": (
        "first_order",
        ((1, 92, 85_316), (3, 125, 173_611), (3, 193, 646_021), (3, 164, 521_512)),
    ),
    "anode": (
        "first_order",
        ((6, 64, 85_462), (13, 64, 172_452), (6, 57, 645_121), (5, 80, 520_180)),
    ),
    "sonode": (
        "second_order",
        ((5, 50, 86_179), (12, 50, 171_635), (6, 40, 645_081), (5, 57, 521_532)),
    ),
    "hbnode": (
        "heavy_ball",
        ((5, 50, 85_931), (12, 51, 172_916), (6, 41, 646_338), (5, 57, 521_248)),
    ),
    "ghbnode": (
        "generalized_heavy_ball",
        ((5, 50, 85_931), (12, 51, 172_916), (6, 41, 646_338), (5, 57, 521_248)),
    ),
    "nesterovnode": (
        "nesterov",
        ((5, 50, 85_930), (12, 51, 172_915), (6, 42, 647_869), (5, 58, 523_351)),
    ),
    "gnesterovnode": (
        "generalized_nesterov",
        ((5, 50, 85_930), (12, 51, 172_915), (6, 42, 647_869), (5, 58, 523_351)),
    ),
    "adamnode": (
        "adam",
        ((5, 50, 85_832), (15, 30, 171_904), (5, 85, 644_974), (5, 57, 521_192)),
    ),
}

# The authors took the baselines from public scripts, one family for MNIST and one for CIFAR, which
# differ in these settings; the counts show that CIFAR-100 and STL-10 used the CIFAR family. The
# published numbers of the Nesterov methods probably come from what that code solves, hence the
# variant.
_SCRIPTS: dict[str, dict[str, dict[str, Any]]] = {
    "mnist": {
        "ghbnode": {"restoring": "learned"},
        "nesterovnode": {"variant": "public_code", "sign": -1},
        "gnesterovnode": {
            "variant": "public_code",
            "sign": -1,
            "restoring": "learned",
            "activation": "hardtanh",
        },
        "adamnode": {"positive": "softplus", "rate_logits": (-5.0, 5.0)},
    },
    "cifar": {
        "nesterovnode": {"variant": "public_code"},
        "gnesterovnode": {"variant": "public_code"},
    },
}

# Scalars that those scripts create, count and never use: a frozen restoring strength where the
# method has none, and the friction and restoring strengths that Adam inherits.
_IDLE_SCALARS: dict[str, dict[str, int]] = {
    "mnist": {"hbnode": 1, "nesterovnode": 1, "adamnode": 3},
    "cifar": {"adamnode": 1},
}

# Data set: width, size here, published size. MNIST's published size cannot be reached with its
# published width 47 and an image as state; see the preset `bfno-node-budget`.
_BFNO: dict[str, tuple[int, int, int]] = {
    "mnist": (47, 61_901, 85_591),
    "cifar10": (76, 171_333, 171_333),
    "cifar100": (118, 644_547, 644_547),
    "stl10": (99, 514_291, 514_291),
}

# Widths for the other operators near the size of BFNO; the paper gives none. For each data set,
# width and size for each number of modes (FNO) or blocks (AFNO).
_SAME_SIZE: dict[str, tuple[str, dict[int, tuple[tuple[int, int], ...]]]] = {
    "fno": (
        "modes",
        {
            4: ((28, 83_227), (38, 169_661), (59, 641_951), (50, 516_893)),
            8: ((14, 83_171), (19, 169_509), (30, 653_143), (25, 516_693)),
            12: ((9, 77_871), (13, 176_853), (20, 653_063), (17, 526_325)),
        },
    ),
    "afno": (
        "blocks",
        {
            4: ((160, 87_211), (212, 169_805), (332, 644_615), (280, 517_293)),
            1: ((80, 85_931), (107, 170_261), (167, 645_311), (140, 514_493)),
            8: ((224, 86_699), (296, 168_077), (464, 639_527), (392, 514_829)),
        },
    ),
}


def _baselines() -> Iterator[ImagePreset]:
    for method, (dynamics, cells) in _BASELINES.items():
        for data, (channels, width, published) in zip(PAPER_DATA, cells, strict=True):
            script = "mnist" if data == "mnist" else "cifar"
            model = ImageModel(
                dynamics,
                "conv",
                channels,
                width,
                dynamics_options=_SCRIPTS[script].get(method, {}),
                idle_scalars=_IDLE_SCALARS[script].get(method, 0),
            )
            yield ImagePreset(data, method, model, published, published)


def _bfno() -> Iterator[ImagePreset]:
    two = {"branches": 2}
    for data, (width, parameters, published) in _BFNO.items():
        yield _operator(data, "bfno-node", "bfno", width, parameters, published, two)
    # The published size of MNIST is that of no natural configuration. Of those with the published
    # width, one with three zero channels beside the image comes nearest (0.13 % more): 31,370 of
    # 85,591 parameters are then the head's. Hence a second preset with that budget.
    four_channels = ImageModel("first_order", "bfno", channels=4, width=47, field_options=two)
    yield ImagePreset("mnist", "bfno-node-budget", four_channels, 85_706, 85_591)


def _ablation() -> Iterator[ImagePreset]:
    """The paper's small models; its count for BFNO needs a single branch."""
    rows = [
        ("fno-node-small", "fno", 6, 310_807, 310_807, {"modes": 4}),
        ("afno-node-small", "afno", 32, 311_015, 311_015, {"blocks": 4}),
        ("bfno-node-small", "bfno", 20, 312_503, 312_503, {"branches": 1}),
        # A control: as many branches as everywhere else, at the same size.
        ("bfno-node-small-two-branches", "bfno", 14, 312_371, None, {"branches": 2}),
    ]
    for row in rows:
        yield _operator("cifar100", *row)


def _same_size() -> Iterator[ImagePreset]:
    """FNO and AFNO at BFNO's size; the one named plainly has the ablation's modes or blocks."""
    for operator, (option, sizes) in _SAME_SIZE.items():
        for number, cells in sizes.items():
            method = f"{operator}-node" if number == 4 else f"{operator}-node-{option}{number}"
            for data, (width, parameters) in zip(PAPER_DATA, cells, strict=True):
                options = {option: number}
                yield _operator(data, method, operator, width, parameters, None, options)


def _operator(
    data: str,
    method: str,
    operator: str,
    width: int,
    parameters: int,
    published: int | None,
    options: Mapping[str, Any],
) -> ImagePreset:
    """An operator as a field of the image itself."""
    channels = IMAGE_DATA[data].shape[0]
    model = ImageModel("first_order", operator, channels, width, field_options=options)
    return ImagePreset(data, method, model, parameters, published)


def _branches() -> Iterator[ImagePreset]:
    """BFNO at its published width with one to five branches."""
    for data, (width, *_) in _BFNO.items():
        about = IMAGE_DATA[data]
        channels = about.shape[0]
        for branches in range(1, 6):
            layers = 3 * (4 * branches * width**2 + (2 * branches + 2) * width)
            ends = (channels + 2) * width + (width + 1) * channels
            size = layers + ends + _head_size(about, channels)
            method, options = f"bfno-node-branches{branches}", {"branches": branches}
            yield _operator(data, method, "bfno", width, size, None, options)


def _paper() -> Iterator[ImagePreset]:
    for presets in (_baselines(), _bfno(), _ablation(), _same_size(), _branches()):
        yield from presets


def _beyond() -> Iterator[ImagePreset]:
    """The models of MNIST for other grey images; only the head has another size."""
    for preset in _paper():
        if preset.data == "mnist":
            for data in ("fashion-mnist", "digits"):
                heads = [
                    _head_size(IMAGE_DATA[of], preset.model.channels) for of in ("mnist", data)
                ]
                size = preset.parameters - heads[0] + heads[1]
                yield ImagePreset(data, preset.method, preset.model, size)


def _head_size(about: ImageData, state_channels: int) -> int:
    _, height, width = about.shape
    return (state_channels * height * width + 1) * about.classes


IMAGE_PRESETS: Mapping[tuple[str, str], ImagePreset] = {
    (preset.data, preset.method): preset for presets in (_paper(), _beyond()) for preset in presets
}
"""Every preset by the names of its data set and its method."""


def find_image_preset(data: str, method: str) -> ImagePreset:
    """Return the preset of that data set and method.

    Raises:
        ConfigError: If there is none; the message names the nearest ones.

    Example:
        >>> find_image_preset("cifar10", "bfno-node").model.width
        76
    """
    if (data, method) in IMAGE_PRESETS:
        return IMAGE_PRESETS[data, method]
    names = [f"{known}/{its_method}" for known, its_method in IMAGE_PRESETS]
    nearest = difflib.get_close_matches(f"{data}/{method}", names, n=3, cutoff=0.0)
    raise ConfigError(
        f"{data}/{method}",
        "there is no such experiment",
        f"the nearest are {', '.join(nearest)}; `bfno models` lists all",
    )
