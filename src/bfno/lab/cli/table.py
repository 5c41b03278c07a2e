"""The command `bfno table`: a table of the paper, from runs."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bfno.lab.cli.board import follow
from bfno.lab.cli.options import DataDir, Gpus, On, Partition, TimeLimit, takes
from bfno.lab.cli.targets import tell_new_folder
from bfno.lab.cli.terminal import say, say_text, show_table
from bfno.lab.errors import ConfigError
from bfno.lab.experiments.seeds import MOST_SEEDS, first_seeds
from bfno.lab.views.metrics import counted, duration

if TYPE_CHECKING:
    from bfno.lab.experiments.trees import Tree
    from bfno.lab.paper.numbers import PaperTable
    from bfno.lab.runs.campaign.choice import Choice
    from bfno.lab.runs.campaign.plan import Job
    from bfno.lab.runs.campaign.running import Standing
    from bfno.lab.runs.variants import Variant
    from bfno.lab.views.layout import Table

__all__ = ["app"]

app = typer.Typer()


@dataclasses.dataclass(frozen=True)
class _Arguments:
    """Arguments of `bfno table`."""

    name: Annotated[str, typer.Argument(help="1, 2, 3, 4, ablation-branches or ablation-operator.")]
    data: Annotated[
        list[str] | None,
        typer.Option(help="A data set of the table; repeatable. Default: all whose files exist."),
    ] = None
    scale: Annotated[str, typer.Option(help="smoke, cpu or paper.")] = "cpu"
    protocol: Annotated[
        str | None,
        typer.Option(
            help="Tables 2 and 3: sound (default), or published for the paper's own. Table 1 and "
            "the ablations: usual (default), or counted for evaluations as the paper counts them."
        ),
    ] = None
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            "-s",
            help="A setting of all runs, section.key=value; repeatable. They get their own folder.",
        ),
    ] = None
    seeds: Annotated[int, typer.Option(help="Runs of each method: seeds 7, 8, ...")] = 1
    only: Annotated[
        list[str] | None, typer.Option(help="A method of the table; repeatable. Default: all.")
    ] = None
    jobs: Annotated[
        int | None,
        typer.Option(help="Runs at a time; default one per GPU or core, or all on a cluster."),
    ] = None
    on: On = "local"
    time: TimeLimit = None
    gpus: Gpus = None
    partition: Partition = None
    runs: Annotated[Path, typer.Option(help="Folder of the runs, old and new.")] = Path("runs")
    data_dir: DataDir = None
    layout: Annotated[
        str | None, typer.Option("--format", help="text, markdown, csv or latex.")
    ] = None
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File to write: .txt, .md, .csv or .tex.")
    ] = None
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False
    only_plan: Annotated[
        bool, typer.Option("--plan", help="Print what would be trained, without training.")
    ] = False


@app.command()
@takes(_Arguments)
def table(arguments: _Arguments) -> int:
    """Reproduce a table of the paper, beside its numbers.

    Trains the runs that are missing. If it is stopped or killed, start it again: it continues with
    what is still missing.

    Example: bfno table 1 --data mnist --seeds 3 --jobs 2 -o table1.md
    """
    from bfno.lab.paper.numbers import paper_table
    from bfno.lab.runs.campaign.plan import plan

    paper, choice = paper_table(arguments.name), _choice(arguments)
    _check(arguments, paper)
    if not choice.is_local:
        arguments = _for_other_machines(arguments)
    named = arguments.data or list(paper.data)
    rows = paper.selected(arguments.only or ())
    experiments = [name for data in named for row in rows if (name := row.experiment(data))]
    _check_only(arguments, paper, named)
    changes = _changes(arguments, paper)
    wanted = plan(
        experiments, arguments.scale, first_seeds(arguments.seeds), arguments.runs, changes
    )
    jobs, left_out = _possible(wanted, arguments, changes)
    if arguments.only_plan:
        slots = arguments.jobs if choice.is_local else arguments.jobs or len(jobs)
        say(*_plan_lines(jobs, slots), *left_out)
        return 0
    for line in left_out:
        say(f"note: {line}", error=True)
    return _train_and_print(arguments, paper, jobs, left_out)


def _for_other_machines(arguments: _Arguments) -> _Arguments:
    """The same with absolute paths: other machines have other current folders and variables."""
    from bfno.lab.data import data_folder

    data_dir = data_folder(arguments.data_dir).absolute()
    return dataclasses.replace(arguments, runs=arguments.runs.absolute(), data_dir=data_dir)


def _choice(arguments: _Arguments) -> Choice:
    from bfno.lab.runs.campaign.choice import Choice

    return Choice(arguments.on, arguments.time, arguments.gpus, arguments.partition)


_PUBLISHED = "published"  # the protocol that is a setting of data too
# Settings that have their own option.
_OPTIONS = {"experiment": "--only", "scale": "--scale", "data.name": "--data"}


def _check(arguments: _Arguments, paper: PaperTable) -> None:
    """Refuse what cannot be done, before torch is imported."""
    from bfno.lab.views.layout import find_format

    paper.check_data(arguments.data or ())
    if arguments.protocol is not None:
        paper.check_protocol(arguments.protocol)
        if arguments.protocol != paper.usual_protocol:
            _check_scale(arguments.protocol, arguments.scale)
    for option, number in (("--seeds", arguments.seeds), ("--jobs", arguments.jobs)):
        if number is not None and number < 1:
            raise ConfigError(f"{option} {number}", "is too few", "write 1 or more")
    if arguments.seeds > MOST_SEEDS:
        raise ConfigError(
            f"--seeds {arguments.seeds}", "is too many", f"write at most {MOST_SEEDS}"
        )
    if arguments.runs.exists() and not arguments.runs.is_dir():
        raise ConfigError(
            f"--runs {arguments.runs}", "is not a folder", "name a folder, or a new one"
        )
    find_format(arguments.layout, arguments.out)
    if arguments.out is not None and not arguments.only_plan:
        _check_out(arguments.out, arguments.force)
    elif arguments.force and arguments.out is None:
        raise ConfigError("--force", "needs --out", "leave it out, or name a file with --out")


def _check_out(out: Path, force: bool) -> None:
    """Refuse to write over a file before anything is trained."""
    if out.is_dir():
        raise ConfigError(out, "is a folder", f"name a file, such as {out / 'table.md'}")
    if os.path.lexists(out) and not force:
        raise ConfigError(out, "exists already", "pass --force, or name another file")
    tell_new_folder(out)


def _check_only(arguments: _Arguments, paper: PaperTable, named: Sequence[str]) -> None:
    """Refuse methods that the table does not have for the data that were named."""
    for method in arguments.only or ():
        if not any(row.experiment(data) for row in paper.selected([method]) for data in named):
            why = f"is not in table {paper.name} for {', '.join(named)}"
            raise ConfigError(f"--only {method}", why, "name other data, or leave it out")


def _check_scale(protocol: str, scale: str) -> None:
    from bfno.lab.runs.variants import PROTOCOLS

    scales = PROTOCOLS[protocol].scales
    if scales and scale not in scales:
        why = f"is not for the scale {scale}"
        fix = f"write --scale {scales[-1]}, or leave out --protocol"
        raise ConfigError(f"--protocol {protocol}", why, fix)


def _changes(arguments: _Arguments, paper: PaperTable) -> Tree:
    """The settings in which all runs differ from their experiments, nested.

    Raises:
        ConfigError: If one of them has its own option, belongs to the protocol, or would change
            nothing.
    """
    from bfno.lab.experiments.settings import CIRCUMSTANCES
    from bfno.lab.experiments.trees import differences, merged, read_settings
    from bfno.lab.runs.variants import PROTOCOLS

    changes = read_settings(arguments.settings or ())
    chosen = arguments.protocol or paper.usual_protocol
    protocol = {} if chosen == paper.usual_protocol else PROTOCOLS[chosen].settings
    has_published = _PUBLISHED in paper.protocols
    options = {**_OPTIONS, **({"data.protocol": "--protocol"} if has_published else {})}
    for name, (_, value) in differences({section: {} for section in changes}, changes):
        if (name, value) == ("train.epochs", "auto"):
            why = "would give each data set a different number of epochs"
            raise ConfigError("--set train.epochs=auto", why, "write a number")
        if name in options:
            fix = f"write {options[name]}"
            raise ConfigError(f"--set {name}", "has its own option", fix)
        section, key = name.partition(".")[::2]
        if key in protocol.get(section, {}):
            why = f"is a setting of --protocol {chosen}"
            raise ConfigError(f"--set {name}", why, "leave out one of the two")
        if name in CIRCUMSTANCES:
            fix = "leave it out; use --seeds, --jobs or --data-dir where they apply"
            raise ConfigError(f"--set {name}", "does not change what a table shows", fix)
    return merged(protocol, changes)


def _possible(jobs: list[Job], arguments: _Arguments, changes: Tree) -> tuple[list[Job], list[str]]:
    """The jobs that can be done, and a line for each data set whose files are missing.

    Runs that exist need no files.

    Raises:
        DataError: If the user named the data set, or nothing can be done.
    """
    from bfno.lab.experiments.density.experiment import DENSITY_DATA
    from bfno.lab.runs.campaign.plan import missing_files

    over = [job for job in jobs if job.state in ("there", "failed")]
    needed = dict.fromkeys(job.experiment.partition("/")[0] for job in jobs if job not in over)
    errors = {data: missing_files(data, arguments.data_dir, changes) for data in needed}
    missing = {data: error for data, error in errors.items() if error is not None}
    kept = [job for job in jobs if job in over or job.experiment.partition("/")[0] not in missing]
    if missing and (arguments.data or not kept):
        raise next(iter(missing.values()))
    return kept, [
        # Without the places of files: a table may be published.
        f"{data}: nothing was trained, because {error.why}; "
        f"`bfno data get {DENSITY_DATA.get(data, data)}` fetches it."
        for data, error in missing.items()
    ]


def _plan_lines(jobs: Sequence[Job], slots: int | None) -> Iterator[str]:
    from bfno.lab.runs.campaign.running import Campaign, remaining_seconds

    words = {"there": "done", "in use": "in use", "begun": "to resume"}
    words |= {"failed": "failed", "missing": "to train"}
    width = max(len(job.name) for job in jobs)
    campaign = Campaign(jobs, slots)
    standings = campaign.standings
    for job, left in ((one.job, one.remaining()) for one in standings):
        time = f"  about {duration(left)}" if left else ""
        yield f"{job.name:{width}}  {words[job.state]:9}  {job.folder}{time}"
    done, failed = (sum(one.state == state for one in standings) for state in ("there", "failed"))
    seconds = remaining_seconds(standings, campaign.slots)
    about = ", duration unknown" if seconds is None else ""
    if seconds:
        about = f", about {duration(seconds)} with {campaign.slots} at a time"
    there = f"{done} done" + (f", {failed} failed" if failed else "")
    yield f"{counted(len(jobs), 'run')}: {there}, {len(jobs) - done - failed} to do{about}"


def _train_and_print(
    arguments: _Arguments, paper: PaperTable, jobs: Sequence[Job], left_out: Sequence[str]
) -> int:
    from bfno.lab.paper.comparison import shown_metrics
    from bfno.lab.runs.campaign.running import Campaign, failure_code
    from bfno.lab.runs.signals import Stopped

    campaign = Campaign(
        jobs, arguments.jobs, arguments.data_dir, _choice(arguments).engine(arguments.runs)
    )
    try:
        with contextlib.closing(campaign.run()) as rounds:  # which stops them in any case
            metric = shown_metrics(paper, _variant(campaign.standings))[0]
            follow(rounds, metric, campaign.slots)
    except Stopped as stop:
        say(f"{stop}; the same command continues from here", error=True)
        return stop.exit_code
    _print_table(_table(arguments, paper, campaign.standings, left_out), arguments)
    return failure_code(campaign.standings)


def _table(
    arguments: _Arguments, paper: PaperTable, standings: Sequence[Standing], left_out: Sequence[str]
) -> Table:
    from bfno.lab.paper.comparison import paper_comparison
    from bfno.lab.runs.folder import read_runs

    folders = [one.job.folder for one in standings if one.is_done]
    found = read_runs(folders) if folders else []
    used = {one.job.experiment.partition("/")[0] for one in standings}
    variant = _variant(standings)
    made = paper_comparison(
        paper.name,
        # The plan has compared their settings with those of today.
        [dataclasses.replace(run, changes=list(variant.changes)) for run in found],
        arguments.scale,
        first_seeds(arguments.seeds),
        [name for name in paper.titles if name in used],
        methods=arguments.only or (),
        failures={
            (one.job.experiment, one.job.seed): one.error
            for one in standings
            if one.state == "failed"
        },
        variant=variant,
    )
    return dataclasses.replace(made, notes=(*made.notes, *left_out))


def _variant(standings: Sequence[Standing]) -> Variant:
    """The variant that the runs share; one method may have some of its settings anyway."""
    from bfno.lab.runs.variants import Variant

    return Variant.of({change for one in standings for change in one.job.changes})


def _print_table(table: Table, arguments: _Arguments) -> None:
    from bfno.lab.views.layout import FORMATS, find_format, write_table

    if arguments.out is not None:
        say(f"written to {write_table(table, arguments.out, arguments.layout)}")
        return
    layout = find_format(arguments.layout, None)
    if layout == "text" and sys.stdout.isatty():
        show_table(table)
    else:
        say_text(FORMATS[layout](table))
