"""The program from Python: train an experiment, resume a run, load its model.

Needs what training needs, `pip install 'bfno[train]'`; layers and solvers work without it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

from torch import nn

if TYPE_CHECKING:
    from bfno.lab.runs.record import Record

__all__ = ["Run", "load", "resume", "train"]

Model = TypeVar("Model", bound=nn.Module)
OnEpoch = Callable[[dict[str, Any]], object]


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
        folder: Its folder, which every command of the program takes.
        metrics: Results of the chosen epoch, such as `test_accuracy`.
        record: Everything known about the run: settings, sizes, times, versions.

    Example:
        >>> run = bfno.train("digits/bfno-node", scale="smoke")  # doctest: +SKIP
        >>> run.folder, run.model()(torch.rand(3, 1, 8, 8)).shape  # doctest: +SKIP
        (PosixPath('runs/digits-bfno-node-s7'), torch.Size([3, 10]))
    """

    folder: Path
    metrics: Mapping[str, float]
    record: Record

    def model(self) -> Any:
        """The trained model, ready to call; see `load`."""
        return load(self.folder)


def train(
    experiment: str | Path,
    *,
    data: str | Path | None = None,
    scale: str | None = None,
    seed: int | None = None,
    out: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    on_epoch: OnEpoch | None = None,
) -> Run:
    """Train a model as `bfno train` does, and return the finished run.

    Args:
        experiment: `data/method`, such as `mnist/bfno-node`, or a YAML file; `bfno models` lists
            the methods.
        data: Your own data: a folder of images for `folder/` and `folder-density/`, a table or a
            folder of tables for `series/`.
        scale: `smoke`, `cpu` or `paper`; None takes the file's, or `cpu`.
        seed: Seed of all random numbers; None takes the file's, or 7.
        out: Folder of the run, which must not hold another run; None is `runs/DATA-METHOD-sSEED`.
        settings: Changes to the preset's settings, nested or with dots: `{"train": {"epochs": 5}}`
            or `{"train.epochs": 5}`. `bfno config` prints them all.
        on_epoch: Called with the metrics of every finished epoch.

    Raises:
        ConfigError: If a name or a setting is unknown or not valid, or the folder is taken.
        DataError: If files cannot be read or written.
        NumericalError: If the training reaches numbers that are not finite.
        ImportError: If a package that training needs is not installed.

    Example:
        >>> run = bfno.train(  # doctest: +SKIP
        ...     "digits/bfno-node", scale="smoke", out="runs/mine", settings={"train.epochs": 2}
        ... )
        >>> run.metrics["test_accuracy"]  # doctest: +SKIP
        0.2
    """
    with installed("bfno.train"):
        from bfno.lab.experiments.resolve import resolve
        from bfno.lab.experiments.trees import merged, nested
        from bfno.lab.runs import session

        seeded = {} if seed is None else {"seed": seed}
        changes = merged(nested(settings or {}), seeded)
        config = resolve(str(experiment), scale=scale, changes=changes, data=data)
        folder = session.default_folder(config) if out is None else Path(out)
        session.start(config, folder, _watchers(on_epoch))
        return _finished(folder)


def resume(
    run: str | Path | Run,
    *,
    settings: Mapping[str, Any] | None = None,
    on_epoch: OnEpoch | None = None,
) -> Run:
    """Continue a stopped or finished run, bit for bit, as `bfno resume` does.

    Args:
        run: The run, or its folder.
        settings: Settings of training or solver to change, such as `{"train.epochs": 20}`.
        on_epoch: Called with the metrics of every finished epoch.

    Raises:
        ConfigError: If this is not a run folder, or the settings do not match its checkpoints.
        DataError: If files cannot be read or written.
        NumericalError: If the training reaches numbers that are not finite.
        ImportError: If a package that training needs is not installed.

    Example:
        >>> run = bfno.resume("runs/mine", settings={"train.epochs": 4})  # doctest: +SKIP
        >>> run.record.chosen_epoch  # doctest: +SKIP
        4
    """
    folder = _folder(run)
    with installed("bfno.resume"):
        from bfno.lab.experiments.trees import nested
        from bfno.lab.runs import session

        session.resume(folder, nested(settings or {}), _watchers(on_epoch))
        return _finished(folder)


@overload
def load(run: str | Path | Run, *, any_checkpoint: bool = False) -> Any: ...
@overload
def load(run: str | Path | Run, kind: type[Model], *, any_checkpoint: bool = False) -> Model: ...
def load(
    run: str | Path | Run, kind: type[nn.Module] = nn.Module, *, any_checkpoint: bool = False
) -> Any:
    """Return the trained model of a run, ready to call.

    It has the weights of the best epoch on the validation split, or of the last epoch if there was
    no such split. `model.class_names` names the columns of its scores.

    An `ImageClassifier` takes images between 0 and 1 of shape `(batch, *model.in_shape)` and
    returns scores. A `Flow` takes points or images between 0 and 1 (see `dequantise`) and has
    `log_prob`, `sample`, `encode` and `decode`. A `SeriesModel` takes times, values and mask,
    scaled as in training (the run's record says how), and returns a `SeriesOutput`.

    Args:
        run: The run, or its folder.
        kind: The class that the model must have, such as `ImageClassifier`; editors then know its
            type.
        any_checkpoint: Whether to use the newest intact checkpoint if that of the best epoch is
            damaged, instead of raising an error.

    Raises:
        ConfigError: If this is not a run folder, or nothing is trained yet.
        DataError: If its files are damaged.
        TypeError: If the model is of another kind.
        ImportError: If a package that this needs is not installed.

    Example:
        >>> model = bfno.load("runs/mine", bfno.ImageClassifier)  # doctest: +SKIP
        >>> scores = model(torch.rand(3, *model.in_shape))  # doctest: +SKIP
        >>> [model.class_names[best] for best in scores.argmax(1)]  # doctest: +SKIP
        ['9', '1', '1']
    """
    folder = _folder(run)
    with installed("bfno.load"):
        from bfno.lab.runs.load import open_run

        model = open_run(folder, any_checkpoint=any_checkpoint).model
    if not isinstance(model, kind):
        found = type(model).__name__
        raise TypeError(f"{folder} holds a model of the class {found}, not {kind.__name__}")
    return model


def _folder(run: str | Path | Run) -> Path:
    return run.folder if isinstance(run, Run) else Path(run)


def _finished(folder: Path) -> Run:
    from bfno.lab.runs.folder import read_run

    record = read_run(folder)
    return Run(folder, record.result, record)


def _watchers(on_epoch: OnEpoch | None) -> list[Any]:
    from bfno.lab.runs.loop import Watcher

    class Told(Watcher):
        def on_epoch(self, metrics: dict[str, Any]) -> None:
            if on_epoch is not None:
                on_epoch(metrics)

    return [Told()]


@contextlib.contextmanager
def installed(what: str) -> Iterator[None]:
    """Say what to install if a package is missing that the library itself does not need."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "bfno").partition(".")[0]
        if missing == "bfno":
            raise
        raise ImportError(
            f"{what} needs {missing}, which is not installed; pip install 'bfno[train]'",
            name=error.name,
        ) from error
