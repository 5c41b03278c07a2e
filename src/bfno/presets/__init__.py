"""Named experiments: the sizes behind every published number, and how each is trained."""

from bfno.presets.images import (
    IMAGE_DATA,
    IMAGE_PRESETS,
    PAPER_DATA,
    ImageData,
    ImageModel,
    ImagePreset,
    find_image_preset,
)
from bfno.presets.series import SERIES_DATA, SERIES_METHODS, SeriesData

__all__ = [
    "IMAGE_DATA",
    "IMAGE_PRESETS",
    "PAPER_DATA",
    "SERIES_DATA",
    "SERIES_METHODS",
    "ImageData",
    "ImageModel",
    "ImagePreset",
    "SeriesData",
    "find_image_preset",
]
