"""Downloads a file so that its name appears only once its checksum is right.

Partial downloads are kept in `NAME.part`, from which the next attempt continues.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast
from urllib.parse import urljoin, urlsplit

from bfno.lab.data.catalogue import Download
from bfno.lab.data.reading import one_line
from bfno.lab.errors import ConfigError, DataError
from bfno.lab.files import lock_file

if TYPE_CHECKING:
    from requests import Response, Session

__all__ = ["Patience", "Progress", "download"]

Progress = Callable[[str, int, "int | None"], None]
"""Called with the file's name, the bytes so far and the total bytes."""

_PIECE = 1 << 14  # less than that is lost when a connection breaks off
_REDIRECTS = 5
_LARGEST = 1 << 32  # bytes of a file whose size was not published


@dataclass(frozen=True)
class Patience:
    """How long a download waits.

    Attributes:
        connect: Seconds to wait for a connection.
        stall: Seconds without a byte after which it counts as broken.
        attempts: Number of attempts.
        pause: Seconds before the second attempt; doubled before each further one.
    """

    connect: float = 10.0
    stall: float = 30.0
    attempts: int = 4
    pause: float = 1.0


class _TryAgainError(Exception):
    """The connection failed in a way that may be temporary."""


def download(
    file: Download,
    folder: Path,
    *,
    fix: str = "download it by hand",
    url: str | None = None,
    progress: Progress | None = None,
    patience: Patience | None = None,
) -> Path:
    """Download a file into a folder and return its path.

    A file of that name with the right checksum is kept; any other is replaced.

    Args:
        file: The file to download.
        folder: The folder to put it in.
        fix: What to do if it cannot be downloaded.
        url: Another address of the same file.
        progress: Called for every piece that arrives.
        patience: How long to wait and how often to try.

    Raises:
        ConfigError: If pooch is missing.
        DataError: If it cannot be downloaded; what has arrived so far stays in `NAME.part`.
    """
    patience = patience or Patience()
    fetch = _Fetch(file, folder / file.name, fix, progress, patience)
    failure = ""
    for attempt in range(patience.attempts):
        if attempt:
            time.sleep(patience.pause * 2 ** (attempt - 1))
        try:
            return _retrieve(url or file.url, file, folder, fetch)
        except _TryAgainError as error:
            failure = str(error)
        except ValueError as error:
            # A stale part may have spoilt the file; one that came in one piece is simply wrong.
            failure = "what the server sends does not have the published checksum"
            if not fetch.resumed:
                raise fetch.refusal(failure) from error
        except OSError as error:
            raise fetch.refusal(f"cannot be written ({one_line(error)})") from error
    raise fetch.refusal(f"cannot be downloaded ({failure})")


def _retrieve(url: str, file: Download, folder: Path, fetch: _Fetch) -> Path:
    """Let pooch fetch the file, check its checksum and name it."""
    try:
        import pooch
    except ImportError as error:
        raise ConfigError(
            "download", "needs pooch, which is missing", "pip install 'bfno[train]'"
        ) from error
    with _quiet(pooch.get_logger()):
        # The type that pooch declares for a downloader is not how it calls one.
        downloader = cast(Any, fetch)
        pooch.retrieve(url, file.digest, file.name, folder, downloader=downloader)
    return folder / file.name


