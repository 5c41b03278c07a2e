"""The series of an experiment, and how they are read: its own, or those of tables."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import Annotated, Literal

import torch
from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from bfno.lab.data import (
    FileFormat,
    Scaling,
    Series,
    SeriesSource,
    SeriesSplits,
    SeriesTable,
    TableLayout,
    read_series,
)
from bfno.lab.data.table_file import read_tables
from bfno.lab.data.table_layout import find_column
from bfno.lab.errors import ConfigError, DataError, first_names
from bfno.lab.experiments.experiment import TrainedRun, refuse_other_division
from bfno.lab.experiments.memory import InMemory, source_of
from bfno.lab.experiments.settings import Settings

__all__ = [
    "OF_ARRAYS",
    "OF_FILES",
    "OF_FRAMES",
    "AnySeriesDataSettings",
    "MemorySeriesSettings",
    "SeriesDataSettings",
    "names_series",
    "own_splits",
    "read_table",
    "refuse_endless",
    "scaling_of",
]

_OF_LAYOUT = {"decimal", "dates", "unit", "missing", "categorical", "most_categories", "ignore"}
_OF_LAYOUT |= {"quantities"}
_OF_FILE = {"sheet", "separator", "encoding"}
_OF_BATCHES = {"times", "order"}
OF_ARRAYS = frozenset({"protocol"} | _OF_BATCHES)
"""Settings that have an effect on series in arrays."""
OF_FRAMES = frozenset({"columns"} | _OF_LAYOUT)
"""Further settings that have an effect on a data frame."""
OF_FILES = ("columns", "sheet", "separator", "encoding", "decimal", "dates", "missing", "ignore")
"""Settings that may differ for a table that is stored or written differently."""
# Durations of the longest training series: seconds instead of hours are 3,600, minutes 60.
_LONGEST, _LONG = 100.0, 10.0
_logger = logging.getLogger(__name__)


def _parts(value: object) -> object:
    """`a,b` on a command line means what `[a, b]` means in a file."""
    return tuple(value.split(",")) if isinstance(value, str) else value


def _distinct(parts: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(parts)) < len(parts):
        raise PydanticCustomError("twice", "each part should be named once")
    return parts


def _words(value: object) -> object:
    """Names that YAML may have taken for numbers or booleans."""
    value = _parts(value)
    return tuple(map(str, value)) if isinstance(value, (list, tuple)) else value


_COLUMNS = ("id", "time", "label")
_Names = Annotated[tuple[str, ...], BeforeValidator(_words)]


class SeriesDataSettings(Settings):
    """The series, and how they are split.

    Attributes:
        name: physionet, activity, or series for the user's own and the bundled synthetic ones.
        protocol: `sound` splits by record or sequence before anything else, and takes statistics
            only from the training part; `published` does what the published code does.
        dir: Where the files of data sets are; None leaves it to `BFNO_DATA` and the user's cache.
        path: The user's own series, a file or a folder; None means the bundled synthetic ones.
        test_path: The user's own test series; None sets aside a part of the others.
        sets: Parts of PhysioNet: a, or a and b.
        quantum: Hours to which PhysioNet's times are rounded; None is the published 0.016.
        times: Whether a batch keeps every series' own times, or puts all series on the union of
            their times, which gives the same results within the solver's tolerance. `public_code`
            also divides them by the largest of the batch, and drops those at which all values add
            up to zero.
        order: The order of series in training: `shuffled`, with those of similar length together,
            or `public_code`, in the order of the files, so batches are always the same.
        validation: Share of the training series held out for model selection.
        test_fraction: Share that becomes the test part.
        train_limit: Most training series, validation included.
        test_limit: Most test series.
        labels: Whether the user's own labels are one per `series` or one per `row`. For activity in
            the protocol `published`, `public_code` lacks one of the activities.
        columns: Names of the columns of the user's own tables for id, time and label. If there is
            no column `id`, `time` or `label`, a common name such as `patient_id` or `date` is
            found.
        sheet: Sheet of an Excel file; None is the first.
        separator: Separator of the cells in a text file; None detects it.
        encoding: Encoding of a text file, such as `latin-1`; None detects it.
        decimal: Decimal mark of a text file; None detects it.
        dates: How 03/04/2024 is meant; None looks for a day after the 12th. `numbers` reads
            20240403 as a number.
        unit: Unit of times from dates. `auto` is days if no date has a time of day, or else hours.
        missing: Words for a missing value besides the empty cell; None means NA, N/A, null, None,
            NaN, -, ?, . and the like, which among numbers always count as missing.
        categorical: Columns to read as words although they hold numbers.
        most_categories: Largest number of different words in a column that becomes features, one
            per word. Columns with more are left out with a note.
        ignore: Columns to leave out.
        quantities: Whether a column whose cells are numbers with the same unit, for example
            `80 kg`, holds numbers. Runs of earlier releases took such cells as words.
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
        AfterValidator(_distinct),
    ] = ("a",)
    quantum: float | None = Field(default=None, gt=0, le=48)
    times: Literal["own", "union", "public_code"] = "own"
    order: Literal["shuffled", "public_code"] = "shuffled"
    validation: float = Field(default=0.1, ge=0, lt=1)
    test_fraction: float = Field(default=0.2, gt=0, lt=1)
    train_limit: int | None = Field(default=None, ge=1)
    test_limit: int | None = Field(default=None, ge=1)
    labels: Literal["auto", "series", "row", "public_code"] = "auto"
    columns: Annotated[tuple[str, str, str], BeforeValidator(_words)] = _COLUMNS
    sheet: str | None = None
    separator: Literal["comma", "semicolon", "tab", "bar"] | None = None
    encoding: str | None = None
    decimal: Literal["point", "comma"] | None = None
    dates: Literal["day-first", "month-first", "numbers"] | None = None
    # Runs that do not say it are older than the choice; presets say auto.
    unit: Literal["auto", "days", "hours", "minutes", "seconds"] = "seconds"
    missing: _Names | None = None
    categorical: _Names = ()
    most_categories: int = Field(default=20, ge=1, le=10_000)
    ignore: _Names = ()
    quantities: bool = False

    @property
    def is_pooled(self) -> bool:
        """Whether every latent sample is scored separately, as in the published code."""
        return self.protocol == "published"

    @property
    def layout(self) -> TableLayout:
        """The layout of the user's own tables, as far as these settings specify it."""
        given = zip(_COLUMNS, self.columns, strict=True)
        return TableLayout(
            **{role: name for role, name in given if name != role},
            **self.model_dump(include=_OF_LAYOUT),
            file=FileFormat(self.sheet, self.separator, self.encoding),
        )

    @property
    def source(self) -> SeriesSource:
        """The series that these settings name."""
        exclude = {*_OF_LAYOUT, *_OF_FILE, *_OF_BATCHES, "columns"}
        plain = self.model_dump(exclude=exclude)
        return SeriesSource(**plain, layout=self.layout)


