"""Image classification by a neural ODE, as an experiment."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import nn

from bfno.dynamics import (
    AdamODE,
    Dynamics,
    FirstOrder,
    GeneralizedHeavyBall,
    GeneralizedNesterov,
    HeavyBall,
    InitialMoments,
    InitialVelocity,
    Nesterov,
    SecondOrder,
)
from bfno.fields.convolution import ConvField
from bfno.fields.operator import LAYERS, OperatorField
from bfno.lab.data import DATA_SETS, Splits, images_below, resized
from bfno.lab.errors import ConfigError, DataError
from bfno.lab.experiments.experiment import (
    Experiment,
    Prediction,
    Shown,
    TestRequest,
    TrainedRun,
    class_scores,
    explained_failure,
    explained_misfit,
)
from bfno.lab.experiments.images.data import (
    ImageDataSettings,
    divided_images,
    folder_settings,
    held_out_images,
    other_images,
    read_image_file,
)
from bfno.lab.experiments.images.exhibit import exhibit_of
from bfno.lab.experiments.images.presets import (
    IMAGE_DATA,
    IMAGE_PRESETS,
    RECIPE,
    SCALES,
    ImagePreset,
    find_image_preset,
)
from bfno.lab.experiments.images.task import ImageTask, evaluate_images
from bfno.lab.experiments.presets import layered, require_method
from bfno.lab.experiments.settings import Settings, one_of
from bfno.lab.experiments.trees import Tree, setting
from bfno.models import ImageClassifier, count_parameters
from bfno.ode import NeuralODE

__all__ = ["DYNAMICS", "FIELDS", "ImageExperiment", "ImageModelSettings"]

DYNAMICS: dict[str, type[Dynamics]] = {
    "first_order": FirstOrder,
    "second_order": SecondOrder,
    "heavy_ball": HeavyBall,
    "generalized_heavy_ball": GeneralizedHeavyBall,
    "nesterov": Nesterov,
    "generalized_nesterov": GeneralizedNesterov,
    "adam": AdamODE,
}
"""How a field moves an image, by name."""

FIELDS: dict[str, Callable[[ImageModelSettings, int], nn.Module]] = {
    "conv": lambda model, channels: ConvField(
        channels, model.width, model.channels, **model.field_options
    ),
}
"""Fields of images by name, besides one for each of `bfno.fields.operator.LAYERS`.

