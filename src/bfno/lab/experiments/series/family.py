"""Classification of irregular series as a family of experiments."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bfno.lab.data import SeriesSplits
from bfno.lab.experiments.family import Family, Prediction, TestRequest, TrainedRun
from bfno.lab.experiments.series.build import build_model, load_data
from bfno.lab.experiments.series.evaluation import evaluate, predict
from bfno.lab.experiments.series.preset import series_preset
from bfno.lab.experiments.series.settings import SeriesConfig
from bfno.lab.experiments.series.task import SeriesTask
from bfno.lab.experiments.trees import Tree
from bfno.models import SeriesModel

__all__ = ["SeriesFamily"]


class SeriesFamily(Family):
    """Classification of irregular series by recurrent and by latent models."""

    data = ("physionet", "activity", "series")
    config = SeriesConfig
    # The protocol scales the values, and with them the deviation of an observation.
    deciding = (("data", "protocol"),)

    def preset(self, data: str, method: str, tree: Mapping[str, Any]) -> Tree:
        return series_preset(data, method, tree)

    def load(self, config: SeriesConfig) -> SeriesSplits:
        return load_data(config)

    def facts(self, data: SeriesSplits) -> dict[str, Any]:
        return {
            "classes": list(data.classes),
            "features": list(data.features),
            "by_row": data.train.by_row,
            "scaling": dataclasses.asdict(data.scaling),
        }

    def build(self, config: SeriesConfig, facts: Mapping[str, Any]) -> SeriesModel:
        model = build_model(config, len(facts["features"]), len(facts["classes"]), facts["by_row"])
        model.class_names = tuple(facts["classes"])
        model.feature_names = tuple(facts["features"])
        return model

    def task(self, config: SeriesConfig, data: SeriesSplits) -> SeriesTask:
        return SeriesTask(config, data)

    def evaluate(self, run: TrainedRun, request: TestRequest) -> dict[str, Any]:
        return evaluate(run, request)

    def predict(self, run: TrainedRun, files: Iterable[Path]) -> Iterator[Prediction]:
        return predict(run, files)
