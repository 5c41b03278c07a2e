"""A program that gives twelve small runs to an engine, and can be killed: `ENGINE RUNS [--jobs N]`.

Runs of `bfno table` have settings of their own. These are smaller, and long enough to be met at
work; what plans, gives, follows and resumes them is the same.
"""

import argparse
import dataclasses
import sys
from pathlib import Path

from bfno.lab.runs.campaign.choice import Choice
from bfno.lab.runs.campaign.plan import Job, state_of
from bfno.lab.runs.campaign.running import Campaign, failure_code
from tests.lab.runs.runs import tiny

EPOCHS = 8
RUNS = [(method, seed) for seed in range(6) for method in ("node", "bfno-node")]


def config(method: str, seed: int):
    return tiny({"seed": seed, "train": {"epochs": EPOCHS}}, f"digits/{method}")


def folder(runs: Path, method: str, seed: int) -> Path:
    return runs / f"{method}-s{seed}"


class _SmallRuns(Campaign):
    def _order(self, job: Job, batch: str, number: int):
        order = super()._order(job, batch, number)
        settings = job.folder.with_suffix(".yaml")
        begin = ("train", str(settings), "--out", str(job.folder))
        return dataclasses.replace(order, begin=begin)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("engine")
    parser.add_argument("runs", type=Path)
    parser.add_argument("--jobs", type=int)
    words = parser.parse_args()
    jobs = []
    for method, seed in RUNS:
        place = folder(words.runs, method, seed)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.with_suffix(".yaml").write_text(config(method, seed).as_yaml())
        jobs.append(Job(f"digits/{method}", "smoke", seed, place, state_of(place), EPOCHS))
    time = "10" if words.engine == "slurm" else None
    campaign = _SmallRuns(jobs, words.jobs, None, Choice(words.engine, time).engine(words.runs))
    for standings in campaign.run():
        sys.stdout.write(" ".join(one.state for one in standings) + "\n")
    for standing in campaign.standings:
        sys.stdout.write(f"{standing.job.name}: {standing.state} {standing.error}\n")
    return failure_code(campaign.standings)


if __name__ == "__main__":
    sys.exit(main())
