"""`python -m benchmarks [group …] [--json] [--repeats N]`."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

import torch

from benchmarks import cases
from benchmarks.busy import busy
from benchmarks.flow import flow, flow_memory
from benchmarks.growth import growth
from benchmarks.memory import memory
from benchmarks.precision import precision
from benchmarks.series import series
from benchmarks.solvers import solver
from benchmarks.stiff import stiff
from benchmarks.timing import HEADER, Line
from benchmarks.work import work
from bfno.lab.cli import keep_freed_memory

GROUPS = {
    **cases.CASES,
    "solver": solver,
    "growth": growth,
    "busy": busy,
    "memory": memory,
    "precision": precision,
    "series": series,
    "flow": flow,
    "stiff": stiff,
    "work": work,
}
SEPARATE = ("layer", "step")
"""Groups that run in two processes: with ordinary memory, and with freed memory kept."""
MEMORY = {"step": cases.memory, "flow": flow_memory}
"""Groups of which the peak memory of a training step is measured too, by gradient."""


def main(arguments: list[str] | None = None) -> None:
    """Run the chosen groups and print a line for each comparison."""
    options = _read_options(arguments)
    if options.memory:
        print(MEMORY[options.groups[0]](options.memory))
        return
    if options.child:
        _print_lines(options.groups[0], options)
        return
    if not options.json:
        print(f"torch {torch.__version__}, {torch.get_num_threads()} threads; runs of both sides")
        print("alternate; a ratio above 1 means that the peer takes longer")
        print(HEADER)
    for group in options.groups:
        if group in SEPARATE:
            for kept in ([], ["--keep-memory"]):
                _run_child(["--child", group, "--repeats", str(options.repeats), *kept], options)
        else:
            _print_lines(group, options)
        if group in MEMORY:
            _print_memory(group, options)


def _read_options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("groups", nargs="*", default=list(GROUPS), metavar="group")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--repeats", type=int, default=7, help="pairs of runs a comparison")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--keep-memory", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--memory", choices=("checkpoint", "direct"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    for group in options.groups:
        if group not in GROUPS:
            parser.error(f"{group} is not a benchmark; choose among {', '.join(GROUPS)}")
    return options


def _print_lines(group: str, options: argparse.Namespace) -> None:
    if options.keep_memory:
        keep_freed_memory()
    notes = {"freed_memory": "kept" if options.keep_memory else "returned"}
    for line in GROUPS[group](options.repeats, notes if group in SEPARATE else {}):
        _print_line(line, options)


def _print_line(line: Line, options: argparse.Namespace) -> None:
    print(line.as_json() if options.json else line.as_row(), flush=True)


def _run_child(arguments: list[str], options: argparse.Namespace) -> None:
    command = [sys.executable, "-m", "benchmarks", *arguments]
    subprocess.run(command + ["--json"] * options.json, check=True)


def _print_memory(group: str, options: argparse.Namespace) -> None:
    """Peak memory of a training step with direct and with checkpoint gradients."""
    peaks = {}
    for gradient in ("checkpoint", "direct"):
        command = [sys.executable, "-m", "benchmarks", group, "--memory", gradient]
        found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        peaks[gradient] = float(json.loads(found))
    share = peaks["checkpoint"] / peaks["direct"]
    values = {"bench": group, "case": "memory", "peer": "direct", "share": share}
    if options.json:
        ours, peer = peaks["checkpoint"], peaks["direct"]
        print(json.dumps({**values, "ours_bytes": ours, "peer_bytes": peer, "ratio": 1 / share}))
    else:
        sizes = " and ".join(f"{peaks[key] / 2**20:.0f} MiB" for key in ("checkpoint", "direct"))
        print(f"{group}/memory        direct: peak of checkpoint and of direct gradients {sizes}")


if __name__ == "__main__":
    main()
