"""A headless Chromium that a test drives: real keys, real styles, over the debugging pipe and without a network."""

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--remote-debugging-pipe",
)
VIRTUAL_KEYS = {" ": 32, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
KEY_TEXTS = {" ": " "}


class Browser:
    """One page of a running browser. Messages are JSON, each ended by a zero byte."""

    def __init__(self, send: int, receive: int) -> None:
        self._send, self._receive = send, receive
        self._buffer, self._number, self._session = b"", 0, ""
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> Any:
        """One command of the DevTools protocol; returns its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def open(self, page: Path, address: str = "") -> None:
        """Loads a file afresh, and waits until it has."""
        self.events.clear()
        # An address that differs behind the # alone would not be loaded again.
        self.call("Page.navigate", url=f"{page.as_uri()}?{self._number}{address}")
        self._wait("Page.loadEventFired")

    def look(self, width: int = 1366, height: int = 768, scheme: str = "light", motion: str = "reduce") -> None:
        """Sets window and the reader's preferences."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        preferences = {"prefers-color-scheme": scheme, "prefers-reduced-motion": motion}
        features = [{"name": name, "value": value} for name, value in preferences.items()]
        self.call("Emulation.setEmulatedMedia", features=features)

    def press(self, *keys: str) -> None:
        """Presses keys one after another, as a keyboard does."""
        for key in keys:
            named = {"key": key, "windowsVirtualKeyCode": VIRTUAL_KEYS.get(key, 0)}
            text = {"text": KEY_TEXTS[key]} if key in KEY_TEXTS else {}
            self.call("Input.dispatchKeyEvent", type="keyDown", **named, **text)
            self.call("Input.dispatchKeyEvent", type="keyUp", **named)

    def click(self, selector: str) -> None:
        """Clicks the middle of the first element that the selector finds."""
        box = self.run(
            f"(b => [b.x + b.width / 2, b.y + b.height / 2])(document.querySelector({json.dumps(selector)})"
            ".getBoundingClientRect())"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", buttons=1, clickCount=1)

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression; promises are awaited."""
        options = {"returnByValue": True, "awaitPromise": True}
        answer = self.call("Runtime.evaluate", expression=expression, **options)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    @property
    def requested(self) -> list[str]:
        """Addresses asked for since the last `open`, the page itself left out."""
        self.run("0")
        requests = [event["params"] for event in self.events if event.get("method") == "Network.requestWillBeSent"]
        return [each["request"]["url"] for each in requests if each["type"] != "Document"]

    @property
    def complaints(self) -> list[str]:
        """Uncaught exceptions, console messages and policy violations since the last `open`."""
        self.run("0")
        kinds = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
        return [json.dumps(event["params"]) for event in self.events if event.get("method") in kinds]

    def _wait(self, method: str) -> None:
        while not any(event.get("method") == method for event in self.events):
            self.events.append(self._next())
        self.events = [event for event in self.events if event.get("method") != method]

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            read = os.read(self._receive, 1 << 16)
            assert read, "the browser has gone"
            self._buffer += read
        line, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(line))


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser with a profile of its own, ended with the block."""
    to_browser, from_browser = os.pipe(), os.pipe()
    # The browser reads commands from descriptor 3 and answers on 4.
    wiring = f'exec "$@" 3<&{to_browser[0]} 4>&{from_browser[1]}'
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = ["bash", "-c", wiring, "chromium", str(CHROMIUM), *FLAGS, f"--user-data-dir={profile}"]
        process = subprocess.Popen(
            command, pass_fds=(to_browser[0], from_browser[1]), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(to_browser[0])
        os.close(from_browser[1])
        try:
            browser = Browser(to_browser[1], from_browser[0])
            yield browser
            browser._session = ""
            browser.call("Browser.close")
        finally:
            os.close(to_browser[1])
            os.close(from_browser[0])
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
