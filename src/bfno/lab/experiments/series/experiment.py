"""Classification of irregular series with recurrent and latent models, as an experiment."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field
from torch import nn

from bfno.lab.data import (
    SERIES_SETS,
    Series,
    SeriesSplits,
    SeriesTable,
    files_below,
    load_series,
    thinned,
)
from bfno.lab.data.series_folder import LABELS_STEM, series_name
from bfno.lab.data.table_file import TABLE_SUFFIXES
from bfno.lab.errors import ConfigError, DataError
from bfno.lab.experiments.experiment import (
    Conclusion,
    Experiment,
    OwnData,
    Prediction,
    Shown,
    TestRequest,
    TrainedRun,
    class_scores,
    explained_failure,
    explained_misfit,
)
from bfno.lab.experiments.memory import MEMORY, gone, is_in_memory
from bfno.lab.experiments.presets import (
    layered,
    model_of_its_kind,
    read_presets,
    require_method,
)
from bfno.lab.experiments.series.data import (
    OF_FILES,
    AnySeriesDataSettings,
    names_series,
    own_splits,
    read_table,
    refuse_endless,
    scaling_of,
)
from bfno.lab.experiments.series.intervals import (
    FACT,
    fit_intervals,
    hidden_coverage,
    intervals_of,
    without_forecast,
)
from bfno.lab.experiments.series.metrics import confidence_intervals
from bfno.lab.experiments.series.models import (
    MODEL_KINDS,
    LatentSettings,
    SeriesData,
    SeriesModelSettings,
    without_kinetic,
)
from bfno.lab.experiments.series.task import (
    LossSettings,
    SeriesPredictions,
    SeriesTask,
    confusion,
    predict_series,
    summary,
)
from bfno.lab.experiments.trees import Tree, setting
from bfno.models import SeriesModel

__all__ = ["SERIES_METHODS", "SeriesExperiment"]

_logger = logging.getLogger(__name__)

SERIES_METHODS: tuple[str, ...] = tuple(read_presets("series")["methods"])
"""The methods, in the order of the paper's table."""


