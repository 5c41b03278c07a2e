"""Tables that show runs beside the paper's numbers, from records alone."""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from bfno.lab.experiments.sizes import model_sizes
from bfno.lab.paper.numbers import PaperCell, PaperRow, PaperTable, paper_table
from bfno.lab.paper.sections import select_runs
from bfno.lab.runs.record import COMMITS, Record, flat_config
from bfno.lab.runs.variants import AS_DEFINED, Variant
from bfno.lab.views.layout import Cell, Column, Table
from bfno.lab.views.methods import is_transductive
from bfno.lab.views.metrics import COSTS, Estimate, Metric, counted, find_metric
from bfno.lab.views.summary import SCALES, listed
from bfno.lab.views.tables import comparison

__all__ = ["is_slice_of_activity", "paper_comparison", "shown_metrics"]

_Key = tuple[str, int]

# Columns that say how the runs of a row came about, by their keys; people read it below the table.
_FOR_PROGRAMS: Mapping[str, Callable[[list[Record]], Cell]] = {
    "seeds": lambda runs: tuple(run.seed for run in runs),
    "hardware": lambda runs: _tally(map(_hardware_words, runs)),
    "commits": lambda runs: _tally(map(_commit_words, runs)),
}


# Methods whose sizes differ by more than this are not compared as methods alone.
_SAME_SIZE = 1.1
_COMMIT_LETTERS = 8
# Settings that do not change how many parameters a model has.
_WITHOUT_SIZE = ("solver.", "train.", "evaluation.", "loss.", "augment.")
_FEW_SEEDS = "A score that lacks seeds is never bold, even if it is the best."
_UNKNOWN = "not recorded"
# Of the official file every protocol makes more windows than this.
_LEAST_WINDOWS = 4_000


@dataclass(frozen=True)
class _Content:
    """The ingredients of a table: the paper's part, and runs by experiment and seed."""

    paper: PaperTable
    rows: tuple[PaperRow, ...]
    data: tuple[str, ...]
    scale: str
    seeds: tuple[int, ...]
    runs: Mapping[_Key, Record]
    failures: Mapping[_Key, str]
    left_out: tuple[Record, ...]
    variant: Variant
    has_heading: bool

    @property
    def metrics(self) -> list[Metric]:
        return shown_metrics(self.paper, self.variant)

    def runs_of(self, row: PaperRow, data: str) -> list[Record]:
        return [run for run in row.runs(data, self.runs.values()) if run.seed in self.seeds]

    def shows(self, row: PaperRow) -> bool:
        """Whether the table has such a row: the paper's have one even without any run."""
        wanted = {row.experiment(data) for data in self.data} - {None}
        trained = {experiment for experiment, _ in (*self.runs, *self.failures)}
        # A control is about sizes, and at the paper's scale they say something by themselves.
        return bool(wanted & trained if row.control and self.scale != "paper" else wanted)

    def size(self, row: PaperRow, data: str) -> int | None:
        """How many parameters the model of a row has, trained or not; None if it is not known."""
        if runs := self.runs_of(row, data):
            return runs[0].parameters
        if not all(one.startswith(_WITHOUT_SIZE) for one in self.variant.settings):
            return None
        if self.variant.protocol not in ("", self.paper.usual_protocol):
            return None
        return _counted_models().get((row.experiment(data), self.scale))


@functools.cache
def _counted_models() -> dict[tuple[str | None, str], int]:
    """The number of parameters by experiment and scale."""
    return {
        (f"{one['data']}/{one['method']}", scale): size
        for one in model_sizes()
        for scale, size in one["sizes"].items()
    }


