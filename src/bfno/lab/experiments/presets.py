"""Presets: layers of settings, general ones first, from YAML files beside their task."""

from __future__ import annotations

import functools
import importlib.resources
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from bfno.lab.errors import ConfigError, nearest_names
from bfno.lab.experiments.settings import Settings
from bfno.lab.experiments.trees import Tree, merged, setting

__all__ = ["kinds_of", "layered", "model_of_its_kind", "read_presets", "require_method"]


@functools.cache
def read_presets(task: str) -> Tree:
    """How the experiments of a task are built and trained, from `presets.yaml` in its package.

    Args:
        task: `series` or `density`.
    """
    package = importlib.resources.files(f"bfno.lab.experiments.{task}")
    # Ten times as fast where PyYAML was built with libyaml.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load(package.joinpath("presets.yaml").read_text(encoding="utf-8"), Loader=loader)


def require_method(data: str, method: str, known: Iterable[str]) -> None:
    """Refuse a method that these data do not have.

    Raises:
        ConfigError: If it is not among the known ones; the message names the nearest.
    """
    known = list(known)
    if method not in known:
        near = nearest_names(method, known)
        raise ConfigError(
            f"{data}/{method}",
            "there is no such experiment",
            f"the nearest are {', '.join(f'{data}/{name}' for name in near)}; `bfno models` lists "
            "all",
        )


def layered(layers: Iterable[Mapping[str, Any]]) -> Tree:
    """Merge trees of settings, later ones on top."""
    return functools.reduce(merged, layers, {})


def kinds_of(models: Iterable[type[Settings]]) -> dict[str, type[Settings]]:
    """The settings of models by the kind that each is the default of."""
    return {model.model_fields["kind"].default: model for model in models}


def model_of_its_kind(
    model: Tree, tree: Mapping[str, Any], kinds: Mapping[str, type[Settings]]
) -> Tree:
    """Remove the sizes of parts that the kind of model does not have.

    Args:
        model: Settings of a preset's model.
        tree: Changes, which may select another kind.
        kinds: The settings of each kind.
    """
    kind = setting(tree, "model", "kind", model["kind"])
    known = kinds[kind].model_fields if kind in kinds else model
    return {**{name: value for name, value in model.items() if name in known}, "kind": kind}