Each makes, of the model's settings and the channels that it sees, a module that returns
`model.channels` of them.
"""


class ImageModelSettings(Settings):
    """The parts of a classifier and their sizes; any dynamics goes with any field.

    Attributes:
        dynamics: Name of the dynamics, one of `DYNAMICS`.
        field: Name of the field: one of `FIELDS`, or an operator layer.
        channels: Channels of the state's position.
        width: Channels inside the field.
        depth: Number of operator layers; a convolutional field has no choice of it.
        field_options: Further arguments of the field, such as `branches` of bfno.
        dynamics_options: Further arguments of the dynamics.
    """

    dynamics: Annotated[str, one_of(lambda: DYNAMICS)]
    field: Annotated[str, one_of(lambda: (*FIELDS, *LAYERS))]
    channels: int = Field(ge=1, le=4096)
    width: int = Field(ge=1, le=65536)
    depth: int = Field(default=3, ge=1, le=64)
    field_options: dict[str, Any] = Field(default_factory=dict)
    dynamics_options: dict[str, Any] = Field(default_factory=dict)

    def build(
        self, in_shape: tuple[int, int, int], classes: int, solver: Mapping[str, Any]
    ) -> ImageClassifier:
        """Build an untrained classifier.

        Args:
            in_shape: Channels, height and width of an image.
            classes: Number of classes.
            solver: Arguments of `NeuralODE`.

        Raises:
            ValueError: If the parts do not fit each other or the images.
        """
        if self.channels < in_shape[0]:
            raise ValueError(
                f"the state must hold the image: model.channels must be at least {in_shape[0]}, "
                f"got {self.channels}"
            )
        return ImageClassifier(NeuralODE(self._dynamics(in_shape[0]), **solver), in_shape, classes)

    def _dynamics(self, image_channels: int) -> Dynamics:
        kind = DYNAMICS[self.dynamics]
        # Only second-order dynamics show the field the whole state instead of the position.
        field = self._field(2 * self.channels if kind is SecondOrder else self.channels)
        if kind is FirstOrder:
            return FirstOrder(field, self.channels - image_channels, **self.dynamics_options)
        if kind is AdamODE:
            start = InitialMoments(image_channels, self.width, self.channels)
        else:
            missing = kind.components * self.channels - image_channels
            start = InitialVelocity(image_channels, self.width, missing)
        return kind(field, start, **self.dynamics_options)

    def _field(self, sees: int) -> nn.Module:
        if self.field in FIELDS:
            return FIELDS[self.field](self, sees)
        return OperatorField(
            self.field,
            sees,
            self.width,
            self.depth,
            out_channels=self.channels,
            **self.field_options,
        )


class ImageExperiment(Experiment):
    """Image classification by a neural ODE."""

    data_names: ClassVar[tuple[str, ...]] = (*IMAGE_DATA, "folder")
    own_data: ClassVar[Mapping[str, str]] = {"folder": "folder"}
    # Whether a folder is read in colour also decides its model.
    deciding: ClassVar[tuple[tuple[str, str], ...]] = (("data", "colour"),)

    data: ImageDataSettings
    model: ImageModelSettings

    @classmethod
    def preset(cls, data: str, method: str, tree: Mapping[str, Any]) -> Tree:
        scale = SCALES[tree["scale"]]
        settings = layered((RECIPE, scale.get("all", {}), scale.get(data, {})))
        factor = settings.pop("width", 1.0)
        is_colour = setting(tree, "data", "colour", True)
        model = dict(_preset(data, method, bool(is_colour)).model)
        # AFNO cuts its channels into blocks of equal size.
        blocks = model["field_options"]["blocks"] if model["field"] == "afno" else 1
        model["width"] = max(1, round(model["width"] * factor / blocks)) * blocks
        for part in ("field", "dynamics"):  # another one does not have its options
            if setting(tree, "model", part, model[part]) != model[part]:
                model[f"{part}_options"] = {}
        return layered(
            (settings, {"data": {"name": data, **folder_settings(data)}, "model": model})
        )

    @classmethod
    def names(cls) -> Iterator[str]:
        return (f"{data}/{method}" for data, method in IMAGE_PRESETS)

    @property
    def published(self) -> int | None:
        preset = IMAGE_PRESETS.get((self.experiment.partition("/")[0], self.method))
        return preset.published if preset and self.scale == "paper" else None

    @property
    def shows(self) -> Shown:
        return "exhibit"

    def load(self) -> Splits:
        return divided_images(self.data, self.seed)

    def facts(self, data: Splits) -> dict[str, Any]:
        return {"classes": list(data.classes)}

    def known_facts(self) -> dict[str, Any]:
        return {"classes": DATA_SETS[self.data.name].class_names}

    def build(self, facts: Mapping[str, Any]) -> ImageClassifier:
        with explained_misfit():
            classes = tuple(facts["classes"])
            solver = self.solver.model_dump()
            model = self.model.build(self.data.shape, len(classes), solver).float()
        model.class_names = classes
        return model

    def count(self, model: nn.Module) -> int:
        """The number of a model's parameters, with those that the published code never uses."""
        data, _, method = self.experiment.partition("/")
        preset = _preset(data, method, self.data.colour)
        is_its_own = all(
            getattr(self.model, part) == preset.model[part] for part in ("field", "dynamics")
        )
        return count_parameters(model) + (preset.idle if is_its_own else 0)

    def task(self, data: Splits) -> ImageTask:
        return ImageTask(data)

    def evaluate(self, run: TrainedRun, request: TestRequest) -> dict[str, Any]:
        """Evaluate the trained model on test images it has not seen.

        Returns:
            Accuracy, loss, function evaluations per batch, confusion matrix (rows are true
            classes) and precision, recall and F1 of each class.
        """
        settings = other_images(self.data, request.data, request.data_dir)
        found, names = held_out_images(settings, self.seed, request.limit)
        classes = run.model.class_names
        if names != classes:
            here, there = ", ".join(names[:5]), ", ".join(classes[:5])
            raise ConfigError(
                request.data or settings.name,
                f"has other classes ({here}, …) than the run ({there}, …)",
                "evaluate on data with the same classes",
            )
        split = resized(found, run.model.in_shape[-1])
        started = time.perf_counter()
        batch = request.batch or self.train.eval_batch
        with explained_failure():
            share = request.whole(batch, len(split))
            evaluation = evaluate_images(run.model, split, len(classes), batch, share)
        return {
            **evaluation.metrics,
            "unit": "images",
            "samples": len(split),
            "seconds": round(time.perf_counter() - started, 3),
            "step": run.step,
            "classes": list(classes),
            "confusion": evaluation.confusion,
            "per_class": list(class_scores(evaluation.confusion)),
        }

    def predict(self, run: TrainedRun, files: Iterable[Path]) -> Iterator[Prediction]:
        """Classify image files of any size; they are resized as in training.

        Each image is solved by itself, so that a prediction does not depend on its neighbours.
        """
        for file in files:
            try:
                image = read_image_file(self.data, file)
            except DataError as error:
                yield Prediction(file, "", {}, error)
                continue
            with torch.inference_mode(), explained_failure():
                scores = run.model(image.float().div(255))[0]
            names = run.model.class_names
            probabilities = dict(zip(names, scores.softmax(0).tolist(), strict=True))
            yield Prediction(file, names[int(scores.argmax())], probabilities)

    def files_in(self, run: TrainedRun, folder: Path) -> list[Path]:
        return images_below(folder)

    def exhibit(self, run: TrainedRun) -> dict[str, Any]:
        return exhibit_of(run)


def _preset(data: str, method: str, colour: bool) -> ImagePreset:
    """The preset of data and method; a folder has those of CIFAR-10 or of MNIST."""
    if data != "folder":
        return find_image_preset(data, method)
    like = "cifar10" if colour else "mnist"
    require_method(data, method, (known for of, known in IMAGE_PRESETS if of == like))
    return find_image_preset(like, method)
