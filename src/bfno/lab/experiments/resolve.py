"""From the name of an experiment, its scale and a few changes to complete settings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bfno.lab.errors import ConfigError, DataError
from bfno.lab.experiments.families import family_of
from bfno.lab.experiments.settings import CIRCUMSTANCES, Config, parse
from bfno.lab.experiments.trees import Tree, differences, merged
from bfno.lab.files import parse_yaml

__all__ = ["SCALES", "changed_settings", "resolve"]

SCALES = ("smoke", "cpu", "paper")
_MOST_BYTES = 1 << 20


def resolve(
    experiment: str, *, scale: str | None = None, changes: Mapping[str, Any] | None = None
) -> Any:
    """Return the complete settings of an experiment, a `Config` of its family.

    Args:
        experiment: `data/method`, or a YAML file that names one under `experiment` and changes
            some of its settings. A run's own `config.yaml` is such a file.
        scale: `smoke`, `cpu` or `paper`; None takes the file's, or `cpu`.
        changes: Nested settings that differ from the preset's.

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
        tree = _read_yaml(Path(experiment))
    tree = merged(tree, changes or {})
    name = str(tree.setdefault("experiment", experiment))
    if scale is not None:
        tree["scale"] = scale
    chosen = tree.setdefault("scale", "cpu")
    if chosen not in SCALES:
        raise ConfigError(chosen, "is no scale", f"choose one of {', '.join(SCALES)}")
    family = family_of(name)
    data, _, method = name.partition("/")
    return parse(family.config, merged(family.preset(data, method, tree), tree), source)


def changed_settings(config: Config[Any, Any]) -> list[str]:
    """The settings, as `--set` takes them, in which an experiment differs from its preset.

    Example:
        >>> changed_settings(resolve("digits/node", changes={"train": {"lr": 0.5}}))
        ['train.lr=0.5']
    """
    deciding: Tree = {}
    for section, key in family_of(config.experiment).deciding:
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


def _is_in(name: str, tree: Tree) -> bool:
    section, _, key = name.partition(".")
    return key in tree.get(section, {})


def _read_yaml(path: Path) -> Tree:
    try:
        with open(path, "rb") as file:
            content = file.read(_MOST_BYTES + 1)
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
        raise ConfigError(path, "names no experiment", "add `experiment: data/method`")
    return tree
