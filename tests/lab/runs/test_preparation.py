"""What happens before the first step, and how the learning rate rises from there."""

import math

import pytest
import torch

from bfno.lab.errors import NumericalError
from bfno.lab.experiments.images.task import ImageTask
from bfno.lab.experiments.tasks import Evaluation
from bfno.lab.runs import loop
from bfno.lab.runs.session import resume, start
from bfno.lab.runs.signals import Stopped
from bfno.models.flows import FlowError
from tests.lab.runs.runs import StopAfter, metrics, tiny, weights


def _rates(monkeypatch, config, run) -> list[float]:
    found = []
    step = loop.Trainer._step

    def recording(self, samples):
        totals = step(self, samples)
        found.append(self.optimizer.param_groups[0]["lr"])
        return totals

    with monkeypatch.context() as patch:
        patch.setattr(loop.Trainer, "_step", recording)
        start(config, run)
    return found


def test_the_learning_rate_rises_in_equal_parts_and_decays_meanwhile(tmp_path, monkeypatch):
    settings = {"lr": 0.01, "warmup": 4, "decay": 0.5, "decay_every": 5}
    found = _rates(monkeypatch, tiny({"train": settings}), tmp_path / "run")
    risen = [0.0025, 0.005, 0.0075, 0.01, 0.01]
    assert found == pytest.approx([*risen, *[0.005] * 5, *[0.0025] * 2])


def test_a_warm_up_longer_than_the_run_never_reaches_the_rate(tmp_path, monkeypatch):
    settings = {"lr": 0.01, "warmup": 100, "decay": 1.0}
    found = _rates(monkeypatch, tiny({"train": settings}), tmp_path / "run")
    assert found == pytest.approx([0.0001 * step for step in range(1, 13)])


def test_the_remedy_of_a_failure_is_below_the_rate_that_was_aimed_at(tmp_path, monkeypatch):
    def lose(self, model, *_):
        return model.head.weight.sum() * math.nan, {}

    monkeypatch.setattr(ImageTask, "loss", lose)
    with pytest.raises(NumericalError, match=r"train\.lr=0\.0008,"):
        start(tiny({"train": {"lr": 0.008, "warmup": 1000}}), tmp_path / "run")


def _counted(monkeypatch) -> list[torch.Tensor]:
    """Preparations, each of which shifts a weight by chance."""
    calls = []

    def prepare(self, model, device):
        assert model.training
        shift = torch.rand(())
        calls.append(shift)
        with torch.no_grad():
            next(iter(model.parameters())).add_(shift)

    monkeypatch.setattr(ImageTask, "prepare", prepare)
    return calls


def test_a_new_run_is_prepared_once_and_by_its_seed(tmp_path, monkeypatch):
    start(tiny(), tmp_path / "plain")
    calls = _counted(monkeypatch)
    start(tiny(), tmp_path / "run")
    assert len(calls) == 1
    start(tiny(), tmp_path / "same")
    start(tiny({"seed": 4}), tmp_path / "other")
    assert calls[0] == calls[1] != calls[2]
    assert weights(tmp_path / "run") == weights(tmp_path / "same") != weights(tmp_path / "plain")


@pytest.mark.parametrize("stop", [1, 6, 9])
def test_a_run_that_continues_is_not_prepared_again(tmp_path, monkeypatch, stop):
    calls = _counted(monkeypatch)
    start(tiny(), tmp_path / "whole")
    with pytest.raises(Stopped):
        start(tiny(), tmp_path / "run", [StopAfter(stop)])
    resume(tmp_path / "run")
    assert len(calls) == 2
    assert weights(tmp_path / "run") == weights(tmp_path / "whole")


def test_the_average_begins_with_the_prepared_weights(tmp_path, monkeypatch):
    _counted(monkeypatch)
    seen = []
    update = loop.WeightAverage.update

    def watching(self, step):
        if step == 0:
            seen.append({name: value.clone() for name, value in self._others.items()})
            seen.append({name: value.clone() for name, value in self._values().items()})
        update(self, step)

    monkeypatch.setattr(loop.WeightAverage, "update", watching)
    start(tiny({"train": {"average": 0.5, "lr": 1e-9}}), tmp_path / "run")
    before, after = seen
    for name, value in before.items():
        torch.testing.assert_close(value, after[name])


def test_a_preparation_that_fails_leaves_a_run_that_starts_over(tmp_path, monkeypatch):
    def fail(*_):
        raise FlowError("the first batch has no spread")

    with monkeypatch.context() as patch, pytest.raises(NumericalError, match="no spread") as error:
        patch.setattr(ImageTask, "prepare", fail)
        start(tiny(), tmp_path / "run")
    assert "\n" not in str(error.value)
    start(tiny(), tmp_path / "whole")
    resume(tmp_path / "run")
    assert weights(tmp_path / "run") == weights(tmp_path / "whole")
    assert metrics(tmp_path / "run") == metrics(tmp_path / "whole")


@pytest.mark.parametrize(
    ("is_lower", "values", "chosen"),
    [
        (False, (0.5, 0.7, 0.6, 0.7), 2),
        (True, (0.5, 0.3, 0.4, 0.3), 2),
        (True, (math.nan, 0.9, math.inf, 0.8), 4),
        (False, (math.nan, 0.2, math.inf, 0.1), 2),
    ],
)
def test_the_best_epoch_is_that_of_the_best_finite_value(
    tmp_path, monkeypatch, is_lower, values, chosen
):
    given = iter(values)

    def evaluate(self, model, split, batch, share):
        return Evaluation({"accuracy": next(given), "nfe": 1.0}, [])

    monkeypatch.setattr(ImageTask, "evaluate", evaluate)
    monkeypatch.setattr(ImageTask, "splits", ("validation",))
    monkeypatch.setattr(ImageTask, "lower_is_better", is_lower)
    record = start(tiny({"train": {"epochs": 4}}), tmp_path / "run")
    assert record.chosen_epoch == chosen
