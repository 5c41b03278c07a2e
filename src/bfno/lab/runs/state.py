"""Weights and optimizer to and from a checkpoint."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from bfno.lab.errors import ConfigError
from bfno.lab.experiments.settings import migrated_weights
from bfno.lab.runs.checkpoint import Checkpoint

__all__ = ["load_optimizer", "load_weights", "optimizer_state"]


def load_weights(model: nn.Module, checkpoint: Checkpoint) -> None:
    """Give a model the weights of a checkpoint, all of them and no others.

    Raises:
        ConfigError: If the checkpoint is that of another model.
    """
    weights = migrated_weights(checkpoint.model)
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    different = sorted(
        name for name in {*expected, *found} if expected.get(name) != found.get(name)
    )
    if different:
        name = different[0]
        shapes = f"{found.get(name, 'absent')} instead of {expected.get(name, 'absent')}"
        raise ConfigError(
            f"checkpoint of step {checkpoint.step}",
            f"is that of another model: {len(different)} tensors differ, {name} is {shapes}",
            "use the config.yaml that it was trained with",
        )
    model.load_state_dict(weights)


def optimizer_state(optimizer: Optimizer) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """The optimizer's tensors by number of parameter and name, and its settings."""
    state = optimizer.state_dict()
    tensors = {
        f"{number}.{name}": value
        for number, values in state["state"].items()
        for name, value in values.items()
    }
    return tensors, state["param_groups"]


def load_optimizer(optimizer: Optimizer, checkpoint: Checkpoint) -> None:
    """Give an optimizer the state that `optimizer_state` took from another."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in checkpoint.training.items():
        number, _, name = key.partition(".")
        state.setdefault(int(number), {})[name] = value
    groups = checkpoint.state["optimizer"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
