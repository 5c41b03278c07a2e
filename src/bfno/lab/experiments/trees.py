"""Settings as nested dictionaries: merging, comparing and reading them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from bfno.lab.errors import ConfigError
from bfno.lab.files import parse_yaml

__all__ = ["Tree", "differences", "merged", "nested", "read_settings", "setting"]

Tree = dict[str, Any]


def merged(base: Mapping[str, Any], change: Mapping[str, Any]) -> Tree:
    """Merge one tree of settings into another; only sections are merged.

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


def nested(settings: Mapping[str, Any]) -> Tree:
    """Settings whose names have dots as sections within sections.

    Example:
        >>> nested({"train.lr": 0.01, "train": {"epochs": 3}})
        {'train': {'lr': 0.01, 'epochs': 3}}
    """
    tree: Tree = {}
    for name, value in settings.items():
        for part in reversed(name.split(".")):
            value = {part: value}
        tree = merged(tree, value)
    return tree


def read_settings(pairs: Iterable[str]) -> Tree:
    """Turn `section.key=value` into nested settings; values are YAML.

    Raises:
        ConfigError: If one has no `=` or its value is not YAML.

    Example:
        >>> read_settings(["train.lr=0.01", "train.epochs=3"])
        {'train': {'lr': 0.01, 'epochs': 3}}
    """
    tree: Tree = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise ConfigError(
                pair, "is not a setting", "write section.key=value, for example train.lr=0.01"
            )
        try:
            value = parse_yaml(text)
        except ValueError as error:
            shown = pair if len(pair) <= 60 else f"{pair[:57]}..."
            raise ConfigError(shown, f"the value {error}", "quote it") from None
        tree = merged(tree, nested({name: value}))
    return tree


def differences(before: Any, now: Any, name: str = "") -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Name and both values of every setting that differs between two trees."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in {**before, **now}:
            inner = f"{name}.{key}" if name else str(key)
            yield from differences(before.get(key), now.get(key), inner)
    elif before != now:
        yield name, (before, now)


def setting(tree: Mapping[str, Any], section: str, key: str, default: Any) -> Any:
    """A setting of a section, or a default if tree or section lacks it."""
    inside = tree.get(section)
    return inside.get(key, default) if isinstance(inside, Mapping) else default