class _Fetch:
    """Fetches one file for pooch, continuing where an earlier attempt stopped."""

    def __init__(
        self,
        file: Download,
        target: Path,
        fix: str,
        progress: Progress | None,
        patience: Patience,
    ) -> None:
        self._file, self._target, self._fix = file, target, fix
        self._progress, self._patience = progress, patience
        self._part = target.with_name(f"{target.name}.part")
        self._size = file.size
        self.resumed = False

    def __call__(self, url: str, output_file: str, _: Any) -> None:
        """Download the whole file to the place that pooch checks and then renames."""
        try:
            with open(self._part, "ab") as part:
                self._lock(part)
                self._complete(url, part)
                part.flush()
                os.fsync(part.fileno())
        finally:
            with suppress(OSError):
                if self._part.stat().st_size == 0:
                    self._part.unlink()
        os.replace(self._part, output_file)

    def refusal(self, why: str) -> DataError:
        """The error that says why the file cannot be downloaded."""
        return DataError(self._target, why, self._fix)

    def _lock(self, part: IO[bytes]) -> None:
        if not lock_file(part.fileno()):
            why = "is being downloaded by another process"
            raise DataError(self._target, why, "wait until it is done")

    def _complete(self, url: str, part: IO[bytes]) -> None:
        import requests

        if self._size is not None and part.tell() > self._size:
            _empty(part)
        if part.tell() == self._size:
            self.resumed = True
            return
        try:
            with requests.Session() as session, self._open(session, url, part.tell()) as reply:
                self._check_reply(reply, part)
                self._copy(reply, part)
        except requests.Timeout as error:
            raise _TryAgainError(f"{urlsplit(url).netloc} does not answer") from error
        except requests.ConnectionError as error:
            raise _TryAgainError(f"no connection to {urlsplit(url).netloc}") from error
        except requests.exceptions.ChunkedEncodingError as error:
            raise _TryAgainError("the connection broke off") from error
        except requests.RequestException as error:
            raise _TryAgainError(one_line(error)) from error

    def _open(self, session: Session, url: str, start: int) -> Response:
        """Request the file from a byte on, following redirects that stay encrypted."""
        headers = {"Accept-Encoding": "identity"}
        if start:
            headers["Range"] = f"bytes={start}-"
        for _ in range(_REDIRECTS):
            timeout = (self._patience.connect, self._patience.stall)
            reply = session.get(
                url, headers=headers, stream=True, timeout=timeout, allow_redirects=False
            )
            if not reply.is_redirect:
                return reply
            reply.close()
            before, url = url, urljoin(url, reply.headers["Location"])
            if urlsplit(url).scheme not in {"https", urlsplit(before).scheme}:
                raise self.refusal(f"the server redirects to {url}, which is not encrypted")
        raise self.refusal("the server redirects without end")

    def _check_reply(self, reply: Response, part: IO[bytes]) -> None:
        """Refuse anything but the file, and start again if the server cannot continue."""
        start = part.tell()
        if reply.status_code >= 500 or reply.status_code in {408, 429}:
            raise _TryAgainError(f"the server answers {reply.status_code} {reply.reason}")
        if reply.status_code == 416:
            _empty(part)
            raise _TryAgainError("the server does not have as much as was downloaded before")
        if reply.status_code not in {200, 206}:
            raise self.refusal(f"the server answers {reply.status_code} {reply.reason}")
        if reply.headers.get("Content-Type", "").lower().startswith("text/html"):
            why = "the server answers with a web page; the network may want a login first"
            raise self.refusal(why)
        place = reply.headers.get("Content-Range", "")
        self.resumed = reply.status_code == 206 and place.startswith(f"bytes {start}-")
        if not self.resumed:
            _empty(part)
            if reply.status_code == 206:
                raise _TryAgainError("the server sent another part than the one asked for")
        announced = reply.headers.get("Content-Length", "")
        if self._file.size is None and announced.isdecimal():
            self._size = part.tell() + int(announced)

    def _copy(self, reply: Response, part: IO[bytes]) -> None:
        for piece in reply.iter_content(_PIECE):
            part.write(piece)
            if part.tell() > (self._size or _LARGEST):
                _empty(part)
                raise self.refusal("the server sends more than the file")
            if self._progress is not None:
                self._progress(self._file.name, part.tell(), self._size)
        if self._size is not None and part.tell() < self._size:
            raise _TryAgainError(f"it ended after {part.tell():,} of {self._size:,} bytes")


def _empty(part: IO[bytes]) -> None:
    part.seek(0)
    part.truncate()


@contextmanager
def _quiet(logger: Any) -> Iterator[None]:
    """Keep pooch from writing to the terminal, which the program uses itself."""
    before = logger.level
    logger.setLevel("WARNING")
    try:
        yield
    finally:
        logger.setLevel(before)
