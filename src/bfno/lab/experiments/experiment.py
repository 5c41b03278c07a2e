"""An experiment: its settings, and operations on them.

Each task (images, series, densities) has its own kind of `Experiment`; training, runs and commands
know only this interface.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
import yaml
from pydantic import Field
from torch import Tensor, nn

from bfno.lab.errors import ConfigError, DataError, NumericalError, first_names
from bfno.lab.experiments.seeds import FIRST_SEED
from bfno.lab.experiments.settings import Scale, Settings, SolverSettings, TrainSettings, parse
from bfno.lab.experiments.tasks import FAILURES, Share, Task
from bfno.lab.experiments.trees import Tree, differences, merged
from bfno.models import LatentGenerator, count_parameters
from bfno.models.flows import FlowError
from bfno.ode import NeuralODE, SolverError

__all__ = [
    "Conclusion",
    "Experiment",
    "ExportRequest",
    "OwnData",
    "Portable",
    "Prediction",
    "Shown",
    "TestRequest",
    "TrainedRun",
    "class_scores",
    "explained_failure",
    "explained_misfit",
    "refuse_other_division",
    "refuse_other_names",
]

Shown = Literal["exhibit", "samples", "reconstruction"]
"""What a report shows of a trained model: an exhibit, samples, or reconstructed series."""


@dataclass(frozen=True)
class OwnData:
    """Data of the user, whose models have a size only once the data are known.

    Attributes:
        setting: The setting of `data` for their path.
        example: The example for which a list of models counts parameters.
        facts: The facts of that example; empty if the settings determine the size.
    """

    setting: str
    example: str
    facts: Mapping[str, Any] = field(default_factory=dict)


class Experiment(Settings, ABC):
    """Everything that decides the outcome of a run, with the operations on it.

    Attributes:
        experiment: Its name, `data/method`.
        scale: Its scale.
        seed: Seed of initial weights, of the split and order of the samples, and of all noise.
        threads: Threads that torch uses; None means one if `numbers_per_layer` is small, and
            otherwise as many as there are free cores when the run begins. Another number changes
            the last digits, so a run keeps its number.
        data: The samples, and how they are split.
        model: The parts of the model and their sizes.
        solver: How the model's equation is solved.
        train: The recipe.
    """

    data_names: ClassVar[tuple[str, ...]]
    """Possible names before the slash of such an experiment."""
    own_data: ClassVar[Mapping[str, OwnData]] = {}
    """The names among them that stand for the user's own data."""
    in_memory: ClassVar[str]
    """The name for samples in the memory of a Python program, which no command can use."""
    deciding: ClassVar[tuple[tuple[str, str], ...]] = ()
    """Settings, as section and name, on which the preset of the others depends."""
    recommended: ClassVar[Mapping[str, str]] = {}
    """The method for the user's own data if the name of the experiment has none."""
    of_files: ClassVar[tuple[str, ...]] = ()
    """Settings of `data` that may differ for other files than those of the training."""
    solves_files_alone: ClassVar[bool] = False
    """Whether `predict` solves each file by itself."""

    experiment: str
    scale: Scale = "cpu"
    seed: int = Field(default=FIRST_SEED, ge=0, lt=2**31)
    threads: int | None = Field(default=None, ge=1, le=1024)
    data: Any
    model: Any
    solver: SolverSettings = SolverSettings()
    train: TrainSettings = TrainSettings()

    @property
    def method(self) -> str:
        """The part of the experiment's name after the data set."""
        return self.experiment.rpartition("/")[2]

    @property
    def published(self) -> int | None:
        """Number of parameters that the paper prints for this experiment, if any."""
        return None

    @property
    def numbers_per_layer(self) -> int:
        """Rough number of values in a layer per batch; few are not worth several threads."""
        return 0

    @property
    def shows(self) -> Shown | None:
        """What a report shows about the trained model, if anything."""
        return None

    def as_dict(self) -> dict[str, Any]:
        """The settings as plain values, ready for JSON or YAML."""
        return self.model_dump(mode="json")

    def as_yaml(self) -> str:
        """The settings as a file that can be edited and run."""
        return yaml.safe_dump(self.as_dict(), sort_keys=False, allow_unicode=True)

    @classmethod
    @abstractmethod
    def preset(cls, data: str, method: str, tree: Mapping[str, Any]) -> Tree:
        """Complete settings of an experiment before changes.

        Args:
            data: The part of the name before the slash.
            method: The part after it.
            tree: The changes, some of which affect other settings; they include the scale.

        Raises:
            ConfigError: If there is no such method.
        """

    @classmethod
    @abstractmethod
    def names(cls) -> Iterator[str]:
        """Every experiment on a data set whose shape is known without reading it."""

    def refuse_idle(self, changes: Mapping[str, Any]) -> None:
        """Refuse settings given by the user that have no effect.

        Args:
            changes: Nested settings.

        Raises:
            ConfigError: If there is one.
        """

    @abstractmethod
    def load(self) -> Any:
        """Read and split the data.

        Raises:
            DataError: If files are missing or wrong.
            ConfigError: If the settings do not name them.
        """

    @abstractmethod
    def facts(self, data: Any) -> dict[str, Any]:
        """Facts about the data that a model needs, ready for JSON; kept with every checkpoint."""

    @abstractmethod
    def known_facts(self) -> dict[str, Any]:
        """The facts that decide the size of the model, for one of `names`, unread."""

    @abstractmethod
    def build(self, facts: Mapping[str, Any]) -> nn.Module:
        """Build the untrained model in single precision.

        Raises:
            ConfigError: If its parts do not match.
        """

    def count(self, model: nn.Module) -> int:
        """The number of a model's parameters as the paper counts them."""
        return count_parameters(model)

    @abstractmethod
    def task(self, data: Any) -> Task:
        """Loss and metrics."""

    @abstractmethod
    def evaluate(self, run: TrainedRun, request: TestRequest) -> dict[str, Any]:
        """Evaluate the trained model on samples that it has not seen.

        Raises:
            ConfigError: If the samples do not suit the model.
            DataError: If files are missing or wrong.
            NumericalError: If the solver gives up.
        """

    @abstractmethod
    def predict(self, run: TrainedRun, files: Iterable[Path]) -> Iterator[Prediction]:
        """Classify or score the content of files; an unreadable file does not affect the others."""

    def make_independent(self, model: nn.Module) -> str:
        """Solve each sample of a batch with its own steps.

        Returns:
            Why no result depends on the other samples of its batch.

        Raises:
            ConfigError: If the model itself makes samples depend on each other.
        """
        if getattr(model, "couples_series", False):
            why = "cannot hold, as the model couples all series of a batch"
            raise ConfigError("--independent", why, "leave it out")
        solvers = [one for one in model.modules() if isinstance(one, NeuralODE | LatentGenerator)]
        for solver in solvers:
            # Their gradients are not needed.
            kept = {k: v for k, v in solver.settings.items() if k not in ("memory", "adjoint")}
            solver.settings = {**kept, "gradient": "direct", "independent": True}
        if not solvers:
            return "the model has no solver whose steps samples would share"
        return "every sample was solved with its own steps"

    def conclude(self, run: TrainedRun, data: Any) -> Conclusion:
        """Compute results once, after the training, with the chosen weights.

        Args:
            run: The trained model.
            data: The result of `load`; only the validation part may influence anything.

        Raises:
            NumericalError: If the solver gives up.
        """
        return Conclusion()

    @abstractmethod
    def files_in(self, run: TrainedRun, folder: Path) -> list[Path]:
        """List the files that `predict` reads from a folder: all of its kind in it and below it.

        A note names all other files.

        Raises:
            DataError: If there are none.
        """

    def exhibit(self, run: TrainedRun) -> dict[str, Any]:
        """The exhibit of the trained model for a report, ready for JSON.

        Only for experiments that show an `exhibit`.
        """
        raise ConfigError(self.experiment, "has no exhibit", "name a run of images")

    def portable(self, run: TrainedRun, request: ExportRequest) -> Portable:
        """The trained model for other programs: with fixed steps and everything included.

        Raises:
            ConfigError: If such a model cannot be exported, or needs more steps than allowed.
        """
        raise ConfigError(
            self.experiment,
            "cannot be exported: its model works on more than one tensor of a known shape",
            "name a run that classifies images, or use `bfno.load` in Python",
        )


