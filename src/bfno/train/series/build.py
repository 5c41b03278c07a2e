"""From settings to objects: the series and the model."""

from __future__ import annotations

from bfno.data import SeriesSource, SeriesSplits, load_series
from bfno.errors import ConfigError
from bfno.models import SeriesModel
from bfno.presets import SeriesData
from bfno.presets.build_series import build_series_model
from bfno.train.series.settings import SeriesConfig

__all__ = ["build_model", "load_data"]


def load_data(config: SeriesConfig) -> SeriesSplits:
    """Read the series of an experiment and divide them as its settings say.

    Raises:
        DataError: If files are missing or wrong.
    """
    settings = config.data.model_dump(exclude={"times"})
    return load_series(SeriesSource(**settings), config.seed)


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
