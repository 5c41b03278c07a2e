"""Stands for `bfno train` and `bfno resume` in tests of campaigns: it only writes a run's files.

A plan file says of each folder what is to happen in it, and with which record a run ends.
"""

import fcntl
import json
import os
import signal
import sys
import time
from pathlib import Path

from bfno.lab.runs.campaign.child import end_with


def main() -> None:
    plan_file, parent, command, *words = sys.argv[1:]
    end_with(int(parent))
    folder = Path(words[words.index("--out") + 1] if command == "train" else words[0])
    plan = json.loads(Path(plan_file).read_text())[folder.name]
    with open(folder / ".lock", "a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            sys.exit("error: folder: is in use. Fix: wait")
        if command == "train" and (folder / "config.yaml").exists():
            sys.exit("error: folder: this folder already holds a run. Fix: resume it")
        note(folder, command, words)
        (folder / "config.yaml").write_text(json.dumps(plan["record"]["config"]))
        if plan["does"] == "fail":
            print(
                "error: step\x07 3: the loss is not a finite number. Fix: lower the rate",
                flush=True,
            )
            sys.exit(4)
        if plan["does"] == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        epoch(folder, 1)
        if plan["does"] == "wait":
            wait_for(folder.parent / "go", folder)
        epoch(folder, 2)
        (folder / "record.json").write_text(json.dumps(plan["record"]))


def note(folder: Path, command: str, words: list[str]) -> None:
    """Tell the tests what was called, and under which circumstances."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    called = {
        "command": command,
        "words": words,
        "cores": cores,
        "threads": os.environ["OMP_NUM_THREADS"],
        "gpu": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "process": os.getpid(),
    }
    with open(folder / "calls", "a") as calls:
        calls.write(json.dumps(called) + "\n")


def epoch(folder: Path, number: int) -> None:
    line = json.dumps({"epoch": number, "seconds": 3.0, "test_accuracy": number / 10})
    with open(folder / "metrics.jsonl", "a") as metrics:
        metrics.write(line + "\n")


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