class SeriesExperiment(Experiment):
    """Classification of irregular series, and their reconstruction.

    Attributes:
        loss: How reconstruction and classification are weighted.
    """

    data_names: ClassVar[tuple[str, ...]] = tuple(read_presets("series")["data"])
    own_data: ClassVar[Mapping[str, OwnData]] = {
        "series": OwnData(
            "path",
            "for two features and two classes of series",
            {"features": ("one", "other"), "classes": ("one", "other"), "by_row": False},
        )
    }
    in_memory: ClassVar[str] = f"{MEMORY}-series"
    # The protocol scales the values, and with them the deviation of an observation.
    deciding: ClassVar[tuple[tuple[str, str], ...]] = (("data", "protocol"),)
    of_files: ClassVar[tuple[str, ...]] = OF_FILES
    recommended: ClassVar[Mapping[str, str]] = {"series": "latent-bfno-node"}

    data: AnySeriesDataSettings
    model: SeriesModelSettings = Field(discriminator="kind")
    loss: LossSettings = LossSettings()

    @classmethod
    def preset(cls, data: str, method: str, tree: Mapping[str, Any]) -> Tree:
        require_method(data, method, SERIES_METHODS)
        presets, name = read_presets("series"), data
        if data == cls.in_memory:
            name, data = MEMORY, "series"  # with the models of the user's own tables
        is_published = setting(tree, "data", "protocol", "sound") == "published"
        published = presets["published"] if is_published else {}
        scale = presets["scales"][tree["scale"]]
        parts = ["all", data, method, f"{data}/{method}"]
        if is_published:
            parts.append(f"{data}/published")
        settings = layered(
            (
                {"data": {"name": name}, "model": {}},
                presets["recipe"],
                presets["data"][data],
                *(published.get(part, {}) for part in ("all", data, method)),
                presets["methods"][method],
                *(scale.get(part, {}) for part in parts),
            )
        )
        return {**settings, "model": model_of_its_kind(settings["model"], tree, MODEL_KINDS)}

    @classmethod
    def names(cls) -> Iterator[str]:
        known = (data for data in cls.data_names if data in SERIES_SETS)
        return (f"{data}/{method}" for data in known for method in SERIES_METHODS)

    @property
    def shows(self) -> Shown | None:
        # A weight of zero leaves the decoder untrained.
        drawable = self.model.kind == "latent_ode" and self.loss.reconstruction > 0
        return "reconstruction" if drawable else None

    def load(self) -> SeriesSplits:
        if is_in_memory(self.data):
            raise gone()
        splits = load_series(self.data.source, self.seed)
        refuse_endless(splits.test, self.data.test_path or self.data.path or self.data.name)
        return splits

    def facts(self, data: SeriesSplits) -> dict[str, Any]:
        return {
            "classes": list(data.classes),
            "features": list(data.features),
            "by_row": data.train.by_row,
            "scaling": dataclasses.asdict(data.scaling),
            **({} if data.layout is None else {"table": data.layout.facts()}),
            **({"division": data.division} if data.division else {}),
        }

    def known_facts(self) -> dict[str, Any]:
        about = SERIES_SETS[self.data.name]
        return {
            "features": [str(number) for number in range(about.features)],
            "classes": [str(number) for number in range(about.classes)],
            "by_row": about.by_row,
        }

    def build(self, facts: Mapping[str, Any]) -> SeriesModel:
        features, classes = tuple(facts["features"]), tuple(facts["classes"])
        about = SeriesData(len(features), len(classes), facts["by_row"])
        with explained_misfit(self.model, "solver"):
            model = self._built(about).float()
        model.class_names, model.feature_names = classes, features
        return model

    def _built(self, about: SeriesData) -> SeriesModel:
        solver = self.solver.model_dump()
        if self.loss.kinetic == 0:
            return self.model.build(about, solver)
        if not isinstance(self.model, LatentSettings):
            raise without_kinetic()
        return self.model.build(about, solver, measures_kinetic=True)

    def task(self, data: SeriesSplits) -> SeriesTask:
        return SeriesTask(data, self.data, self.loss)

    def evaluate(self, run: TrainedRun, request: TestRequest) -> dict[str, Any]:
        """Evaluate the trained model on unseen test series.

        Returns:
            Accuracy, macro-F1, areas under the curves where there are any, each with the 95 %
            interval of a bootstrap over series, loss, error of the reconstruction, function
            evaluations per batch, confusion matrix (rows are true classes) and precision, recall
            and F1 of each class; of a run with predictive intervals, how often they cover hidden
            values, and how wide they are.
        """
        series = _test_series(run, request)
        started = time.perf_counter()
        batch = request.batch or self.train.eval_batch
        with explained_failure():
            share = request.whole(batch, len(series))
            # Times of all series of a batch would be stops for each.
            times = "own" if request.independent else self.data.times
            found = predict_series(run.model, series, batch, times, share)
        pooled, classes = self.data.is_pooled, list(run.model.class_names)
        judged = found.judged(pooled=pooled)
        if len(judged[1]) == 0:
            what = request.data or self.data.name
            raise ConfigError(what, "has no labels to compare with", "add a column of labels")
        matrix = confusion(found, len(classes), pooled)
        return {
            **summary(found, pooled),
            **self._coverage(run, series, batch),
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

    def make_independent(self, model: nn.Module) -> str:
        if self.data.times == "public_code":
            why = "cannot hold, as times are divided by the largest one of a batch"
            raise ConfigError("--independent", why, "leave it out")
        return super().make_independent(model)

    def _coverage(self, run: TrainedRun, series: Series, batch: int) -> dict[str, float]:
        """Coverage of hidden values, or a note that there are no intervals."""
        if without_forecast(self) is not None or self.data.validation == 0:
            return {}
        try:
            intervals = intervals_of(run)
        except ConfigError as error:
            _logger.warning("%s", error)
            return {}
        covered = hidden_coverage(intervals, run.model, series, batch)
        return {**covered.metrics(), "hidden_values": covered.values}

    def conclude(self, run: TrainedRun, data: SeriesSplits) -> Conclusion:
        """Predictive intervals from the validation series, and their coverage on the test series.

        A model whose predicted values mean nothing gets none, nor does a run without validation
        series.
        """
        if data.validation is None or without_forecast(self) is not None:
            return Conclusion()
        try:
            intervals = fit_intervals(run.model, data.validation, self.train.eval_batch)
        except ConfigError as error:
            _logger.warning("no predictive intervals: %s; %s", error.why, error.fix)
            return Conclusion(facts={FACT: {"missing": error.why}})
        if not len(data.test):
            return Conclusion(facts={FACT: intervals.as_facts()})
        covered = hidden_coverage(intervals, run.model, data.test, self.train.eval_batch)
        metrics = {f"test_{name}": value for name, value in covered.metrics().items()}
        return Conclusion(metrics, {FACT: intervals.as_facts()})

    def predict(self, run: TrainedRun, files: Iterable[Path]) -> Iterator[Prediction]:
        """Classify the series of tables, or their rows if the run was trained on labels of rows.

        The tables must have the run's features; labels are not needed.
        """
        for file in files:
            try:
                table = read_table(run, file)
            except DataError as error:
                yield Prediction(file, "", {}, error)
                continue
            scaled = scaling_of(run).apply(table.series)
            # To share times changes no prediction; to divide them by the largest one does.
            times = "public_code" if self.data.times == "public_code" else "own"
            if run.model.couples_series or times == "public_code":
                _logger.warning("%s: a prediction depends on the other series of the file", file)
            with explained_failure():
                found = predict_series(run.model, scaled, self.train.eval_batch, times)
            yield from _named(run, file, table, found)

    def files_in(self, run: TrainedRun, folder: Path) -> list[Path]:
        tables, left_out = files_below(folder, TABLE_SUFFIXES, ("table", "tables"))
        # The names of series in a table of labels say nothing about the others.
        first = next((table for table in tables if series_name(table) != LABELS_STEM), tables[0])
        try:
            if not names_series(run, first):
                return [folder]
        except DataError:  # reading the folder as one reports what is wrong
            return [folder]
        left_out.say(folder)
        return tables


def _named(
    run: TrainedRun, file: Path, table: SeriesTable, found: SeriesPredictions
) -> Iterator[Prediction]:
    names, series = run.model.class_names, table.series
    for number, row in enumerate(found.probabilities.mean(0).tolist()):
        owner = int(found.series[number])
        place: dict[str, str | float] = {"id": series.ids[owner]}
        if series.by_row:
            place["time"] = table.time_in_file(number, owner)
        label = names[max(range(len(row)), key=row.__getitem__)]
        yield Prediction(file, label, dict(zip(names, row, strict=True)), place=place)


def _test_series(run: TrainedRun, request: TestRequest) -> Series:
    if request.data is not None:
        series = scaling_of(run).apply(read_table(run, Path(request.data)).series)
    else:
        series = own_splits(run, request.data_dir).test
    return thinned(series, request.limit)
