"""Drives Debian's chromium, headless, over a pipe: the DevTools protocol with no package at all."""

import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
_FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars"]
_FLAGS += ["--disable-background-networking", "--remote-debugging-pipe"]
_PATIENCE = 60.0  # seconds; a machine may be busy with other things
_FIRST_FREE = 10  # the browser wants 3 and 4 for itself
_KEYS = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Tab": 9, " ": 32}


class Page:
    """One page of a browser, and all that went wrong on it."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._rest, self._number, self._session = b"", 0, None
        self._loaded = False
        self.problems: list[str] = []
        self.requests: list[str] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def open(self, file: Path, scripts: bool = True) -> None:
        """Load a file, with its scripts or without, forgetting what went wrong before."""
        self.send("Emulation.setScriptExecutionDisabled", value=not scripts)
        self._loaded = False
        self.problems, self.requests = [], []
        self.send("Page.navigate", url=file.as_uri())
        while not self._loaded:
            self._receive()
        if scripts:
            self.settle()

    def settle(self) -> None:
        """Wait for two frames, so that what observes sizes has run."""
        self.find("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Ask the browser for something, and wait for the answer."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]

    def find(self, expression: str) -> Any:
        """The value of an expression on the page."""
        words = {"returnByValue": True, "awaitPromise": True}
        found = self.send("Runtime.evaluate", expression=expression, **words)
        assert "exceptionDetails" not in found, found.get("exceptionDetails")
        return found["result"].get("value")

    def wait_for(self, expression: str) -> None:
        """Wait until an expression is true on the page."""
        end = time.monotonic() + _PATIENCE
        while not self.find(expression):
            assert time.monotonic() < end, f"never true: {expression}"
            time.sleep(0.05)

    def click(self, selector: str) -> None:
        """Press the middle of an element with the mouse."""
        x, y = self.middle(selector)
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.mouse(kind, x, y)

    def middle(self, selector: str) -> tuple[float, float]:
        """Where an element is, once it is scrolled into view."""
        x, y = self.find(
            f"(() => {{ const node = document.querySelector({json.dumps(selector)});"
            "node.scrollIntoView({block: 'center'}); const box = node.getBoundingClientRect();"
            "return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        return x, y

    def mouse(self, kind: str, x: float, y: float) -> None:
        """Move or press the mouse at a place of the window."""
        button = "none" if kind == "mouseMoved" else "left"
        self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button=button, clickCount=1)

    def touch(self, x: float, y: float) -> None:
        """Put a finger on a place of the window and lift it again."""
        self.send("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
        self.send("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
        self.settle()

    def press(self, key: str) -> None:
        """Press and release a key."""
        code = {"key": key, "windowsVirtualKeyCode": _KEYS[key]}
        text = {"text": " "} if key == " " else {}
        self.send("Input.dispatchKeyEvent", type="keyDown", **code, **text)
        self.send("Input.dispatchKeyEvent", type="keyUp", **code)

    def resize(self, width: int, height: int = 900) -> None:
        """Show the page on a screen of this size."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.send("Emulation.setDeviceMetricsOverride", **size)

    def prefer(self, scheme: str = "light", motion: str = "no-preference", media: str = "") -> None:
        """Be a reader who prefers this colour scheme and motion, on a screen or on paper."""
        features = {"prefers-color-scheme": scheme, "prefers-reduced-motion": motion}
        listed = [{"name": name, "value": value} for name, value in features.items()]
        self.send("Emulation.setEmulatedMedia", media=media, features=listed)

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._from], [], [], _PATIENCE)
            assert ready, "the browser does not answer"
            received = os.read(self._from, 1 << 16)
            assert received, "the browser has gone"
            self._rest += received
        text, _, self._rest = self._rest.partition(b"\0")
        message = json.loads(text)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, event: str, told: dict[str, Any]) -> None:
        if event == "Page.loadEventFired":
            self._loaded = True
        elif event == "Network.requestWillBeSent":
            self.requests.append(told["request"]["url"].partition(",")[0])
        elif event == "Log.entryAdded" and told["entry"]["level"] in ("warning", "error"):
            self.problems.append(told["entry"]["text"])
        elif event == "Runtime.consoleAPICalled":
            self.problems.append(f"console: {told['args']}")
        elif event == "Runtime.exceptionThrown":
            self.problems.append(f"exception: {told['exceptionDetails']}")
        elif event == "Page.javascriptDialogOpening":
            self.problems.append(f"dialogue: {told['message']}")


@contextmanager
def browser(profile: Path) -> Iterator[Page]:
    """A browser with an empty page, closed afterwards.

    Args:
        profile: An empty folder for what the browser remembers.
    """
    assert CHROMIUM is not None
    theirs_in, ours_out = _pipe()
    ours_in, theirs_out = _pipe()

    def place_pipes() -> None:
        os.dup2(theirs_in, 3)
        os.dup2(theirs_out, 4)

    words = [CHROMIUM, *_FLAGS, f"--user-data-dir={profile}"]
    process = subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=place_pipes,
        pass_fds=(3, 4),
    )
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        yield Page(ours_out, ours_in)
    finally:
        os.close(ours_out)  # a browser whose pipe ends goes away
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(ours_in)


def _pipe() -> tuple[int, int]:
    """A pipe whose ends are out of the way of the numbers that the browser wants."""
    ends = os.pipe()
    moved = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE) for end in ends]
    for end in ends:
        os.close(end)
    return moved[0], moved[1]
