"""The processes that train together: one here, or several under `torchrun`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

__all__ = ["Processes"]

# A process that has died or hangs is noticed by the others within this time.
_PATIENCE = timedelta(seconds=60)


@dataclass(frozen=True)
class Processes:
    """This process among those of a run; by default the only one.

    Attributes:
        rank: Number of this process.
        count: How many there are.
        device: Where this one computes.
        accelerator: What puts model and optimizer there, once it has joined the others.
    """

    rank: int = 0
    count: int = 1
    device: torch.device = dataclasses.field(default_factory=lambda: torch.device("cpu"))
    accelerator: Any = None

    @classmethod
    def join(cls) -> Processes:
        """Meet the other processes, if the program was launched as several."""
        from accelerate import Accelerator
        from accelerate.utils import InitProcessGroupKwargs

        joined = Accelerator(kwargs_handlers=[InitProcessGroupKwargs(timeout=_PATIENCE)])
        return cls(joined.process_index, joined.num_processes, joined.device, joined)

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes files."""
        return self.rank == 0

    def add_up(self, values: Tensor) -> Tensor:
        """The sum over all processes, which each of them gets."""
        if self.count == 1:
            return values
        return self.accelerator.reduce(values.to(self.device), "sum").cpu()
