"""Named experiments: the sizes behind every published number."""

from bfno.presets.images import (
    IMAGE_DATA,
    IMAGE_PRESETS,
    ImageData,
    ImagePreset,
    find_image_preset,
)

__all__ = ["IMAGE_DATA", "IMAGE_PRESETS", "ImageData", "ImagePreset", "find_image_preset"]
