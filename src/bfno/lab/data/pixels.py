"""Reads one image file into an array of bytes."""

from __future__ import annotations

import errno
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bfno.lab.data.reading import one_line
from bfno.lab.errors import ConfigError, DataError

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["SUFFIXES", "Header", "SystemFailure", "decode", "quiet_pillow", "read_header"]

SUFFIXES = {".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".bmp", ".webp", ".gif", ".tif", ".tiff"}
# Only these: among Pillow's other readers is one that starts a program.
_FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "GIF", "TIFF")
_MOST_PIXELS = 50_000_000
_FIX = "replace or delete the file"
# What the system says of a file that is not as it should be. Pillow's own errors have no number,
# and wrong bytes make it look for places that no file has. All else can befall good images, too.
_OF_THE_FILE = {None, errno.EINVAL, errno.EOVERFLOW, errno.ENOENT, errno.ENOTDIR, errno.EISDIR}
_OF_THE_FILE |= {errno.ELOOP, errno.ENAMETOOLONG}

_GREY = {"1", "L", "LA", "La", "I", "I;16", "I;16L", "I;16B", "I;16N"}
_DEEP = {"I", "I;16", "I;16L", "I;16B", "I;16N"}
_COLOUR = {"RGB", "RGBX", "RGBA", "RGBa", "P", "PA", "CMYK", "YCbCr", "LAB", "HSV"}


class SystemFailure(DataError):
    """An image could not be read because of the system, not the image."""


@dataclass(frozen=True)
class Header:
    """What an image file says about itself.

    Attributes:
        size: Height and width, as they are shown.
        grey: Whether it is stored without colours.
    """

    size: tuple[int, int]
    grey: bool


def read_header(path: Path) -> Header:
    """Return size and kind of an image without decoding it.

    Raises:
        DataError: If it is not an image, has more than 50 megapixels or has floating-point pixels.
    """
    from PIL import Image

    with _opened(path) as image:
        height, width = image.height, image.width
        # PNG's own method decodes the whole image, in case something follows the pixels.
        if Image.Image.getexif(image).get(0x0112) in {5, 6, 7, 8}:  # turned by a quarter
            height, width = width, height
        return Header((height, width), image.mode in _GREY)


def decode(path: Path, shape: tuple[int, int, int]) -> np.ndarray:
    """Return an image as bytes of shape `(channels, height, width)`.

    It is rotated as its EXIF data says, put on white where it is transparent, converted from 16 to
    8 bits and to grey or colour, and stretched to the size. Sides that are a multiple of the new
    ones are averaged over blocks; otherwise linear interpolation with antialiasing.

    Raises:
        DataError: If it cannot be decoded; a `SystemFailure` if the reason is not the image.
    """
    from PIL import Image, ImageOps

    channels, height, width = shape
    with _opened(path) as opened:
        image = _eight_bits(ImageOps.exif_transpose(opened))
        image = image.convert("L" if channels == 1 else "RGB")
        if image.size != (width, height):
            whole = image.width % width == 0 and image.height % height == 0
            filter_ = Image.Resampling.BOX if whole else Image.Resampling.BILINEAR
            image = image.resize((width, height), filter_)
        return np.array(image).reshape(height, width, channels).transpose(2, 0, 1)


@contextmanager
def quiet_pillow() -> Iterator[None]:
    """Keep Pillow from writing to the terminal; what matters is raised as an error."""
    try:
        from PIL import Image
    except ImportError as error:
        raise ConfigError(
            "images", "need Pillow, which is missing", "pip install 'bfno[train]'"
        ) from error
    logger = logging.getLogger("PIL")
    level = logger.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        logger.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            logger.setLevel(level)


@contextmanager
def _opened(path: Path) -> Iterator[Image]:
    """Open an image, and turn every failure to read it into a `DataError`."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path, formats=_FORMATS) as image:
            if image.width * image.height > _MOST_PIXELS:
                raise Image.DecompressionBombError
            if image.mode not in _GREY | _COLOUR:
                raise DataError(path, "its pixels are floating-point numbers", _FIX)
            yield image
    except DataError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise DataError(path, "has more than 50 megapixels", "make it smaller") from error
    except PermissionError as error:
        raise DataError(
            path, "cannot be read: permission denied", "give yourself access to it"
        ) from error
    except UnidentifiedImageError as error:
        *others, last = _FORMATS
        why = f"is damaged, or not a {', '.join(others)} or {last} image"
        if os.path.getsize(path) == 0:
            why = "is empty"
        raise DataError(path, why, _FIX) from error
    except OSError as error:
        if error.errno in _OF_THE_FILE:
            raise _unreadable(path, error) from error
        why = f"cannot be opened ({(error.strerror or str(error)).lower()})"
        fix = "the image may be fine: check the disk and start again"
        if error.errno in (errno.EMFILE, errno.ENFILE):
            fix = "the image may be fine: allow more open files (`ulimit -n`) and start again"
        raise SystemFailure(path, why, fix) from error
    # Pillow's readers let almost anything through when the bytes are wrong.
    except Exception as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> DataError:
    text = one_line(error).replace(repr(str(path)), "the file")
    return DataError(path, f"cannot be read as an image ({text})", _FIX)


def _eight_bits(image: Image) -> Image:
    """The same picture in bytes, without transparency."""
    from PIL import Image

    if image.mode in _DEEP:
        levels = np.asarray(image).astype(np.int64)
        if levels.min() < 0 or levels.max() > 0xFFFF:
            raise ValueError("its grey levels have more than 16 bits")
        return Image.fromarray((levels / 257).round().astype(np.uint8))
    if image.has_transparency_data:
        white = Image.new("RGBA", image.size, "white")
        white.alpha_composite(image.convert("RGBA"))
        return white
    return image
