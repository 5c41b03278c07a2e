"""Using a trained model of series: scores on a test split, and predictions for files."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from bfno.lab.data import Scaling, Series, SeriesSplits, SeriesTable, read_series
from bfno.lab.errors import ConfigError, DataError
from bfno.lab.experiments.evaluation import class_scores, counted, explained_failure
from bfno.lab.experiments.family import Prediction, TestRequest, TrainedRun
from bfno.lab.experiments.series.build import load_data, refuse_endless
from bfno.lab.experiments.series.metrics import confidence_intervals
from bfno.lab.experiments.series.predictions import SeriesPredictions, predict_series
from bfno.lab.experiments.series.settings import SeriesConfig
from bfno.lab.experiments.series.task import confusion, is_pooled, summary
from bfno.lab.experiments.trees import merged

__all__ = ["evaluate", "own_splits", "predict", "read_table", "scaling_of"]

_logger = logging.getLogger(__name__)


def evaluate(run: TrainedRun, request: TestRequest) -> dict[str, Any]:
    """Evaluate a trained model on test series it has not seen.

    Returns:
        Accuracy, macro-F1, areas under the curves where there are any, each with the 95 % interval
        of a bootstrap over series, loss, error of the reconstruction, function evaluations a batch,
        confusion matrix (rows are true classes) and precision, recall and F1 of each class.

    Raises:
        ConfigError: If the data have no labels or other classes than the run.
        DataError: If files are missing or wrong.
        NumericalError: If the solver gives up.
    """
    series = _test_series(run, request)
    started = time.perf_counter()
    batch = request.batch or run.config.train.eval_batch
    with explained_failure():
        share = counted(request, batch, len(series))
        found = predict_series(run.model, series, batch, run.config.data.times, share)
    pooled, classes = is_pooled(run.config), list(run.model.class_names)
    judged = found.judged(pooled=pooled)
    if len(judged[1]) == 0:
        what = request.data or run.config.data.name
        raise ConfigError(what, "has no labels to compare with", "add a column of labels")
    matrix = confusion(found, len(classes), pooled)
    return {
        **summary(found, pooled),
        "intervals": confidence_intervals(*judged),
        "unit": "time points" if series.by_row else "series",
        "samples": int((found.labels >= 0).sum()),
        "series": len(series),
        "transductive": bool(run.model.couples_series),
        "seconds": round(time.perf_counter() - started, 3),
        "step": run.step,
        "classes": classes,
        "confusion": matrix,
        "per_class": list(class_scores(matrix)),
    }


def predict(run: TrainedRun, files: Iterable[Path]) -> Iterator[Prediction]:
    """Classify the series of tables, or their rows if the run was trained on labels of rows.

    Args:
        run: The trained model.
        files: Tables with the features of the run; labels are not needed.
    """
    for file in files:
        try:
            table = read_table(run, file)
        except DataError as error:
            yield Prediction(file, "", {}, error)
            continue
        scaled = scaling_of(run).apply(table.series)
        if run.model.couples_series:
            _logger.warning("%s: a prediction depends on the other series of the file", file)
        with explained_failure():
            found = predict_series(run.model, scaled, run.config.train.eval_batch, "own")
        yield from _named(run, file, table, found)


def _named(
    run: TrainedRun, file: Path, table: SeriesTable, found: SeriesPredictions
) -> Iterator[Prediction]:
    names, series = run.model.class_names, table.series
    for number, row in enumerate(found.probabilities.mean(0).tolist()):
        owner = int(found.series[number])
        place: dict[str, str | float] = {"id": series.ids[owner]}
        if series.by_row:
            # As in the file, without the last digits that taking the origin away has changed.
            place["time"] = round(float(series.times[number] + table.origins[owner]), 9)
        label = names[max(range(len(row)), key=row.__getitem__)]
        yield Prediction(file, label, dict(zip(names, row, strict=True)), place=place)


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
    changes = {} if data_dir is None else {"data": {"dir": data_dir}}
    splits = load_data(SeriesConfig.model_validate(merged(run.config.as_dict(), changes)))
    if splits.classes != run.model.class_names or splits.features != run.model.feature_names:
        raise ConfigError(
            run.config.data.path or run.config.data.name,
            "has other classes or features than when the run was trained",
            "name a table with those of the run, or train again",
        )
    return splits


def _test_series(run: TrainedRun, request: TestRequest) -> Series:
    if request.data is not None:
        series = scaling_of(run).apply(read_table(run, Path(request.data)).series)
    else:
        series = own_splits(run, request.data_dir).test
    count = min(len(series), request.limit or len(series))
    return series.take(torch.arange(count))
