"""Weights from checkpoints."""

import pytest
import torch
from torch import nn

from bfno.lab.errors import ConfigError
from bfno.lab.runs.checkpoint import Checkpoint, load_weights


def test_scalars_that_older_classifiers_carried_are_left_out():
    old, new = nn.Linear(3, 2), nn.Linear(3, 2)
    load_weights(new, Checkpoint(7, {**old.state_dict(), "idle": torch.zeros(4)}, {}, {}))
    assert torch.equal(new.weight, old.weight) and torch.equal(new.bias, old.bias)


def test_weights_of_another_model_are_refused():
    with pytest.raises(ConfigError, match="checkpoint of step 7: is that of another model"):
        load_weights(nn.Linear(3, 2), Checkpoint(7, nn.Linear(3, 3).state_dict(), {}, {}))
