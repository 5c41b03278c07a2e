"""The files that commands write."""

from __future__ import annotations

from pathlib import Path

from bfno.lab.cli.terminal import say

__all__ = ["tell_new_folder"]


def tell_new_folder(out: Path) -> None:
    """Say that the folder of a file will be created: its name may be mistyped.

    Args:
        out: The file that a command will write.

    Raises:
        ConfigError: If it lies below something that is not a folder.
    """
    from bfno.lab.files import existing_folder

    if existing_folder(out) != out.absolute().parent:
        say(f"note: {out.parent} does not exist and will be created", error=True)
