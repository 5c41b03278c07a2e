"""Using a trained model: scores on a test split, and predictions for image files."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from bfno.lab.errors import ConfigError, DataError
from bfno.lab.experiments.evaluation import class_scores, counted, explained_failure
from bfno.lab.experiments.family import Prediction, TestRequest, TrainedRun
from bfno.lab.experiments.images.build import load_images
from bfno.lab.experiments.images.sources import other_images, read_image_file, shown_to
from bfno.lab.experiments.images.task import evaluate_images

__all__ = ["evaluate", "predict"]


def evaluate(run: TrainedRun, request: TestRequest) -> dict[str, Any]:
    """Evaluate a trained model on test images it has not seen.

    Returns:
        Accuracy, loss, function evaluations a batch, confusion matrix (rows are true classes) and
        precision, recall and F1 of each class.

    Raises:
        ConfigError: If the classes are not those of the run.
        DataError: If files are missing or wrong.
        NumericalError: If the solver gives up.
    """
    data = request.data
    settings = other_images(run.config.data, data, request.data_dir)
    found = load_images(settings, run.config.seed)
    classes = run.model.class_names
    if found.classes != classes:
        here, there = ", ".join(found.classes[:5]), ", ".join(classes[:5])
        raise ConfigError(
            data or settings.name,
            f"has other classes ({here}, …) than the run ({there}, …)",
            "evaluate on data with the same classes",
        )
    split = shown_to(run, found.test, request.limit or run.config.data.test_limit)
    started = time.perf_counter()
    batch = request.batch or run.config.train.eval_batch
    with explained_failure():
        evaluation = evaluate_images(
            run.model, split, len(classes), batch, counted(request, batch, len(split))
        )
    return {
        **evaluation.metrics,
        "unit": "images",
        "samples": len(split),
        "seconds": round(time.perf_counter() - started, 3),
        "step": run.step,
        "classes": list(classes),
        "confusion": evaluation.confusion,
        "per_class": list(class_scores(evaluation.confusion)),
    }


def predict(run: TrainedRun, files: Iterable[Path]) -> Iterator[Prediction]:
    """Classify image files one after the other; a file that cannot be read spoils no other.

    Each image is solved by itself, so that a prediction does not depend on its neighbours.

    Args:
        run: The trained model.
        files: Image files of any size; they are resized as in training.
    """
    for file in files:
        try:
            image = read_image_file(run.config.data, file)
        except DataError as error:
            yield Prediction(file, "", {}, error)
            continue
        with torch.inference_mode(), explained_failure():
            scores = run.model(image.float().div(255))[0]
        names = run.model.class_names
        probabilities = dict(zip(names, scores.softmax(0).tolist(), strict=True))
        yield Prediction(file, names[int(scores.argmax())], probabilities)
