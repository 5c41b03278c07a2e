"""What a figure holds."""

import io
import re
import xml.etree.ElementTree as ElementTree

import numpy as np
from PIL import Image

from bfno.lab.runs.archive import LARGEST_PICTURE
from bfno.lab.views.figures.style import Drawn

HOSTILE = ["$x_$", "<script>", "#0072b2", 'a id="b"', "猫", "a" * 300, "\\frac{", "]]>", "--><b>"]
TAGS = {"svg", "defs", "style", "g", "path", "text", "use", "clipPath", "rect", "image"}


def texts(figure: Drawn | None) -> list[str]:
    """The texts of a figure, which must be well-formed, without a script, and not too large."""
    assert figure is not None
    root = ElementTree.fromstring(figure.svg)
    assert {element.tag.rpartition("}")[2] for element in root.iter()} <= TAGS
    assert figure.png is not None and len(figure.png) <= LARGEST_PICTURE
    assert min(pixels(figure).shape[:2]) > 200
    return [element.text or "" for element in root.iter() if element.tag.endswith("}text")]


def legend(figure: Drawn | None, names: list[str]) -> dict[str, tuple[str, str | None]]:
    """The colour and the dashes of each of these names that the legend of a figure has."""
    assert figure is not None
    found, look = {}, None
    for element in ElementTree.fromstring(figure.svg).iter():
        style = element.get("style", "")
        line = re.match(r"fill: none; (?:stroke-dasharray: ([\d.,]+);.*)?stroke: (#\w+)", style)
        if line is not None:
            look = line[2], line[1]
        elif element.tag.endswith("}text") and element.text in names:
            assert look is not None
            found[element.text] = look
    return found


def pixels(figure: Drawn | None) -> np.ndarray:
    """The figure as colours."""
    assert figure is not None and figure.png is not None
    return np.asarray(Image.open(io.BytesIO(figure.png)).convert("RGB"))


def shown(name: str) -> str:
    """A name as figures cut it."""
    return name if len(name) <= 24 else name[:23] + "…"
