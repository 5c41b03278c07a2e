"""What a family of experiments is: images, series, densities; training knows only this."""

from __future__ import annotations

import importlib.resources
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from torch import nn

from bfno.lab.errors import DataError
from bfno.lab.experiments.settings import Config
from bfno.lab.experiments.tasks import Task
from bfno.lab.experiments.trees import Tree

__all__ = ["Family", "Prediction", "TestRequest", "TrainedRun", "read_recipes"]


@dataclass(frozen=True)
class TrainedRun:
    """A trained model and how it came about.

    Attributes:
        config: The settings of its run.
        model: The model, ready to call.
        step: The step whose weights it has.
        facts: What its data had to say to the model, such as the names of the classes.
    """

    config: Any
    model: Any
    step: int
    facts: Mapping[str, Any]


@dataclass(frozen=True)
class TestRequest:
    """On what a trained model is to be evaluated.

    Attributes:
        data: Other data, a name or a path; None is the run's own.
        data_dir: Where the files of data sets are; None is where the run found them.
        limit: How many samples, from the first; None is as many as the run's own test split has.
        batch: Samples at a time; None is the run's own.
        progress: Called with the number of samples done and of all.
    """

    __test__ = False  # pytest takes the name for that of tests

    data: str | None = None
    data_dir: Path | None = None
    limit: int | None = None
    batch: int | None = None
    progress: Callable[[int, int], object] | None = None


@dataclass(frozen=True)
class Prediction:
    """What a model says about one sample.

    Attributes:
        file: The file it came from.
        label: Name of the likeliest class; empty if the file cannot be read.
        probabilities: Probability of each class, by name.
        error: Why the file cannot be read, if so.
        place: Where in the file the sample is: the series, and the time of a row; empty for a file
            that is one sample.
        scores: What a model without classes says of it, by name, such as bits per dimension.
    """

    file: Path
    label: str
    probabilities: Mapping[str, float]
    error: DataError | None = None
    place: Mapping[str, str | float] = field(default_factory=dict)
    scores: Mapping[str, float] = field(default_factory=dict)


class Family(ABC):
    """A kind of experiment: its settings, data, models and task.

    Attributes:
        data: What may stand before the slash in the name of an experiment.
        config: The kind of its settings.
        deciding: Settings, as section and name, on which the preset of the others depends.
        exhibits: Whether `exhibit` has something to show.
    """

    data: tuple[str, ...]
    config: type[Config[Any, Any]]
    deciding: tuple[tuple[str, str], ...] = ()
    exhibits: bool = False

    @abstractmethod
    def preset(self, data: str, method: str, tree: Mapping[str, Any]) -> Tree:
        """Complete settings of an experiment before changes.

        Args:
            data: What stands before the slash.
            method: What stands behind it.
            tree: The changes, for those that decide about others; they name the scale.

        Raises:
            ConfigError: If there is no such method.
        """

    @abstractmethod
    def load(self, config: Any) -> Any:
        """Read and divide the data.

        Raises:
            DataError: If files are missing or wrong.
            ConfigError: If the settings do not name them.
        """

    @abstractmethod
    def facts(self, data: Any) -> dict[str, Any]:
        """What a model has to know of its data, ready for JSON; kept with every checkpoint."""

    @abstractmethod
    def build(self, config: Any, facts: Mapping[str, Any]) -> nn.Module:
        """Build the untrained model in single precision.

        Raises:
            ConfigError: If its parts do not fit.
        """

    @abstractmethod
    def task(self, config: Any, data: Any) -> Task:
        """Loss and metrics."""

    def published(self, config: Any) -> int | None:
        """Number of parameters that the paper prints for this very experiment, if it does."""
        return None

    @abstractmethod
    def evaluate(self, run: TrainedRun, request: TestRequest) -> dict[str, Any]:
        """Evaluate a trained model on samples that it has not seen."""

    @abstractmethod
    def predict(self, run: TrainedRun, files: Iterable[Path]) -> Iterator[Prediction]:
        """Classify or score what files hold; a file that cannot be read spoils no other."""

    def exhibit(self, run: TrainedRun) -> dict[str, Any]:
        """What a trained model has to show of itself, ready for JSON."""
        return {}


def read_recipes(file: str) -> Tree:
    """How the experiments of a family are trained, from a YAML file among the presets."""
    return yaml.safe_load(
        importlib.resources.files("bfno.lab.experiments.presets")
        .joinpath(file)
        .read_text(encoding="utf-8")
    )
