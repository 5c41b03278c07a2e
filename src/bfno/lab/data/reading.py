"""Reading files that may be damaged or hostile, with bounded memory and one kind of error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import numpy as np

from bfno.lab.errors import DataError

__all__ = ["one_line", "read_up_to", "refusing_damage"]

_PIECE = 1 << 20


class _Stream(Protocol):
    def read(self, size: int, /) -> bytes: ...


@contextmanager
def refusing_damage(path: Path, fix: str) -> Iterator[None]:
    """Turn all errors of the standard library's and numpy's readers into a `DataError`.

    Args:
        path: The file that is being read.
        fix: The remedy for the user.
    """
    try:
        yield
    except DataError:
        raise
    except FileNotFoundError as error:
        raise DataError(path, "is missing", fix) from error
    except PermissionError as error:
        raise DataError(
            path, "cannot be read: permission denied", f"give yourself access, or {fix}"
        ) from error
    # Wrong bytes make the readers of tar, zip, gzip and numpy raise almost anything.
    except Exception as error:
        raise DataError(path, f"is damaged ({one_line(error)})", fix) from error


def one_line(error: BaseException) -> str:
    r"""Return the error's text on one line, or its type if it has none.

    Example:
        >>> one_line(EOFError()), one_line(ValueError("two\nlines"))
        ('EOFError', 'two lines')
    """
    return " ".join(str(error).split())[:200] or type(error).__name__


def read_up_to(stream: _Stream, size: int) -> np.ndarray:
    """Return the next bytes of a stream, fewer than requested only at its end.

    Example:
        >>> import io
        >>> read_up_to(io.BytesIO(b"abc"), 9).tobytes()
        b'abc'
    """
    data, filled = np.empty(size, np.uint8), 0
    while filled < size and (piece := stream.read(min(size - filled, _PIECE))):
        data[filled : filled + len(piece)] = np.frombuffer(piece, np.uint8)
        filled += len(piece)
    return data[:filled]
