"""Using a trained flow: its score on test samples, and on image files."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from bfno.lab.errors import DataError
from bfno.lab.experiments.density.samples import held_out_samples, require_images
from bfno.lab.experiments.density.scoring import Noise, is_images, score
from bfno.lab.experiments.evaluation import counted, explained_failure
from bfno.lab.experiments.family import Prediction, TestRequest, TrainedRun
from bfno.lab.experiments.images.sources import read_image_file

__all__ = ["evaluate", "predict"]


def evaluate(run: TrainedRun, request: TestRequest) -> dict[str, Any]:
    """Evaluate a trained flow on test samples it has not seen.

    Returns:
        `bits_per_dim` (uniform noise) and `bits_per_dim_center` of images, or `nll` of points,
        their `standard_errors` over samples by name, `nfe` a batch, `unit` and number of
        `samples`, `dimensions` of one, and `seconds`.

    Raises:
        ConfigError: If the data are of another kind than those of the run.
        DataError: If files are missing or wrong.
        NumericalError: If the solver gives up.
    """
    samples = held_out_samples(run, request.data, request.data_dir)[: request.limit]
    batch = request.batch or run.config.train.eval_batch
    started = time.perf_counter()
    with explained_failure("evaluation"):
        # The same noise as in the evaluations of the training.
        noise = Noise(run.config.seed, "test")
        found = score(run.model, samples, batch, noise, counted(request, batch, len(samples)))
    return {
        **found.metrics,
        "standard_errors": found.errors,
        "unit": "images" if is_images(samples) else "points",
        "samples": len(samples),
        "dimensions": run.model.dimensions,
        "seconds": round(time.perf_counter() - started, 3),
        "step": run.step,
    }


def predict(run: TrainedRun, files: Iterable[Path]) -> Iterator[Prediction]:
    """Score image files one after the other; a file that cannot be read spoils no other.

    The score `bits_per_dim_center` has no noise on the bytes, and that of the trace is the same
    for all files: equal files get equal scores. High ones are unlike the training images.

    Args:
        run: The trained flow.
        files: Image files of any size; they are resized as in training.

    Raises:
        ConfigError: If the run models points.
    """
    require_images(run)
    noise, wanted = Noise(run.config.seed, "files"), ("bits_per_dim_center",)
    for file in files:
        try:
            image = read_image_file(run.config.data, file)
        except DataError as error:
            yield Prediction(file, "", {}, error)
            continue
        with explained_failure("evaluation"):
            found = score(run.model, image, 1, noise, wanted=wanted)
        scores = {name: found.metrics[name] for name in wanted}
        yield Prediction(file, "", {}, scores=scores)
