"""Classification of images by cross-entropy."""

from __future__ import annotations

import logging
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from bfno.lab.data import Split, Splits
from bfno.lab.experiments.images.augment import AugmentSettings, augmented, mixing
from bfno.lab.experiments.images.calibration import calibration_error, fitted_temperature
from bfno.lab.experiments.settings import TrainSettings
from bfno.lab.experiments.tasks import (
    Evaluation,
    Found,
    Place,
    Share,
    Sums,
    Task,
    evaluation_mode,
    require_sound,
    solver_stats,
)

__all__ = ["ImageTask", "ImageTrainSettings", "evaluate_images", "image_scores"]

_logger = logging.getLogger(__name__)

# Factor between the largest and the smallest class from which users get a warning.
_UNEQUAL = 1.5


class ImageTrainSettings(TrainSettings):
    """The recipe of an image classifier.

    Attributes:
        label_smoothing: Share of each label's weight that is spread over all classes.
        class_weights: `balanced` gives every class the same weight, however many images it has;
            `none` gives every image the same weight.
    """

    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    class_weights: Literal["none", "balanced"] = "none"


class ImageTask(Task):
    """Classification of images by cross-entropy.

    Args:
        data: The split images.
        recipe: Smoothing and weights of the labels.
        augment: How training images are changed.
        is_normed: Whether the model normalises over batches, which then must not hold a single
            image.
    """

    selection = "accuracy"
    remedy_for_overfitting = (
        "More images help; or train again with stronger augmentation (augment.shift, augment.zoom, "
        "augment.mix), a smaller model.width, or --set train.select=best --set train.patience=10, "
        "which ends such a training early."
    )

    def __init__(
        self,
        data: Splits,
        recipe: ImageTrainSettings | None = None,
        augment: AugmentSettings | None = None,
        *,
        is_normed: bool = False,
    ) -> None:
        self.data, self.is_normed = data, is_normed
        self.recipe, self.augment = recipe or ImageTrainSettings(), augment or AugmentSettings()
        self._weights = self._class_weights()
        self._temperature: float | None = None

    def batches(self, size: int, generator: torch.Generator) -> list[Tensor]:
        order = torch.randperm(len(self.data.train), generator=generator)
        batches = list(order.split(size))
        if self.is_normed and len(batches) > 1 and len(batches[-1]) == 1:
            batches[-2:] = [torch.cat(batches[-2:])]
        return batches

    def loss(self, model: nn.Module, samples: Tensor, place: Place) -> tuple[Tensor, Found]:
        bytes_, labels = self.data.train.images[samples], self.data.train.labels[samples]
        images = _as_input(augmented(bytes_, self.augment), model, place.device)
        labels = labels.to(place.device, non_blocking=True)
        share, partners = mixing(len(images), self.augment)
        if share < 1:
            partners = partners.to(place.device, non_blocking=True)
            images = images.lerp(images[partners], 1 - share)
        scores = model(images)
        loss = self._cross_entropy(scores, labels)
        if share < 1:
            loss = share * loss + (1 - share) * self._cross_entropy(scores, labels[partners])
        return loss, {"correct": (scores.detach().argmax(1) == labels).sum()}

    def train_metrics(self, sums: Sums) -> dict[str, float]:
        return {
            "loss": sums["loss"] / sums["samples"],
            "accuracy": sums["correct"] / sums["samples"],
        }

    def evaluate(self, model: nn.Module, split: str, batch: int, share: Share) -> Evaluation:
        """Evaluate a split; the test images at the temperature of the validation images."""
        images, classes = getattr(self.data, split), len(self.data.classes)
        scores, nfe = image_scores(model, images, classes, batch, share)
        if split != "validation":
            return _evaluation(scores, images.labels, nfe, self._temperature)
        self._temperature = fitted_temperature(scores, images.labels)
        found = _evaluation(scores, images.labels, nfe, None)
        return Evaluation({**found.metrics, "temperature": self._temperature}, found.confusion)

    def _cross_entropy(self, scores: Tensor, labels: Tensor) -> Tensor:
        weights = None if self._weights is None else self._weights.to(scores, non_blocking=True)
        smoothing = self.recipe.label_smoothing
        total = nn.functional.cross_entropy(
            scores, labels, weights, reduction="sum", label_smoothing=smoothing
        )
        # Not by the sum of the weights, which differs from process to process.
        return total / len(labels)

    def _class_weights(self) -> Tensor | None:
        if self.recipe.class_weights == "none":
            return None
        counts = self.data.train.labels.bincount(minlength=len(self.data.classes)).double()
        fewest, most = int(counts.argmin()), int(counts.argmax())
        if counts[most] > _UNEQUAL * counts[fewest]:
            _logger.warning(
                "the classes are unequal, with %d (%s) to %d (%s) training images; each class has "
                "the same weight (train.class_weights)",
                counts[fewest],
                self.data.classes[fewest],
                counts[most],
                self.data.classes[most],
            )
        return counts.mean() / counts.clamp(min=1)


