"""A headless Chromium over its DevTools pipe: JSON messages, each ended by a zero byte. No other program is needed."""

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")

READ, WRITE = 3, 4
"""File descriptors on which the browser listens and answers."""


def find_browser() -> str | None:
    """Path of a Chromium, if one is installed."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """One tab."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self.to_browser = to_browser
        self.messages = os.fdopen(from_browser, "rb")
        self.count = 0
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
        self.count += 1
        message: dict[str, Any] = {"id": self.count, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to_browser, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self.count:
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

    def open(self, file: Path, dark: bool = False) -> None:
        """Load a file without a network, and wait until it has run."""
        self.call(
            "Network.emulateNetworkConditions",
            offline=True,
            latency=0,
            downloadThroughput=0,
            uploadThroughput=0,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call(
            "Emulation.setDeviceMetricsOverride", width=1280, height=900, deviceScaleFactor=1, mobile=False
        )
        self.events.clear()
        self.call("Page.navigate", url=file.as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._receive())

    def evaluate(self, script: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def point(self, x: float, y: float, kind: str = "mouseMoved", **more: Any) -> None:
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def screenshot(self, selector: str) -> bytes:
        """One element as a PNG."""
        box = self.evaluate(f"document.querySelector({selector!r}).getBoundingClientRect().toJSON()")
        clip = {"scale": 1, **{name: box[name] for name in ("x", "y", "width", "height")}}
        return base64.b64decode(self.call("Page.captureScreenshot", format="png", clip=clip)["data"])

    def complaints(self) -> list[Any]:
        """Exceptions, console errors and requests for anything but the page itself."""
        return [event for event in self.events if _is_complaint(event)]


def _is_complaint(event: dict[str, Any]) -> bool:
    method, facts = event.get("method"), event.get("params", {})
    if method == "Log.entryAdded":
        return bool(facts["entry"]["level"] == "error")
    if method == "Runtime.consoleAPICalled":
        return facts["type"] in ("error", "warning", "assert")
    if method == "Network.requestWillBeSent":
        return not facts["request"]["url"].startswith(("file:", "data:"))
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
