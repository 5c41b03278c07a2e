"""From the name of an experiment, its scale and a few changes to complete settings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bfno.lab.errors import ConfigError, DataError, nearest_names
from bfno.lab.experiments.density.experiment import DensityExperiment
from bfno.lab.experiments.experiment import Experiment
from bfno.lab.experiments.images.experiment import ImageExperiment
from bfno.lab.experiments.series.experiment import SeriesExperiment
from bfno.lab.experiments.settings import CIRCUMSTANCES, SCALES, migrated_settings, parse
from bfno.lab.experiments.trees import Tree, differences, merged, setting
from bfno.lab.files import parse_yaml, read_plain

__all__ = ["EXPERIMENTS", "SCALES", "changed_settings", "read_experiment", "read_written"]
__all__ += ["resolve"]

EXPERIMENTS: tuple[type[Experiment], ...] = (ImageExperiment, SeriesExperiment, DensityExperiment)
"""Every kind of experiment."""

_MOST_BYTES = 1 << 20


def resolve(
    experiment: str,
    *,
    scale: str | None = None,
    changes: Mapping[str, Any] | None = None,
    data: str | Path | None = None,
) -> Any:
    """Return an experiment with all of its settings, one of the kinds in `EXPERIMENTS`.

    Args:
        experiment: `data/method`; for the user's own data, `data` alone, which takes the
            recommended method; or a YAML file that names an experiment under `experiment` and
            changes some of its settings, such as a run's `config.yaml`.
        scale: `smoke`, `cpu` or `paper`; None takes the file's, or `cpu`.
        changes: Nested settings that differ from the preset's.
        data: The user's own data, a folder of images or a table or folder of series, for an
            experiment that takes them.

    Raises:
        ConfigError: If a name or a setting is unknown or does not fit.
        DataError: If the file cannot be read.

    Example:
        >>> config = resolve("mnist/bfno-node", scale="paper", changes={"train": {"epochs": 3}})
        >>> config.model.width, config.train.epochs, config.train.lr
        (47, 3, 0.001)
    """
    tree: Tree = {}
    source = "the command"
    if experiment.endswith((".yaml", ".yml")):
        source = experiment
        tree = migrated_settings(_read_yaml(Path(experiment)))
    tree = merged(tree, changes or {})
    name = str(tree.setdefault("experiment", experiment))
    if scale is not None:
        tree["scale"] = scale
    chosen = tree.setdefault("scale", "cpu")
    if chosen not in SCALES:
        raise ConfigError(chosen, "is not a scale", f"choose one of {', '.join(SCALES)}")
    kind = _kind_of(name)
    of, _, method = name.partition("/")
    if not method and of in kind.recommended:
        method = kind.recommended[of]
        tree["experiment"] = f"{of}/{method}"
    if data is not None:
        own = _own_data(kind, name)
        if setting(changes or {}, "data", own, None) is not None:
            raise ConfigError("--data", f"repeats --set data.{own}", "keep one of them")
        tree = merged(tree, {"data": {own: str(data)}})
    found = parse(kind, merged(kind.preset(of, method, tree), tree), source)
    found.refuse_idle(changes or {})
    return found


def _own_data(kind: type[Experiment], experiment: str) -> str:
    """The setting with the path of the user's own data.

    Raises:
        ConfigError: If it has none.
    """
    data, _, method = experiment.partition("/")
    if data in kind.own_data:
        return kind.own_data[data].setting
    (own,) = kind.own_data
    why = f"the data of {experiment} are known"
    fix = f"leave it out (files of data sets: --data-dir), or train {own}/{method}"
    raise ConfigError("--data", why, fix)


def read_experiment(settings: Mapping[str, Any], source: str) -> Any:
    """Return the experiment from complete settings that a run wrote, maybe long ago.

    Args:
        settings: Settings from a config.yaml, a record or a checkpoint; ones newer than the run get
            their default.
        source: Their origin, for the message.

    Raises:
        ConfigError: If a name or a setting is unknown or does not fit.
    """
    return parse(_kind_of(str(settings.get("experiment"))), migrated_settings(settings), source)


def read_written(file: Path) -> Any:
    """Return the experiment of a run's own `config.yaml`, as it was when the run began.

    A setting that is newer than the run has its default, not what presets say today. A file that
    someone has shortened is read like any other.

    Raises:
        ConfigError: If a name or a setting is unknown or does not fit.
        DataError: If the file cannot be read.
    """
    try:
        return read_experiment(_read_yaml(file), str(file))
    except ConfigError:
        return resolve(str(file))


def changed_settings(config: Experiment) -> list[str]:
    """The settings in which an experiment differs from its preset, as `--set` takes them.

    Example:
        >>> changed_settings(resolve("digits/node", changes={"train": {"lr": 0.5}}))
        ['train.lr=0.5']
    """
    deciding: Tree = {}
    for section, key in config.deciding:
        deciding = merged(deciding, {section: {key: getattr(getattr(config, section), key)}})
    plain = resolve(config.experiment, scale=config.scale)
    preset = resolve(config.experiment, scale=config.scale, changes=deciding)
    of_the_choice = dict(differences(plain.as_dict(), preset.as_dict()))
    found = [
        *((name, change) for name, change in of_the_choice.items() if _is_in(name, deciding)),
        *differences(preset.as_dict(), config.as_dict()),
    ]
    return [
        f"{name}={json.dumps(value)}" for name, (_, value) in found if name not in CIRCUMSTANCES
    ]


def _kind_of(experiment: str) -> type[Experiment]:
    """The kind of an experiment, by the data before its slash."""
    data = experiment.partition("/")[0]
    for kind in EXPERIMENTS:
        if data in kind.data_names or data == kind.in_memory:
            return kind
    known = [name for kind in EXPERIMENTS for name in kind.data_names]
    near = nearest_names(data, known)
    raise ConfigError(
        experiment,
        "is neither an experiment nor a YAML file",
        f"write data/method; the nearest data are {', '.join(near)}",
    )


def _is_in(name: str, tree: Tree) -> bool:
    section, _, key = name.partition(".")
    return key in tree.get(section, {})


def _read_yaml(path: Path) -> Tree:
    try:
        content = read_plain(path, _MOST_BYTES + 1)
    except OSError as error:
        why = (error.strerror or "cannot be read").lower()
        raise DataError(path, why, "name a YAML file that exists") from error
    try:
        if len(content) > _MOST_BYTES:
            raise ValueError("is not YAML")
        tree = parse_yaml(content)
    except ValueError as error:
        raise ConfigError(path, str(error), "start from a run's config.yaml") from None
    if not isinstance(tree, dict) or not isinstance(tree.get("experiment"), str):
        raise ConfigError(path, "does not name an experiment", "add `experiment: data/method`")
    return tree
