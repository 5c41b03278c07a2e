"""Asks runs for what a report or a figure shows of them, unless they were asked before."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path

from bfno.lab.cli import density, display, series
from bfno.lab.errors import UserError

__all__ = ["prepare"]

_logger = logging.getLogger(__name__)


def prepare(runs: Iterable[Path], *, any_checkpoint: bool = False) -> None:
    """Make what is missing of exhibits, samples and reconstructions; note what cannot be made.

    A run whose folder holds no trained model, or whose data are gone, is shown without.

    Args:
        runs: Folders of runs.
        any_checkpoint: Whether another checkpoint may stand for a damaged one.
    """
    folders = list(runs)
    with display.bar("runs shown") as progress:
        for done, folder in enumerate(folders):
            if progress:
                progress(done, len(folders))
            if (folder / "checkpoints").is_dir():
                _prepare(folder, any_checkpoint)


def _prepare(folder: Path, any_checkpoint: bool) -> None:
    from bfno.lab.runs.folder import RunFolder

    try:
        make = _maker(RunFolder(folder).read_config())
        if make is not None:
            make(folder, any_checkpoint=any_checkpoint)
    except UserError as error:
        _logger.warning("%s is shown without pictures of its model: %s", folder, error)


def _maker(config: object) -> Callable[..., object] | None:
    """What makes the pictures of a model with such settings; none if it has no pictures."""
    from bfno.lab.experiments.density.settings import DensityConfig
    from bfno.lab.experiments.series.settings import SeriesConfig
    from bfno.lab.runs.load import keep_exhibit

    if isinstance(config, DensityConfig):
        return density.keep_samples
    if isinstance(config, SeriesConfig):
        # A weight of zero leaves the decoder untrained.
        drawable = config.model.kind == "latent_ode" and config.loss.reconstruction > 0
        return series.keep_reconstruction if drawable else None
    return keep_exhibit
