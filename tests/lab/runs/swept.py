"""A small sweep on a cluster: its command, and what has to be true of it in the end."""

from pathlib import Path

from bfno.lab.experiments.resolve import resolve
from bfno.lab.files import lock_file
from bfno.lab.runs.session import start
from bfno.lab.runs.sweep.space import read_ranges
from bfno.lab.runs.sweep.study import Study, SweepPlan
from tests.lab.runs import twelve
from tests.lab.runs.runs import metrics, tiny, weights

TRIALS, EPOCHS = 4, 8
_RANGE = "train.lr=log(1e-3,1e-1)"


def words(folder: Path, on: str, *more: str) -> list[str]:
    """The command; its experiment is a file, which says that it is tiny."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder.with_suffix(".yaml")
    file.write_text(tiny({"train": {"epochs": EPOCHS}}).as_yaml())
    common = ["sweep", str(file), "--set", _RANGE, "--trials", str(TRIALS), "--jobs", "2"]
    return [*common, "--prune", "none", "--out", str(folder), "--on", on, *more]


def is_looked_after(trial: Path) -> bool:
    """Whether a program follows a trial."""
    with (trial / ".claim").open("r+") as file:
        return not lock_file(file.fileno())


def assert_whole(folder: Path, alone: Path) -> None:
    """Every trial is finished, was trained once, and is that of one machine, byte for byte."""
    ranges, _ = read_ranges([_RANGE])
    study = Study(folder, SweepPlan(str(folder.with_suffix(".yaml")), ranges, prune="none"))
    trials = study.trials()
    assert [one.state for one in trials] == ["finished"] * TRIALS
    for trial in trials:
        run, reference = folder / trial.name, alone / trial.name
        start(resolve(str(run / "trial.yaml")), reference)
        assert weights(run) == weights(reference) and metrics(run) == metrics(reference), run
        assert twelve.epochs(run) == dict.fromkeys(range(1, EPOCHS + 1), 1), run
        assert list(trial.scores) == list(range(1, EPOCHS + 1))
        assert not (run / "job.json").exists()
    best = study.result().best
    assert best is not None and best.score == max(one.score or 0.0 for one in trials)
    chosen = resolve(str(folder / "best.yaml"))
    assert chosen.train.lr == best.values["train.lr"] and chosen.train.test
    assert (folder / "sweep.html").read_text().count("trial-000") >= TRIALS


def everything(folder: Path) -> dict[str, bytes]:
    """Content of the files of a sweep that a start with nothing left to do must not change."""
    files = (file for file in folder.rglob("*") if file.is_file())
    return {str(file): file.read_bytes() for file in files if ".submitit" not in file.parts}
