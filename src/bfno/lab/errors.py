"""What a user can mend: each error is one line that names the thing, the reason and the fix."""

from __future__ import annotations

__all__ = ["ConfigError", "DataError", "NumericalError", "UserError"]


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
    """A setting, a name or a run does not fit."""

    exit_code = 2


class DataError(UserError):
    """A file cannot be read or written as it should be."""

    exit_code = 3


class NumericalError(UserError):
    """The computation left the finite numbers or its solver gave up."""

    exit_code = 4
