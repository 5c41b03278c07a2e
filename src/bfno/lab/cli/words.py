"""Options of several commands, and commands of many options, which they take from a class."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any, get_type_hints

import typer

__all__ = ["AnyCheckpoint", "takes"]

AnyCheckpoint = Annotated[
    bool,
    typer.Option(
        "--any-checkpoint", help="If the best checkpoint is damaged, take the newest whole one."
    ),
]


def takes(words: type) -> Callable[[Callable[[Any], Any]], Callable[..., Any]]:
    """Give a command the fields of a dataclass as its options.

    A command of more options than a function should have parameters gets one: their object.

    Args:
        words: The dataclass; its annotations are typer's.
    """
    hints = get_type_hints(words, include_extras=True)
    parameters = [
        one.replace(annotation=hints[name])
        for name, one in inspect.signature(words).parameters.items()
    ]

    def decorate(command: Callable[[Any], Any]) -> Callable[..., Any]:
        def call(**given: Any) -> Any:
            return command(words(**given))

        call.__name__, call.__doc__ = command.__name__, command.__doc__
        call.__annotations__ = hints
        call.__dict__["__signature__"] = inspect.Signature(parameters)
        return call

    return decorate