def paper_comparison(
    table_name: str,
    runs: Sequence[Record],
    scale: str,
    seeds: Sequence[int] | None = None,
    data: Sequence[str] | None = None,
    *,
    methods: Sequence[str] = (),
    failures: Mapping[tuple[str, int], str] | None = None,
    variant: Variant = AS_DEFINED,
    has_heading: bool = False,
) -> Table:
    """Show runs beside a table of the paper.

    Only runs of one scale and with the same changed settings count: see `select_runs`.

    Args:
        table_name: 1, 2, 3, 4, ablation-branches or ablation-operator.
        runs: Any runs that have ended.
        scale: Scale of the runs to show; no column of the paper ever holds them.
        seeds: The requested seeds; None takes those that runs have.
        data: The data sets to show; None takes those that runs have, or all of the paper.
        methods: The methods to show; none means all.
        failures: Why other runs failed, by experiment and seed.
        variant: The settings in which the runs differ from their experiments, all alike.
        has_heading: Whether a heading above names data, scale and variant, and columns need not.

    Raises:
        ConfigError: If there is no such table, or it lacks the data or a method.

    Example:
        >>> table = paper_comparison("1", [], "cpu", data=["mnist"], methods=["bfno-node"])
        >>> [str(cell) for cell in table.rows[0]]
        ['BFNO-NODE', '17521', '85591', 'None', '()', '', '', '0.9752 ± 0.0021']
    """
    paper = paper_table(table_name)
    paper.check_data(data or ())
    rows = paper.selected(methods)
    wanted = {row.experiment(name) for row in rows for name in paper.titles}
    offered = [run for run in runs if run.scale == scale and run.experiment in wanted]
    counted, others = select_runs(offered, variant)
    if seeds is None:
        seeds = sorted({run.seed for run in (*counted, *others)})
    if data is None:
        used = {run.data for run in counted}
        data = [name for name in paper.titles if name in used] or list(paper.data)
    shown, left_out = (
        tuple(run for run in some if run.data in data and run.seed in seeds)
        for some in (counted, others)
    )
    known = {(run.experiment, run.seed): run for run in shown if not run.has_failed}
    failed = {(run.experiment, run.seed): run.failure for run in shown if run.has_failed}
    ordered = tuple(name for name in paper.titles if name in data)
    parts = paper, rows, ordered, scale, tuple(seeds), known, {**failed, **(failures or {})}
    return _table(_Content(*parts, left_out, variant, has_heading))


def shown_metrics(paper: PaperTable, variant: Variant) -> list[Metric]:
    """The metrics of a table, the one that methods are judged by first."""
    if variant.measures:
        return [metric for metric in COSTS if metric.name == variant.measures]
    return [find_metric(key) for key in paper.metrics]


def _table(content: _Content) -> Table:
    rows = [row for row in content.rows if content.shows(row)]
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
    cells = list(itertools.chain(*lines))
    found = [
        *_notes(content),
        *([_FEW_SEEDS] if any(map(_lacks_seeds, cells)) else []),
        *(
            f"{name} with seed {seed} failed: {why.partition(';')[0]}"
            for (name, seed), why in content.failures.items()
        ),
        *(f"{run.name}: left out, {_why_left_out(run)}." for run in content.left_out),
    ]
    return Table(tuple(columns), tuple(map(tuple, lines)), frozenset(best), tuple(found))


def _why_left_out(run: Record) -> str:
    if run.history:
        return f"it had other settings before it was resumed ({'; '.join(run.history)})"
    return "as many or more runs of its method have other settings"


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
    group, here = "", "here"
    if not content.has_heading:
        how = [f"here ({content.scale} scale)", content.variant.title]
        group, here = content.paper.titles[data], "\n".join(filter(None, how))
    place = content.variant.folder(content.scale)
    runs = [content.runs_of(row, data) for row in rows]

    def column(key: str, title: str, **more: bool) -> Column:
        return Column(f"{data}_{key}", title, group=group, **more)

    sizes: list[Cell] = [content.size(row, data) for row in rows]
    yield column(f"parameters_here_{place}", f"parameters\n{here}"), sizes, None
    if _prints_sizes(content.paper):
        cells = [row.cells.get(data, PaperCell()) for row in rows]
        published: list[Cell] = [cell.parameters for cell in cells]
        if any(published) or not content.has_heading:
            yield column("parameters_published", "parameters\nin the paper"), published, None
    for metric in content.metrics:
        key, title = f"{metric.key}_here_{place}", f"{metric.title}\n{here}"
        scores = [_score(content, row, data, metric) for row in rows]
        yield column(key, title, measured=True), scores, metric
    for key, read in _FOR_PROGRAMS.items():
        yield (
            column(key, key, for_programs=True, numeric=key == "seeds"),
            list(map(read, runs)),
            None,
        )
    if content.variant.measures:
        return  # which the paper does not print
    metric = content.metrics[0]
    title = f"{metric.title.partition(' (')[0]}\nin the paper"
    printed: list[Cell] = [content.paper.score(row, data) for row in rows]
    if any(printed) or not content.has_heading:
        yield column(f"{metric.key}_published", title, measured=True), printed, metric


