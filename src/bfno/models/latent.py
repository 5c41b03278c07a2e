"""Series as trajectories of a latent state whose start is inferred from the observations."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bfno.models.encoders import Posterior, SeriesEncoder
from bfno.models.generators import LatentGenerator
from bfno.models.series import (
    SeriesModel,
    SeriesOutput,
    as_clock,
    check_clock,
    check_samples,
    check_wanted,
    clock_start,
    dense,
    in_fractions,
    in_order,
    latent_noise,
    network,
)

__all__ = ["LatentODE"]


class LatentODE(SeriesModel):
    """A variational autoencoder whose decoder is an equation of a latent state.

    The encoder reads a series backwards and gives a normal distribution of the latent state at its
    first time. Samples of it move along the generator's equation; at every time a linear map
    predicts the values. Labels of rows are predicted from the states at their times, a label of the
    series from the initial state alone.

    In training, samples are random. In evaluation they use the same normal numbers for every
    series and in every call, so outputs are reproducible and do not depend on the batch.

    Args:
        features: Number of features.
        classes: Number of classes.
        encoder: Reads the series.
        generator: Moves the states.
        by_row: Whether every row has a label; otherwise every series has one.
        samples: Number of samples of each initial state.
        head: Hidden units of the classifier's layers; none for a linear classifier.
        measures_kinetic: Whether outputs in training have `kinetic`, for a loss that keeps
            trajectories smooth and their number of evaluations low. The generator must not couple
            series.

    References:
        Rubanova et al., Latent Ordinary Differential Equations for Irregularly-Sampled Time
        Series, 2019.

    Example:
        >>> from bfno.fields import LatentOperatorField
        >>> from bfno.models.encoders import RNNEncoder
        >>> generator = LatentGenerator(LatentOperatorField(4, width=8))
        >>> model = LatentODE(3, 2, RNNEncoder(3, 4), generator, by_row=False)
        >>> values = torch.ones(5, 6, 3)
        >>> output = model(torch.linspace(0, 1, 6).expand(5, 6), values, values > 0)
        >>> output.scores.shape, output.prediction.shape
        (torch.Size([3, 5, 2]), torch.Size([3, 5, 6, 3]))
    """

    looks_ahead = True

    def __init__(
        self,
        features: int,
        classes: int,
        encoder: SeriesEncoder,
        generator: LatentGenerator,
        *,
        by_row: bool,
        samples: int = 3,
        head: tuple[int, ...] = (300, 300),
        measures_kinetic: bool = False,
    ) -> None:
        super().__init__(features, classes, by_row=by_row)
        check_samples(samples)
        if measures_kinetic and generator.couples_series:
            raise ValueError(
                "measures_kinetic needs a generator that does not couple series, got "
                f"{type(generator).__name__}"
            )
        self.encoder, self.generator, self.samples = encoder, generator, samples
        self.measures_kinetic = measures_kinetic
        self.couples_series = generator.couples_series
        latents, size = encoder.latents, encoder.latents + generator.augment
        self.decoder = dense(size, features)
        self.head = network(size if by_row else latents, *head, self.outputs, activation=nn.ReLU)

    def _run(self, times: Tensor, values: Tensor, mask: Tensor) -> SeriesOutput:
        posterior = self.encoder(times, values, mask)
        z0 = self._start(posterior)
        path = self.generator(z0, times)
        self.stats = self.generator.stats
        scores = self._scores(self.head(path if self.by_row else z0))
        measured = self.training and self.measures_kinetic
        kinetic = self.generator.kinetic(path, times) if measured else None
        return SeriesOutput(scores, self.decoder(path), posterior.divergence(), kinetic)

    def reconstruct(self, times: Tensor, values: Tensor, mask: Tensor, at: Tensor) -> Tensor:
        """Values of the latent trajectories at any times; see `SeriesModel.reconstruct`."""
        if not len(times):
            return super().reconstruct(times, values, mask, at)
        check_wanted(times, at)
        check_clock(times)
        times = in_fractions(times)
        mask = mask.bool()
        seen = self._seen(values, mask)
        start = clock_start(times, seen)
        times, at = as_clock(times, seen, start), as_clock(at.to(times), seen, start)
        z0 = self._start(self.encoder(times, seen, mask))
        ascending, order = torch.cat((times[:, :1], at), dim=1).sort(dim=1, stable=True)
        path = self.generator(z0, ascending)
        self.stats = self.generator.stats
        return self.decoder(in_order(path, order)[:, :, 1:])

    def _start(self, posterior: Posterior) -> Tensor:
        noise = latent_noise(self.samples, posterior.mean, training=self.training)
        return posterior.sample(noise)
