"""The part of a page about one run: its command, measurements, and pictures."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from bfno.lab.runs.record import Record, flat_config, task_of
from bfno.lab.views.exhibit import Exhibit
from bfno.lab.views.figures.style import read_picture
from bfno.lab.views.layout import Table, cell_text
from bfno.lab.views.methods import is_transductive
from bfno.lab.views.metrics import Estimate, find_metric, headline_of, reason_of_choice
from bfno.lab.views.report.drawings import confusion_matrix
from bfno.lab.views.report.exhibits import mistakes_view, scatter_view, spectra_view
from bfno.lab.views.summary import data_title, samples_text, trust
from bfno.lab.views.tables import per_class

__all__ = ["EXAMINED", "Pictures", "portable", "read_pictures", "run_view", "setting_text"]

_WORDS = {"gpus": "GPUs"}
EXAMINED = 1000
"""Largest number of test images in an exhibit."""


@dataclass(frozen=True)
class _Drawn:
    """A picture that a command draws into the folder of a run.

    Attributes:
        file: Its name.
        title: Its title on the page.
        alt: What it shows, for those who cannot see it.
        media: Its media type.
    """

    file: str
    title: str
    alt: str
    media: str


_PICTURES = (
    _Drawn(
        "reconstruction.svg",
        "Reconstructed series",
        "Observed values and their reconstruction over time",
        "image/svg+xml",
    ),
    _Drawn("samples.png", "Samples", "Samples drawn from the model", "image/png"),
)
Pictures = dict[str, bytes]
"""Content of the pictures in the folder of a run, by the name of the file."""


def read_pictures(folder: Path, step: int | None = None) -> Pictures:
    """Read the pictures of its present weights that commands have drawn into the folder of a run.

    Args:
        folder: Where its figures are.
        step: The step that the run has chosen, if known.

    Raises:
        DataError: If one is too large or cannot be read.
    """
    found = {drawn.file: read_picture(folder / drawn.file, step) for drawn in _PICTURES}
    return {name: picture for name, picture in found.items() if picture is not None}


def run_view(
    run: Record, label: str, mark: dict[str, Any], pictures: Pictures, exhibit: Exhibit | None
) -> dict[str, Any]:
    """Everything that the template shows about a run.

    Args:
        run: The run.
        label: Its method, with what distinguishes it from others of the same name.
        mark: Its colour and its place on the page.
        pictures: The pictures for a page from its folder.
        exhibit: The exhibit of its classifier, if any.
    """
    return {
        "run": run,
        "label": label,
        "pictures": [
            {"drawn": drawn, "content": base64.b64encode(pictures[drawn.file]).decode()}
            for drawn in _PICTURES
            if drawn.file in pictures
        ],
        "mark": mark,
        "score": _score(run),
        "facts": {name: cell_text(fact) for name, fact in _facts(run).items() if fact is not None},
        "environment": _environment(run),
        "result": {
            find_metric(key).title: f"{value:.6g}"
            for key, value in run.result.items()
            # A model without an ODE evaluates nothing, and says nothing by it.
            if value or find_metric(key).name != "nfe"
        },
        "trust": trust(run),
        "data": data_title(run),
        "config": _sections(run.config),
        "confusion": confusion_matrix(run),
        "classes": per_class(run) if run.confusion else Table((), ()),
        "mistakes": mistakes_view(exhibit.mistakes, run) if exhibit else [],
        "examined": min(EXAMINED, sum(map(sum, run.confusion))) or EXAMINED,
        "scatter": exhibit and scatter_view(exhibit.scatter, run),
        "spectra": spectra_view(exhibit.spectra) if exhibit else [],
    }


def _facts(run: Record) -> dict[str, str | int | None]:
    chosen = None if run.chosen_epoch is None else f"{run.chosen_epoch} of {len(run.epochs)}"
    if chosen and run.chosen_by:
        chosen += f", {reason_of_choice(run.chosen_by)}"
    return {
        "folder": run.name,
        "protocol": task_of(run)[2] or None,
        "transductive": "yes, within a batch" if is_transductive(run) else None,
        "parameters": run.parameters,
        "published parameters": run.published_parameters,
        "samples": samples_text(run) or None,
        "training steps": run.steps,
        "kept epoch": chosen,
        "before it was resumed": "; ".join(run.history) or None,
    }


def _environment(run: Record) -> dict[str, str]:
    known = {
        "commit": run.commit,
        **run.versions,
        **run.hardware,
        "threads × processes": run.threads and f"{run.threads} × {run.processes or 1}",
    }
    return {_WORDS.get(name, name): setting_text(fact) for name, fact in known.items() if fact}


def _sections(config: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Settings by section, those of the top level first."""
    top = {key: value for key, value in config.items() if not isinstance(value, dict)}
    nested = {key: flat_config(value) for key, value in config.items() if isinstance(value, dict)}
    return ({"run": top} if top else {}) | {key: inner for key, inner in nested.items() if inner}


def setting_text(value: Any) -> str:
    """A setting as people read it."""
    if isinstance(value, list):
        return ", ".join(setting_text(inner) for inner in value) or "none"
    if isinstance(value, str):
        return portable(value)
    return json.dumps(value, ensure_ascii=False)


def portable(text: str) -> str:
    """The text; for an absolute path, only its last part, because the rest is private."""
    for kind in (PurePosixPath, PureWindowsPath):
        path = kind(text)
        if path.is_absolute() or text.startswith("~/"):
            return path.name or text
    return text


def _score(run: Record) -> str:
    metric = headline_of(run)
    if metric is None:
        return ""
    protocol = task_of(run)[2]
    score = f"{metric.title} {Estimate(run.result[metric.key], None, metric.digits)}"
    return score + (protocol and f", protocol {protocol}")