def _prints_sizes(paper: PaperTable) -> bool:
    return any(cell.parameters for row in paper.rows for cell in row.cells.values())


def _score(content: _Content, row: PaperRow, data: str, metric: Metric) -> Cell:
    runs = content.runs_of(row, data)
    found = metric.estimate(runs, len(content.seeds))
    if found is None:
        experiment = row.experiment(data)
        failed = any((experiment, seed) in content.failures for seed in content.seeds)
        return "failed" if failed and not runs else None
    return found


def _rank(metric: Metric, cell: Cell) -> float:
    """The smallest is the best; what lacks seeds that others have has no rank."""
    if not isinstance(cell, Estimate) or _lacks_seeds(cell):
        return metric.rank(None)
    return metric.rank(cell.mean)


def _lacks_seeds(cell: Cell) -> bool:
    return isinstance(cell, Estimate) and cell.lacks_seeds


def _notes(content: _Content) -> Iterator[str]:
    """Say how the runs of a table came about and what to know before reading it."""
    paper, scale, runs = content.paper, content.scale, [*content.runs.values()]
    meaning = SCALES.get(scale, "as the runs were made")
    meaning += "; compare rows, not columns" if scale == "cpu" else ""
    but = ", except for what follows" if scale == "paper" and content.variant.settings else ""
    yield f"{paper.title}. Here: {scale} scale, {meaning}{but}."
    if content.variant.settings:
        yield f"Every run here has {', '.join(content.variant.settings)}."
    yield from _circumstances(content.seeds, runs)
    yield from _differences_in_size(content)
    sources = dict.fromkeys(row.quoted for row in paper.rows if row.quoted)
    if sources:
        yield f"* The paper presumably took this value from earlier work: {'; '.join(sources)}."
    for note in paper.protocols.get(content.variant.protocol or paper.usual_protocol, ()):
        yield note.format(sets=_sets(content.variant))
    if not content.variant.measures and not set(content.data) <= set(paper.beyond):
        yield from paper.notes  # about the paper's numbers
    if runs:
        yield from comparison(runs).notes
    yield from _tested_activity(runs)
    beyond = {run.data for run in runs} & set(paper.beyond)
    if beyond:
        yield f"The paper has no results on {', '.join(sorted(beyond))}."


def _sets(variant: Variant) -> str:
    """The parts of PhysioNet that the runs had, in words."""
    chosen = dict(one.split("=", 1) for one in variant.settings).get("data.sets", "a").split(",")
    return f"{'set' if len(chosen) == 1 else 'sets'} {listed(chosen)}"


def _circumstances(seeds: Sequence[int], runs: Sequence[Record]) -> Iterator[str]:
    if not runs:
        yield "No run is finished."
        return
    spread = "; ± is the standard deviation over seeds" if len(seeds) > 1 else ""
    named = f"{'Seeds' if len(seeds) > 1 else 'Seed'} {', '.join(map(str, seeds))}{spread}"
    yield f"{named}. Scores are from {_tally(map(_epoch, runs))}."
    yield from _recipes(runs)
    hardware, commits = _tally(map(_hardware_words, runs)), _tally(map(_commit_words, runs))
    yield f"Hardware: {hardware}. Commit: {commits}."


def _recipes(runs: Sequence[Record]) -> Iterator[str]:
    """Samples, epochs and learning rate of the training, and the methods that differ."""
    for data in dict.fromkeys(run.data for run in runs):
        members = [run for run in runs if run.data == data]
        parts = [
            *_sizes(members),
            _varied(members, "train.epochs", lambda value: counted(int(value), "epoch")),
            _varied(members, "train.lr", "highest learning rate {}".format),
        ]
        if any(parts):
            yield f"Training on {data}: {', '.join(filter(None, parts))}."


