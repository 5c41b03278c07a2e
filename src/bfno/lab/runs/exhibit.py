"""What a trained model has to show, asked once and kept in its run's folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bfno.lab.files import write_atomically
from bfno.lab.runs.load import open_run
from bfno.lab.runs.run import RunFolder

__all__ = ["keep_exhibit"]

FORMAT = 1


def keep_exhibit(folder: Path) -> bool:
    """Ask the model of a run what it has to show, unless the answer is there already.

    Args:
        folder: The run.

    Returns:
        Whether the folder holds an exhibit now; only some experiments have one.

    Raises:
        ConfigError: If this is no run, or nothing is trained yet.
        DataError: If its files are damaged, or its data not there any more.
        NumericalError: If the solver gives up.
    """
    run = RunFolder(folder)
    if run.read_config().shows != "exhibit":
        return False
    opened = open_run(folder)
    if _step(run.exhibit_file) != opened.step:
        content = {"format": FORMAT, "step": opened.step, **opened.config.exhibit(opened)}
        write_atomically(run.exhibit_file, json.dumps(content).encode())
    return True


def _step(file: Path) -> Any:
    """The step whose weights were asked last; a run that went on since has others."""
    try:
        found = json.loads(file.read_bytes())
        return found["step"] if found["format"] == FORMAT else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
