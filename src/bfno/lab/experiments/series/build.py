"""From settings to objects: the series and the model."""

from __future__ import annotations

import torch

from bfno.lab.data import Series, SeriesSource, SeriesSplits, load_series
from bfno.lab.errors import ConfigError, DataError
from bfno.lab.experiments.presets import SeriesData
from bfno.lab.experiments.presets.build_series import build_series_model
from bfno.lab.experiments.series.settings import SeriesConfig
from bfno.models import SeriesModel

__all__ = ["build_model", "load_data", "refuse_endless"]

# Durations of the longest training series: seconds instead of hours are 3,600.
_LONGEST = 100.0


def load_data(config: SeriesConfig) -> SeriesSplits:
    """Read the series of an experiment and divide them as its settings say.

    Raises:
        DataError: If files are missing or wrong.
    """
    settings = config.data.model_dump(exclude={"times"})
    splits = load_series(SeriesSource(**settings), config.seed)
    refuse_endless(splits.test, config.data.test_path or config.data.path or config.data.name)
    return splits


def refuse_endless(series: Series, source: object) -> None:
    """Refuse series that last so long that their times can only be in another unit.

    An equation would be followed through all of that time, in steps that suit the training's.

    Args:
        series: Scaled series: the longest one of the training lasts one.
        source: Where they come from, for the message.

    Raises:
        DataError: If there is such a series.
    """
    longest = int(series.times.argmax())
    duration = float(series.times[longest])
    if duration > _LONGEST:
        owner = int(torch.searchsorted(series.starts, longest, right=True)) - 1
        raise DataError(
            source,
            f"series {series.ids[owner]!r} lasts {duration:.3g} times as long as any of the "
            "training",
            "give times in the unit of the training, or cut it",
        )


def build_model(config: SeriesConfig, features: int, classes: int, by_row: bool) -> SeriesModel:
    """Build the untrained model of an experiment, in single precision.

    Raises:
        ConfigError: If its parts do not fit.
    """
    about = SeriesData(features, classes, by_row)
    try:
        return build_series_model(config.model, about, config.solver.model_dump()).float()
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(
            "model", str(error).splitlines()[0], "change it with --set model.NAME=VALUE"
        ) from error
