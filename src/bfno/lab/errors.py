"""Errors that a user can fix: one line each, with the thing, the reason and the fix."""

from __future__ import annotations

import difflib
import itertools
import shlex
from collections.abc import Iterable, Sequence

__all__ = [
    "ConfigError",
    "DataError",
    "NumericalError",
    "UserError",
    "bfno_command",
    "first_names",
    "nearest_names",
]


class UserError(Exception):
    """Something outside the program is wrong, and the message says what to do about it.

    Args:
        what: The thing at fault: a file, a setting, a name.
        why: What is wrong with it.
        fix: What to do.

    Example:
        >>> print(DataError("labels.gz", "is cut off", "download it again"))
        labels.gz: is cut off. Fix: download it again
    """

    exit_code = 1

    def __init__(self, what: object, why: str, fix: str) -> None:
        super().__init__(f"{what}: {why}. Fix: {fix}")
        self.what, self.why, self.fix = what, why, fix


class ConfigError(UserError):
    """A setting, a name or a run is wrong or does not match."""

    exit_code = 2


class DataError(UserError):
    """A file cannot be read or written as it should be."""

    exit_code = 3


class NumericalError(UserError):
    """The computation reached numbers that are not finite, or its solver gave up."""

    exit_code = 4


def bfno_command(*words: object) -> str:
    """A command of the program, quoted for a shell where necessary.

    All messages that tell a user what to type next use this.

    Args:
        words: The words after `bfno`: names, options, paths.

    Example:
        >>> print(bfno_command("resume", "my runs/digits"))
        bfno resume 'my runs/digits'
    """
    return shlex.join(["bfno", *map(str, words)])


def first_names(names: Sequence[str], most: int = 5) -> str:
    """The first of some names, with a sign if there are more.

    Example:
        >>> first_names(["cat", "dog"]), first_names(["cat", "dog", "emu"], 2)
        ('cat, dog', 'cat, dog, …')
    """
    return ", ".join(names[:most]) + ", …" * (len(names) > most)


def nearest_names(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """The known names that a wrong one may mean, likeliest first.

    Example:
        >>> nearest_names("bfno", ["node", "anode", "bfno-net", "bfno-node"], count=2)
        ['bfno-net', 'bfno-node']
        >>> nearest_names("NODE", ["sonode", "anode", "node"], count=1)
        ['node']
    """
    # Comparing takes time in proportion to the lengths, and names may come from a file.
    names, wanted = [word[:100] for word in known][:1000], name[:100].lower()
    spelt: dict[str, list[str]] = {}
    for one in names:
        spelt.setdefault(one.lower(), []).append(one)
    begun = [word for word in names if wanted and word.lower().startswith(wanted)]
    alike = difflib.get_close_matches(wanted, spelt, n=count, cutoff=0.0)
    same = itertools.chain.from_iterable(spelt[one] for one in alike)
    return list(dict.fromkeys([*begun, *same]))[:count]
