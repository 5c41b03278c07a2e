"""Sweeps whose trials only pretend to train."""

import json
import os
import sys
from pathlib import Path
from typing import Any

from bfno.lab.runs.campaign import local as campaign_local
from bfno.lab.runs.sweep.running import Sweep
from bfno.lab.runs.sweep.space import read_ranges
from bfno.lab.runs.sweep.study import Study, SweepPlan
from bfno.lab.runs.sweep.trials import Trial

RATES = "train.lr=log(1e-4,1e-1)"


def plan(*sets: str, **more: Any) -> SweepPlan:
    """A plan for three short epochs on digits."""
    ranges, changes = read_ranges([*(sets or (RATES,)), "train.epochs=3"])
    return SweepPlan("digits/node", ranges, "smoke", changes, **more)


def pretend(root: Path, **does: str) -> None:
    """Let sweeps of this process start trials that do what is said: `trial_0002="fail"`."""
    root.mkdir(parents=True, exist_ok=True)
    file = root / "plan.json"
    file.write_text(json.dumps({name.replace("_", "-"): what for name, what in does.items()}))
    campaign_local.child_command = lambda words: [
        *(sys.executable, str(Path(__file__).with_name("fake_trial.py"))),
        *(str(file), str(os.getpid()), *words),
    ]


def run(study: Study, trials: int, slots: int = 2) -> Sweep:
    """Work on a study until it has this number of trials."""
    sweep = Sweep(study, trials, slots)
    for _ in sweep.run():
        pass
    return sweep


def finish_some(study: Study, scores: list[float]) -> None:
    """Give a study finished trials whose score grows evenly to these values."""
    for value in scores:
        trial = study.propose(100)
        assert trial is not None
        for epoch in (1, 2, 3):
            study.report(trial.number, epoch, value * epoch / 3)
        study.finish(trial.number, value)


def outcome(trials: list[Trial]) -> list[tuple[Any, ...]]:
    """What became of trials."""
    return [(dict(one.values), one.state, one.score, dict(one.scores)) for one in trials]


def calls(folder: Path) -> list[str]:
    """The commands that were started in the folder of a trial."""
    file = folder / "calls"
    return file.read_text().split() if file.exists() else []
