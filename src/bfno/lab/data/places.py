"""The folders of data sets and of files made from them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["cache_folder", "data_folder"]


def data_folder(data_dir: Path | None = None) -> Path:
    """Return the folder with all data sets.

    It is the given folder, or else the one in the environment variable `BFNO_DATA`, or else `bfno`
    in the user's cache folder.

    Example:
        >>> data_folder(Path("here"))
        PosixPath('here')
    """
    if data_dir is not None:
        return Path(data_dir)
    if os.environ.get("BFNO_DATA"):
        return Path(os.environ["BFNO_DATA"])
    return cache_folder()


def cache_folder() -> Path:
    """Return `bfno` in the user's cache folder, where anything may be deleted at any time."""
    if sys.platform == "darwin":
        cache = "~/Library/Caches"
    else:
        cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.path.expanduser(cache)) / "bfno"
