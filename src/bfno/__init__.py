"""Neural ordinary differential equations whose time-derivative is a neural operator."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bfno.public import *  # noqa: F403

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # The public names need torch, which takes more than a second to import: too long for a program
    # that only prints its help. Hence nothing is loaded before the first name is asked for.
    if name.startswith("__") and name != "__all__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    public = importlib.import_module("bfno.public")
    # Loading the public names has made the library's own modules, such as bfno.ode, attributes.
    value = globals().get(name, getattr(public, name, None))
    if value is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *importlib.import_module("bfno.public").__all__})
