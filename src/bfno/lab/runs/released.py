"""The weights that the paper's authors published, as a run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from bfno.lab.data import DATA_SETS
from bfno.lab.errors import DataError
from bfno.lab.experiments.experiment import Experiment
from bfno.lab.experiments.resolve import resolve
from bfno.lab.runs.checkpoint import Checkpoint, Progress, load_weights
from bfno.lab.runs.folder import RunFolder

__all__ = ["import_released", "released_weights"]

_CHANGES = {"train": {"eval_batch": 50}}


def released_weights(file: Path) -> dict[str, Tensor]:
    """Read published weights under the names that `ImageClassifier` gives them.

    Raises:
        DataError: If the file cannot be read or holds something else.
    """
    try:
        published = torch.load(file, weights_only=True, map_location="cpu")
        return dict(_renamed(published))
    except OSError as error:
        why = (error.strerror or "cannot be read").lower()
        raise DataError(file, why, "name a file that exists") from error
    except Exception as error:  # any error of a restricted unpickler on a file of another kind
        raise DataError(
            file,
            "does not hold the published weights of a BFNO-NODE",
            "name one of the authors' files, model/1.pt to model/10.pt",
        ) from error


def import_released(file: Path, folder: Path) -> Experiment:
    """Turn published weights into a run that can be evaluated, used for predictions and trained on.

    Args:
        file: One of the authors' `.pt` files for CIFAR-10.
        folder: The folder of the new run.

    Raises:
        DataError: If the file cannot be read or holds something else.
        ConfigError: If the folder holds a run, or the weights have another shape.
    """
    weights = released_weights(file)
    config = resolve("cifar10/bfno-node", scale="paper", changes=_CHANGES)
    facts = {"classes": DATA_SETS["cifar10"].class_names}
    model = config.build(facts)
    progress = Progress(history=[f"first weights from {file.name}"])
    state = {**facts, "config": config.as_dict(), "progress": progress.model_dump()}
    checkpoint = Checkpoint(0, weights, {}, {**state, "released": file.name})
    load_weights(model, checkpoint)
    run = RunFolder(folder)
    run.create()
    with run:
        run.write_config(config)
        run.save(checkpoint)
    return config


def _renamed(published: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    field, ours = "1.df.df", "block.dynamics.field"
    for part in ("weight", "bias"):
        yield f"head.{part}", published[f"2.dense.{part}"]
        yield f"{ours}.encoder.{part}", published[f"{field}.initial.{part}"]
        yield f"{ours}.decoder.{part}", published[f"{field}.final.{part}"]
    for index in range(3):
        layer, theirs = f"{ours}.layers.{index}", f"{field}.fc{index + 1}"
        blocks = [f"{theirs}.weight_block_{branch}" for branch in (1, 2)]
        yield f"{layer}.weight", torch.stack([published[f"{block}.weights1"] for block in blocks])
        yield f"{layer}.bias", torch.stack([published[f"{block}.bias1"] for block in blocks])
        for merge in ("real", "imag"):
            for part in ("weight", "bias"):
                name = f"{theirs}.concat_{merge}_layer_1.{part}"
                yield f"{layer}.merge_{merge}.{part}", published[name]
