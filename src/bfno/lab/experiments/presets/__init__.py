"""Named experiments: the sizes behind every published number, and how each is trained."""

from bfno.lab.experiments.presets.density import (
    DENSITY_DATA,
    DENSITY_METHODS,
    POINT_DATA,
    POINT_METHODS,
    density_group,
)
from bfno.lab.experiments.presets.images import (
    IMAGE_DATA,
    IMAGE_PRESETS,
    PAPER_DATA,
    ImageData,
    ImageModel,
    ImagePreset,
    find_image_preset,
)
from bfno.lab.experiments.presets.series import SERIES_DATA, SERIES_METHODS, SeriesData

__all__ = [
    "DENSITY_DATA",
    "DENSITY_METHODS",
    "IMAGE_DATA",
    "IMAGE_PRESETS",
    "PAPER_DATA",
    "POINT_DATA",
    "POINT_METHODS",
    "SERIES_DATA",
    "SERIES_METHODS",
    "ImageData",
    "ImageModel",
    "ImagePreset",
    "SeriesData",
    "density_group",
    "find_image_preset",
]
