"""What a figure holds."""

import io
import xml.etree.ElementTree as ElementTree

import numpy as np
from PIL import Image

from bfno.results.figures.style import LARGEST_PNG, Drawn

HOSTILE = ["$x_$", "<script>", "#0072b2", 'a id="b"', "猫", "a" * 300, "\\frac{", "]]>", "--><b>"]
TAGS = {"svg", "defs", "style", "g", "path", "text", "use", "clipPath", "rect", "image"}


def texts(figure: Drawn | None) -> list[str]:
    """The texts of a figure, which must be well-formed, without a script, and not too large."""
    assert figure is not None
    root = ElementTree.fromstring(figure.svg)
    assert {element.tag.rpartition("}")[2] for element in root.iter()} <= TAGS
    assert figure.png is not None and len(figure.png) <= LARGEST_PNG
    assert min(pixels(figure).shape[:2]) > 200
    return [element.text or "" for element in root.iter() if element.tag.endswith("}text")]


def pixels(figure: Drawn | None) -> np.ndarray:
    """The figure as colours."""
    assert figure is not None and figure.png is not None
    return np.asarray(Image.open(io.BytesIO(figure.png)).convert("RGB"))


def shown(name: str) -> str:
    """A name as figures cut it."""
    return name if len(name) <= 24 else name[:23] + "…"
