"""Densities of images and points from continuous or discrete flows, as an experiment."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import nn

from bfno.lab.data import DATA_SETS, TOYS, images_below
from bfno.lab.errors import ConfigError, DataError
from bfno.lab.experiments.density.data import (
    DensityData,
    DensityDataSettings,
    held_out_samples,
    load_samples,
    require_images,
)
from bfno.lab.experiments.density.models import MODEL_KINDS, FlowSettings, Solving
from bfno.lab.experiments.density.oddity import Yardstick, plain_bits
from bfno.lab.experiments.density.task import (
    DensityTask,
    DensityTrainSettings,
    Noise,
    PenaltySettings,
    costs,
    is_images,
    score,
)
from bfno.lab.experiments.experiment import (
    Conclusion,
    Experiment,
    OwnData,
    Prediction,
    Shown,
    TestRequest,
    TrainedRun,
    explained_failure,
    explained_misfit,
)
from bfno.lab.experiments.images.data import folder_settings, read_image_file
from bfno.lab.experiments.images.presets import IMAGE_DATA, sized_like
from bfno.lab.experiments.memory import MEMORY
from bfno.lab.experiments.presets import (
    layered,
    model_of_its_kind,
    read_presets,
    require_method,
)
from bfno.lab.experiments.settings import SolverSettings
from bfno.lab.experiments.trees import Tree, setting
from bfno.models.flows import Flow

__all__ = ["DENSITY_DATA", "DENSITY_METHODS", "POINT_METHODS", "DensityExperiment"]

DENSITY_DATA: Mapping[str, str] = {
    **{f"{name}-density": name for name in (*IMAGE_DATA, "folder")},
    **{name: name for name in TOYS},
}
"""Names before the slash of an experiment, and the names of their data sets."""

DENSITY_METHODS: tuple[str, ...] = tuple(read_presets("density")["methods"])
"""The methods, in the order of the paper's table."""

POINT_METHODS: tuple[str, ...] = tuple(
    method
    for method, preset in read_presets("density")["methods"].items()
    if preset["model"]["kind"] == "continuous"
)
"""The methods that model points."""

# Options of operator fields, which another field does not have.
_OF_THE_FIELD = ("branches", "inner_activation", "field_options")
# What single images are scored by: without noise, so that equal files get equal scores.
_SCORE = "bits_per_dim_center"
# Scores that are kept for comparison; more would not make a percentile better.
_MOST_KEPT = 500
_logger = logging.getLogger(__name__)


