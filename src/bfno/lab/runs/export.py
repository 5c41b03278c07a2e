"""Exports a finished run to one file that other programs run without bfno."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bfno.lab.errors import ConfigError, NumericalError
from bfno.lab.experiments.experiment import ExportRequest, Portable
from bfno.lab.files import write_atomically
from bfno.lab.runs.folder import RunFolder
from bfno.lab.runs.load import open_run

__all__ = ["FACTS", "check_target", "export_run"]

FACTS = "bfno"
"""Under this name an ONNX file keeps its facts, as JSON; a PT2 file as the extra file bfno.json."""

_NEEDED = {".onnx": ("onnx", "onnxscript", "onnxruntime"), ".pt2": ()}
_CLOSE = 1e-5  # how far an exported file may be from the model it was made of
_TRACED = 2  # samples to trace with: one would be taken for a constant


def check_target(target: Path, *, force: bool = False) -> None:
    """Refuse a file that could not be written, before any work is done.

    Raises:
        ConfigError: If its ending names no format, a package is missing, or it exists already.
    """
    suffix = target.suffix.lower()
    if suffix not in _NEEDED:
        raise ConfigError(target, "its ending does not name a format", "end it in .onnx or .pt2")
    if target.is_dir():
        raise ConfigError(target, "is a folder", "name a file")
    if target.exists() and not force:
        raise ConfigError(target, "exists already", "pass --force, or name another file")
    for package in _NEEDED[suffix]:
        if importlib.util.find_spec(package) is None:
            why = f"needs {package}, which is not installed"
            raise ConfigError(target, why, "pip install 'bfno[export]', or end it in .pt2")


def export_run(
    folder: Path, target: Path, request: ExportRequest, *, any_checkpoint: bool = False
) -> dict[str, Any]:
    """Write the model of a finished run to an ONNX or PT2 file.

    Args:
        folder: The run.
        target: The file; its ending decides the format. An existing file is replaced.
        request: How its equations are solved.
        any_checkpoint: See `open_run`.

    Returns:
        The facts, which the file holds too.

    Raises:
        ConfigError: If the run is not finished or cannot be exported.
        DataError: If its files are damaged, or the file cannot be written.
        NumericalError: If the solver gives up, or the file's answers differ from the model's.
    """
    record = RunFolder(folder).finished()
    opened = open_run(folder, any_checkpoint=any_checkpoint)
    portable = opened.config.portable(opened, request)
    version = importlib.metadata.version("bfno")
    facts = {"bfno": version, "step": opened.step, "commit": record.commit, **portable.facts}
    make, run = _FORMATS[target.suffix.lower()]
    with torch.no_grad(), _quiet():
        content = make(portable, json.dumps(facts))
        wanted, found = portable.program(portable.example), run(content, portable.example)
    apart = (wanted - found).abs().max().item()
    if not apart <= _CLOSE:
        why = f"its answers would differ by {apart:.2g} from those of the model"
        raise NumericalError(target, why, "try the other format, .onnx or .pt2, and report it")
    write_atomically(target, content)
    return facts


def _traced(portable: Portable) -> Any:
    samples = portable.example[:1].repeat(_TRACED, *[1] * (portable.example.dim() - 1))
    batch = {0: torch.export.Dim("batch")}
    return torch.export.export(portable.program, (samples,), dynamic_shapes=(batch,), strict=False)


def _make_pt2(portable: Portable, facts: str) -> bytes:
    file = io.BytesIO()
    torch.export.save(_traced(portable), file, extra_files={f"{FACTS}.json": facts})
    return file.getvalue()


def _run_pt2(content: bytes, example: Tensor) -> Tensor:
    return torch.export.load(io.BytesIO(content)).module()(example)


def _make_onnx(portable: Portable, facts: str) -> bytes:
    names = [portable.output]
    made = torch.onnx.export(_traced(portable), output_names=names, dynamo=True, verbose=False)
    assert made is not None
    made.model.metadata_props[FACTS] = facts
    return made.model_proto.SerializeToString()


def _run_onnx(content: bytes, example: Tensor) -> Tensor:
    import onnxruntime

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return torch.from_numpy(session.run(None, {name: example.numpy()})[0])


_FORMATS: dict[str, tuple[Callable[[Portable, str], bytes], Callable[[bytes, Tensor], Tensor]]] = {
    ".onnx": (_make_onnx, _run_onnx),
    ".pt2": (_make_pt2, _run_pt2),
}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence messages of exporters that do not concern the user."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
