"""Asks runs for what a report or a figure shows of them, unless they were asked before."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path

from bfno.lab.cli import density, display, series
from bfno.lab.errors import UserError

__all__ = ["prepare"]

_logger = logging.getLogger(__name__)


def prepare(runs: Iterable[Path]) -> None:
    """Make what is missing of exhibits, samples and reconstructions; note what cannot be made.

    A run whose folder holds no trained model, or whose data are gone, is shown without.

    Args:
        runs: Folders of runs.
    """
    folders = list(runs)
    with display.bar("runs shown") as progress:
        for done, folder in enumerate(folders):
            if progress:
                progress(done, len(folders))
            if (folder / "checkpoints").is_dir():
                _prepare(folder)


def _prepare(folder: Path) -> None:
    from bfno.lab.runs.run import RunFolder

    try:
        shown = RunFolder(folder).read_config().shows
        if shown is not None:
            _makers()[shown](folder)
    except UserError as error:
        _logger.warning("%s is shown without pictures of its model: %s", folder, error)


def _makers() -> dict[str, Callable[[Path], object]]:
    """What makes each of the things that a report shows of a model."""
    from bfno.lab.runs.exhibit import keep_exhibit

    return {
        "exhibit": keep_exhibit,
        "samples": density.keep_samples,
        "reconstruction": series.keep_reconstruction,
    }
