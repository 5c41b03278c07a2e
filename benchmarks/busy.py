"""How much longer an epoch takes while another program keeps one core busy."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.timing import Line, summarise
from bfno.lab.data.store import locate
from bfno.lab.errors import DataError

__all__ = ["busy"]

SAMPLES = {"digits": 1024, "mnist": 512, "cifar10": 512}
"""Training images of an epoch, by data set."""


def busy(repeats: int, notes: dict[str, Any]) -> Iterator[Line]:
    """An epoch of BFNO-NODE at the scale `cpu` beside a busy program, and alone."""
    for data, samples in SAMPLES.items():
        names = ("busy", data, "alone")
        try:
            locate(data)
        except DataError as lacking:
            yield Line(*names, 0.0, 0.0, 0.0, (0.0, 0.0), {"left_out": str(lacking)})
            continue
        pairs = []
        for _ in range(max(1, repeats // 3)):
            alone = _seconds(data, samples)
            with _busy_program():
                pairs.append((_seconds(data, samples), alone))
        line = summarise(names, pairs, notes)
        yield Line(**{**vars(line), "notes": {**notes, "times_as_long": 1 / line.ratio}})


def _seconds(data: str, samples: int) -> float:
    """Seconds of the second epoch, in a program of its own, as users start it."""
    with tempfile.TemporaryDirectory() as place:
        run = Path(place) / "run"
        limits = [f"data.train_limit={samples}", "data.test_limit=64", "train.epochs=2"]
        words = ["train", f"{data}/bfno-node", "--scale", "cpu", "--out", str(run)]
        for limit in limits:
            words += ["--set", limit]
        command = [sys.executable, "-m", "bfno", *words]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        last = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1]
        return float(json.loads(last)["seconds"])


@contextlib.contextmanager
def _busy_program() -> Iterator[None]:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
        try:
            yield
        finally:
            other.kill()
