"""Classification of images by cross-entropy."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bfno.lab.data import Split, Splits
from bfno.lab.experiments.tasks import Evaluation, Place, Share, Sums, Task, solver_stats

__all__ = ["ImageTask", "evaluate_images"]


class ImageTask(Task):
    """Classification of images by cross-entropy.

    Args:
        data: The divided images.
    """

    selection = "accuracy"

    def __init__(self, data: Splits) -> None:
        self.data = data

    @property
    def splits(self) -> tuple[str, ...]:
        return ("test",) if self.data.validation is None else ("validation", "test")

    def batches(self, size: int, generator: torch.Generator) -> list[Tensor]:
        return list(torch.randperm(len(self.data.train), generator=generator).split(size))

    def loss(self, model: nn.Module, samples: Tensor, place: Place) -> tuple[Tensor, Sums]:
        images, labels = _batch(self.data.train, samples, model, place.device)
        scores = model(images)
        loss = nn.functional.cross_entropy(scores, labels)
        correct = (scores.detach().argmax(1) == labels).sum().item()
        return loss, {"correct": correct}

    def train_metrics(self, sums: Sums) -> dict[str, float]:
        return {
            "loss": sums["loss"] / sums["samples"],
            "accuracy": sums["correct"] / sums["samples"],
        }

    def evaluate(self, model: nn.Module, split: str, batch: int, share: Share) -> Evaluation:
        return evaluate_images(
            model, getattr(self.data, split), len(self.data.classes), batch, share
        )


def evaluate_images(
    model: nn.Module, split: Split, classes: int, batch: int, share: Share | None = None
) -> Evaluation:
    """Loss, accuracy, evaluations per batch and confusion matrix of a classifier.

    Args:
        model: The classifier.
        split: Images and labels.
        classes: Number of classes.
        batch: Images at a time; the solver's steps suit all images of a batch, so that the last
            digits depend on it.
        share: This process's part; None is the whole.
    """
    share = share or Share()
    processes = share.processes
    was_training = model.training
    model.eval()
    confusion = torch.zeros(classes, classes, dtype=torch.float64)
    loss, evaluations, batches = 0.0, 0, 0
    with torch.inference_mode():
        for samples in torch.arange(len(split)).split(batch)[processes.rank :: processes.count]:
            share.pause()
            images, labels = _batch(split, samples, model, processes.device)
            scores = model(images)
            loss += nn.functional.cross_entropy(scores, labels, reduction="sum").item()
            evaluations += solver_stats(model).forward_evaluations
            batches += 1
            places = (labels * classes + scores.argmax(1)).cpu()
            confusion += torch.bincount(places, minlength=classes**2).view(classes, classes)
    model.train(was_training)
    sums = torch.tensor([loss, evaluations, batches], dtype=torch.float64)
    total = processes.add_up(torch.cat((sums, confusion.flatten())))
    confusion = total[3:].view(classes, classes)
    metrics = {
        "loss": total[0].item() / len(split),
        "accuracy": confusion.trace().item() / len(split),
        "nfe": total[1].item() / total[2].item(),
    }
    return Evaluation(metrics, confusion.long().tolist())


def _batch(
    split: Split, samples: Tensor, model: nn.Module, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Images between 0 and 1 in the model's precision, and their labels."""
    dtype = next(model.parameters()).dtype
    images = split.images[samples].to(device).to(dtype).div_(255)
    return images, split.labels[samples].to(device)
