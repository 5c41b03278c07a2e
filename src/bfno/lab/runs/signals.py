"""Stop signals, obeyed between two steps."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType
from typing import Any

__all__ = ["StopSignals", "Stopped"]

# A Ctrl-C often comes twice: from the terminal, and again from a launcher that passes it on.
_ECHO_SECONDS = 0.5


class Stopped(Exception):
    """The run got a signal to stop, and has saved its state.

    Args:
        number: The signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.exit_code = 128 + number


class StopSignals:
    """Inside, SIGTERM and SIGINT only set a flag, so that a step is never interrupted.

    A second signal, unless it is an echo of the first, acts at once, for users who cannot wait.

    Attributes:
        received: The signal that came, or 0.
    """

    def __init__(self) -> None:
        self.received = 0
        self._time = 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        # Python lets only the main thread handle signals; other threads get none.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._hear)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if not self.received:
            self.received, self._time = number, time.monotonic()
        elif time.monotonic() - self._time > _ECHO_SECONDS:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
