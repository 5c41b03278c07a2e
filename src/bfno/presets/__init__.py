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

__all__ = [
    "IMAGE_DATA",
    "IMAGE_PRESETS",
    "PAPER_DATA",
    "ImageData",
    "ImageModel",
    "ImagePreset",
    "find_image_preset",
]
