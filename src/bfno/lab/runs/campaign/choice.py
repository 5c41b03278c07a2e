"""Where to train the runs, from the options of a command."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bfno.lab.errors import ConfigError
from bfno.lab.runs.campaign.duration import minutes_of
from bfno.lab.runs.campaign.engine import Engine

__all__ = ["Choice"]

_PLACES = "local, slurm, ray or ray://HOST:PORT"


@dataclass(frozen=True)
class Choice:
    """Where to train, and with what.

    Args:
        on: `local`, `slurm`, `ray` or `ray://HOST:PORT`.
        time: Time limit of a Slurm job, as Slurm writes it.
        gpus: GPUs of each run on a cluster.
        partition: Slurm's partition.

    Raises:
        ConfigError: If there is no such place, or an option does not apply to it.

    Example:
        >>> Choice("slurm", time="4:00:00").minutes
        240
    """

    on: str = "local"
    time: str | None = None
    gpus: int | None = None
    partition: str | None = None

    def __post_init__(self) -> None:
        if self.on not in ("local", "slurm", "ray") and not self.on.startswith("ray://"):
            raise ConfigError(f"--on {self.on}", "is not a place to train", f"write {_PLACES}")
        if self.gpus is not None and self.gpus < 1:
            raise ConfigError(
                f"--gpus {self.gpus}", "is too few", "write 1 or more, or leave it out"
            )
        if self.on != "slurm":
            self._refuse("--time", self.time, "--on slurm")
            self._refuse("--partition", self.partition, "--on slurm")
        if self.is_local:
            self._refuse("--gpus", self.gpus, "--on slurm or --on ray")
        if self.partition is not None and not self.partition.strip():
            raise ConfigError("--partition", "is empty", "write its name, or leave it out")
        _ = self.minutes

    def _refuse(self, option: str, value: object, where: str) -> None:
        if value is not None:
            raise ConfigError(option, f"means nothing here, only with {where}", "leave it out")

    @property
    def is_local(self) -> bool:
        """Whether this machine trains."""
        return self.on == "local"

    @property
    def minutes(self) -> int | None:
        """Time limit of a job in minutes; None leaves it to the cluster.

        Raises:
            ConfigError: If it is not written as Slurm writes times.
        """
        if self.time is None:
            return None
        try:
            minutes = minutes_of(self.time)
        except ValueError as error:
            fix = "write minutes, hours:minutes:seconds or days-hours"
            raise ConfigError("--time", str(error), fix) from error
        if minutes is None:
            raise ConfigError(
                "--time", "has no end, so nothing could be saved before it", "write one"
            )
        return minutes

    def engine(self, runs: Path) -> Engine:
        """Open the engine.

        Args:
            runs: Folder of the runs, which all machines must share.

        Raises:
            ConfigError: If it is missing, does not answer or is not installed.
        """
        if self.is_local:
            from bfno.lab.runs.campaign.local import LocalEngine

            return LocalEngine()
        if self.on == "slurm":
            from bfno.lab.runs.campaign.slurm import SlurmEngine

            return SlurmEngine(runs, self.minutes, self.gpus, self.partition)
        from bfno.lab.runs.campaign.ray import RayEngine

        return RayEngine(None if self.on == "ray" else self.on, self.gpus)
