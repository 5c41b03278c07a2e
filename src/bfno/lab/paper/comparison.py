"""Tables that show runs beside what the paper prints, from records alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from bfno.lab.paper.notes import commit_words, hardware_words, notes, tally
from bfno.lab.paper.numbers import PaperCell, PaperRow, PaperTable, paper_table
from bfno.lab.paper.selection import select_runs
from bfno.lab.runs.metrics import Metric, find_metric
from bfno.lab.runs.record import Record as RunResult
from bfno.lab.views.layout import Cell, Column, Estimate, Table
from bfno.lab.views.tasks import is_transductive

__all__ = ["paper_comparison"]

_Key = tuple[str, int]

# Columns that say how the runs of a row came about, by their keys; people read it below the table.
_FOR_PROGRAMS: Mapping[str, Callable[[list[RunResult]], Cell]] = {
    "seeds": lambda runs: tuple(run.seed for run in runs),
    "hardware": lambda runs: tally(map(hardware_words, runs)),
    "commits": lambda runs: tally(map(commit_words, runs)),
}


@dataclass(frozen=True)
class _Content:
    """What a table is made of: the paper's part, and runs by experiment and seed."""

    paper: PaperTable
    rows: tuple[PaperRow, ...]
    data: tuple[str, ...]
    scale: str
    seeds: tuple[int, ...]
    runs: Mapping[_Key, RunResult]
    failures: Mapping[_Key, str]
    left_out: tuple[RunResult, ...]

    @property
    def metrics(self) -> list[Metric]:
        return [find_metric(key) for key in self.paper.metrics]

    def runs_of(self, row: PaperRow, data: str) -> list[RunResult]:
        keys = [(row.experiment(data) or "", seed) for seed in self.seeds]
        return [self.runs[key] for key in keys if key in self.runs]


def paper_comparison(
    table_name: str,
    runs: Sequence[RunResult],
    scale: str,
    seeds: Sequence[int] | None = None,
    data: Sequence[str] | None = None,
    *,
    methods: Sequence[str] = (),
    failures: Mapping[tuple[str, int], str] | None = None,
) -> Table:
    """Show runs beside a table of the paper.

    Only runs of one scale and of the experiments as they are defined count: see `select_runs`.

    Args:
        table_name: 1, 2, 3, 4, ablation-branches or ablation-operator.
        runs: Any finished runs.
        scale: Scale of the runs to show; no column of the paper ever holds them.
        seeds: The seeds that were asked for; None takes those that runs have.
        data: The data sets to show; None takes those that runs have, or all of the paper.
        methods: The methods to show; none means all.
        failures: Why runs failed, by experiment and seed.

    Raises:
        ConfigError: If there is no such table, or it lacks the data or a method.

    Example:
        >>> table = paper_comparison("1", [], "cpu", data=["mnist"], methods=["bfno-node"])
        >>> [str(cell) for cell in table.rows[0]]
        ['BFNO-NODE', 'None', '85591', 'None', '()', '', '', '0.9752 ± 0.0021']
    """
    paper = paper_table(table_name)
    paper.check_data(data or ())
    rows, failures = paper.selected(methods), failures or {}
    wanted = {row.experiment(name) for row in rows for name in paper.titles}
    offered = [run for run in runs if run.scale == scale and run.experiment in wanted]
    counted, others = select_runs(offered)
    known = {(run.experiment, run.seed): run for run in counted}
    if seeds is None:
        seeds = sorted({run.seed for run in (*known.values(), *others)})
    if data is None:
        used = {run.data for run in known.values()}
        data = [name for name in paper.titles if name in used] or list(paper.data)
    shown = {key: run for key, run in known.items() if run.data in data and run.seed in seeds}
    ordered = tuple(name for name in paper.titles if name in data)
    left_out = tuple(run for run in others if run.data in data and run.seed in seeds)
    return _table(_Content(paper, rows, ordered, scale, tuple(seeds), shown, failures, left_out))


