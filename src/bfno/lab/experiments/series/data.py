"""Which series an experiment has, and reading them: its own, or those of tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import torch
from pydantic import BeforeValidator, Field

from bfno.lab.data import Scaling, Series, SeriesSplits, SeriesTable, read_series
from bfno.lab.errors import ConfigError, DataError
from bfno.lab.experiments.experiment import TrainedRun
from bfno.lab.experiments.settings import Settings

__all__ = ["SeriesDataSettings", "own_splits", "read_table", "refuse_endless", "scaling_of"]

# Durations of the longest training series: seconds instead of hours are 3,600.
_LONGEST = 100.0


def _parts(value: object) -> object:
    """`a,b` on a command line means what `[a, b]` means in a file."""
    return tuple(value.split(",")) if isinstance(value, str) else value


class SeriesDataSettings(Settings):
    """Which series, and how they are divided.

    Attributes:
        name: physionet, activity, or series for one's own and for the bundled synthetic ones.
        protocol: `sound` divides by record or sequence before anything else and takes statistics
            from the training part alone; `published` does what the published code does.
        dir: Where the files of data sets are; None leaves it to `BFNO_DATA` and the user's cache.
        path: One's own series, a file or a folder; None is the bundled synthetic ones.
        test_path: One's own test series; None sets a part of the others aside.
        sets: Parts of PhysioNet: a, or a and b.
        quantum: Hours to which PhysioNet's times are rounded; None is the published 0.016.
        times: Whether a batch keeps every series' own times, or puts all on their union as the
            published code does, which gives the same results within the solver's tolerance.
        validation: Share of the training series that is kept for model selection.
        test_fraction: Share that becomes the test part.
        train_limit: Most training series, validation included.
        test_limit: Most test series.
        labels: Whether one's own labels are one per `series` or one per `row`.
        columns: Names of the columns of one's own series for id, time and label.
    """

    name: Literal["physionet", "activity", "series"]
    protocol: Literal["sound", "published"] = "sound"
    dir: Path | None = None
    path: Path | None = None
    test_path: Path | None = None
    sets: Annotated[
        tuple[Literal["a", "b"], ...],
        BeforeValidator(_parts),
        Field(min_length=1, max_length=2),
    ] = ("a",)
    quantum: float | None = Field(default=None, gt=0, le=48)
    times: Literal["own", "union"] = "own"
    validation: float = Field(default=0.1, ge=0, lt=1)
    test_fraction: float = Field(default=0.2, gt=0, lt=1)
    train_limit: int | None = Field(default=None, ge=1)
    test_limit: int | None = Field(default=None, ge=1)
    labels: Literal["auto", "series", "row"] = "auto"
    columns: tuple[str, str, str] = ("id", "time", "label")

    @property
    def is_pooled(self) -> bool:
        """Whether every latent sample is judged for itself, as in the published code."""
        return self.protocol == "published"


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


def read_table(run: TrainedRun, file: Path) -> SeriesTable:
    """Read a table with the features of a run, in its units; labels may be missing.

    Raises:
        DataError: If it cannot be read, or does not hold the features of the run.
    """
    table = read_series(
        file,
        columns=run.config.data.columns,
        labels="row" if run.facts["by_row"] else "series",
        features=run.model.feature_names,
        classes=run.model.class_names,
    )
    refuse_endless(scaling_of(run).apply(table.series), file)
    return table


def scaling_of(run: TrainedRun) -> Scaling:
    """How times and values of the run's data became those that its model sees."""
    facts = run.facts["scaling"]
    return Scaling(facts["span"], tuple(facts["shift"]), tuple(facts["scale"]), facts["limit"])


def own_splits(run: TrainedRun, data_dir: Path | None = None) -> SeriesSplits:
    """The data that a run was trained on.

    Args:
        run: The run.
        data_dir: Where the files of data sets are; None is where the run found them.

    Raises:
        ConfigError: If they have other classes or features by now.
        DataError: If files are missing or wrong.
    """
    config = run.config
    if data_dir is not None:
        data = config.data.model_copy(update={"dir": data_dir})
        config = config.model_copy(update={"data": data})
    splits = config.load()
    if splits.classes != run.model.class_names or splits.features != run.model.feature_names:
        raise ConfigError(
            run.config.data.path or run.config.data.name,
            "has other classes or features than when the run was trained",
            "name a table with those of the run, or train again",
        )
    return splits
