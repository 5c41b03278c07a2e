"""Drives the system's chromium, headless, with playwright; it downloads no browser of its own."""

import importlib.util
import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
MISSING = _CHROMIUM is None or importlib.util.find_spec("playwright") is None
"""Whether chromium or playwright is not installed."""
_PATIENCE = 60_000  # milliseconds; a machine may be busy with other things


class Page:
    """One page of a browser, and all that went wrong on it."""

    def __init__(self, page: Any) -> None:
        self._page, self._protocol = page, page.context.new_cdp_session(page)
        self.problems: list[str] = []
        self.requests: list[str] = []
        page.set_default_timeout(_PATIENCE)
        page.on("request", lambda request: self.requests.append(request.url.partition(",")[0]))
        page.on("console", lambda message: self.problems.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: self.problems.append(f"exception: {error}"))
        page.on("dialog", self._dismiss)

    def open(self, file: Path, scripts: bool = True) -> None:
        """Load a file, with its scripts or without, forgetting what went wrong before."""
        self.send("Emulation.setScriptExecutionDisabled", value=not scripts)
        self.problems.clear()
        self.requests.clear()
        self._page.goto(file.as_uri())
        if scripts:
            self.settle()

    def settle(self) -> None:
        """Wait for two frames, so that what observes sizes has run."""
        self.find("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Ask the browser for something that playwright has no words for."""
        return self._protocol.send(method, params)

    def find(self, expression: str) -> Any:
        """The value of an expression on the page."""
        return self._page.evaluate(expression)

    def wait_for(self, expression: str) -> None:
        """Wait until an expression is true on the page."""
        # Not wait_for_function, which evaluates text on the page: its security policy forbids that.
        end = time.monotonic() + _PATIENCE / 1000
        while not self.find(expression):
            assert time.monotonic() < end, f"never true: {expression}"
            self._page.wait_for_timeout(50)

    def click(self, selector: str) -> None:
        """Press the middle of an element with the mouse."""
        self._page.mouse.click(*self.middle(selector))

    def middle(self, selector: str) -> tuple[float, float]:
        """Where an element is, once it is scrolled into view."""
        x, y = self.find(
            f"(() => {{ const node = document.querySelector({json.dumps(selector)});"
            "node.scrollIntoView({block: 'center'}); const box = node.getBoundingClientRect();"
            "return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        return x, y

    def move_mouse(self, x: float, y: float) -> None:
        """Move the mouse to a place of the window."""
        self._page.mouse.move(x, y)

    def touch(self, x: float, y: float) -> None:
        """Put a finger on a place of the window and lift it again."""
        self._page.touchscreen.tap(x, y)
        self.settle()

    def press(self, key: str) -> None:
        """Press and release a key."""
        self._page.keyboard.press(key)

    def resize(self, width: int, height: int = 900) -> None:
        """Show the page on a screen of this size."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.send("Emulation.setDeviceMetricsOverride", **size)

    def prefer(self, scheme: Any = "light", motion: Any = "no-preference", media: Any = "") -> None:
        """Be a reader who prefers this colour scheme and motion, on a screen or on paper."""
        self._page.emulate_media(color_scheme=scheme, reduced_motion=motion, media=media or "null")

    def _dismiss(self, dialog: Any) -> None:
        self.problems.append(f"dialogue: {dialog.message}")
        dialog.dismiss()


@contextmanager
def browser() -> Iterator[Page]:
    """A browser with an empty page, closed afterwards."""
    from playwright.sync_api import sync_playwright  # pyright: ignore[reportMissingImports]

    with sync_playwright() as play:
        running = play.chromium.launch(executable_path=_CHROMIUM, args=["--no-sandbox"])
        try:
            yield Page(running.new_context(has_touch=True).new_page())
        finally:
            running.close()