def _table(content: _Content) -> Table:
    rows = [row for row in content.rows if any(map(row.experiment, content.data))]
    columns = [Column("method", "method", numeric=False)]
    lines: list[list[Cell]] = [[_label(content, row)] for row in rows]
    ranks: list[list[float] | None] = [None]
    for data in content.data:
        for column, cells, metric in _columns(content, rows, data):
            columns.append(column)
            ranks.append(metric and [_rank(metric, cell) for cell in cells])
            for line, cell in zip(lines, cells, strict=True):
                line.append(cell)
    best = {
        (number, index)
        for index, column in enumerate(ranks)
        for number, rank in enumerate(column or ())
        if column and _is_best(rank, column)
    }
    found = [
        *notes(content.paper, content.scale, content.seeds, [*content.runs.values()]),
        *(
            f"{name} with seed {seed} failed: {why}"
            for (name, seed), why in content.failures.items()
        ),
        *(
            f"{run.name}: left out, most of its runs have other settings."
            for run in content.left_out
        ),
    ]
    return Table(tuple(columns), tuple(map(tuple, lines)), frozenset(best), tuple(found))


def _is_best(rank: float, ranks: list[float]) -> bool:
    """Whether it is the smallest of several that are numbers, and not all the same."""
    known = [one for one in ranks if one < math.inf]
    return len(known) > 1 and rank == min(known) < max(known)


def _label(content: _Content, row: PaperRow) -> str:
    runs = [run for data in content.data for run in content.runs_of(row, data)]
    return f"{row.label} †" if any(map(is_transductive, runs)) else row.label


def _columns(
    content: _Content, rows: Sequence[PaperRow], data: str
) -> Iterator[tuple[Column, list[Cell], Metric | None]]:
    """Columns of a data set with their cells, and the metric of those in which one is best."""
    group, here = content.paper.titles[data], f"here ({content.scale} scale)"
    runs = [content.runs_of(row, data) for row in rows]
    cells = [row.cells.get(data, PaperCell()) for row in rows]

    def column(key: str, title: str, **more: bool) -> Column:
        return Column(f"{data}_{key}", title, group=group, **more)

    sizes: list[Cell] = [same[0].parameters if same else None for same in runs]
    yield column(f"parameters_here_{content.scale}", f"parameters\n{here}"), sizes, None
    if _prints_sizes(content.paper):
        published: list[Cell] = [cell.parameters for cell in cells]
        yield column("parameters_published", "parameters\nin the paper"), published, None
    for metric in content.metrics:
        key, title = f"{metric.key}_here_{content.scale}", f"{metric.title}\n{here}"
        scores = [_score(content, row, data, metric) for row in rows]
        yield column(key, title, measured=True), scores, metric
    for key, read in _FOR_PROGRAMS.items():
        yield (
            column(key, key, for_programs=True, numeric=key == "seeds"),
            list(map(read, runs)),
            None,
        )
    metric = content.metrics[0]
    title = f"{metric.title.partition(' (')[0]}\nin the paper"
    printed = [
        _printed(row, cell, content.paper.digits) for row, cell in zip(rows, cells, strict=True)
    ]
    yield column(f"{metric.key}_published", title, measured=True), printed, metric


def _prints_sizes(paper: PaperTable) -> bool:
    return any(cell.parameters for row in paper.rows for cell in row.cells.values())


def _score(content: _Content, row: PaperRow, data: str, metric: Metric) -> Cell:
    runs = content.runs_of(row, data)
    found = Estimate.of((run.result.get(metric.key) for run in runs), metric.digits)
    if found is None:
        experiment = row.experiment(data)
        failed = any((experiment, seed) in content.failures for seed in content.seeds)
        return "failed" if failed and not runs else None
    known = sum(metric.key in run.result for run in runs)
    if known < len(content.seeds):
        return replace(found, remark=f"({known} of {len(content.seeds)} seeds)")
    return found


def _printed(row: PaperRow, cell: PaperCell, digits: int) -> Cell:
    if cell.mean is None:
        return None
    return Estimate(cell.mean, cell.std, digits, "*" if row.quoted else "")


def _rank(metric: Metric, cell: Cell) -> float:
    return metric.rank(cell.mean if isinstance(cell, Estimate) else None)
