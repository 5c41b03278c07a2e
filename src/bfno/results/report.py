"""One HTML page about runs, to read, print or send: no script, no network, nothing but the runs."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import resources
from itertools import groupby
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from bfno.errors import ConfigError, DataError
from bfno.files import write_atomically
from bfno.results import figures
from bfno.results.layout import Estimate, Table, cell_text
from bfno.results.record import Metric, RunResult, read_runs
from bfno.results.tables import Replicates, comparison, flat_config, per_class, replicates
from bfno.results.tasks import is_transductive, task_of

__all__ = ["render_report", "summary", "write_report"]

_TEMPLATE = "report.html.j2"
# With more runs than this, their details start folded.
_MOST_OPEN_RUNS = 3
_WORDS = {
    **{name: name.upper() for name in ("auroc", "auprc", "mse", "nfe", "nll")},
    "macro_f1": "macro-F1",
    "bits_per_dim": "bits/dim (uniform)",
    "bits_per_dim_center": "bits/dim (center)",
}
_PROTOCOLS = {
    "sound": "Protocol sound: test series come from other records or sequences than training "
    "series, every statistic is taken from the training part, and the mean over the latent "
    "samples is judged.",
    "published": "Protocol published: as in the published code, statistics are taken from all "
    "data, there is no validation part, and every latent sample is judged for itself.",
}
_LARGEST_PICTURE = 8 * 2**20


@dataclass(frozen=True)
class _Drawn:
    """A picture that a command draws into the folder of a run.

    Attributes:
        file: Its name.
        command: The command.
        title: What it is called on the page.
        alt: What it shows, for those who cannot see it.
        media: Its media type.
    """

    file: str
    command: str
    title: str
    alt: str
    media: str


_PICTURES = (
    _Drawn(
        "reconstruction.svg",
        "reconstruct",
        "Reconstructed series",
        "Observed values and their reconstruction over time",
        "image/svg+xml",
    ),
    _Drawn("samples.png", "sample", "Samples", "Samples drawn from the model", "image/png"),
)
Pictures = dict[str, bytes]
"""Content of the pictures in the folder of a run, by the name of the file."""


def write_report(folders: Sequence[Path], out: Path, force: bool = False) -> Path:
    """Write one self-contained HTML page about runs.

    Args:
        folders: The runs, in any order.
        out: The file to write.
        force: Whether to overwrite a file that is there.

    Returns:
        The file.

    Raises:
        ConfigError: A run is not finished, the file is there already, or a package is missing.
        DataError: A run cannot be read, or the file cannot be written.
    """
    out = Path(out)
    if out.is_dir():
        raise ConfigError(out, "is a folder", f"name a file, such as {out / 'report.html'}")
    if out.exists() and not force:
        raise ConfigError(out, "is there already", "pass --force, or name another file")
    places = list({Path(folder).resolve(): Path(folder) for folder in folders}.values())
    runs = read_runs(places)
    page = render_report(runs, [_pictures(folder / "figures") for folder in places])
    write_atomically(out, page.encode())
    return out


def render_report(runs: Sequence[RunResult], pictures: Sequence[Pictures] | None = None) -> str:
    """The page as text: a pure function of the runs, whatever their order.

    Args:
        runs: Runs of one task or of several.
        pictures: What the folder of each run has of the pictures that a page shows.
    """
    try:
        from jinja2 import Environment, StrictUndefined
        from markupsafe import Markup
    except ImportError:
        raise ConfigError("jinja2", "is not installed", "pip install 'bfno[report]'") from None
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(cell=cell_text, setting=_setting)
    source = resources.files("bfno.results").joinpath(_TEMPLATE).read_text(encoding="utf-8")
    # Everything is escaped except our own figures, whose texts matplotlib has escaped.
    page = environment.from_string(source).render(
        _content(runs, pictures or [{}] * len(runs)), svg=Markup
    )
    return page if page.endswith("\n") else page + "\n"


def summary(groups: Sequence[Replicates]) -> str:
    """What came out, in words: the best method of a task, its lead and its cost.

    Args:
        groups: The methods of one task, best first, as from `replicates`.
    """
    best, (data, scale, protocol) = groups[0], groups[0].task
    metric, score = best.runs[0].headline, best.score()
    where = f"On {data} (scale {scale}{protocol and f', protocol {protocol}'})"
    if metric is None or score is None:
        return f"{where}, no run recorded a metric that we know."
    seeds = f" over {len(best.runs)} seeds" if len(best.runs) > 1 else ""
    rivals = [group for group in groups[1:] if group.runs[0].headline == metric]
    if not rivals:
        text = f"{where}, {best.label} reaches a {metric.title} of {score}{seeds}."
        return f"{text} {_cost(best, None)}".strip()
    rival, other = rivals[0], rivals[0].score()
    lead = metric.rank(other.mean) - metric.rank(score.mean) if other else 0.0
    if lead == 0:
        text = f"{where}, {best.label} and {rival.label} share the best {metric.title}, {score}."
        return f"{text} {_cost(best, rival)}".strip()
    text = (
        f"{where}, {best.label} has the best {metric.title} of {len(rivals) + 1} methods: "
        f"{score}{seeds}, which is {Estimate(lead, None, metric.digits)} "
        f"{'above' if metric.higher_is_better else 'below'} {rival.label} with {other}."
    )
    return f"{text} {_cost(best, rival)} {_certainty(lead, score, other)}"


def _cost(best: Replicates, rival: Replicates | None) -> str:
    """A sentence on evaluations, time and size, next to those of another method."""
    measures = {
        "{} forward evaluations": lambda group: group.result("forward_nfe", 1),
        "{} backward evaluations a training step": lambda group: group.result("backward_nfe", 1),
        "{} s of training": lambda group: Estimate.of((run.seconds for run in group.runs), 0),
        "{} parameters": lambda group: group.runs[0].parameters,
    }
    parts = []
    for words, read in measures.items():
        ours, theirs = read(best), rival and read(rival)
        # A recurrent model solves nothing; to praise it for that says nothing.
        if ours is not None and str(ours) != "0.0":
            against = f" (against {_mean(theirs)})" if theirs is not None else ""
            parts.append(words.format(_mean(ours)) + against)
    if not parts:
        return ""
    listed = " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))
    return f"{best.label} takes {listed}."


def _mean(value: Estimate | int) -> str:
    return str(replace(value, std=None)) if isinstance(value, Estimate) else cell_text(value)


def _certainty(lead: float, score: Estimate, other: Estimate | None) -> str:
    if other is None or score.std is None or other.std is None:
        return "Without several seeds of both, chance is not ruled out."
    if lead > score.std + other.std:
        return "The lead is larger than both standard deviations over the seeds together."
    return "The lead is no larger than the standard deviations over the seeds: it may be chance."


def _pictures(folder: Path) -> Pictures:
    found = {drawn.file: _picture(folder / drawn.file, drawn.command) for drawn in _PICTURES}
    return {name: picture for name, picture in found.items() if picture is not None}


def _picture(file: Path, command: str) -> bytes | None:
    try:
        if not file.is_file():
            return None
        if file.stat().st_size > _LARGEST_PICTURE:
            fix = f"draw it again with `bfno {command} --force`"
            raise DataError(file, f"has more than {_LARGEST_PICTURE >> 20} MB", fix)
        return file.read_bytes()
    except OSError as error:
        why = f"cannot be read ({error.strerror})"
        raise DataError(file, why, "check the file's permissions") from None


def _content(runs: Sequence[RunResult], pictures: Sequence[Pictures]) -> dict[str, Any]:
    """All that the template shows."""
    runs = [replace(run, experiment=_portable(run.experiment)) for run in runs]
    # By identity: two runs may be equal in all that they recorded.
    shown = {id(run): picture for run, picture in zip(runs, pictures, strict=True)}
    groups = replicates(runs)
    palette = figures.colours(runs)
    ordered = [run for group in groups for run in group.runs]
    tasks = [list(members) for _, members in groupby(groups, key=lambda group: group.task)]
    data = list(dict.fromkeys(run.data for run in ordered))
    return {
        "title": f"Results on {_listed(data)}",
        "subtitle": f"{_count(len(runs), 'run')} of {_count(len(palette), 'method')}",
        "palette": figures.PALETTE,
        "tasks": [_task(members, ordered, palette) for members in tasks],
        "runs": [
            _run(run, _mark(group.label, run, ordered, palette), shown[id(run)])
            for group in groups
            for run in group.runs
        ],
        "unfolded": len(runs) <= _MOST_OPEN_RUNS,
    }


def _task(
    groups: list[Replicates], ordered: list[RunResult], palette: dict[str, str]
) -> dict[str, Any]:
    runs = [run for group in groups for run in group.runs]
    draw = (figures.loss_curves, figures.metric_curves, figures.nfe_curves)
    drawn = [curve(runs, palette) for curve in draw]
    data, scale, protocol = groups[0].task
    return {
        "title": f"{data}, scale {scale}" + (protocol and f", protocol {protocol}"),
        "protocol": _PROTOCOLS.get(protocol, ""),
        "summary": summary(groups),
        "table": comparison(runs),
        "marks": [_mark(group.label, group.runs[0], ordered, palette) for group in groups],
        "figures": [figure for figure in drawn if figure],
        "banded": any(len(group.runs) > 1 for group in groups),
    }


def _run(run: RunResult, mark: dict[str, Any], pictures: Pictures) -> dict[str, Any]:
    return {
        "run": run,
        "pictures": [
            {"drawn": drawn, "content": base64.b64encode(pictures[drawn.file]).decode()}
            for drawn in _PICTURES
            if drawn.file in pictures
        ],
        "mark": mark,
        "score": _score(run.headline, run),
        "facts": {name: cell_text(fact) for name, fact in _facts(run).items() if fact is not None},
        "result": {_metric_name(key): f"{value:.6g}" for key, value in run.result.items()},
        "config": _sections(run.config),
        "confusion": figures.confusion_matrix(run),
        "classes": per_class(run) if run.confusion else Table((), ()),
    }


def _metric_name(key: str) -> str:
    """The key of a metric as people say it."""
    split, _, name = key.partition("_")
    if name in _WORDS:
        return f"{split} {_WORDS[name]}"
    return " ".join(_WORDS.get(word, word) for word in key.split("_"))


def _facts(run: RunResult) -> dict[str, str | int | None]:
    chosen = None if run.chosen_epoch is None else f"{run.chosen_epoch} of {len(run.epochs)}"
    if chosen and run.chosen_by:
        chosen += f", by {run.chosen_by}"
    return {
        "folder": run.name,
        "protocol": task_of(run)[2] or None,
        "transductive": "yes, within a batch" if is_transductive(run) else None,
        "parameters": run.parameters,
        "published parameters": run.published_parameters,
        "training steps": run.steps,
        "kept epoch": chosen,
        "threads × processes": run.threads and f"{run.threads} × {run.processes or 1}",
        "commit": run.commit and run.commit[:12],
        **{f"version of {name}": str(version) for name, version in run.versions.items()},
    }


def _sections(config: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Settings by section, those of the top level first."""
    top = {key: value for key, value in config.items() if not isinstance(value, dict)}
    nested = {key: flat_config(value) for key, value in config.items() if isinstance(value, dict)}
    return ({"run": top} if top else {}) | {key: inner for key, inner in nested.items() if inner}


def _setting(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(_setting(inner) for inner in value) or "none"
    if isinstance(value, str):
        return _portable(value)
    return json.dumps(value, ensure_ascii=False)


def _portable(text: str) -> str:
    """The text, of a path on this machine its last part: the rest is nobody else's business."""
    for kind in (PurePosixPath, PureWindowsPath):
        path = kind(text)
        if path.is_absolute() or text.startswith("~/"):
            return path.name or text
    return text


def _score(metric: Metric | None, run: RunResult) -> str:
    if metric is None:
        return ""
    protocol = task_of(run)[2]
    score = f"{metric.title} {Estimate(run.result[metric.key], None, metric.digits)}"
    return score + (protocol and f", protocol {protocol}")


def _mark(
    label: str, run: RunResult, ordered: list[RunResult], palette: dict[str, str]
) -> dict[str, Any]:
    """The colour of a method, and where on the page to find a run of it."""
    # By place, not by name: a name may hold anything.
    place = next(place for place, other in enumerate(ordered, 1) if other is run)
    return {"hue": figures.PALETTE.index(palette[label]), "anchor": f"run-{place}"}


def _listed(names: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
