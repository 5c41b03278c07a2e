"""What every task has to define, and models that are evaluated for a while."""

from typing import Any

import pytest
import torch
from torch import nn

from bfno.lab.data import Series, Split
from bfno.lab.experiments.density.task import Noise, score
from bfno.lab.experiments.images.task import evaluate_images
from bfno.lab.experiments.series.task import predict_series
from bfno.lab.experiments.tasks import Share, Task


@pytest.mark.parametrize("missing", ["batches", "loss", "train_metrics", "evaluate"])
def test_a_task_defines_every_method(missing):
    methods = {"batches", "loss", "train_metrics", "evaluate"} - {missing}
    incomplete = type("Incomplete", (Task,), dict.fromkeys(methods, lambda self: None))
    with pytest.raises(TypeError, match=missing):
        incomplete()


class _Failing(nn.Module):
    """A model of anything that fails as soon as it is called."""

    samples, classes = 1, 2

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, *_: object) -> None:
        raise ArithmeticError("fails")


def _evaluate_images(model: nn.Module) -> None:
    split = Split(torch.zeros(3, 1, 2, 2, dtype=torch.uint8), torch.zeros(3, dtype=torch.int64))
    evaluate_images(model, split, 2, batch=2)


def _evaluate_series(model: Any) -> None:
    values, labels = torch.ones(2, 1), torch.zeros(2, dtype=torch.int64)
    ends = torch.arange(3)
    series = Series(torch.zeros(2), values, values > 0, labels, ends, ("a", "b"), by_row=False)
    predict_series(model, series, 10, "own", Share())


def _evaluate_points(model: nn.Module) -> None:
    score(model, torch.zeros(3, 2), 2, Noise(0, "test"))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("evaluate", [_evaluate_images, _evaluate_series, _evaluate_points])
def test_an_evaluation_that_fails_leaves_the_mode_of_the_model(evaluate, training):
    model = _Failing().train(training)
    with pytest.raises(ArithmeticError, match="fails"):
        evaluate(model)
    assert model.training == training
