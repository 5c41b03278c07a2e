"""Maximum likelihood of images and points: the loss, and scores of samples."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from pydantic import Field
from torch import Tensor, nn

from bfno.lab.experiments.density.data import DensityData
from bfno.lab.experiments.seeds import derive_seed
from bfno.lab.experiments.settings import Settings, TrainSettings
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
from bfno.models.flows import ContinuousFlow, bits_per_dim, dequantise

__all__ = [
    "DensityTask",
    "DensityTrainSettings",
    "Noise",
    "PenaltySettings",
    "Scores",
    "as_input",
    "costs",
    "is_images",
    "preserved_generators",
    "score",
]

# Sums that the loop adds to those of a task, or that are not averaged.
_OF_THE_LOOP = ("samples", "solves", "forward_nfe", "backward_nfe")
# Samples at most that are solved in both ways, see `DensityTask.evaluate`.
_SOLVED_TWICE = 64
_DEQUANTISATION = {"bits_per_dim": "uniform", "bits_per_dim_center": "center"}


class PenaltySettings(Settings):
    """Weights of the regularisers of a continuous flow; those with weight 0 are not computed.

    Attributes:
        kinetic: Weight of half the squared speed, averaged over dimensions and integrated.
        jacobian: Weight of the squared norm of the Jacobian, in the same way.
    """

    kinetic: float = Field(default=0.0, ge=0)
    jacobian: float = Field(default=0.0, ge=0)


class DensityTrainSettings(TrainSettings):
    """The recipe of a density.

    Attributes:
        least_steps: Smallest number of steps in an epoch: a shorter one passes over the training
            samples several times, each time in a different order.
    """

    least_steps: int = Field(default=1, ge=1, le=10**6)


class DensityTask(Task):
    """Bits per dimension of images or nats of points, and the regularisers of a flow.

    Args:
        data: The divided samples.
        weights: Weights of the regularisers.
        seed: Seed of the noise of evaluations.
        flip: Whether training images are mirrored every other time.
        shown_first: Number of random training samples that a new flow sees before the first step;
            flows of layers take their scale from them, continuous flows ignore them.
        least_steps: Smallest number of steps in an epoch, which passes over few samples several
            times.
    """

    lower_is_better = True

    def __init__(
        self,
        data: DensityData,
        weights: PenaltySettings,
        *,
        seed: int,
        flip: bool = False,
        shown_first: int = 0,
        least_steps: int = 1,
    ) -> None:
        self.data, self.weights, self.seed = data, weights, seed
        self.flip, self.shown_first, self.least_steps = flip, shown_first, least_steps
        self.selection = _measures(data.train)[0]

    def prepare(self, model: nn.Module, device: torch.device) -> None:
        """Show a flow of layers its first batch, from which some take their scale."""
        if self.shown_first:
            # Not the first ones: files are in the order of their folders, often one per class.
            shown = torch.randperm(len(self.data.train))[: self.shown_first]
            with torch.no_grad():
                model(self._input(self.data.train[shown].to(device), model))

    def batches(self, size: int, generator: torch.Generator) -> list[Tensor]:
        count = len(self.data.train)
        passes = math.ceil(self.least_steps / math.ceil(count / size))
        orders = (torch.randperm(count, generator=generator) for _ in range(passes))
        return [samples for order in orders for samples in order.split(size)]

    def loss(self, model: nn.Module, samples: Tensor, place: Place) -> tuple[Tensor, Found]:
        chosen = self.data.train[samples].to(place.device, non_blocking=True)
        if self.flip:
            chosen = _flipped(chosen)
        found = model(self._input(chosen, model))
        values = _cost(found.log_prob, chosen)
        loss = values.mean()
        weights = self.weights.model_dump()
        for name, penalty in found.penalties.items():
            # An integral of squares: values below zero are only the solver's error, which a field
            # would soon learn to live on.
            loss = loss + weights[name] * penalty.clamp(min=0).mean()
        # The volume gained, in the unit of the loss; a cost of log-density 0 is that of nothing.
        gained = _cost(torch.zeros_like(found.log_det), chosen) - _cost(found.log_det, chosen)
        parts = {self.selection: values, "log_det": gained, **found.penalties}
        if found.penalties:
            least = torch.stack(list(found.penalties.values())).amin(0)
            parts["penalty_below_zero"] = (least < 0).to(least)
        return loss, {name: part.detach().sum() for name, part in parts.items()}

    def train_metrics(self, sums: Sums) -> dict[str, float]:
        averaged = {name: value for name, value in sums.items() if name not in _OF_THE_LOOP}
        return {name: value / sums["samples"] for name, value in averaged.items()}

    def evaluate(self, model: nn.Module, split: str, batch: int, share: Share) -> Evaluation:
        """Score a split; for one split, also measure how far off the training's solver is.

        A continuous flow can make the training's steps err in its favour, because the density is
        that of the exact path. `solver_error` is how far apart the scores of a few samples are with
        both solvers.
        """
        samples, noise = getattr(self.data, split), Noise(self.seed, split)
        metrics = score(model, samples, batch, noise, share).metrics
        solves = any(isinstance(module, ContinuousFlow) for module in model.modules())
        if solves and split == self.splits[0]:
            some = samples[: min(batch, _SOLVED_TWICE)].to(share.processes.device)
            metrics["solver_error"] = _solver_error(model, some, noise, self.selection)
        return Evaluation(metrics, [])

    def _input(self, samples: Tensor, model: nn.Module) -> Tensor:
        return as_input(samples, self.selection, next(model.parameters()).dtype)


def _flipped(images: Tensor) -> Tensor:
    """Every image or its mirror image, with equal chance."""
    coins = torch.rand(len(images), 1, 1, 1, device=images.device) < 0.5
    return torch.where(coins, images.flip(-1), images)


@dataclass(frozen=True)
class Noise:
    """The seeds of all noise of an evaluation, on bytes and in traces.

    Attributes:
        seed: The seed of the run.
        split: Name of the split, so that each split has its own noise.
    """

    seed: int
    split: str

    def set(self, measure: str, batch: int) -> None:
        """Seed torch's generator for one measure of one batch."""
        torch.manual_seed(derive_seed(self.seed, f"{measure} of {self.split}", batch))


