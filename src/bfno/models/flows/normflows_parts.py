"""The optional package whose parts some flows are built of."""

from __future__ import annotations

from typing import Any

__all__ = ["load_normflows"]


def load_normflows(what: str) -> Any:
    """The package `normflows`.

    Its maps go from latent variables to samples, and `inverse` goes back.

    Args:
        what: What needs it.

    Raises:
        ImportError: If it is not installed, with what to do.
    """
    try:
        import normflows
    except ImportError as error:
        message = f"{what} needs normflows, which is missing; pip install 'bfno[flows]'"
        raise ImportError(message) from error
    return normflows