@dataclass(frozen=True)
class TrainedRun:
    """A trained model and its origin.

    Attributes:
        config: The experiment.
        model: The model, ready to call.
        step: The training step of its weights.
        facts: Facts about its data, such as the names of the classes, and conclusions after its
            training.
        reading: Settings of `data` that the user gives for other files, by name.
    """

    config: Any
    model: Any
    step: int
    facts: Mapping[str, Any]
    reading: Mapping[str, Any] = field(default_factory=dict)

    def read_with(self, changes: Mapping[str, Any]) -> TrainedRun:
        """The same run, for files that are read differently from those of the training.

        Args:
            changes: Nested settings.

        Raises:
            ConfigError: If one is not about reading files, or has an invalid value.
        """
        known = [f"data.{name}" for name in self.config.of_files]
        for name, _ in differences({name: {} for name in changes}, changes):
            if name not in known:
                why = "has its value from training and does not affect how files are read"
                fix = f"leave it out; {', '.join(known)} may differ"
                raise ConfigError(name, why, fix if known else "leave it out")
        if not changes:
            return self
        config = parse(type(self.config), merged(self.config.as_dict(), changes), "the command")
        given = {name: getattr(config.data, name) for name in changes["data"]}
        return replace(self, config=config, reading=given)


@dataclass(frozen=True)
class Conclusion:
    """Results computed once, after the training.

    Attributes:
        metrics: Further metrics of the run's record, such as `test_coverage_90`.
        facts: Further facts for the trained model, ready for JSON; kept in the record, and among
            the facts of a `TrainedRun`.
    """

    metrics: Mapping[str, float] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TestRequest:
    """What to evaluate a trained model on.

    Attributes:
        data: Other data, a name or a path; None is the run's own.
        data_dir: Where the files of data sets are; None is where the run found them.
        limit: Number of samples, drawn in proportion to the classes (for known data sets of images,
            whose files are in random order, the first ones); None is the run's own test split.
        batch: Samples at a time; None is the run's own.
        progress: Called with the number of samples done and the total.
        independent: Whether samples are independent, see `Experiment.make_independent`.
    """

    __test__ = False  # pytest takes the name for that of tests

    data: str | None = None
    data_dir: Path | None = None
    limit: int | None = None
    batch: int | None = None
    progress: Callable[[int, int], object] | None = None
    independent: bool = False

    def whole(self, batch: int, total: int) -> Share:
        """A share that covers the whole evaluation, and reports progress if requested."""
        progress, batches = self.progress, itertools.count()
        if progress is None:
            return Share()
        return Share(pause=lambda: progress(min(next(batches) * batch, total), total))