def _differences_in_size(content: _Content) -> Iterator[str]:
    """How much larger the largest method of a data set is than the smallest."""
    for data in content.data:
        rows = [content.runs_of(row, data) for row in content.rows if not row.control]
        sizes = [runs[0].parameters for runs in rows if runs and runs[0].parameters]
        if len(sizes) > 1:
            ratio, title = max(sizes) / min(sizes), content.paper.titles[data]
            much = f"{ratio - 1:.1%} at most"
            if ratio >= _SAME_SIZE:
                much = f"a factor of up to {ratio:.1f}, which also affects their ranks"
            yield f"{title}: the methods differ in size by {much}."


def _sizes(runs: Sequence[Record]) -> Iterator[str]:
    if size := flat_config(runs[0].config).get("data.size"):
        yield f"images of {size} × {size} pixels"
    for name, words in (("train", "training"), ("validation", "validation"), ("test", "testing")):
        numbers = {run.samples.get(name) for run in runs}
        if len(numbers) == 1 and (number := numbers.pop()):  # a division may depend on the seed
            yield f"{number:,.0f} samples for {words}"


def _varied(runs: Sequence[Record], key: str, words: Callable[[str], str]) -> str:
    """A setting, and the methods that differ in it from most others."""
    methods: dict[str, set[str]] = defaultdict(set)
    for run in runs:
        settings = flat_config(run.config)
        if settings.get(key) is not None:
            methods[str(settings[key])].add(run.method)
    most, *others = sorted(methods, key=lambda value: -len(methods[value])) or [""]
    differ = "; ".join(f"{', '.join(sorted(methods[value]))}: {value}" for value in others)
    return most and words(most) + (f" ({differ})" if differ else "")


def _tally(values: Iterable[str]) -> str:
    """Different values, the most frequent first, each with its number of runs if not the only."""
    numbers = Counter(values)
    if len(numbers) < 2:
        return "".join(numbers)
    ordered = sorted(numbers.items(), key=lambda one: (-one[1], one[0]))
    return ", ".join(f"{value} ({counted(count, 'run')})" for value, count in ordered)


def _epoch(run: Record) -> str:
    if run.chosen_by is None:
        return "an epoch whose choice is not recorded"
    if run.chosen_by.startswith("validation_"):
        return f"the epoch that was best by {find_metric(run.chosen_by).title}"
    held_out = any(name.startswith("validation_") for name in run.result)
    return f"the {run.chosen_by}" + ("" if held_out else ", without validation data")


def _hardware_words(run: Record) -> str:
    """The hardware of a run."""
    known = run.hardware
    if not known.get("processor"):
        return _UNKNOWN
    parts = [f"{known['processor']} with {known.get('cores', '?')} cores"]
    gpus = known.get("gpus")
    parts += map(str, gpus) if isinstance(gpus, list) else []
    if run.threads:
        parts.append("one thread per run" if run.threads == 1 else f"{run.threads} threads per run")
    return ", ".join(parts)


def _commit_words(run: Record) -> str:
    """The commit of the sources, and whether they had changed since."""
    if not run.commit:
        return _UNKNOWN
    parts = (one.partition("+") for one in run.commit.split(COMMITS))
    return COMMITS.join(name[:_COMMIT_LETTERS] + plus + changed for name, plus, changed in parts)


def _tested_activity(runs: Sequence[Record]) -> Iterator[str]:
    """HumanActivity also works with a slice of its file, which changes every number."""
    tested = [run for run in runs if run.data == "activity"]
    if tested:
        yield f"HumanActivity: {_tally(map(_windows, tested))}."
    if any(map(is_slice_of_activity, tested)):
        yield (
            "This is a slice of HumanActivity, not the official file of 164,860 readings, which "
            "would give other numbers with the same command."
        )


def is_slice_of_activity(run: Record) -> bool:
    """Whether a run had less than the official file of HumanActivity."""
    return run.data == "activity" and 0 < sum(run.samples.values()) < _LEAST_WINDOWS


def _windows(run: Record) -> str:
    pooled = " × latent samples" if run.section("data").get("protocol") == "published" else ""
    rows = f"{sum(map(sum, run.confusion)):,} test rows{pooled}"
    known = [f"{count:,.0f} {name} windows of 50 rows" for name, count in run.samples.items()]
    return ", ".join([*known, rows])
