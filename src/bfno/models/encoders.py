"""Encoders: from a series to the distribution of its initial latent state."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from bfno.models.likelihood import kl_to_standard_normal
from bfno.models.ode_rnn import ODERNN
from bfno.models.recurrent import row_gaps
from bfno.models.series import ObservedRows, network
from bfno.ode import Stats

__all__ = ["ODERNNEncoder", "Posterior", "RNNEncoder", "SeriesEncoder"]

_SMALLEST_DEVIATION = 1e-6
"""Keeps the divergence from the prior finite if a network returns zero."""


class Posterior:
    """Normal distributions of initial states, `(batch, latents)`.

    Args:
        raw: Means, and then numbers whose absolute values are the standard deviations.
    """

    def __init__(self, raw: Tensor) -> None:
        self.mean, spread = raw.chunk(2, dim=-1)
        self.deviation = spread.abs() + _SMALLEST_DEVIATION

    def sample(self, noise: Tensor) -> Tensor:
        """Turn standard normal numbers of shape `(samples, batch or 1, latents)` into states."""
        return self.mean + self.deviation * noise

    def divergence(self) -> Tensor:
        """Divergence from the standard normal distribution, averaged over latents, `(batch,)`."""
        return kl_to_standard_normal(self.mean, self.deviation)


class SeriesEncoder(nn.Module, ABC):
    """Reads series backwards, from the last row to the first; the base of every encoder.

    Args:
        latents: Size of the initial state.

    Attributes:
        latents: Size of the initial state.
        stats: Cost of the solver in the last call, if the encoder has one.

    Example:
        >>> class MeanEncoder(SeriesEncoder):
        ...     def forward(self, times, values, mask):
        ...         mean = values.sum(1) / mask.sum(1).clamp(min=1)
        ...         return Posterior(torch.cat((mean, torch.ones_like(mean)), dim=-1))
        >>> values = torch.ones(5, 6, 3)
        >>> MeanEncoder(latents=3)(torch.zeros(5, 6), values, values > 0).mean.shape
        torch.Size([5, 3])
    """

    def __init__(self, latents: int) -> None:
        super().__init__()
        self.latents = latents
        self.stats = Stats()

    @abstractmethod
    def forward(self, times: Tensor, values: Tensor, mask: Tensor) -> Posterior:
        """The distribution of the state at each series' first time."""


class RNNEncoder(SeriesEncoder):
    """A gated recurrent network over the observed rows and the times between them.

    Args:
        features: Number of features.
        latents: Size of the initial state.
        size: Size of the network's state.
        units: Hidden units between the last state and the distribution.
        rows: `observed` as above, each row with the time since the one read before it.
            `public_code` does what the published code does: it also reads rows in which nothing
            was observed, and pairs each row with the time to the row that it reads next.

    Example:
        >>> values = torch.ones(5, 6, 3)
        >>> RNNEncoder(3, latents=4)(torch.zeros(5, 6), values, values > 0).mean.shape
        torch.Size([5, 4])
    """

    def __init__(
        self,
        features: int,
        latents: int,
        size: int = 40,
        units: int = 50,
        *,
        rows: str = "observed",
    ) -> None:
        super().__init__(latents)
        if rows not in ("observed", "public_code"):
            raise ValueError(f"rows must be observed or public_code, got {rows!r}")
        self.rows = rows
        self.recurrent = nn.GRU(2 * features + 1, size, batch_first=True)
        self.posterior = network(size, units, 2 * latents)

    def forward(self, times: Tensor, values: Tensor, mask: Tensor) -> Posterior:
        mask, is_public = mask.bool(), self.rows == "public_code"
        values = values.where(mask, 0.0)  # values that were not observed may be anything, even NaN
        rows = ObservedRows(times, values, mask, backward=True, with_empty=is_public)
        gaps = row_gaps(rows.times, "next" if is_public else "previous").unsqueeze(-1)
        inputs = torch.cat((gaps, rows.values, rows.mask.to(values.dtype)), dim=-1)
        states = nn.functional.pad(self.recurrent(inputs)[0], (0, 0, 1, 0))
        lengths = rows.present.sum(1)
        last = states[torch.arange(len(states), device=states.device), lengths]
        return Posterior(self.posterior(last))


class ODERNNEncoder(SeriesEncoder):
    """An ODE-RNN that goes back in time.

    Args:
        recurrent: The network, built with `backward=True`.
        latents: Size of the initial state.
        units: Hidden units between the last state and the distribution.

    Example:
        >>> from bfno.models.ode_rnn import make_ode_rnn
        >>> encoder = ODERNNEncoder(make_ode_rnn(3, backward=True), latents=4)
        >>> values = torch.ones(5, 6, 3)
        >>> encoder(torch.linspace(0, 1, 6).expand(5, 6), values, values > 0).mean.shape
        torch.Size([5, 4])
    """

    def __init__(self, recurrent: ODERNN, latents: int, units: int = 100) -> None:
        super().__init__(latents)
        if not recurrent.backward:
            raise ValueError("an encoder goes back in time; build its ODERNN with backward=True")
        self.recurrent = recurrent
        self.posterior = network(2 * recurrent.size, units, 2 * latents)

    def forward(self, times: Tensor, values: Tensor, mask: Tensor) -> Posterior:
        states = self.recurrent(times, values, mask)
        self.stats = self.recurrent.stats
        return Posterior(self.posterior(torch.cat((states.after[:, 0], states.spread[:, 0]), -1)))
