"""Options that several commands share, commands with many options, and the order of commands."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperGroup

__all__ = ["AnyCheckpoint", "DataDir", "Debug", "Epochs", "Gpus", "Group", "Independent", "Json"]
__all__ += [
    "Log",
    "OldFolder",
    "On",
    "OwnData",
    "Partition",
    "Reading",
    "Run",
    "RunDataDir",
    "Runs",
]
__all__ += ["Scale", "Seed", "Sets", "TimeLimit", "takes"]

Run = Annotated[Path, typer.Argument(help="Folder of a run.")]
Runs = Annotated[list[Path], typer.Argument(metavar="RUN", help="Folders of runs.")]
Sets = Annotated[
    list[str] | None, typer.Option("--set", "-s", help="A setting, section.key=value; repeatable.")
]
Reading = Annotated[
    list[str] | None,
    typer.Option("--set", "-s", help="How to read the other files, data.key=value; repeatable."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")]
Independent = Annotated[
    bool,
    typer.Option(
        "--independent",
        help="Make each result independent of the other samples in its batch, and say how.",
    ),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Seed = Annotated[
    int | None, typer.Option(help="Seed of all random numbers; default 7, or the file's.")
]
Scale = Annotated[str | None, typer.Option(help="smoke, cpu (default) or paper.")]
Log = Annotated[
    list[str] | None,
    typer.Option(help="Copy settings and metrics to tensorboard, mlflow or wandb; repeatable."),
]
DataDir = Annotated[
    Path | None,
    typer.Option(help="Folder of the data sets; default $BFNO_DATA, or else the user's cache."),
]
RunDataDir = Annotated[
    Path | None,
    typer.Option(help="Folder of the data sets; default where the run found them."),
]
OwnData = Annotated[
    Path | None,
    typer.Option(
        "--data", help="Your own data: a folder of images, or a table or folder of series."
    ),
]
On = Annotated[str, typer.Option(help="Where to train: local, slurm, ray or ray://HOST:PORT.")]
TimeLimit = Annotated[
    str | None,
    typer.Option(help="Slurm: time limit of a job, after which it is resubmitted and continues."),
]
Gpus = Annotated[int | None, typer.Option(help="Slurm, Ray: GPUs of each run.")]
Partition = Annotated[str | None, typer.Option(help="Slurm: partition of the jobs.")]
OldFolder = Annotated[Path | None, typer.Option("--folder", hidden=True)]  # the old --data
Epochs = Annotated[int | None, typer.Option(min=1, help="Passes over the training data.")]
AnyCheckpoint = Annotated[
    bool,
    typer.Option(
        "--any-checkpoint", help="If the best checkpoint is damaged, use the newest intact one."
    ),
]
# In the order in which a newcomer needs them; a group has some of these commands.
_ORDER = (
    *("demo", "train", "resume", "sweep", "eval", "predict", "export", "reconstruct", "sample"),
    *("runs", "compare", "report", "figures", "table", "results"),
    *("models", "config", "data", "list", "get", "check", "import-released", "bench"),
)
_WHOLE = 1000  # letters of a summary: long ones are wrapped, never cut


def _place(command: str) -> int:
    return _ORDER.index(command) if command in _ORDER else len(_ORDER)


class Group(TyperGroup):
    """Lists its commands in the order of use; called without a command, it prints its help."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Print the help if there are no arguments."""
        return super().parse_args(ctx, args or ["--help"])

    def list_commands(self, ctx: Any) -> list[str]:
        """The names of the commands, in the order of use."""
        return sorted(super().list_commands(ctx), key=_place)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write every command with its whole summary."""
        commands = [(name, self.commands[name]) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, one.get_short_help_str(_WHOLE)) for name, one in commands])


def takes(arguments: type) -> Callable[[Callable[[Any], Any]], Callable[..., Any]]:
    """Give a command the fields of a dataclass as its options.

    The function behind it then takes one object instead of a dozen parameters.

    Args:
        arguments: The dataclass, annotated like parameters for typer.
    """
    hints = get_type_hints(arguments, include_extras=True)
    parameters = [
        one.replace(annotation=hints[name])
        for name, one in inspect.signature(arguments).parameters.items()
    ]

    def decorate(command: Callable[[Any], Any]) -> Callable[..., Any]:
        def call(**given: Any) -> Any:
            return command(arguments(**given))

        call.__name__, call.__doc__ = command.__name__, command.__doc__
        call.__annotations__ = hints
        call.__dict__["__signature__"] = inspect.Signature(parameters)
        return call

    return decorate