class MemorySeriesSettings(SeriesDataSettings, InMemory):
    """Series in memory; settings about reading files apply to data frames too."""

    # Settings are frozen, so that a narrower type cannot be undone by an assignment.
    name: Literal["memory"] = "memory"  # pyright: ignore[reportIncompatibleVariableOverride]


AnySeriesDataSettings = Annotated[
    Annotated[SeriesDataSettings, Tag("files")] | Annotated[MemorySeriesSettings, Tag("memory")],
    Discriminator(source_of),
]
"""The settings of either, identified by the name."""


def refuse_endless(series: Series, source: object) -> None:
    """Refuse series that last so long that their times must be in another unit.

    A note names those that are merely suspicious. An equation would be solved over all of that
    time, in steps that suit the training's times.

    Args:
        series: Scaled series: the longest one of the training lasts one.
        source: Their origin, for the message.

    Raises:
        DataError: If there is such a series.
    """
    longest = int(series.times.argmax())
    duration = float(series.times[longest])
    if duration <= _LONG:
        return
    owner = int(torch.searchsorted(series.starts, longest, right=True)) - 1
    why = f"series {series.ids[owner]!r} lasts {duration:.3g} times as long as any of the training"
    if duration > _LONGEST:
        raise DataError(source, why, "give times in the unit of the training, or cut it")
    _logger.warning("%s: %s: are times in the same unit?", source, why)


