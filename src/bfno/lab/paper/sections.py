"""Which runs count for the paper's tables, and which tables they make."""

from __future__ import annotations

import itertools
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from bfno.lab.errors import bfno_command
from bfno.lab.experiments.seeds import FIRST_SEED
from bfno.lab.paper.numbers import paper_table, table_names
from bfno.lab.runs.record import Record, flat_config
from bfno.lab.runs.variants import AS_DEFINED, Variant, variant_of
from bfno.lab.views.methods import by_settings

__all__ = ["Section", "Selection", "has_changes", "sections_of", "select_runs", "variants_of"]

# Largest factor of missing seeds: users whose seeds are far apart do not need those between.
_MOST_MISSING = 3


@dataclass(frozen=True)
class Section:
    """One table of the paper for one data set at one scale.

    Attributes:
        table: Name of the table.
        data: Name of the data set.
        scale: Scale of the runs.
        runs: The runs that belong to it, with their folders.
        variant: The settings in which all runs differ from their experiments.
    """

    table: str
    data: str
    scale: str
    runs: tuple[tuple[Path, Record], ...]
    variant: Variant = AS_DEFINED

    @property
    def title(self) -> str:
        """The heading above it."""
        paper = paper_table(self.table)
        name = f"Table {self.table}" if self.table.isdigit() else f"`{self.table}`"
        how = ", ".join(filter(None, [f"{self.scale} scale", self.variant.title]))
        return f"{name}: {paper.title}, {paper.titles[self.data]} ({how})"

    @property
    def command(self) -> str:
        """The command that trains it, or its missing runs, with all seeds up to the last."""
        numbers = {run.seed for _, run in self.runs}
        last = max(numbers) - FIRST_SEED + 1
        seeds = last if 0 < last <= _MOST_MISSING * len(numbers) else len(numbers)
        words = ["table", self.table, "--data", self.data, "--scale", self.scale]
        return bfno_command(*words, *self.variant.words, "--seeds", seeds)

    def figure(self, name: str) -> str:
        """The file of a figure; always in this folder, even if a record's scale is unusual."""
        short = re.sub("^(series|density)-", "", name).removesuffix(f"-{self.data}")
        where = re.sub(r"[^\w.]+", "-", self.variant.folder(self.scale))
        return f"{where}-{self.table}-{self.data}-{short}.png"


def sections_of(runs: Sequence[tuple[Path, Record]]) -> Iterator[Section]:
    """Tables that runs exist for: by table, then by scale, variant and data set."""
    records = [run for _, run in runs]
    counted = {
        variant: {id(run) for run in select_runs(records, variant).counted}
        for variant in variants_of(records)
    }
    scales = sorted({run.scale for run in records})
    for table, scale, variant in itertools.product(table_names(), scales, counted):
        paper = paper_table(table)
        for data in paper.titles:
            wanted = {row.experiment(data) for row in paper.rows} - {None}
            found = tuple(
                (place, run)
                for place, run in runs
                if run.experiment in wanted and run.scale == scale and id(run) in counted[variant]
            )
            # One method alone, which another table shares, is not a comparison.
            is_comparison = len({run.method for _, run in found}) > 1
            if is_comparison and has_changes((run for _, run in found), variant):
                yield Section(table, data, scale, found, variant)


def variants_of(runs: Iterable[Record]) -> list[Variant]:
    """The variants of tables that runs belong to, the experiments as they are defined first."""
    found = filter(None, (variant_of(run.changes) for run in runs))
    return sorted({AS_DEFINED, *found}, key=lambda variant: (len(variant.changes), variant.changes))


def has_changes(runs: Iterable[Record], variant: Variant) -> bool:
    """Whether any run was given the settings of a variant; all may have them by definition."""
    return any(set(run.changes) == set(variant.changes) for run in runs)


class Selection(NamedTuple):
    """The runs that count, and those that do not because most of their experiment differ."""

    counted: list[Record]
    outliers: list[Record]


def select_runs(runs: Iterable[Record], variant: Variant = AS_DEFINED) -> Selection:
    """One run for each experiment, scale and seed, all of an experiment with the same settings.

    Of runs with different settings or numbers of test samples, those count that more seeds share;
    of two that share these and the seed, one that has not failed, and then the one whose name comes
    first. One that was trained otherwise before it was resumed never counts.

    Args:
        runs: Any runs.
        variant: The changed settings of those that count; none means as experiments are defined.
    """
    known: dict[tuple[str, str], list[dict[int, Record]]] = defaultdict(list)
    members = sorted(
        (run for run in runs if _belongs(run, variant)),
        key=lambda run: (run.has_failed, run.name),
        reverse=True,
    )
    for same in by_settings(run for run in members if not run.history).values():
        # Runs on a slice of some data and runs on all of them have the same settings.
        tested: dict[int | float | None, dict[int, Record]] = defaultdict(dict)
        for run in same:
            tested[run.samples.get("test")][run.seed] = run  # of a seed, the last: the first name
        for seeds in tested.values():
            known[same[0].experiment, same[0].scale].append(dict(sorted(seeds.items())))
    found = Selection([], [run for run in members if run.history])
    for groups in known.values():
        most, *others = sorted(groups, key=_evidence, reverse=True)
        found.counted.extend(most.values())
        found.outliers.extend(run for group in others for run in group.values())
    return found


def _evidence(seeds: Mapping[int, Record]) -> tuple[int, int]:
    """How much runs of the same settings have to say: first of all those that were finished."""
    return sum(not run.has_failed for run in seeds.values()), len(seeds)


def _belongs(run: Record, variant: Variant) -> bool:
    """Whether a run has the settings of a variant; some may be its experiment's own."""
    own, settings = set(run.changes), flat_config(run.config)
    has = {f"{name}={json.dumps(value)}" for name, value in settings.items()}
    return own <= set(variant.changes) <= own | has
