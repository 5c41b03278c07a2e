"""The processes that train together: a single one, or several under `torchrun`."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bfno.lab.errors import ConfigError, UserError, bfno_command

__all__ = ["Processes", "explain_lost_peers", "is_one_of_several"]

# A process that has died or hangs is noticed by the others within this time.
_PATIENCE = timedelta(seconds=60)
# With these, Accelerate gives each process a part of the weights, and the first would save its own
# part as if it were all of them. Without a GPU, Accelerate ignores them and says nothing.
_PARTS = ("ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED", "ACCELERATE_USE_MEGATRON_LM")


@dataclass(frozen=True)
class Processes:
    """This process among those of a run; by default the only one.

    Attributes:
        rank: Number of this process.
        count: Number of processes.
        device: Device of this process.
        accelerator: Puts model and optimizer on the device, once it has joined the others.
    """

    rank: int = 0
    count: int = 1
    device: torch.device = dataclasses.field(default_factory=lambda: torch.device("cpu"))
    accelerator: Any = None

    @classmethod
    def join(cls) -> Processes:
        """Connect to the other processes, if the program was launched as several.

        Raises:
            ConfigError: If the environment asks for a model split among processes.
        """
        from accelerate import Accelerator
        from accelerate.utils import InitProcessGroupKwargs, parse_flag_from_env

        for name in filter(parse_flag_from_env, _PARTS):
            why = "splits the model among processes, which checkpoints do not know"
            raise ConfigError(name, why, "unset it: every process then has the whole model")
        # Without a GPU, Accelerate would otherwise treat each process as the only one.
        on_cpu = is_one_of_several() and not (torch.cuda.is_available() or torch.xpu.is_available())
        patience = InitProcessGroupKwargs(timeout=_PATIENCE)
        joined = Accelerator(cpu=on_cpu, kwargs_handlers=[patience])
        return cls(joined.process_index, joined.num_processes, joined.device, joined)

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes files."""
        return self.rank == 0

    def add_up(self, values: Tensor) -> Tensor:
        """The sum over all processes, returned in each of them."""
        if self.count == 1:
            return values
        return self.accelerator.reduce(values.to(self.device), "sum").cpu()

    def wait(self) -> None:
        """Continue when all processes have arrived here."""
        self.add_up(torch.zeros(1))


def is_one_of_several() -> bool:
    """Whether the program was launched as several processes."""
    return int(os.environ.get("WORLD_SIZE") or 1) > 1


@contextlib.contextmanager
def explain_lost_peers(run: Path, rescue: Callable[[], object] = bool) -> Iterator[None]:
    """Turn the many errors of a broken connection into one that says what to do.

    Args:
        run: Folder of the run.
        rescue: Called first; may save the state of this process.

    Raises:
        UserError: If another process of the run has left or no longer answers.
    """
    try:
        yield
    except RuntimeError as error:
        # The errors of torch.distributed, or a plain one with the name of the transport in it.
        if not type(error).__name__.startswith("Dist") and "gloo" not in str(error):
            raise
        rescue()
        raise UserError(
            "another process of this run",
            "has died or hangs",
            f"look at its output, then {bfno_command('resume', run)}",
        ) from error