def read_table(run: TrainedRun, file: Path) -> SeriesTable:
    """Read a table in the way the run's training read its own; labels may be missing.

    Separator, encoding and decimal mark are those of the file, and may differ.

    Raises:
        DataError: If it cannot be read, or does not hold the features of the run.
    """
    table = read_series(
        file,
        _trained_layout(run),
        labels="row" if run.facts["by_row"] else "series",
        features=run.model.feature_names,
        classes=run.model.class_names,
    )
    scaling = scaling_of(run)
    refuse_endless(scaling.apply(table.series), file)
    _say_far_values(table, scaling, file)
    return table


def _say_far_values(table: SeriesTable, scaling: Scaling, file: Path) -> None:
    """Report features most of whose values are cut off: they may be in another unit."""
    if scaling.limit is None:
        return
    shift, scale = torch.tensor([scaling.shift, scaling.scale], dtype=torch.float64)
    values, seen = table.series.values.double(), table.series.mask
    is_far = ((values - shift) / scale).abs() > scaling.limit
    # Words, and yes and no, have no unit.
    is_amount = ((values != 0) & (values != 1) & seen).any(0)
    most = (is_amount & (2 * (is_far & seen).sum(0) > seen.sum(0))).tolist()
    if names := [name for name, told in zip(table.features, most, strict=True) if told]:
        _logger.warning(
            "%s: most values of %s are over %g standard deviations from the mean of the training, "
            "where they are cut off: are they in the same unit?",
            *(file, first_names(names, 3), scaling.limit),
        )


def names_series(run: TrainedRun, file: Path) -> bool:
    """Whether the rows of a table name their series, so that it may hold several.

    Raises:
        DataError: If it cannot be read.
    """
    layout = _trained_layout(run)
    columns = read_tables([file], layout.file)[0].frame.columns
    return find_column(file, columns, "id", layout.id, ()) is not None


def _trained_layout(run: TrainedRun) -> TableLayout:
    """The layout found in training, with the user's changes for other files."""
    settings, given = run.config.data, dict(run.reading)
    if (known := run.facts.get("table")) is None:
        # A run from before there was such a fact, or on a known set: numbers alone.
        return dataclasses.replace(settings.layout, categories={})
    file = FileFormat(settings.sheet, given.pop("separator", None), given.pop("encoding", None))
    layout = TableLayout.from_facts(known, file)
    given.pop("sheet", None)
    if "columns" in given:
        named = zip(_COLUMNS, given.pop("columns"), strict=True)
        given |= {role: None if name == role else name for role, name in named}
    if "dates" in given:
        given["points"] = None  # as the order now says
    if given.get("missing") is not None:
        given["missing"] = (*given["missing"], *layout.missing_words)
    if "ignore" in given:
        given["ignore"] = (*layout.ignore, *given["ignore"])
    return dataclasses.replace(layout, **given)


def scaling_of(run: TrainedRun) -> Scaling:
    """How times and values of the run's data were scaled for its model."""
    facts = run.facts["scaling"]
    return Scaling(facts["span"], tuple(facts["shift"]), tuple(facts["scale"]), facts["limit"])


def own_splits(run: TrainedRun, data_dir: Path | None = None) -> SeriesSplits:
    """The data that a run was trained on.

    Args:
        run: The run.
        data_dir: Where the files of data sets are; None is where the run found them.

    Raises:
        ConfigError: If they now have other classes or features, or are other series.
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
    known, now = run.facts.get("table") or {}, splits.layout.facts() if splits.layout else {}
    for name in known.keys() & now.keys():
        if known[name] != now[name]:
            why = f"{name} is {now[name]!r} now, but was {known[name]!r} in training"
            raise ConfigError(config.data.path, why, "restore the table, or train again")
    refuse_other_division(config.data.path, run.facts, splits.division)
    return splits
