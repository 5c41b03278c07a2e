"""Densities of images and points as a family of experiments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bfno.lab.experiments.density.build import DensityData, build_model, load_data
from bfno.lab.experiments.density.evaluation import evaluate, predict
from bfno.lab.experiments.density.preset import density_preset
from bfno.lab.experiments.density.settings import DensityConfig
from bfno.lab.experiments.density.task import DensityTask
from bfno.lab.experiments.family import Family, Prediction, TestRequest, TrainedRun
from bfno.lab.experiments.presets import DENSITY_DATA
from bfno.lab.experiments.trees import Tree
from bfno.models.flows import Flow

__all__ = ["DensityFamily"]


class DensityFamily(Family):
    """Densities of images and points by continuous and by discrete flows."""

    data = tuple(DENSITY_DATA)
    config = DensityConfig

    def preset(self, data: str, method: str, tree: Mapping[str, Any]) -> Tree:
        return density_preset(data, method, tree)

    def load(self, config: DensityConfig) -> DensityData:
        return load_data(config)

    def facts(self, data: DensityData) -> dict[str, Any]:
        return {"event_shape": list(data.train.shape[1:])}

    def build(self, config: DensityConfig, facts: Mapping[str, Any]) -> Flow:
        return build_model(config, tuple(facts["event_shape"]))

    def task(self, config: DensityConfig, data: DensityData) -> DensityTask:
        return DensityTask(config, data)

    def evaluate(self, run: TrainedRun, request: TestRequest) -> dict[str, Any]:
        return evaluate(run, request)

    def predict(self, run: TrainedRun, files: Iterable[Path]) -> Iterator[Prediction]:
        return predict(run, files)