@dataclass(frozen=True)
class ExportRequest:
    """How to export a trained model.

    Attributes:
        steps: Number of fixed steps per equation; None finds how many are needed.
        data_dir: Where the files of data sets are; None is where the run found them.
    """

    steps: int | None = None
    data_dir: Path | None = None


@dataclass(frozen=True)
class Portable:
    """A model whose only input is one tensor.

    Attributes:
        program: Maps the tensor, whose first axis is the samples, to another one.
        example: A few samples, on which an exported file can be compared with the program.
        output: Name of the result; that of the input is the argument's of `program.forward`.
        facts: Facts for users of the file, ready for JSON.
    """

    program: nn.Module
    example: Tensor
    output: str
    facts: dict[str, Any]


@dataclass(frozen=True)
class Prediction:
    """The answer of a model for one sample.

    Attributes:
        file: The file it came from.
        label: Name of the likeliest class; empty if the file cannot be read.
        probabilities: Probability of each class, by name.
        error: Why the file cannot be read, if so.
        place: Place of the sample in the file: the series, and the time of a row; empty if the file
            is a single sample.
        scores: Scores by a model without classes, by name, such as bits per dimension.
    """

    file: Path
    label: str
    probabilities: Mapping[str, float]
    error: DataError | None = None
    place: Mapping[str, str | float] = field(default_factory=dict)
    scores: Mapping[str, float] = field(default_factory=dict)


