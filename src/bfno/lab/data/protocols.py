"""How series are split and scaled before a model sees them."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bfno.lab.data.activity import (
    ACTIVITIES,
    ACTIVITY_FEATURES,
    WINDOW,
    find_activity,
    read_activity,
    windows,
)
from bfno.lab.data.physionet import OUTCOMES, PARAMETERS, find_physionet, read_physionet
from bfno.lab.data.places import data_folder
from bfno.lab.data.series import UNLABELLED, Scaling, Series, SeriesSplits, in_single
from bfno.lab.data.series_files import read_series
from bfno.lab.data.spirals import MOTIONS, SPIRAL_FEATURES, synthetic_series
from bfno.lab.data.stratify import hold_out_of_each_class
from bfno.lab.data.table_layout import TableLayout, naming
from bfno.lab.errors import ConfigError, DataError

__all__ = ["SeriesSource", "divided_series", "load_series", "thinned"]

_logger = logging.getLogger(__name__)
_TEST_SEED = 0  # the test part is the same for every run
_LIMIT = 5.0  # deviations; values further out are typing errors rather than patients
_PUBLISHED_SEED, _PUBLISHED_SHARE, _PUBLISHED_WINDOWS = 42, 0.8, 10_000
_WITH_PUBLIC_LABELS = ("activity", "published")
_UNUSED_CLASSES = tuple(f"unused {number}" for number in range(len(ACTIVITIES), 11))


@dataclass(frozen=True)
class SeriesSource:
    """The series to load, and how to split and scale them.

    There are two protocols for the known sets. `sound` keeps patients or recordings apart, holds
    out series for model selection and takes every statistic from the training part. `published`
    does what the published experiments did: no validation part, statistics of all data, and for
    HumanActivity overlapping windows on both sides and parts drawn with replacement.

    Attributes:
        name: `physionet`, `activity` or `series`.
        protocol: `sound` or `published`; the user's own series have only `sound`.
        dir: Folder with data sets; see `data_folder`.
        path: For `series`, the user's own file or folder; None for the bundled synthetic series.
        test_path: The user's own file or folder with the test series.
        sets: For `physionet`, which of the sets `a` and `b`.
        quantum: For `physionet`, the hours that times are rounded to; None as published.
        validation: Share of the training series for model selection; 0 for none.
        test_fraction: Share of all series for testing, if there is no `test_path`. Both shares are
            fixed in the protocol `published`.
        train_limit: Largest number of training series, validation included; None for all.
        test_limit: Largest number of test series; None for all.
        labels: Whether the user's own series have a label for each `series` or `row`; `auto`
            detects it. For `activity` in the protocol `published`, `public_code` lacks the activity
            "standing up from sitting on the ground": training takes it for the first class, and
            tests leave it out.
        layout: What is known about the user's own tables.
    """

    name: str
    protocol: str = "sound"
    dir: Path | None = None
    path: Path | None = None
    test_path: Path | None = None
    sets: tuple[str, ...] = ("a",)
    quantum: float | None = None
    validation: float = 0.1
    test_fraction: float = 0.2
    train_limit: int | None = None
    test_limit: int | None = None
    labels: str = "auto"
    layout: TableLayout = field(default=TableLayout())


def load_series(source: SeriesSource, seed: int) -> SeriesSplits:
    """Load series, and split and scale them.

    Args:
        source: Which series.
        seed: Seed of the choice of validation series, and of the published protocol's draws with
            replacement. The test part does not depend on it.

    Raises:
        ConfigError: If a setting is out of range.
        DataError: If a file is missing, damaged or not as described.
    """
    _check(source)
    return _LOADERS[source.name, source.protocol](source, seed)


def divided_series(
    whole: Series,
    features: tuple[str, ...],
    classes: tuple[str, ...],
    *,
    validation: float = 0.1,
    seed: int = 0,
) -> SeriesSplits:
    """Split series in memory for training and validation, and standardise them.

    Args:
        whole: The series; each has a label.
        features: Name of each feature.
        classes: Name of each class, by its label.
        validation: Share of each class for model selection; 0 for none.
        seed: Number that fixes which.

    Returns:
        Splits whose test part is empty.
    """
    kept, held_out = torch.arange(len(whole)), torch.arange(0)
    if validation:
        kept, held_out = _hold_out(whole, validation, seed)
    train, chosen = whole.take(kept), whole.take(held_out) if len(held_out) else None
    nothing = whole.take(torch.arange(0))
    return _scaled(train, chosen, nothing, (features, classes), _standard(train))


def thinned(series: Series, limit: int | None) -> Series:
    """Draw at most a number of series, in proportion to the classes; always the same ones.

    They keep their order.
    """
    if limit is None or len(series) <= limit:
        return series
    order = torch.randperm(len(series), generator=torch.Generator().manual_seed(_TEST_SEED))
    if not series.by_row:
        order = order[series.labels[order].argsort(stable=True)]
    # The middle of each stretch, so that a small class is met as soon as its share is half a one.
    places = ((2 * torch.arange(limit) + 1) * len(series)) // (2 * limit)
    return series.take(order[places].sort().values)


def _check(source: SeriesSource) -> None:
    if source.name not in {name for name, _ in _LOADERS}:
        fix = "use physionet, activity or series"
        raise ConfigError("name", f"{source.name!r} is not a set of series", fix)
    if (source.name, source.protocol) not in _LOADERS:
        known = " or ".join(protocol for name, protocol in _LOADERS if name == source.name)
        why = f"{source.name} knows no {source.protocol!r}"
        raise ConfigError("protocol", why, f"use {known}")
    if source.labels == "public_code" and (source.name, source.protocol) != _WITH_PUBLIC_LABELS:
        why = "'public_code' is for activity in the protocol published"
        raise ConfigError("labels", why, "use auto")
    if not 0 <= source.validation < 1:
        raise ConfigError(
            "validation", f"{source.validation} is not a share", "use 0.1, or 0 for none"
        )
    if not 0 < source.test_fraction < 1:
        why = f"{source.test_fraction} is not a share"
        raise ConfigError("test_fraction", why, "use one between 0 and 1")
    for name in ("train_limit", "test_limit"):
        if (limit := getattr(source, name)) is not None and limit < 1:
            raise ConfigError(name, f"{limit} is less than 1", "use 1 or more, or leave it out")


def _published_physionet(source: SeriesSource, seed: int) -> SeriesSplits:
    folder = find_physionet(data_folder(source.dir), source.sets)
    whole = read_physionet(folder, source.sets, quantum=source.quantum, keep_impossible=True)
    train, test = _published_split(len(whole))
    shift, scale = [], []
    for column, mask in zip(whole.values.T, whole.mask.T, strict=True):
        seen = column[mask].tolist() or [0.0]
        shift.append(min(seen))
        scale.append(max(seen) or 1.0)
    scaling = Scaling(_span(whole), tuple(shift), tuple(scale))
    parts = (
        whole.take(_first(train, source.train_limit)),
        whole.take(_first(test, source.test_limit)),
    )
    return _scaled(parts[0], None, parts[1], (PARAMETERS, OUTCOMES), scaling)


def _sound_physionet(source: SeriesSource, seed: int) -> SeriesSplits:
    folder = find_physionet(data_folder(source.dir), source.sets)
    whole = read_physionet(folder, source.sets, quantum=source.quantum)
    return _divide(whole, None, (PARAMETERS, OUTCOMES), source, seed)


def _published_activity(source: SeriesSource, seed: int) -> SeriesSplits:
    public_code = source.labels == "public_code"
    sequences = read_activity(find_activity(data_folder(source.dir)), public_code=public_code)
    whole = windows(sequences, WINDOW // 2, strict=True)
    whole = whole.take(torch.arange(min(len(whole), _PUBLISHED_WINDOWS)))
    if len(whole) < 2:
        raise DataError("HumanActivity", "has fewer than two windows", "use more of the file")
    generator = np.random.RandomState(seed)
    parts = []
    for part, limit in zip(
        _published_split(len(whole)), (source.train_limit, source.test_limit), strict=True
    ):
        drawn = part[torch.from_numpy(generator.choice(len(part), len(part)))]
        parts.append(whole.take(_first(drawn, limit)))
    # Labels that are missing are rows of zeros there, whose largest entry is the first.
    parts[0] = replace(parts[0], labels=parts[0].labels.clamp(min=0))
    features = len(ACTIVITY_FEATURES)
    scaling = Scaling(_span(whole), (0.0,) * features, (1.0,) * features)
    names = ACTIVITY_FEATURES, ACTIVITIES + _UNUSED_CLASSES
    return _scaled(parts[0], None, parts[1], names, scaling)


def _sound_activity(source: SeriesSource, seed: int) -> SeriesSplits:
    path = find_activity(data_folder(source.dir))
    sequences = read_activity(path)
    sequences = sequences.take((sequences.lengths >= WINDOW).nonzero().flatten())
    train, test = _hold_out(len(sequences), source.test_fraction, _TEST_SEED)
    validation = train[:0]
    if source.validation:
        kept, held_out = _hold_out(len(train), source.validation, seed)
        train, validation = train[kept], train[held_out]
    if not min(len(train), len(test), len(validation) if source.validation else 1):
        why = f"has {len(sequences)} sequences of {WINDOW} rows, too few for all parts"
        raise DataError(path, why, "use more of the file, or validation=0")
    wanted = windows(sequences.take(train), WINDOW // 2, strict=False)
    chosen = windows(sequences.take(validation), WINDOW, strict=False)
    whole = len(wanted) + len(chosen)
    if source.train_limit is not None and whole > source.train_limit:
        share = max(1, round(source.train_limit * len(wanted) / whole))
        wanted = thinned(wanted, share)
        chosen = thinned(chosen, max(source.train_limit - share, 1))
    tested = thinned(windows(sequences.take(test), WINDOW, strict=False), source.test_limit)
    parts = wanted, chosen if source.validation else None, tested
    return _scaled(*parts, (ACTIVITY_FEATURES, ACTIVITIES), _standard(wanted))


def _own_series(source: SeriesSource, seed: int) -> SeriesSplits:
    if source.path is None:
        if source.test_path is not None:
            raise ConfigError("test_path", "is set without path", "set path as well")
        whole, _ = synthetic_series()
        return _divide(whole, None, (SPIRAL_FEATURES, MOTIONS), source, seed)
    table = read_series(source.path, source.layout, labels=source.labels)
    whole = _labelled(table.series, source.path)
    names, test = (table.features, table.classes), None
    if source.test_path is not None:
        tested = read_series(
            source.test_path,
            table.layout.for_file(source.layout.file),
            labels="row" if whole.by_row else "series",
            features=table.features,
            classes=table.classes,
        )
        test = _labelled(tested.series, source.test_path)
        _say_shared(whole, test, source)
    splits = _divide(whole, test, names, source, seed)
    return replace(splits, layout=table.layout, division=_division(whole))


def _division(whole: Series) -> str:
    """A checksum of all series that are divided and decide the scaling."""
    digest = hashlib.sha256("\0".join(whole.ids).encode(errors="surrogatepass"))
    for part in (whole.times, whole.values, whole.mask, whole.labels, whole.starts):
        digest.update(part.numpy().tobytes())
    return digest.hexdigest()[:32]


def _say_shared(train: Series, test: Series, source: SeriesSource) -> None:
    """Report test series with the names of training series, because they may be the same."""
    shared = set(train.ids) & set(test.ids)
    if shared:
        _logger.warning(
            "%s: %d of %d series have the names of training series in %s; if they are the same, "
            "their scores are no test",
            *(source.test_path, len(shared), len(test), source.path),
        )


def _labelled(series: Series, path: Path) -> Series:
    """The series that have a label, at least in some row."""
    known = series.labels != UNLABELLED
    if series.by_row:
        owner = torch.arange(len(series)).repeat_interleave(series.lengths)
        known = torch.zeros(len(series), dtype=torch.bool).index_fill(0, owner[known], True)
    if not known.any():
        fix = f"fill the column of labels, or {naming('label', 'NAME')}"
        raise DataError(path, "no series has a label", fix)
    if not known.all():
        _logger.warning("%s: left out %d series without label", path, int((~known).sum()))
    return series.take(known.nonzero().flatten())


def _divide(
    whole: Series,
    test: Series | None,
    names: tuple[tuple[str, ...], tuple[str, ...]],
    source: SeriesSource,
    seed: int,
) -> SeriesSplits:
    """Split by series, within each class if series have one, and standardise."""
    train = whole
    if test is None:
        kept, held_out = _hold_out(whole, source.test_fraction, _TEST_SEED)
        train, test = whole.take(kept), whole.take(held_out)
    train, validation = thinned(train, source.train_limit), None
    if source.validation:
        kept, held_out = _hold_out(train, source.validation, seed)
        train, validation = train.take(kept), train.take(held_out) if len(held_out) else None
    if not len(train) or not len(test):
        classes = len(whole.labels[whole.labels != UNLABELLED].unique())
        why = f"{len(whole)} series of {classes} classes are too few to divide"
        other = f"if another column holds the labels, {naming('label', 'NAME')}"
        raise DataError(source.path or source.name, why, f"add series of each class; {other}")
    if len(train.labels[train.labels != UNLABELLED].unique()) < 2:
        why = "the training series are of a single class"
        raise DataError(source.path or source.name, why, "add series of another class")
    test = thinned(test, source.test_limit)
    return _scaled(train, validation, test, names, _standard(train))


def _scaled(
    train: Series,
    validation: Series | None,
    test: Series,
    names: tuple[tuple[str, ...], tuple[str, ...]],
    scaling: Scaling,
) -> SeriesSplits:
    chosen = None if validation is None else scaling.apply(validation)
    return SeriesSplits(scaling.apply(train), chosen, scaling.apply(test), *names, scaling)


def _published_split(count: int) -> tuple[Tensor, Tensor]:
    """The same as scikit-learn's `train_test_split(train_size=0.8, random_state=42)`."""
    order = torch.from_numpy(np.random.RandomState(_PUBLISHED_SEED).permutation(count))
    tested = count - int(_PUBLISHED_SHARE * count)
    return order[tested:], order[:tested]


