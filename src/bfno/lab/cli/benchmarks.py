"""Runs the benchmarks of a checkout, which are no part of the installed package."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from bfno.lab.errors import ConfigError

__all__ = ["run_benchmarks"]


def run_benchmarks(words: list[str]) -> None:
    """Run `python -m benchmarks` with these words.

    Raises:
        ConfigError: If this is no checkout, or there is no such benchmark.
    """
    root = Path(__file__).resolve().parents[4]
    if not (root / "benchmarks" / "__main__.py").is_file():
        raise ConfigError(
            "bench", "needs the sources of bfno", "run `make bench` in a checkout of the repository"
        )
    paths = [str(root), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, "-m", "benchmarks", *words]
    done = subprocess.run(command, env=environment, check=False)
    if done.returncode:
        raise ConfigError("bench", f"ended with exit code {done.returncode}", "see above")
