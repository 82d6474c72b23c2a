"""A headless Chromium over its DevTools pipe: JSON messages, each ended by a zero byte. No other program is needed."""

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")

READ, WRITE = 3, 4
"""File descriptors on which the browser listens and answers."""


def find_browser() -> str | None:
    """Path of a Chromium, if one is installed."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


needs_browser = pytest.mark.skipif(find_browser() is None, reason="no Chromium is installed")


class Page:
    """One tab."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self.to_browser = to_browser
        self.messages = os.fdopen(from_browser, "rb")
        self.calls = 0
        self.session: str | None = None
        self.events: list[dict[str, Any]] = []
        self.rest = b""

    def attach(self) -> Self:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        return self

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Answer of a DevTools method; what happens meanwhile is kept in ``events``."""
        self.calls += 1
        message: dict[str, Any] = {"id": self.calls, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to_browser, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self.calls:
                assert "error" not in answer, answer
                return dict(answer["result"])
            self.events.append(answer)

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self.rest:
            piece = self.messages.read1(1 << 16)
            assert piece, "the browser is gone"
            self.rest += piece
        text, self.rest = self.rest.split(b"\0", 1)
        return dict(json.loads(text))

    def open(self, url: str, dark: bool = False, width: int = 1280, offline: bool = True) -> None:
        """Load a page, without a network unless told otherwise, and wait until its charts are drawn."""
        self.call(
            "Network.emulateNetworkConditions",
            offline=offline,
            latency=0,
            downloadThroughput=-1,
            uploadThroughput=-1,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False
        )
        self.events.clear()
        self.call("Page.navigate", url=url)
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._receive())
        if self.evaluate("document.getElementById('charts') !== null"):
            self.wait_for("document.documentElement.dataset.drawn === 'yes'")

    def wait_for(self, condition: str, seconds: float = 30.0) -> None:
        """Until a script is true."""
        end = time.monotonic() + seconds
        while not self.evaluate(condition):
            assert time.monotonic() < end, f"{condition} does not become true: {self.complaints()}"
            time.sleep(0.02)

    def evaluate(self, script: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def point(self, x: float, y: float, kind: str = "mouseMoved", **more: Any) -> None:
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def middle_of(self, selector: str, number: int = 0) -> tuple[float, float]:
        """Where to point for an element."""
        x, y = self.evaluate(
            f"(() => {{ const node = document.querySelectorAll({selector!r})[{number}];"
            "node.scrollIntoView({block: 'nearest'}); const box = node.getBoundingClientRect();"
            "return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        return x, y

    def count(self, selector: str) -> int:
        """Elements that there are."""
        return int(self.evaluate(f"document.querySelectorAll({selector!r}).length"))

    def text(self, selector: str) -> str:
        """What the first such element says."""
        return str(self.evaluate(f"document.querySelector({selector!r}).textContent"))

    def screenshot(self, selector: str) -> bytes:
        """One element as a PNG."""
        box = self.evaluate(
            f"(() => {{ const box = document.querySelector({selector!r}).getBoundingClientRect();"
            "return {x: box.x + scrollX, y: box.y + scrollY, width: box.width, height: box.height}; })()"
        )
        clip = {"scale": 1, **box}
        return base64.b64decode(
            self.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)["data"]
        )

    def complaints(self, origin: str = "file:") -> list[Any]:
        """Exceptions, console errors and requests for anything but pages of the origin."""
        return [event for event in self.events if _is_complaint(event, origin)]


Show = Callable[..., Page]
"""``show(text, dark=..., width=...)`` opens a page that is given as text."""


def _is_complaint(event: dict[str, Any], origin: str) -> bool:
    method, facts = event.get("method"), event.get("params", {})
    if method == "Log.entryAdded":
        return bool(facts["entry"]["level"] == "error")
    if method == "Runtime.consoleAPICalled":
        return facts["type"] in ("error", "warning", "assert")
    if method == "Network.requestWillBeSent":
        return not facts["request"]["url"].startswith((origin, "data:", "blob:"))
    return method == "Runtime.exceptionThrown"


@contextmanager
def browser_page(browser: str, profile: Path) -> Iterator[Page]:
    """A tab in a browser of its own, closed at the end."""
    browser_reads, we_write = os.pipe()
    we_read, browser_writes = os.pipe()

    def place() -> None:
        reads, writes = os.dup(browser_reads), os.dup(browser_writes)
        os.dup2(reads, READ)
        os.dup2(writes, WRITE)

    command = [browser, "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu"]
    process = subprocess.Popen(
        [*command, "--no-first-run", f"--user-data-dir={profile}"],
        preexec_fn=place,
        close_fds=False,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(browser_reads)
    os.close(browser_writes)
    page = Page(we_write, we_read)
    try:
        yield page.attach()
        page.session = None
        page.call("Browser.close")
    finally:
        process.kill()
        process.wait()
        os.close(we_write)
        page.messages.close()


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """A tab for all tests of a module; a conftest.py imports it."""
    browser = find_browser()
    assert browser
    with browser_page(browser, tmp_path_factory.mktemp("profile")) as page:
        yield page
