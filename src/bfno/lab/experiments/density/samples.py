"""The samples that a trained flow is asked about: of its own data, or of others."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from bfno.lab.data import TOYS, resized
from bfno.lab.errors import ConfigError
from bfno.lab.experiments.density.build import held_out_points
from bfno.lab.experiments.density.settings import PointsSettings
from bfno.lab.experiments.family import TrainedRun
from bfno.lab.experiments.images.build import load_images
from bfno.lab.experiments.images.sources import other_images

__all__ = ["held_out_samples", "require_images"]


def held_out_samples(
    run: TrainedRun, data: str | None = None, data_dir: Path | None = None
) -> Tensor:
    """Test samples of a run's own data, or of others, in the shape that its model takes.

    Args:
        run: The trained model.
        data: Other data, a name or a folder; None is the run's own.
        data_dir: Where the files of data sets are; None is where the run found them.

    Raises:
        ConfigError: If these are no samples for the model.
        DataError: If files are missing or wrong.
    """
    settings = run.config.data
    if isinstance(settings, PointsSettings):
        if data is not None and data not in TOYS:
            raise ConfigError(data, "names no points", f"use one of {', '.join(TOYS)}")
        return held_out_points(settings.model_copy(update={"name": data or settings.name}), "test")
    settings = other_images(settings, data, data_dir)
    found = load_images(settings, run.config.seed, labelled=False).test
    channels, side, _ = run.model.event_shape
    if found.images.shape[1] != channels:
        raise ConfigError(
            data or settings.name,
            f"has {found.images.shape[1]} channels, the images of the run {channels}",
            "name a folder, whose images are read as the run needs them",
        )
    return resized(found, side).images[: run.config.data.test_limit]


def require_images(run: TrainedRun) -> None:
    """Refuse a run that models points where files or images are asked for.

    Raises:
        ConfigError: If it does.
    """
    if len(run.model.event_shape) != 3:
        what, why = run.config.experiment, "models points, not images"
        raise ConfigError(what, why, "name a run of images, mnist-density/ffjord-rnode say")
