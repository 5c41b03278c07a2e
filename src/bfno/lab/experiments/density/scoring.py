"""What a flow says of samples: bits per dimension of images, nats of points."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bfno.lab.experiments.seeds import derive_seed
from bfno.lab.experiments.tasks import Share, solver_stats
from bfno.models.flows import bits_per_dim, dequantise

__all__ = [
    "Noise",
    "Scores",
    "as_input",
    "cost",
    "is_images",
    "measures",
    "preserved_generators",
    "score",
]

_DEQUANTISATION = {"bits_per_dim": "uniform", "bits_per_dim_center": "center"}


@dataclass(frozen=True)
class Noise:
    """What fixes all noise of an evaluation: that of bytes and that of traces.

    Attributes:
        seed: The seed of the run.
        split: Name of the samples, so that each split has noise of its own.
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
        metrics: Means by name, and evaluations of the field a batch as `nfe`.
        errors: Standard error of each mean.
    """

    metrics: dict[str, float]
    errors: dict[str, float]


def is_images(samples: Tensor) -> bool:
    """Whether these are images, which are bytes, and not points."""
    return samples.dtype == torch.uint8


def measures(samples: Tensor) -> tuple[str, ...]:
    """Names of what is measured; the first one decides.

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


def cost(log_prob: Tensor, samples: Tensor) -> Tensor:
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
    """Evaluate a flow in evaluation mode; everything random is left as it was found.

    Args:
        model: The flow.
        samples: Images as bytes, or points.
        batch: Samples at a time; noise and steps of the solver depend on it.
        noise: What fixes the noise.
        share: This process's part; None is the whole.
        wanted: Names of the measures; None is all.
    """
    share, wanted = share or Share(), wanted or measures(samples)
    processes = share.processes
    dtype = next(model.parameters()).dtype
    sums = torch.zeros(len(wanted), 2, dtype=torch.float64)
    solves = torch.zeros(2, dtype=torch.float64)
    with _evaluating(model, processes.device):
        mine = list(enumerate(samples.split(batch)))[processes.rank :: processes.count]
        for number, part in mine:
            share.pause()
            part = part.to(processes.device)
            for place, measure in enumerate(wanted):
                noise.set(measure, number)
                found = model(as_input(part, measure, dtype))
                values = cost(found.log_prob, part).double().cpu()
                sums[place] += torch.stack((values.sum(), values.square().sum()))
                solves += torch.tensor([solver_stats(model).forward_evaluations, 1])
    total = processes.add_up(torch.cat((sums.flatten(), solves)))
    return _averages(
        dict(zip(wanted, total[:-2].view(-1, 2).tolist(), strict=True)), total[-2:], len(samples)
    )


def _averages(sums: Mapping[str, list[float]], solves: Tensor, count: int) -> Scores:
    metrics = {name: total / count for name, (total, _) in sums.items()}
    errors = {}
    for name, (_, squares) in sums.items():
        variance = max(squares / count - metrics[name] ** 2, 0.0)
        errors[name] = math.sqrt(variance / max(count - 1, 1))
    return Scores({**metrics, "nfe": (solves[0] / solves[1]).item()}, errors)


@contextlib.contextmanager
def _evaluating(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Without gradients, in evaluation mode, and with torch's generators as before afterwards."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad(), preserved_generators(device):
            yield
    finally:
        model.train(was_training)


def preserved_generators(device: torch.device) -> AbstractContextManager[None]:
    """A context that leaves torch's generators, also that of a device, as it found them."""
    return torch.random.fork_rng([device] if device.type == "cuda" else [])
