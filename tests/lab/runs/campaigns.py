"""Campaigns whose children only pretend to train."""

import json
import os
import sys
from pathlib import Path
from typing import Any

from bfno.lab.experiments.resolve import resolve
from bfno.lab.runs.campaign import local as campaign_local

METHODS = ("node", "anode", "bfno-node")
_PLAN = "FAKE_PLAN"


def settings(method: str, seed: int = 7, **changes: Any) -> dict[str, Any]:
    """Complete settings of a run at smoke scale, as its files hold them."""
    return resolve(f"digits/{method}", scale="smoke", changes={"seed": seed, **changes}).as_dict()


def record(config: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The record of a finished run."""
    data, _, method = config["experiment"].partition("/")
    return {
        "format": 1,
        "experiment": config["experiment"],
        "data": data,
        "method": method,
        "scale": config["scale"],
        "seed": config["seed"],
        "status": "finished",
        "parameters": 1000,
        "seconds": 6.0,
        "result": {"test_accuracy": 0.2},
        "judged_by": "test_accuracy",
        "chosen_by": "validation_accuracy",
        "config": config,
        **more,
    }


def write_run(folder: Path, config: dict[str, Any], finished: bool = True, **more: Any) -> Path:
    """Write what a run has left: all of it, or what it had when it was killed."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(json.dumps(config))
    (folder / "metrics.jsonl").write_text('{"epoch": 1, "seconds": 3.0, "test_accuracy": 0.1}\n')
    if finished:
        (folder / "record.json").write_text(json.dumps(record(config, **more)))
    return folder


def write_plan(root: Path, seeds: int = 1, **does: str) -> Path:
    """Say what happens to runs, by the method and the seed: `node_8="fail"`; the others finish."""
    runs = {}
    for method in METHODS:
        for seed in range(7, 7 + seeds):
            what = does.get(f"{method.replace('-', '_')}_{seed}", "finish")
            runs[f"digits-{method}-s{seed}"] = {
                "does": what,
                "record": record(settings(method, seed)),
            }
    root.mkdir(parents=True, exist_ok=True)
    file = root / "plan.json"
    file.write_text(json.dumps(runs))
    return file


def pretend(plan: Path | None = None) -> None:
    """Let campaigns of this process start children that do what a plan says."""
    file = str(plan or os.environ[_PLAN])
    campaign_local.child_command = lambda words: [
        *(sys.executable, "-m", "tests.lab.runs.fake_child"),
        *(file, str(os.getpid()), *words),
    ]


def calls(folder: Path) -> list[dict[str, Any]]:
    """What was called in a folder, in order."""
    file = folder / "calls"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
