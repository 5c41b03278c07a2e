"""A moving average of the weights, which is what users of a run get."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import replace

from torch import Tensor, nn

from bfno.lab.runs.checkpoint import Checkpoint

__all__ = ["WeightAverage", "optimizer_part"]

_RAW = "raw."


class WeightAverage:
    """An exponential moving average of a model's trained parameters, or none.

    Training continues from the raw parameters; the averaged ones replace them for evaluation and
    saving. Buffers, such as running statistics, are those of the raw model.

    Args:
        model: The model.
        decay: Weight of the old average in the new one; None averages nothing. In the first steps
            it is smaller, `(1 + step) / (10 + step)`, because the initial weights are not a result.
    """

    def __init__(self, model: nn.Module, decay: float | None) -> None:
        self._decay = decay
        self._parameters = {
            name: parameter
            for name, parameter in model.named_parameters()
            if parameter.requires_grad
        }
        # The average, or the raw parameters while the model has the average.
        self._others: dict[str, Tensor] = {}
        self._is_shown = False
        self.restart()

    def restart(self) -> None:
        """Start again with the model's present parameters."""
        if self._decay is not None:
            self._others = {name: value.clone() for name, value in self._values().items()}

    def update(self, step: int) -> None:
        """Include the parameters after a step; steps count from zero."""
        if self._decay is not None:
            keep = min(self._decay, (1 + step) / (10 + step))
            for name, value in self._values().items():
                self._others[name].lerp_(value, 1 - keep)

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Temporarily give the model the averaged parameters."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def weights(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the weights that a user should load, given the state of the model."""
        return {**state, **({} if self._is_shown else self._others)}

    def raw(self) -> dict[str, Tensor]:
        """The parameters that training continues from, if they are not those a user loads."""
        if self._decay is None:
            return {}
        raw = self._others if self._is_shown else self._values()
        return {f"{_RAW}{name}": value for name, value in raw.items()}

    def others(self) -> list[Tensor]:
        """The tensors of the average, or none; the model's own are not among them."""
        return list(self._others.values())

    def restore(self, checkpoint: Checkpoint) -> None:
        """Take the average from a model that loaded a checkpoint, and give it the raw weights."""
        self.restart()
        for name, value in self._values().items():
            if (raw := checkpoint.training.get(f"{_RAW}{name}")) is not None:
                value.copy_(raw)

    def _values(self) -> dict[str, Tensor]:
        return {name: parameter.detach() for name, parameter in self._parameters.items()}

    def _swap(self) -> None:
        for name, other in self._others.items():
            parameter = self._parameters[name]
            parameter.data, self._others[name] = other, parameter.data
        self._is_shown = not self._is_shown


def optimizer_part(checkpoint: Checkpoint) -> Checkpoint:
    """A checkpoint whose training tensors are those of the optimizer alone."""
    own = {key: value for key, value in checkpoint.training.items() if not key.startswith(_RAW)}
    return replace(checkpoint, training=own)