@dataclass(frozen=True)
class Scores:
    """Means over samples.

    Attributes:
        metrics: Means by name, and evaluations of the field per batch as `nfe`.
        errors: Standard error of each mean.
    """

    metrics: dict[str, float]
    errors: dict[str, float]


def is_images(samples: Tensor) -> bool:
    """Whether these are images, which are bytes, rather than points."""
    return samples.dtype == torch.uint8


def _measures(samples: Tensor) -> tuple[str, ...]:
    """Names of the measures; the first one decides.

    `bits_per_dim` has uniform noise on the bytes: an upper bound, in the mean, of what coding them
    costs. `bits_per_dim_center` takes the middle of each byte's interval, as RNODE does: no bound,
    usually lower. `nll` is the negative logarithm of the density of points, in nats.
    """
    return tuple(_DEQUANTISATION) if is_images(samples) else ("nll",)


def as_input(samples: Tensor, measure: str, dtype: torch.dtype) -> Tensor:
    """Samples as a flow takes them; noise comes from torch's generator."""
    if not is_images(samples):
        return samples.to(dtype)
    how = "uniform" if measure == "bits_per_dim" else "center"
    return dequantise(samples, how, dtype)


def _cost(log_prob: Tensor, samples: Tensor) -> Tensor:
    """Bits per dimension of images, nats of points, from their log-density."""
    return bits_per_dim(log_prob, samples[0].numel()) if is_images(samples) else -log_prob


def score(
    model: nn.Module,
    samples: Tensor,
    batch: int,
    noise: Noise,
    share: Share | None = None,
    wanted: tuple[str, ...] | None = None,
) -> Scores:
    """Evaluate a flow in evaluation mode; random number generators are left unchanged.

    Args:
        model: The flow.
        samples: Images as bytes, or points.
        batch: Samples at a time; noise and steps of the solver depend on it.
        noise: Seeds of the noise.
        share: This process's part; None is the whole.
        wanted: Names of the measures; None is all.

    Raises:
        ScoresError: If the cost of a sample is not a number.
    """
    share, wanted = share or Share(), wanted or _measures(samples)
    processes = share.processes
    sums = torch.zeros(len(wanted), 2, dtype=torch.float64)
    solves = torch.zeros(2, dtype=torch.float64)
    with _evaluating(model, processes.device):
        mine = list(enumerate(samples.split(batch)))[processes.rank :: processes.count]
        for number, part in mine:
            share.pause()
            part = part.to(processes.device)
            for place, measure in enumerate(wanted):
                noise.set(measure, number)
                values = _costs(model, part, measure)
                sums[place] += torch.stack((values.sum(), values.square().sum()))
                solves += torch.tensor([solver_stats(model).forward_evaluations, 1])
    total = processes.add_up(torch.cat((sums.flatten(), solves)))
    require_sound(~total.isnan())  # infinite is what an impossible sample costs
    return _averages(
        dict(zip(wanted, total[:-2].view(-1, 2).tolist(), strict=True)), total[-2:], len(samples)
    )


def costs(model: nn.Module, samples: Tensor, batch: int, noise: Noise, measure: str) -> Tensor:
    """Compute the cost of each sample, `(count,)` in double precision; see `score`."""
    device = next(model.parameters()).device
    found = []
    with _evaluating(model, device):
        for number, part in enumerate(samples.split(batch)):
            noise.set(measure, number)
            found.append(_costs(model, part.to(device), measure))
    result = torch.cat(found)
    require_sound(~result.isnan())
    return result


def _costs(model: nn.Module, samples: Tensor, measure: str) -> Tensor:
    found = model(as_input(samples, measure, next(model.parameters()).dtype))
    return _cost(found.log_prob, samples).double().cpu()


def _solver_error(model: nn.Module, samples: Tensor, noise: Noise, measure: str) -> float:
    """Difference between the mean costs by the training's solver and by the other one."""
    means = []
    with _evaluating(model, samples.device):
        for training in (True, False):
            model.train(training)
            noise.set(measure, 0)
            means.append(_costs(model, samples, measure).mean())
    return abs(means[0] - means[1]).item()


def _averages(sums: Mapping[str, list[float]], solves: Tensor, count: int) -> Scores:
    metrics = {name: total / count for name, (total, _) in sums.items()}
    errors = {}
    for name, (_, squares) in sums.items():
        variance = max(squares / count - metrics[name] ** 2, 0.0)
        errors[name] = math.sqrt(variance / max(count - 1, 1))
    return Scores({**metrics, "nfe": (solves[0] / solves[1]).item()}, errors)


@contextlib.contextmanager
def _evaluating(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Without gradients, in evaluation mode, and with torch's generators unchanged afterwards."""
    with evaluation_mode(model), torch.no_grad(), preserved_generators(device):
        yield


def preserved_generators(device: torch.device) -> AbstractContextManager[None]:
    """A context that leaves torch's generators, including that of a device, unchanged."""
    return torch.random.fork_rng([device] if device.type == "cuda" else [])
