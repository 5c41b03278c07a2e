"""Image classification as a family of experiments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bfno.lab.data import Splits
from bfno.lab.experiments.family import Family, Prediction, TestRequest, TrainedRun
from bfno.lab.experiments.images.build import build_model, load_data
from bfno.lab.experiments.images.evaluation import evaluate, predict
from bfno.lab.experiments.images.exhibit import image_exhibit
from bfno.lab.experiments.images.preset import image_preset
from bfno.lab.experiments.images.settings import ImageConfig
from bfno.lab.experiments.images.task import ImageTask
from bfno.lab.experiments.presets import IMAGE_DATA, IMAGE_PRESETS
from bfno.lab.experiments.trees import Tree
from bfno.models import ImageClassifier

__all__ = ["ImageFamily"]


class ImageFamily(Family):
    """Image classification by neural ODEs."""

    data = (*IMAGE_DATA, "folder")
    config = ImageConfig
    # Whether a folder is read in colour also decides its model.
    deciding = (("data", "colour"),)
    exhibits = True

    def preset(self, data: str, method: str, tree: Mapping[str, Any]) -> Tree:
        return image_preset(data, method, tree)

    def load(self, config: ImageConfig) -> Splits:
        return load_data(config)

    def facts(self, data: Splits) -> dict[str, Any]:
        return {"classes": list(data.classes)}

    def build(self, config: ImageConfig, facts: Mapping[str, Any]) -> ImageClassifier:
        model = build_model(config, len(facts["classes"]))
        model.class_names = tuple(facts["classes"])
        return model

    def task(self, config: ImageConfig, data: Splits) -> ImageTask:
        return ImageTask(data)

    def published(self, config: ImageConfig) -> int | None:
        data, _, method = config.experiment.partition("/")
        preset = IMAGE_PRESETS.get((data, method))
        return preset.published if preset and config.scale == "paper" else None

    def evaluate(self, run: TrainedRun, request: TestRequest) -> dict[str, Any]:
        return evaluate(run, request)

    def predict(self, run: TrainedRun, files: Iterable[Path]) -> Iterator[Prediction]:
        return predict(run, files)

    def exhibit(self, run: TrainedRun) -> dict[str, Any]:
        return image_exhibit(run)
