"""Classify pictures with a file that `bfno export RUN -o model.onnx` wrote; bfno is not needed.

Needs onnxruntime, numpy and Pillow. Run it with the file and some pictures:

    python examples/use_exported.py model.onnx four.png nine.png
"""

import json
import sys

import numpy as np
import onnxruntime
from PIL import Image


def classify(model: str, pictures: list[str]) -> list[tuple[str, float]]:
    """The likeliest class of each picture, and its probability."""
    session = onnxruntime.InferenceSession(model)
    facts = json.loads(session.get_modelmeta().custom_metadata_map["bfno"])
    _, channels, height, width = facts["input"]["shape"]
    images = np.empty((len(pictures), channels, height, width), np.uint8)
    for image, file in zip(images, pictures, strict=True):
        picture = Image.open(file).convert("L" if channels == 1 else "RGB")
        # As in training, but for pictures that are turned or transparent.
        whole = picture.width % width == 0 and picture.height % height == 0
        kind = Image.Resampling.BOX if whole else Image.Resampling.BILINEAR
        pixels = np.asarray(picture.resize((width, height), kind))
        image[:] = pixels.reshape(height, width, channels).transpose(2, 0, 1)
    probabilities = np.asarray(session.run(None, {"images": images})[0])
    return [(facts["classes"][row.argmax()], float(row.max())) for row in probabilities]


if __name__ == "__main__":
    found = classify(sys.argv[1], sys.argv[2:])
    for file, (label, share) in zip(sys.argv[2:], found, strict=True):
        print(f"{file}: {label} ({share:.0%})")
