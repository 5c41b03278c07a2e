"""The interface of every flow: a density that samples can be drawn from."""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor, nn

from bfno.ode import Stats

__all__ = ["Encoding", "Flow", "FlowError", "log_normal"]


class FlowError(RuntimeError):
    """A flow could not be evaluated; the message says why and what to do."""


class Encoding(NamedTuple):
    """The result of encoding a batch of samples.

    Attributes:
        latent: The latent variables, `(batch, dimensions)`; standard normal if the flow is right.
        log_det: Logarithm of the map's change of volume at each sample, `(batch,)`.
        penalties: Regularisers of each sample by name, `(batch,)`; only in training.

    Example:
        >>> Encoding(torch.zeros(2, 3), torch.zeros(2)).log_prob  # -3/2 log(2π) each
        tensor([-2.7568, -2.7568]...)
    """

    latent: Tensor
    log_det: Tensor
    penalties: Mapping[str, Tensor] = MappingProxyType({})

    @property
    def log_prob(self) -> Tensor:
        """Logarithm of the density at each sample, `(batch,)`."""
        return log_normal(self.latent) + self.log_det


class Flow(nn.Module, ABC):
    """An invertible map from samples of one shape to a standard normal variable of equal size.

    Learned or conditional Gaussians of published flows are part of the map here: every flow ends in
    the same distribution, so all are used in the same way.

    A subclass defines `encode`, which maps samples to latent variables, and `decode`, which maps
    them back; density and sampling follow from these.

    Args:
        event_shape: Shape of one sample.

    Example:
        >>> class Doubled(Flow):
        ...     def encode(self, x):
        ...         return Encoding(2 * x, torch.full((len(x),), math.log(2) * self.dimensions))
        ...     def decode(self, latent):
        ...         return latent / 2
        >>> Doubled((2,)).log_prob(torch.zeros(1, 2))  # log(4) - log(2π)
        tensor([-0.4516]...)
    """

    def __init__(self, event_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.event_shape = tuple(event_shape)
        self.solved = Stats()

    @property
    def stats(self) -> Stats:
        """Total evaluations of the fields of all parts in their last calls."""
        return Stats.together(part.solved for part in self.modules() if isinstance(part, Flow))

    @property
    def dimensions(self) -> int:
        """Number of dimensions of a sample."""
        return math.prod(self.event_shape)

    def forward(self, x: Tensor) -> Encoding:
        return self.encode(x)

    @abstractmethod
    def encode(self, x: Tensor) -> Encoding:
        """Map samples to latent variables.

        Args:
            x: `(batch, *event_shape)`.
        """

    @abstractmethod
    def decode(self, latent: Tensor) -> Tensor:
        """Map latent variables, `(batch, dimensions)`, back to samples.

        Raises:
            FlowError: If the inverse does not converge.
            SolverError: If an ODE cannot be solved.
        """

    def log_prob(self, x: Tensor) -> Tensor:
        """Logarithm of the density at each sample, `(batch,)`."""
        return self.encode(x).log_prob

    def sample(
        self, count: int, *, temperature: float = 1.0, generator: torch.Generator | None = None
    ) -> Tensor:
        """Draw samples, `(count, *event_shape)`.

        Args:
            count: Number of samples.
            temperature: Factor of the latent variables; below 1, samples are likelier and vary
                less than the model's.
            generator: Source of randomness; None is torch's default.
        """
        kept = itertools.chain(self.parameters(), self.buffers())
        like = next((one for one in kept if one.is_floating_point()), torch.empty(0))
        latent = torch.randn(
            count, self.dimensions, generator=generator, dtype=like.dtype, device=like.device
        )
        return self.decode(temperature * latent)

    def check(self, x: Tensor) -> None:
        """Refuse samples of a wrong shape."""
        if x.shape[1:] != self.event_shape:
            shape = ", ".join(map(str, self.event_shape))
            raise ValueError(f"samples must have shape (batch, {shape}), got {tuple(x.shape)}")


def log_normal(latent: Tensor) -> Tensor:
    """Logarithm of the standard normal density of each row."""
    return -0.5 * (latent.square() + math.log(2 * math.pi)).flatten(1).sum(1)
