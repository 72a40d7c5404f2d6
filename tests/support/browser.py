"""Headless Chromium, driven over a pipe by the Chrome DevTools protocol: nothing to install but the browser."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"),
    *("--no-first-run", "--disable-extensions", "--disable-background-networking", "--disable-component-update"),
    *("--disable-sync", "--mute-audio", "--enable-unsafe-swiftshader", "--remote-debugging-pipe"),
)
MISSING = "Chromium is not installed; apt-get install chromium"
PATIENCE_S = 30.0


def chromium() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One process with pages; commands go out and messages come in, one JSON text each, ended by a zero byte."""

    def __init__(self) -> None:
        path = chromium()
        assert path is not None, MISSING
        self.folder = tempfile.TemporaryDirectory(prefix="browser")
        there, self.out = os.pipe()
        self.into, back = os.pipe()
        command = [path, *FLAGS, f"--user-data-dir={self.folder.name}", "about:blank"]
        # the browser reads from descriptor 3 and writes to 4
        shell = f'exec 3<&{there} 4>&{back}; exec "$@"'
        self.process = subprocess.Popen(
            ["bash", "-c", shell, "bash", *command],
            pass_fds=(there, back),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(there)
        os.close(back)
        self.waiting, self.number, self.events = b"", 0, list[dict[str, Any]]()

    def close(self) -> None:
        os.close(self.out)
        self.process.terminate()
        self.process.wait()
        os.close(self.into)
        self.folder.cleanup()

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        self.number += 1
        asked = self.number
        message = {"id": asked, "method": method, "params": parameters} | ({"sessionId": session} if session else {})
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") == asked:
                assert "error" not in answer, answer["error"]
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def receive(self) -> dict[str, Any]:
        while b"\0" not in self.waiting:
            ready, _, _ = select.select([self.into], [], [], 2 * PATIENCE_S)
            assert ready, "the browser does not answer"
            part = os.read(self.into, 1 << 20)
            assert part, "the browser ended"
            self.waiting += part
        message, _, self.waiting = self.waiting.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer

    @contextmanager
    def page(self, *, width: int = 1440, height: int = 900, dark: bool = False) -> Iterator[Page]:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session)
        for domain in ("Page", "Runtime", "Network", "Log"):
            page.call(f"{domain}.enable")
        page.resize(width, height)
        page.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}],
        )
        try:
            yield page
        finally:
            self.call("Target.closeTarget", targetId=target)


class Page:
    """One tab."""

    def __init__(self, browser: Browser, session: str) -> None:
        self.browser, self.session = browser, session

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self.browser.call(method, self.session, **parameters)

    def resize(self, width: int, height: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 640
        )

    def open(self, address: str | Path, *, until: str = "document.documentElement?.dataset.ready === '1'") -> None:
        self.call("Page.navigate", url=address.resolve().as_uri() if isinstance(address, Path) else address)
        self.wait(until)

    def run(self, code: str) -> Any:
        """What an expression is, as plain values."""
        answer = self.call("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, until: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not self.run(f"Boolean({until})"):
            assert time.monotonic() < deadline, f"waited {PATIENCE_S:.0f} s in vain for {until}"
            time.sleep(0.05)

    def point(self, x: float, y: float) -> None:
        """Move the mouse there."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def _of(self, method: str) -> list[dict[str, Any]]:
        own = (event for event in self.browser.events if event.get("sessionId") == self.session)
        return [event["params"] for event in own if event["method"] == method]

    @property
    def problems(self) -> list[str]:
        """Errors and warnings on the console, and what was thrown."""
        self.run("0")
        thrown = [str(e["exceptionDetails"]) for e in self._of("Runtime.exceptionThrown")]
        entries = [event["entry"] for event in self._of("Log.entryAdded")]
        logged = [f"{e['source']}: {e['text']}" for e in entries if e["source"] != "rendering"]  # of a missing GPU
        said = [
            str([part.get("value") for part in e["args"]])
            for e in self._of("Runtime.consoleAPICalled")
            if e["type"] in ("error", "warning")
        ]
        return thrown + logged + said

    @property
    def hosts(self) -> set[str]:
        """Of all that was asked for, but what the page holds itself."""
        self.run("0")
        addresses = [urlsplit(event["request"]["url"]) for event in self._of("Network.requestWillBeSent")]
        return {address.netloc for address in addresses if address.scheme not in ("data", "blob", "file", "about")}

    def screenshot(self, path: Path, *, whole: bool = True) -> Path:
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 16_000), "scale": 1}
        more = {"clip": clip, "captureBeyondViewport": True} if whole else {}
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png", **more)["data"]))
        return path


@contextmanager
def open_browser() -> Iterator[Browser]:
    browser = Browser()
    try:
        yield browser
    finally:
        browser.close()


if __name__ == "__main__":
    if chromium() is None:
        raise SystemExit(f"make test-browser: {MISSING}")
