"""Where predictions go: to the terminal, one by one, or whole into a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from bfno.lab.cli.display import prediction_lines
from bfno.lab.cli.targets import tell_new_folder
from bfno.lab.cli.terminal import say
from bfno.lab.errors import ConfigError

__all__ = ["PredictionWriter", "make_writer"]

_FORMATS = {".csv": "csv", ".json": "json", ".jsonl": "json", ".txt": "table"}


class PredictionWriter(Protocol):
    """Writes predictions."""

    def add(self, prediction: Any) -> None:
        """Write one prediction."""

    def finish(self, failed: int) -> None:
        """Finish the output; `failed` files could not be read."""


def make_writer(layout: str | None, out: Path | None, *, force: bool = False) -> PredictionWriter:
    """Return the writer for the predictions of a command.

    Args:
        layout: `table`, `csv` or `json`; None means that of the file's ending.
        out: The file; None is the terminal.
        force: Whether an existing file may be replaced.

    Raises:
        ConfigError: If there is no such format, or the file exists.
    """
    if out is None:
        return _Terminal(layout or "table")
    if layout is None and out.suffix.lower() not in _FORMATS:
        fix = f"end it in {', '.join(_FORMATS)}, or give --format"
        raise ConfigError(out, "its ending does not name a format", fix)
    writer = _File(layout or _FORMATS[out.suffix.lower()], out)
    if out.is_dir():
        raise ConfigError(out, "is a folder", "name a file")
    if out.exists() and not force:
        raise ConfigError(out, "exists already", "pass --force, or name another file")
    tell_new_folder(out)
    return writer


class _Terminal:
    def __init__(self, layout: str) -> None:
        self._line = prediction_lines(layout)

    def add(self, prediction: Any) -> None:
        for line in self._line(prediction).split("\n"):
            say(line)

    def finish(self, failed: int) -> None:
        pass


class _File:
    def __init__(self, layout: str, out: Path) -> None:
        self._line, self._layout, self._out = prediction_lines(layout), layout, out
        self._lines: list[str] = []

    def add(self, prediction: Any) -> None:
        self._lines.append(self._line(prediction))

    def finish(self, failed: int) -> None:
        from bfno.lab.files import write_atomically

        lost = f"{failed:,} could not be read"
        if not self._lines:
            return say(f"{self._out}: not written: {lost}")
        text = "\n".join(self._lines)
        if self._layout == "json" and self._out.suffix.lower() != ".jsonl":
            text = "[\n" + ",\n".join(self._lines) + "\n]"
        write_atomically(self._out, f"{text}\n".encode(errors="backslashreplace"))
        count = len(self._lines)
        predictions = f"{count:,} prediction{'s' * (count != 1)}"
        say(f"{self._out}: {predictions}{f'; {lost}' if failed else ''}")
