"""Image classification with neural ODEs and their baselines, as an experiment."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field
from torch import nn

from bfno.lab.data import DATA_SETS, Splits, images_below, resized
from bfno.lab.errors import ConfigError, DataError, first_names
from bfno.lab.experiments.experiment import (
    Experiment,
    ExportRequest,
    OwnData,
    Portable,
    Prediction,
    Shown,
    TestRequest,
    TrainedRun,
    class_scores,
    explained_failure,
    explained_misfit,
)
from bfno.lab.experiments.images.augment import AugmentSettings
from bfno.lab.experiments.images.calibration import probabilities, temperature_of
from bfno.lab.experiments.images.data import (
    AnyImageDataSettings,
    divided_images,
    folder_settings,
    held_out_images,
    other_images,
    read_image_file,
    refuse_other_draw,
)
from bfno.lab.experiments.images.exhibit import exhibit_of
from bfno.lab.experiments.images.export import portable_classifier
from bfno.lab.experiments.images.models import CNNSettings, ImageModelSettings, NetSettings
from bfno.lab.experiments.images.presets import (
    IMAGE_DATA,
    IMAGE_PRESETS,
    NETS,
    ImagePreset,
    find_image_preset,
    net_recipe,
    paper_recipe,
    sized_model,
)
from bfno.lab.experiments.images.task import ImageTask, ImageTrainSettings, evaluate_images
from bfno.lab.experiments.memory import MEMORY, is_in_memory
from bfno.lab.experiments.presets import layered, require_method
from bfno.lab.experiments.trees import Tree, setting
from bfno.models import ConvNet, ImageClassifier, count_parameters

__all__ = ["ImageExperiment"]


class ImageExperiment(Experiment):
    """Image classification.

    Attributes:
        augment: How training images are changed.
    """

    data_names: ClassVar[tuple[str, ...]] = (*IMAGE_DATA, "folder")
    own_data: ClassVar[Mapping[str, OwnData]] = {
        "folder": OwnData("folder", "for two classes", {"classes": ("one", "other")})
    }
    in_memory: ClassVar[str] = MEMORY
    # Whether a folder is read in colour also decides its model.
    deciding: ClassVar[tuple[tuple[str, str], ...]] = (("data", "colour"),)
    of_files: ClassVar[tuple[str, ...]] = ("corrupt",)
    solves_files_alone: ClassVar[bool] = True
    recommended: ClassVar[Mapping[str, str]] = {"folder": "bfno-net"}

    data: AnyImageDataSettings
    model: ImageModelSettings = Field(discriminator="kind")
    # Settings are frozen, so a section may be a narrower one.
    train: ImageTrainSettings = ImageTrainSettings()  # pyright: ignore[reportIncompatibleVariableOverride]
    augment: AugmentSettings = AugmentSettings()

    @classmethod
    def preset(cls, data: str, method: str, tree: Mapping[str, Any]) -> Tree:
        own = {"data": {"name": data, **folder_settings(data)}}
        if method in NETS:
            settings, model = net_recipe(data, tree["scale"]), dict(NETS[method])
        else:
            is_colour = bool(setting(tree, "data", "colour", True))
            settings = paper_recipe(data, tree["scale"])
            model = sized_model(_preset(data, method, is_colour), data, tree["scale"])
        kind = setting(tree, "model", "kind", model["kind"])
        if kind != model["kind"]:
            why = f"is {model['kind']!r} in {data}/{method} and cannot be {kind!r}"
            fix = f"train {data}/bfno-net, {data}/cnn or {data}/bfno-node instead"
            raise ConfigError("model.kind", why, fix)
        if kind == "cnn":
            _refuse_parts_of_an_ode(f"{data}/{method}", tree)
            return layered((settings, own, {"model": model}))
        for part in ("field", "dynamics"):  # another one does not have its options
            if setting(tree, "model", part, model.get(part)) != model.get(part):
                model[f"{part}_options"] = {}
        return layered((settings, own, {"model": model}))

    @classmethod
    def names(cls) -> Iterator[str]:
        yield from (f"{data}/{method}" for data, method in IMAGE_PRESETS)
        yield from (f"{data}/{method}" for data in IMAGE_DATA for method in NETS)

    @property
    def published(self) -> int | None:
        preset = IMAGE_PRESETS.get((self.experiment.partition("/")[0], self.method))
        return preset.published if preset and self.scale == "paper" else None

    @property
    def shows(self) -> Shown | None:
        return None if is_in_memory(self.data) else "exhibit"  # of test images

    def refuse_idle(self, changes: Mapping[str, Any]) -> None:
        for name in changes.get("solver", {}) if self.model.kind == "cnn" else ():
            raise _without_equation(f"solver.{name}", self.experiment)

    def load(self) -> Splits:
        return divided_images(self.data, self.seed)

    @property
    def numbers_per_layer(self) -> int:
        width = getattr(self.model, "width", 1)  # not every kind of model has one
        return self.train.batch * width * math.prod(self.data.shape[1:])

    def facts(self, data: Splits) -> dict[str, Any]:
        division = {"division": data.division} if data.division else {}
        return {"classes": list(data.classes), **division}

    def known_facts(self) -> dict[str, Any]:
        return {"classes": DATA_SETS[self.data.name].class_names}

    def build(self, facts: Mapping[str, Any]) -> ImageClassifier | ConvNet:
        with explained_misfit(self.model, "solver"):
            classes = tuple(facts["classes"])
            solver = self.solver.model_dump()
            model = self.model.build(self.data.shape, len(classes), solver).float()
        model.class_names = classes
        return model

    def count(self, model: nn.Module) -> int:
        """The number of a model's parameters, with those that the published code never uses."""
        data, _, method = self.experiment.partition("/")
        if self.model.kind != "ode" or method in NETS:
            return count_parameters(model)
        preset = _preset(data, method, self.data.colour)
        is_its_own = all(
            getattr(self.model, part) == preset.model[part] for part in ("field", "dynamics")
        )
        return count_parameters(model) + (preset.idle if is_its_own else 0)

    def task(self, data: Splits) -> ImageTask:
        is_normed = self.model.kind != "ode"
        return ImageTask(data, self.train, self.augment, is_normed=is_normed)

    def evaluate(self, run: TrainedRun, request: TestRequest) -> dict[str, Any]:
        """Evaluate the trained model on unseen test images.

        Returns:
            Accuracy, loss, function evaluations per batch, calibration errors, confusion matrix
            (rows are true classes) and precision, recall and F1 of each class.
        """
        settings = other_images(self.data, request.data, request.data_dir)
        refuse_other_draw(run, settings)
        found, names = held_out_images(settings, self.seed, request.limit)
        classes = run.model.class_names
        if names != classes:
            here, there = first_names(names), first_names(classes)
            raise ConfigError(
                request.data or settings.name,
                f"has other classes ({here}) than the run ({there})",
                "evaluate on data with the same classes" + _about_the_locale(),
            )
        is_as_needed = found.images.shape[1:] == run.model.in_shape
        split = found if is_as_needed else resized(found, run.model.in_shape[-1])
        started = time.perf_counter()
        batch = request.batch or self.train.eval_batch
        with explained_failure():
            share = request.whole(batch, len(split))
            evaluation = evaluate_images(
                run.model, split, len(classes), batch, share, temperature_of(run)
            )
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

        Each image is solved by itself, so a prediction does not depend on other images.
        Probabilities are calibrated on the validation images, if there were any.
        """
        for file in files:
            try:
                image = read_image_file(self.data, file)
            except DataError as error:
                yield Prediction(file, "", {}, error)
                continue
            shares, names = probabilities(run, image)[0], run.model.class_names
            known = dict(zip(names, shares.tolist(), strict=True))
            yield Prediction(file, names[int(shares.argmax())], known)

    def files_in(self, run: TrainedRun, folder: Path) -> list[Path]:
        return images_below(folder)

    def exhibit(self, run: TrainedRun) -> dict[str, Any]:
        return exhibit_of(run)

    def portable(self, run: TrainedRun, request: ExportRequest) -> Portable:
        return portable_classifier(run, request)


def _refuse_parts_of_an_ode(experiment: str, tree: Mapping[str, Any]) -> None:
    asked = tree.get("model")
    for name in asked if isinstance(asked, Mapping) else ():
        if name in NetSettings.model_fields and name not in CNNSettings.model_fields:
            raise _without_equation(f"model.{name}", experiment)


def _without_equation(name: str, experiment: str) -> ConfigError:
    why = f"has no effect: {experiment} solves no equation"
    data = experiment.partition("/")[0]
    return ConfigError(name, why, f"leave it out, or train {data}/bfno-net")


def _preset(data: str, method: str, colour: bool) -> ImagePreset:
    """The preset of data and method; the user's own images use those of CIFAR-10 or MNIST."""
    if data not in ("folder", MEMORY):
        return find_image_preset(data, method)
    like = "cifar10" if colour else "mnist"
    require_method(data, method, (*NETS, *(known for of, known in IMAGE_PRESETS if of == like)))
    return find_image_preset(like, method)


def _about_the_locale() -> str:
    """A warning if folder names are not read as they were written; otherwise empty."""
    encoding = sys.getfilesystemencoding()
    if encoding.lower() in ("utf-8", "utf8"):
        return ""
    return f", or set PYTHONUTF8=1: the locale here reads names of folders as {encoding}"
