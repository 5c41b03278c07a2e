"""Stands for `bfno train` and `bfno resume` in tests of sweeps: scores follow from the settings.

A plan file says what is to happen to trials, by their names: `fail`, `die` (at the first attempt),
or `wait` behind the second epoch, which scores 0, until it is stopped or there is a file `go`.
"""

import fcntl
import json
import math
import os
import signal
import sys
import time
from pathlib import Path

from bfno.lab.files import parse_yaml
from bfno.lab.runs.campaign.child import end_with


def score(lr: float, epoch: int, epochs: int) -> float:
    """Best at a learning rate of 0.01, and better after every epoch."""
    return max(0.0, 1 - abs(math.log10(lr) + 2) / 3) * epoch / epochs


def main() -> None:
    plan_file, parent, command, *words = sys.argv[1:]
    end_with(int(parent))
    folder = Path(words[words.index("--out") + 1] if command == "train" else words[0])
    does = json.loads(Path(plan_file).read_text()).get(folder.name)
    with open(folder / ".lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_first = not (folder / "calls").exists()
        with open(folder / "calls", "a") as calls:
            calls.write(f"{command}\n")
        if command == "train" and (folder / "config.yaml").exists():
            sys.exit("error: folder: this folder already holds a run. Fix: resume it")
        if command == "train":
            (folder / "config.yaml").write_text(Path(words[0]).read_text())
        if does == "fail":
            print("error: step 3: the loss is not a finite number. Fix: lower it", flush=True)
            sys.exit(4)
        train(folder, does, is_first)


def train(folder: Path, does: str | None, is_first: bool) -> None:
    config = parse_yaml((folder / "config.yaml").read_text())
    lr, epochs = float(config["train"]["lr"]), config["train"]["epochs"]
    metrics = folder / "metrics.jsonl"
    done = len(metrics.read_text().splitlines()) if metrics.exists() else 0
    value = 0.0
    for epoch in range(done + 1, epochs + 1):
        value = 0.0 if does == "wait" and epoch == 2 else score(lr, epoch, epochs)
        with open(metrics, "a") as lines:
            line = {"epoch": epoch, "seconds": 1.0, "validation_accuracy": value}
            lines.write(json.dumps(line) + "\n")
        if does == "die" and is_first and epoch == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if does == "wait" and epoch == 2:
            wait_for(folder.parent / "go", folder)
    write_record(folder, config, value)


def write_record(folder: Path, config: dict, value: float) -> None:
    data, _, method = config["experiment"].partition("/")
    named = {name: config[name] for name in ("experiment", "scale", "seed")}
    record = {
        **named,
        **{"format": 1, "data": data, "method": method, "status": "finished", "config": config},
        **{"result": {"validation_accuracy": value}, "judged_by": "validation_accuracy"},
    }
    (folder / "record.json").write_text(json.dumps(record))


def wait_for(file: Path, folder: Path) -> None:
    def save(number: int, frame: object) -> None:
        (folder / "saved").touch()
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, save)
    (folder / "waits").touch()
    while not file.exists():
        time.sleep(0.02)


if __name__ == "__main__":
    main()
