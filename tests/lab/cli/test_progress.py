"""What a training prints: no column twice, none of zeros, and how long it still takes."""

import io
import re
import sys

import pytest

from bfno.lab.cli import main
from bfno.lab.cli.progress import TrainingDisplay, columns_of
from bfno.lab.runs.checkpoint import Progress
from bfno.lab.runs.session import start
from bfno.lab.runs.signals import Stopped
from tests.lab.experiments.density.runs import tiny as tiny_density
from tests.lab.runs.runs import StopAfter, tiny

EPOCH = {"epoch": 1, "train_loss": 2.0, "seconds": 60.0, "peak_memory": 2**20}


@pytest.mark.parametrize(
    "experiment", ["images", "series/latent-ode", "series/gru-d", "density", "moons"]
)
def test_no_two_columns_have_the_same_name(tmp_path, capsys, experiment):
    run = str(tmp_path / "run")
    if experiment.startswith("series"):
        assert main(["train", experiment, "--scale", "smoke", "--out", run]) == 0
    else:
        kinds = {
            "images": tiny(),
            "density": tiny_density("digits-density/realnvp"),
            "moons": tiny_density("moons/ffjord"),
        }
        start(kinds[experiment], tmp_path / "run", [TrainingDisplay()])
    heading, first = capsys.readouterr().out.splitlines()[:2]
    heads = re.split(r"\s{2,}", heading.strip())
    assert len(set(heads)) == len(heads) == len(re.split(r"\s{2,}", first.strip()))
    has_an_ode = experiment not in ("series/gru-d", "density")
    assert ("NFE fwd" in heads) == has_an_ode and heads[-1] == "left"


def test_evaluations_that_are_absent_or_zero_have_no_column():
    assert "forward_nfe" not in columns_of(EPOCH)
    none = {"forward_nfe": 0.0, "backward_nfe": 0.0, "test_nfe": 0.0}
    assert not {*none} & columns_of({**EPOCH, **none}).keys()
    direct = {"forward_nfe": 14.0, "backward_nfe": 0.0, "test_nfe": 14.0}
    assert {*none} & columns_of({**EPOCH, **direct}).keys() == {"forward_nfe", "test_nfe"}


def _left(display: TrainingDisplay, **progress) -> float:
    return display._left(Progress.model_validate(progress), steps=10)


def test_the_time_left_is_that_of_the_whole_training():
    display = TrainingDisplay()
    display.on_start(epochs=5)
    # 2 of 10 steps of the first of 5 epochs took 4 s: 48 of 50 steps are left.
    assert _left(display, epoch=0, batch=2, seconds=4.0) == pytest.approx(96)
    # An epoch takes 60 s with its evaluation; of the second, 20 s have passed.
    display.on_epoch(EPOCH)
    assert _left(display, epoch=1, batch=5, seconds=20.0, total_seconds=60.0) == 4 * 60 - 20
    # The solver takes longer and longer: the last epoch tells the most.
    display.on_epoch({**EPOCH, "epoch": 2, "seconds": 100.0})
    assert _left(display, epoch=2, seconds=0.0, total_seconds=160.0) == 300
    assert _left(display, epoch=4, batch=9, seconds=120.0) == 0


def test_a_resumed_run_knows_how_long_its_epochs_took():
    display = TrainingDisplay()
    display.on_start(epochs=5)
    assert _left(display, epoch=3, batch=1, seconds=10.0, total_seconds=150.0) == 40 + 50


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_training_that_stops_within_an_epoch_gives_the_cursor_back(tmp_path, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal := _Terminal())
    with pytest.raises(Stopped):
        start(tiny(), tmp_path / "run", [TrainingDisplay(), StopAfter(2)])
    hidden, shown = (terminal.getvalue().rfind(f"\x1b[?25{one}") for one in "lh")
    assert 0 <= hidden < shown


def test_every_epoch_says_how_long_the_training_still_takes(capsys):
    display = TrainingDisplay()
    display.on_start(epochs=2)
    display.on_epoch({**EPOCH, "seconds": 900.0})
    display.on_epoch({**EPOCH, "epoch": 2, "seconds": 900.0})
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("left") and lines[1].endswith("15 min") and lines[2].endswith("-")