def class_scores(confusion: list[list[int]]) -> Iterator[dict[str, float]]:
    """Precision, recall, F1 and number of samples of each class; rows are true classes."""
    matrix = torch.tensor(confusion, dtype=torch.float64)
    hits, true, predicted = matrix.diagonal(), matrix.sum(1), matrix.sum(0)
    # A class that was never predicted has a precision of 0, as is usual.
    precision, recall = hits / predicted.clamp(min=1), hits / true.clamp(min=1)
    f1 = 2 * hits / (true + predicted).clamp(min=1)
    for row in zip(precision.tolist(), recall.tolist(), f1.tolist(), true.tolist(), strict=True):
        yield dict(zip(("precision", "recall", "f1", "samples"), row, strict=True))


def refuse_other_division(what: object, facts: Mapping[str, Any], now: str) -> None:
    """Refuse the user's samples if they have changed: training may have used test samples.

    Args:
        what: Where they are.
        facts: Facts about the training samples; runs of earlier releases have no division.
        now: The `division` of their splits.

    Raises:
        ConfigError: If they differ from those of the training.
    """
    if facts.get("division", now) != now:
        why = "holds other samples than when the run was trained, and would be divided anew"
        fix = "bring those back, or train again; `bfno eval --data` tests a run on other samples"
        raise ConfigError(what, why, fix)


def refuse_other_names(what: object, facts: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse samples with other classes or features than those that a run has learned.

    Args:
        what: Where they are.
        facts: Facts about the training samples.
        now: The same facts about the present ones.

    Raises:
        ConfigError: If the names differ.
    """
    for kind in ("classes", "features"):
        before, found = facts.get(kind), now.get(kind)
        if before is not None and before != found:
            here, there = (first_names(names) for names in (found or [], before))
            why = f"holds other {kind} ({here}) than when the run was trained ({there})"
            raise ConfigError(what, why, "bring those back, or train again in another folder")


@contextlib.contextmanager
def explained_failure(section: str = "solver") -> Iterator[None]:
    """Turn the failure of a model, one of `FAILURES`, into an error that says what to do.

    Args:
        section: Name of the section with the solver's settings.
    """
    try:
        yield
    except FAILURES as error:
        if isinstance(error, SolverError):
            fix = f"raise {section}.rtol and {section}.atol in the run's config.yaml"
            raise NumericalError("the solver", str(error), fix) from error
        what = "the flow" if isinstance(error, FlowError) else "the evaluation"
        raise NumericalError(what, str(error), "use another run, or train it on") from error


@contextlib.contextmanager
def explained_misfit(model: Settings, *solvers: str) -> Iterator[None]:
    """Turn the refusal of a model's parts into an error that says what to do.

    Args:
        model: The settings of the model.
        *solvers: Names of the sections with settings of solvers.

    Raises:
        ConfigError: Where a part raised a TypeError, ValueError or RuntimeError.
    """
    try:
        yield
    except (TypeError, ValueError, RuntimeError) as error:
        why = str(error).splitlines()[0]
        if isinstance(error, TypeError) and (refusal := _refused_option(model, why)):
            raise refusal from error
        # The solver's message begins with the name of the setting that it refuses.
        named = re.split(r"[=\s]", why, maxsplit=1)[0]
        if named in SolverSettings.model_fields:
            what = setting = " or ".join(f"{section}.{named}" for section in solvers)
        else:
            what, setting = "model", "model.NAME"
        raise ConfigError(what, why, f"change it with --set {setting}=VALUE") from error


# What Python says of arguments that a part does not have, or has to have.
_UNKNOWN = re.compile(r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'")
_MISSING = re.compile(r"(\w+)\.__init__\(\) missing \d+ required .* arguments?: (.+)")


def _refused_option(model: Settings, why: str) -> ConfigError | None:
    """The error for an option of a part that is unknown or missing; None for any other reason."""
    options = {f"model.{name}": given for name, given in model if isinstance(given, dict)}
    if found := _UNKNOWN.search(why):
        part, option = found.groups()
        names = [f"{name}.{option}" for name, given in options.items() if option in given]
        return ConfigError(names[0] if names else "model", f"{part} has no such option", "omit it")
    if found := _MISSING.search(why):
        fix = f"give it with --set {' or '.join(f'{name}.NAME=VALUE' for name in options)}"
        return ConfigError("model", f"{found[1]} needs {found[2]}", fix)
    return None