def _hold_out(whole: Series | int, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Indices to keep and to hold out; within each class if series have one."""
    if isinstance(whole, int) or whole.by_row:
        count = whole if isinstance(whole, int) else len(whole)
        return hold_out_of_each_class(torch.zeros(count), share, seed)
    return hold_out_of_each_class(whole.labels, share, seed)


def _first(indices: Tensor, limit: int | None) -> Tensor:
    return indices if limit is None else indices[:limit]


def _span(series: Series) -> float:
    return float(series.times.abs().max()) or 1.0


def _standard(train: Series) -> Scaling:
    """Scaling to mean 0 and deviation 1 of the training's observations."""
    features = train.values.shape[1]
    place = train.mask.nonzero(as_tuple=True)
    seen, column = train.values[place].double(), place[1]
    count = column.bincount(minlength=features).clamp(min=1)
    # Numbers of single precision are rounded more than others.
    is_finer = column.bincount((seen.float().double() != seen).double(), features) > 0
    rounding = torch.where(is_finer, 1e-10, 1e-6)

    def moments(seen: Tensor) -> tuple[Tensor, Tensor]:
        mean = column.bincount(seen, features) / count
        deviation = (column.bincount((seen - mean[column]).square(), features) / count).sqrt()
        # A constant feature, whose deviation is but rounding, keeps its unit.
        return mean, deviation.where(deviation > rounding * mean.abs().clamp(min=1e-30), 1.0)

    _, scale = moments(seen)
    mean, scale = moments(in_single(seen, scale[column]))
    return Scaling(_span(train), tuple(mean.tolist()), tuple(scale.tolist()), _LIMIT)


_Loader = Callable[[SeriesSource, int], SeriesSplits]
_LOADERS: Mapping[tuple[str, str], _Loader] = {
    ("physionet", "sound"): _sound_physionet,
    ("physionet", "published"): _published_physionet,
    ("activity", "sound"): _sound_activity,
    ("activity", "published"): _published_activity,
    ("series", "sound"): _own_series,
}
