"""The number of parameters of every experiment's model, next to the paper's number.

Counting takes seconds, because every model has to be built. The counts are therefore kept in
`sizes.json` beside this file, together with a checksum of all sources that they depend on; counts
for other sources are never used. After a change to these sources, write it again:

    python -m bfno.lab.experiments.sizes
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bfno.lab.errors import ConfigError, nearest_names
from bfno.lab.experiments.settings import SCALES
from bfno.lab.files import write_atomically

if TYPE_CHECKING:
    from bfno.lab.experiments.experiment import OwnData

__all__ = ["count_models", "model_sizes", "select", "source_checksum", "write_sizes"]

_logger = logging.getLogger(__name__)
_KEPT = Path(__file__).with_name("sizes.json")
_PACKAGE = Path(__file__).parents[2]
# What decides which models there are and how large they are.
_DECIDING = ("layers", "fields", "dynamics", "models", "lab/experiments", "lab/data/catalogue.py")
_DECIDING += ("lab/data/series_catalogue.py",)


def model_sizes() -> list[dict[str, Any]]:
    """The size of every experiment's model at every scale, with the user's own data first.

    Returns:
        For each experiment its `data`, its `method`, `sizes` by scale, `paper`, the number that the
        paper prints, if any, and `example`, the data that models for the user's own data are
        counted for.
    """
    try:
        kept = json.loads(_KEPT.read_bytes())
        if kept["sources"] == source_checksum():
            return kept["models"]
    except (OSError, ValueError, KeyError, TypeError):
        pass
    _logger.info("%s is not for these sources: counting the models again", _KEPT)
    return list(count_models())


def select(rows: Sequence[dict[str, Any]], wanted: str) -> list[dict[str, Any]]:
    """The experiments that a word names: one, all on some data, or all with the word in their name.

    Args:
        rows: Rows of `model_sizes`.
        wanted: The requested word.

    Raises:
        ConfigError: If there are none; the message names the nearest.
    """
    named = {f"{row['data']}/{row['method']}": row for row in rows}
    if wanted in named:
        return [named[wanted]]
    of_data = [row for row in rows if f"{row['data']}-".startswith(f"{wanted}-")]
    found = of_data or [row for name, row in named.items() if wanted.lower() in name]
    if not found:
        known = [*dict.fromkeys(row["data"] for row in rows), *named]
        near = nearest_names(wanted, known)
        fix = f"the nearest are {', '.join(near)}; `bfno models` lists all"
        raise ConfigError(wanted, "is not part of the name of any experiment", fix)
    return found


def source_checksum() -> str:
    """A checksum of the sources that decide which models there are and how large they are."""
    digest = hashlib.sha256()
    for file in _deciding_files():
        digest.update(f"{file.relative_to(_PACKAGE).as_posix()}\n".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()


def count_models() -> Iterator[dict[str, Any]]:
    """Build every experiment's model, without allocating its weights, and count its parameters."""
    known: dict[str, int] = {}
    for name in _names():
        try:
            sizes = {scale: _size(name, scale, known) for scale in SCALES}
        except ConfigError as error:  # a package that this method needs is missing
            _logger.info("%s", error)
            continue
        data, _, method = name.partition("/")
        own = _own_data(name)
        yield {
            "data": data,
            "method": method,
            "sizes": sizes,
            "paper": _published(name),
            "example": own and own.example,
        }


def write_sizes() -> Path:
    """Count all models and keep the counts for these sources.

    Returns:
        The file.

    Raises:
        ConfigError: If a model cannot be built here; nothing is written.
    """
    models = list(count_models())
    if len(models) < len(_names()):
        raise ConfigError("sizes.json", "not every model can be built", "pip install 'bfno[flows]'")
    # A row per line: changes can be read.
    rows = ",\n".join(map(json.dumps, models))
    text = f'{{"sources": "{source_checksum()}",\n"models": [\n{rows}\n]}}\n'
    write_atomically(_KEPT, text.encode())
    return _KEPT


def _deciding_files() -> Iterator[Path]:
    for part in _DECIDING:
        place = _PACKAGE / part
        found = [place] if place.is_file() else place.rglob("*")
        yield from sorted(file for file in found if file.suffix in (".py", ".yaml"))


def _names() -> list[str]:
    """Every experiment, those on the user's own data first."""
    from bfno.lab.experiments.resolve import EXPERIMENTS

    known = {kind: list(kind.names()) for kind in EXPERIMENTS}
    own = [
        f"{data}/{method}"
        for kind, names in known.items()
        for data in kind.own_data
        for method in dict.fromkeys(name.partition("/")[2] for name in names)
        if _exists(f"{data}/{method}")
    ]
    return list(dict.fromkeys([*own, *(name for names in known.values() for name in names)]))


def _exists(experiment: str) -> bool:
    from bfno.lab.experiments.resolve import resolve

    try:
        resolve(experiment)
    except ConfigError:
        return False
    return True


def _own_data(experiment: str) -> OwnData | None:
    from bfno.lab.experiments.resolve import resolve

    return resolve(experiment).own_data.get(experiment.partition("/")[0])


def _published(experiment: str) -> int | None:
    from bfno.lab.experiments.resolve import resolve

    return resolve(experiment, scale="paper").published


def _size(experiment: str, scale: str, known: dict[str, int]) -> int:
    import torch

    from bfno.lab.experiments.resolve import resolve

    config = resolve(experiment, scale=scale)
    own = _own_data(experiment)
    facts = (own and own.facts) or config.known_facts()
    shape = getattr(config.data, "shape", None)
    # Flows of hundreds of layers take their time, and several data sets have the same.
    key = json.dumps([config.method, config.model.model_dump(), facts, shape])
    if key not in known:
        with torch.device("meta"):
            known[key] = config.count(config.build(facts))
    return known[key]


if __name__ == "__main__":
    write_sizes()
