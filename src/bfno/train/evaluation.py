"""Using a trained model: scores on a test split, and predictions for image files."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bfno.data import DATA_SETS, Split, read_image, resized
from bfno.errors import ConfigError, DataError, NumericalError
from bfno.ode import SolverError
from bfno.presets import IMAGE_DATA
from bfno.train.build import load_images
from bfno.train.config import DataSettings
from bfno.train.load import TrainedRun
from bfno.train.tasks import Share, evaluate_images

__all__ = ["Prediction", "evaluate_run", "predict"]


def evaluate_run(
    run: TrainedRun,
    *,
    data: str | None = None,
    data_dir: Path | None = None,
    limit: int | None = None,
    batch: int | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> dict[str, Any]:
    """Evaluate a trained model on test images it has not seen.

    Args:
        run: The trained model.
        data: Another data set, or a folder of images; None is the run's own.
        data_dir: Where the files of data sets are; None is where the run found them.
        limit: How many images, from the first; None is as many as the run's own test split has.
        batch: Images at a time; None is the run's own.
        progress: Called with the number of images done and of all.

    Returns:
        Accuracy, loss, function evaluations a batch, confusion matrix (rows are true classes) and
        precision, recall and F1 of each class.

    Raises:
        ConfigError: If the classes are not those of the run.
        DataError: If files are missing or wrong.
        NumericalError: If the solver gives up.
    """
    settings = _other_data(run.config.data, data, data_dir)
    found = load_images(settings, run.config.seed)
    classes = run.model.class_names
    if found.classes != classes:
        here, there = ", ".join(found.classes[:5]), ", ".join(classes[:5])
        raise ConfigError(
            data or settings.name,
            f"has other classes ({here}, …) than the run ({there}, …)",
            "evaluate on data with the same classes",
        )
    side, limit = run.model.in_shape[-1], limit or run.config.data.test_limit
    split = resized(Split(found.test.images[:limit], found.test.labels[:limit]), side)
    started = time.perf_counter()
    batch = batch or run.config.train.eval_batch
    share = Share() if progress is None else Share(pause=_counter(progress, batch, len(split)))
    with _explained_failure():
        evaluation = evaluate_images(run.model, split, len(classes), batch, share)
    return {
        **evaluation.metrics,
        "samples": len(split),
        "seconds": round(time.perf_counter() - started, 3),
        "step": run.step,
        "classes": list(classes),
        "confusion": evaluation.confusion,
        "per_class": list(_class_scores(evaluation.confusion)),
    }


def _counter(
    progress: Callable[[int, int], object], batch: int, total: int
) -> Callable[[], object]:
    batches = itertools.count()
    return lambda: progress(min(next(batches) * batch, total), total)


def _other_data(settings: DataSettings, data: str | None, data_dir: Path | None) -> DataSettings:
    changes: dict[str, Any] = {"dir": data_dir or settings.dir}
    if data is not None:
        if data in DATA_SETS:
            changes |= {"name": data, "folder": None}
        else:
            size, colour = settings.shape[1], settings.shape[0] == 3
            folder = Path(data).resolve()
            changes |= {"name": "folder", "folder": folder, "size": size, "colour": colour}
    return settings.model_copy(update=changes)


def _class_scores(confusion: list[list[int]]) -> Iterator[dict[str, float]]:
    matrix = torch.tensor(confusion, dtype=torch.float64)
    hits, true, predicted = matrix.diagonal(), matrix.sum(1), matrix.sum(0)
    # A class that nobody predicted has a precision of 0, as is the custom.
    precision, recall = hits / predicted.clamp(min=1), hits / true.clamp(min=1)
    f1 = 2 * hits / (true + predicted).clamp(min=1)
    for row in zip(precision.tolist(), recall.tolist(), f1.tolist(), true.tolist(), strict=True):
        yield dict(zip(("precision", "recall", "f1", "samples"), row, strict=True))


@dataclass(frozen=True)
class Prediction:
    """What a model says about one file.

    Attributes:
        file: The file.
        label: Name of the likeliest class; empty if the file cannot be read.
        probabilities: Probability of each class, by name.
        error: Why the file cannot be read, if so.
    """

    file: Path
    label: str
    probabilities: dict[str, float]
    error: DataError | None = None


def predict(run: TrainedRun, files: Iterable[Path]) -> Iterator[Prediction]:
    """Classify image files one after the other; a file that cannot be read spoils no other.

    Each image is solved by itself, so that a prediction does not depend on its neighbours.

    Args:
        run: The trained model.
        files: Image files of any size; they are resized as in training.
    """
    for file in files:
        try:
            image = _read(file, run)
        except DataError as error:
            yield Prediction(file, "", {}, error)
            continue
        with torch.inference_mode(), _explained_failure():
            scores = run.model(image.float().div(255))[0]
        names = run.model.class_names
        probabilities = dict(zip(names, scores.softmax(0).tolist(), strict=True))
        yield Prediction(file, names[int(scores.argmax())], probabilities)


@contextlib.contextmanager
def _explained_failure() -> Iterator[None]:
    try:
        yield
    except SolverError as error:
        fix = "raise solver.rtol and solver.atol in the run's config.yaml"
        raise NumericalError("the solver", str(error), fix) from error


def _read(file: Path, run: TrainedRun) -> torch.Tensor:
    """One image as the model saw those of its training: on their own grid first, then coarser."""
    settings = run.config.data
    native = settings.shape if settings.name == "folder" else IMAGE_DATA[settings.name].shape
    image = read_image(file, native).unsqueeze(0)
    split = Split(image, torch.zeros(1, dtype=torch.int64))
    return resized(split, run.model.in_shape[-1]).images
