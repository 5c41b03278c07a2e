"""From the name of an experiment, its scale and a few changes to complete settings."""

from __future__ import annotations

import dataclasses
import difflib
import importlib.resources
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from bfno.errors import ConfigError, DataError
from bfno.presets import IMAGE_DATA, ImageModel, find_image_preset
from bfno.train.config import Config, parse

__all__ = ["SCALES", "changed_settings", "differences", "merged", "read_settings", "resolve"]

SCALES = ("smoke", "cpu", "paper")
_MOST_BYTES = 1 << 20
_Tree = dict[str, Any]
# They say where and for which seed an experiment was run, not which one it was.
_CIRCUMSTANCES = ("seed", "threads", "data.dir", "data.folder")


def resolve(
    experiment: str, *, scale: str | None = None, changes: Mapping[str, Any] | None = None
) -> Config:
    """Return the complete settings of an experiment.

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
    tree: _Tree = {}
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
    preset = _without_foreign_options(_preset(name, chosen, tree), tree)
    return parse(merged(preset, tree), source)


def read_settings(pairs: Iterable[str]) -> _Tree:
    """Turn `section.key=value` into nested settings; values are YAML.

    Raises:
        ConfigError: If one has no `=` or its value is not YAML.

    Example:
        >>> read_settings(["train.lr=0.01", "train.epochs=3"])
        {'train': {'lr': 0.01, 'epochs': 3}}
    """
    tree: _Tree = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise ConfigError(pair, "is no setting", "write section.key=value, train.lr=0.01 say")
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError:
            raise ConfigError(pair, "the value is not YAML", "quote it") from None
        for part in reversed(name.split(".")):
            value = {part: value}
        tree = merged(tree, value)
    return tree


def changed_settings(config: Config) -> list[str]:
    """The settings, as `--set` takes them, in which an experiment differs from its preset.

    Example:
        >>> changed_settings(resolve("digits/node", changes={"train": {"lr": 0.5}}))
        ['train.lr=0.5']
    """
    # Whether a folder is read in colour also decides its model, so the two cannot differ apart.
    colour = {"data": {"colour": config.data.colour}}
    preset = resolve(config.experiment, scale=config.scale, changes=colour)
    return ["data.colour=false"] * (not config.data.colour) + [
        f"{name}={json.dumps(value)}"
        for name, (_, value) in differences(preset.as_dict(), config.as_dict())
        if name not in _CIRCUMSTANCES
    ]


def differences(before: Any, now: Any, name: str = "") -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Name and both values of every setting that differs between two trees."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in {**before, **now}:
            inner = f"{name}.{key}" if name else str(key)
            yield from differences(before.get(key), now.get(key), inner)
    elif before != now:
        yield name, (before, now)


def _preset(name: str, scale: str, tree: Mapping[str, Any]) -> _Tree:
    data, _, method = name.partition("/")
    if data not in IMAGE_DATA and data != "folder":
        near = difflib.get_close_matches(data, [*IMAGE_DATA, "folder"], n=3, cutoff=0.0)
        raise ConfigError(
            name,
            "is neither an experiment nor a YAML file",
            f"write data/method; the nearest data are {', '.join(near)}",
        )
    recipes = _recipes()
    factor, settings = 1.0, recipes["recipe"]
    for part in ("all", data):
        change = dict(recipes["scales"][scale].get(part, {}))
        factor = change.pop("width", factor)
        settings = merged(settings, change)
    settings = merged(settings, {"data": {"name": data}})
    colour = _setting(tree, "data", "colour", True)
    like = data if data != "folder" else "cifar10" if colour else "mnist"
    model = _resized(find_image_preset(like, method).model, factor)
    return merged(settings, {"model": dataclasses.asdict(model)})


def _without_foreign_options(preset: _Tree, tree: Mapping[str, Any]) -> _Tree:
    """Drop the options of a field or a dynamics that the settings replace by another."""
    model = dict(preset["model"])
    for part in ("field", "dynamics"):
        if _setting(tree, "model", part, model[part]) != model[part]:
            model[f"{part}_options"] = {}
            model["idle_scalars"] = 0
    return {**preset, "model": model}


def _resized(model: ImageModel, factor: float) -> ImageModel:
    # AFNO cuts its channels into blocks of equal size.
    blocks = model.field_options.get("blocks", 1) if model.field == "afno" else 1
    width = max(1, round(model.width * factor / blocks)) * blocks
    return dataclasses.replace(model, width=width)


def _setting(tree: Mapping[str, Any], section: str, key: str, default: Any) -> Any:
    inside = tree.get(section)
    return inside.get(key, default) if isinstance(inside, Mapping) else default


def _recipes() -> _Tree:
    text = importlib.resources.files("bfno.presets").joinpath("images.yaml").read_text()
    return yaml.safe_load(text)


def _read_yaml(path: Path) -> _Tree:
    try:
        with open(path, "rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except OSError as error:
        why = (error.strerror or "cannot be read").lower()
        raise DataError(path, why, "name a YAML file that exists") from error
    try:
        if len(content) > _MOST_BYTES:
            raise ValueError
        tree = yaml.safe_load(content)
    except (yaml.YAMLError, UnicodeError, ValueError, RecursionError):
        raise ConfigError(path, "is not YAML", "start from a run's config.yaml") from None
    if not isinstance(tree, dict) or not isinstance(tree.get("experiment"), str):
        raise ConfigError(path, "names no experiment", "add `experiment: data/method`")
    return tree


def merged(base: Mapping[str, Any], change: Mapping[str, Any]) -> _Tree:
    """Lay one tree of settings over another; only sections are merged.

    Example:
        >>> merged({"train": {"lr": 0.1, "batch": 8}}, {"train": {"lr": 0.2}})
        {'train': {'lr': 0.2, 'batch': 8}}
    """
    result = dict(base)
    for key, value in change.items():
        old = result.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            value = merged(old, value)
        result[key] = value
    return result
