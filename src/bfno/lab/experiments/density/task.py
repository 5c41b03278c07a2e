"""Maximum likelihood of images and points."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bfno.lab.experiments.density.build import DensityData
from bfno.lab.experiments.density.scoring import Noise, as_input, cost, measures, score
from bfno.lab.experiments.density.settings import DensityConfig
from bfno.lab.experiments.tasks import Evaluation, Place, Share, Sums, Task

__all__ = ["DensityTask"]

# What the loop adds to the sums of a task, or what no average is taken of.
_OF_THE_LOOP = ("samples", "solves", "forward_nfe", "backward_nfe")


class DensityTask(Task):
    """Bits per dimension of images or nats of points, and the regularisers of a flow.

    Args:
        config: The settings.
        data: The divided samples.
    """

    lower_is_better = True

    def __init__(self, config: DensityConfig, data: DensityData) -> None:
        self.config, self.data = config, data
        self.selection = measures(data.train)[0]

    @property
    def splits(self) -> tuple[str, ...]:
        return ("test",) if self.data.validation is None else ("validation", "test")

    def prepare(self, model: nn.Module, device: torch.device) -> None:
        """Show a flow of layers its first batch, from which some take their scale."""
        if self.config.model.kind != "continuous":
            with torch.no_grad():
                model(self._input(self.data.train[: self.config.train.batch].to(device), model))

    def batches(self, size: int, generator: torch.Generator) -> list[Tensor]:
        return list(torch.randperm(len(self.data.train), generator=generator).split(size))

    def loss(self, model: nn.Module, samples: Tensor, place: Place) -> tuple[Tensor, Sums]:
        chosen = self.data.train[samples].to(place.device)
        if getattr(self.config.data, "flip", False):
            chosen = _flipped(chosen)
        found = model(self._input(chosen, model))
        values = cost(found.log_prob, chosen)
        loss = values.mean()
        weights = self.config.loss.model_dump()
        for name, penalty in found.penalties.items():
            loss = loss + weights[name] * penalty.mean()
        # The volume gained, in the unit of the loss; a cost of log-density 0 is that of nothing.
        gained = cost(torch.zeros_like(found.log_det), chosen) - cost(found.log_det, chosen)
        parts = {self.selection: values, "log_det": gained, **found.penalties}
        return loss, {name: part.detach().sum().item() for name, part in parts.items()}

    def train_metrics(self, sums: Sums) -> dict[str, float]:
        averaged = {name: value for name, value in sums.items() if name not in _OF_THE_LOOP}
        return {name: value / sums["samples"] for name, value in averaged.items()}

    def evaluate(self, model: nn.Module, split: str, batch: int, share: Share) -> Evaluation:
        noise = Noise(self.config.seed, split)
        return Evaluation(score(model, getattr(self.data, split), batch, noise, share).metrics, [])

    def _input(self, samples: Tensor, model: nn.Module) -> Tensor:
        return as_input(samples, self.selection, next(model.parameters()).dtype)


def _flipped(images: Tensor) -> Tensor:
    """Every image or its mirror image, each as likely."""
    coins = torch.rand(len(images), 1, 1, 1, device=images.device) < 0.5
    return torch.where(coins, images.flip(-1), images)