class DensityExperiment(Experiment):
    """The density of images or points.

    Attributes:
        loss: Weights of the regularisers.
        evaluation: How the ODE is solved outside of training, for evaluation and sampling.
    """

    data_names: ClassVar[tuple[str, ...]] = tuple(DENSITY_DATA)
    own_data: ClassVar[Mapping[str, OwnData]] = {
        "folder-density": OwnData("folder", "for colour images")
    }
    in_memory: ClassVar[str] = f"{MEMORY}-points"
    of_files: ClassVar[tuple[str, ...]] = ("corrupt",)
    solves_files_alone: ClassVar[bool] = True
    recommended: ClassVar[Mapping[str, str]] = {"folder-density": "glow"}

    data: DensityDataSettings
    model: FlowSettings = Field(discriminator="kind")
    loss: PenaltySettings = PenaltySettings()
    # Settings are frozen, so that a narrower type cannot be undone by an assignment.
    train: DensityTrainSettings = DensityTrainSettings()  # pyright: ignore
    evaluation: SolverSettings = SolverSettings(rtol=1e-5, atol=1e-5)

    @classmethod
    def preset(cls, data: str, method: str, tree: Mapping[str, Any]) -> Tree:
        name, presets = DENSITY_DATA.get(data, MEMORY), read_presets("density")
        group = _group(name, setting(tree, "data", "colour", True) is not False)
        require_method(data, method, POINT_METHODS if group == "points" else DENSITY_METHODS)
        scale, both = presets["scales"][tree["scale"]], f"{group}/{method}"
        parts = ("all", group, sized_like(name), name, method, both, f"{name}/{method}")
        settings = layered(
            (
                {"data": {"name": name, **folder_settings(name)}, "model": {}},
                presets["recipe"],
                presets["groups"][group],
                presets["data"].get(name, {}),
                presets["methods"][method],
                presets["pairs"].get(both, {}),
                *(scale.get(part, {}) for part in parts),
            )
        )
        if name == MEMORY:
            settings["data"] = {"name": name}  # how many points there are is known
        model = settings["model"]
        if setting(tree, "model", "field", model.get("field")) != model.get("field"):
            model = {key: value for key, value in model.items() if key not in _OF_THE_FIELD}
        return {**settings, "model": model_of_its_kind(model, tree, MODEL_KINDS)}

    @classmethod
    def names(cls) -> Iterator[str]:
        return (f"{data}-density/{method}" for data in IMAGE_DATA for method in DENSITY_METHODS)

    @property
    def shows(self) -> Shown:
        return "samples"

    def load(self) -> DensityData:
        return load_samples(self.data, self.seed)

    @property
    def numbers_per_layer(self) -> int:
        width = getattr(self.model, "width", 1)  # not every kind of model has one
        return self.train.batch * width * math.prod(self.data.shape[1:])

    def facts(self, data: DensityData) -> dict[str, Any]:
        shift, scale = data.scaling or ((), ())
        scaling = {"scaling": {"shift": list(shift), "scale": list(scale)}} if scale else {}
        division = {"division": data.division} if data.division else {}
        return {"event_shape": list(data.train.shape[1:]), **scaling, **division}

    def known_facts(self) -> dict[str, Any]:
        return {"event_shape": list(self.data.shape)}

    def build(self, facts: Mapping[str, Any]) -> Flow:
        weights = self.loss.model_dump()
        penalties = tuple(name for name, weight in weights.items() if weight > 0)
        if penalties and self.model.kind != "continuous":
            what, why = f"loss.{penalties[0]}", f"{self.model.kind} has no path to penalise"
            raise ConfigError(what, why, "leave it 0")
        solving = Solving(self.solver.model_dump(), self.evaluation.model_dump(), penalties)
        try:
            with explained_misfit(self.model, "solver", "evaluation"):
                return self.model.build(tuple(facts["event_shape"]), solving).float()
        except ImportError as error:
            why = "needs normflows, which is missing"
            raise ConfigError(self.method, why, "pip install 'bfno[flows]'") from error

    def task(self, data: DensityData) -> DensityTask:
        return DensityTask(
            data,
            self.loss,
            seed=self.seed,
            flip=getattr(self.data, "flip", False),
            shown_first=0 if self.model.kind == "continuous" else self.train.batch,
            least_steps=self.train.least_steps,
        )

    def evaluate(self, run: TrainedRun, request: TestRequest) -> dict[str, Any]:
        """Evaluate the trained flow on unseen test samples.

        Returns:
            `bits_per_dim` (uniform noise) and `bits_per_dim_center` of images, or `nll` of points,
            their `standard_errors` over samples by name, `nfe` per batch, `unit` and number of
            `samples`, `dimensions` of one, and `seconds`.
        """
        samples = held_out_samples(run, request.data, request.data_dir, request.limit)
        batch = request.batch or self.train.eval_batch
        started = time.perf_counter()
        with explained_failure("evaluation"):
            # The same noise as in the evaluations of the training.
            noise, share = Noise(self.seed, "test"), request.whole(batch, len(samples))
            found = score(run.model, samples, batch, noise, share)
        return {
            **found.metrics,
            "standard_errors": found.errors,
            "unit": "images" if is_images(samples) else "points",
            "samples": len(samples),
            "dimensions": run.model.dimensions,
            "seconds": round(time.perf_counter() - started, 3),
            "step": run.step,
        }

    def make_independent(self, model: nn.Module) -> str:
        why = "cannot hold in a batch of this model, whose noise is drawn for the whole batch"
        raise ConfigError("--independent", why, "pass --batch 1 instead")

    def conclude(self, run: TrainedRun, data: DensityData) -> Conclusion:
        """Scores of images that the flow did not learn from, for comparison in `predict`.

        These are the validation images, and the test images if they were drawn from the same
        folder: the more there are, the rarer false alarms can be. A flow has seen its training
        images many times and gives them better scores than others, and a user's own test images may
        be the odd ones; they are used only if there are no validation images.
        """
        parts = data.not_learned()
        if not is_images(data.train):
            return Conclusion()
        split = " and ".join(parts)
        # Evenly, because files are in the order of their folders.
        images = torch.cat([_evenly(part, _MOST_KEPT // len(parts)) for part in parts.values()])
        noise = Noise(self.seed, "reference")
        with explained_failure("evaluation"):
            bits = costs(run.model, images, self.train.eval_batch, noise, _SCORE)
        return Conclusion(facts={"reference": Yardstick.of(split, images, bits).facts()})

    def predict(self, run: TrainedRun, files: Iterable[Path]) -> Iterator[Prediction]:
        """Score image files of any size; they are resized as in training.

        The score `bits_per_dim_center` has no noise on the bytes, and the noise of the trace is the
        same for all files, so equal files get equal scores. `percentile` is its place among the
        scores of held-out images. `anomaly` says how unusual the score is for an image as busy as
        this one, and decides whether it is called unusual; see
        `bfno.lab.experiments.density.oddity`.

        Raises:
            ConfigError: If the run models points.
        """
        require_images(run)
        yardstick = Yardstick.read(run.facts.get("reference", {}))
        if yardstick is None:
            _logger.warning(
                "this run has no scores of held-out images, so there are no percentiles; "
                "`bfno resume` adds them to a finished run whose images are still in their place"
            )
        else:
            _logger.warning("%s", yardstick.note())
        noise = Noise(self.seed, "files")
        for file in files:
            try:
                image = read_image_file(run.config.data, file)
            except DataError as error:
                yield Prediction(file, "", {}, error)
                continue
            with explained_failure("evaluation"):
                bits = costs(run.model, image, 1, noise, _SCORE)
            if not math.isfinite(bits.item()):
                _logger.warning("%s: too unlikely for a finite number of bits", file)
                bits = bits.nan_to_num(math.inf, math.inf, math.inf)
            scores = {_SCORE: bits.item()}
            if yardstick is None:
                yield Prediction(file, "", {}, scores=scores)
                continue
            scores |= yardstick.scores(bits.item(), plain_bits(image).item())
            label = "unusual" if scores["anomaly"] >= yardstick.unusual_from else "usual"
            yield Prediction(file, label, {}, scores=scores)

    def files_in(self, run: TrainedRun, folder: Path) -> list[Path]:
        require_images(run)
        return images_below(folder)


def _evenly(images: Any, most: int) -> Any:
    """A number of images, or all if there are fewer, evenly spaced."""
    chosen = torch.linspace(0, len(images) - 1, min(most, len(images))).round().long()
    return images[chosen]


def _group(data: str, colour: bool) -> str:
    """The kind of samples of a data set: `points`, `grey` or `colour`.

    Args:
        data: Name of the data set.
        colour: Whether a folder is read in colour.
    """
    if data in TOYS or data == MEMORY:
        return "points"
    is_colour = colour if data == "folder" else DATA_SETS[data].shape[0] == 3
    return "colour" if is_colour else "grey"