def evaluate_images(
    model: nn.Module,
    split: Split,
    classes: int,
    batch: int,
    share: Share | None = None,
    temperature: float | None = None,
) -> Evaluation:
    """Loss, accuracy, calibration, evaluations per batch and confusion matrix of a classifier.

    Args:
        model: The classifier.
        split: Images and labels.
        classes: Number of classes.
        batch: Images at a time; the solver's steps depend on all images of a batch, so the last
            digits depend on it.
        share: This process's part; None is the whole.
        temperature: Divisor of the scores that calibrates probabilities, if known.
    """
    scores, nfe = image_scores(model, split, classes, batch, share or Share())
    return _evaluation(scores, split.labels, nfe, temperature)


def image_scores(
    model: nn.Module, split: Split, classes: int, batch: int, share: Share
) -> tuple[Tensor, float]:
    """The scores of all images in double precision, and the evaluations per batch.

    Arguments are those of `evaluate_images`; labels do not matter.

    Raises:
        ScoresError: If a score is not finite.
    """
    processes = share.processes
    scores = torch.zeros(len(split), classes, dtype=torch.float64)
    evaluations, batches = 0, 0
    with evaluation_mode(model), torch.inference_mode():
        for samples in torch.arange(len(split)).split(batch)[processes.rank :: processes.count]:
            share.pause()
            images = _as_input(split.images[samples], model, processes.device)
            scores[samples] = model(images).double().cpu()
            evaluations += solver_stats(model).forward_evaluations
            batches += 1
    # Every process has the scores of its own batches, and zeros for the rest.
    counts = torch.tensor([evaluations, batches], dtype=torch.float64)
    total = processes.add_up(torch.cat((counts, scores.flatten())))
    require_sound(total.isfinite())
    return total[2:].view_as(scores), (total[0] / total[1]).item()


def _evaluation(
    scores: Tensor, labels: Tensor, nfe: float, temperature: float | None
) -> Evaluation:
    classes = scores.shape[1]
    confusion = (labels * classes + scores.argmax(1)).bincount(minlength=classes**2)
    confusion = confusion.view(classes, classes)
    metrics = {
        "loss": nn.functional.cross_entropy(scores, labels).item(),
        "accuracy": confusion.trace().item() / len(labels),
        "nfe": nfe,
        "calibration_error": calibration_error(scores, labels),
    }
    if temperature is not None:
        metrics["calibrated_error"] = calibration_error(scores / temperature, labels)
    return Evaluation(metrics, confusion.tolist())


def _as_input(images: Tensor, model: nn.Module, device: torch.device) -> Tensor:
    """Bytes as numbers between 0 and 1 in the model's precision."""
    return images.to(device, non_blocking=True).to(next(model.parameters()).dtype).div_(255)
