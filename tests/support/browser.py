"""Headless Chromium, driven over a pipe by the Chrome DevTools protocol: nothing to install but the browser."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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
PATIENCE_S = 60.0  # of a test that waits for a page; a busy machine draws figures slowly
CALL_S = 30.0  # of one command: what the browser has not answered by then it never will
ASKED_AGAIN_S, END_S = 10.0, 10.0
TOLD = 2_000  # characters of what the browser said itself, in a failure


class NoAnswerError(AssertionError):
    """The browser did not answer a command."""


class RefusedError(AssertionError):
    """The browser could not do what it was asked for."""


def chromium() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One process with pages; commands go out and messages come in, one JSON text each, ended by a zero byte."""

    def __init__(self, path: str | None = None) -> None:
        path = path or chromium()
        assert path is not None, MISSING
        self.folder = tempfile.TemporaryDirectory(prefix="browser", ignore_cleanup_errors=True)
        there, self.out = os.pipe()
        self.into, back = os.pipe()
        command = [path, *FLAGS, f"--user-data-dir={self.folder.name}", "about:blank"]
        # the browser reads from descriptor 3 and writes to 4
        shell = f'exec 3<&{there} 4>&{back}; exec "$@"'
        self.said = Path(self.folder.name) / "said.txt"
        with self.said.open("wb") as said:
            self.process = subprocess.Popen(
                ["bash", "-c", shell, "bash", *command],
                pass_fds=(there, back),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,  # so that its helpers end with it
            )
        os.close(there)
        os.close(back)
        self.waiting, self.number, self.events = b"", 0, list[dict[str, Any]]()

    def close(self) -> None:
        """It ends with its pipe, else by being told to, else by force: a test never waits for it for long."""
        os.close(self.out)
        for end in (lambda: None, self.process.terminate, self._kill):
            end()
            try:
                self.process.wait(END_S)
                break
            except subprocess.TimeoutExpired:
                continue
        self._kill()  # helpers that outlive it
        os.close(self.into)
        self.folder.cleanup()

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def call(
        self, method: str, session: str | None = None, *, seconds: float = CALL_S, **parameters: Any
    ) -> dict[str, Any]:
        """What the browser answers; fails where it has not within so many seconds, whatever else it tells meanwhile.

        Raises:
            NoAnswerError: it did not answer, or has ended.
            RefusedError: it could not do it.
        """
        self.number += 1
        asked, deadline = self.number, time.monotonic() + seconds
        message = {"id": asked, "method": method, "params": parameters} | ({"sessionId": session} if session else {})
        with suppress(BrokenPipeError):  # of one that has ended, as the answer will say
            os.write(self.out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive(deadline, method)
            if answer.get("id") == asked:
                if "error" in answer:
                    raise RefusedError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result
            if "method" in answer:  # else an answer that came too late
                self.events.append(answer)

    def receive(self, deadline: float, method: str) -> dict[str, Any]:
        while b"\0" not in self.waiting:
            left = deadline - time.monotonic()
            ready = select.select([self.into], [], [], left)[0] if left > 0 else []
            if not ready:
                raise NoAnswerError(f"the browser did not answer {method} in time; it said: {self._told()}")
            part = os.read(self.into, 1 << 20)
            if not part:
                raise NoAnswerError(f"the browser ended before it answered {method}; it said: {self._told()}")
            self.waiting += part
        message, _, self.waiting = self.waiting.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer

    def _told(self) -> str:
        return self.said.read_text(errors="replace")[-TOLD:] if self.said.exists() else "nothing"

    @contextmanager
    def page(self, *, width: int = 1440, height: int = 900) -> Iterator[Page]:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session)
        for domain in ("Page", "Runtime", "Network", "Log"):
            page.call(f"{domain}.enable")
        page.resize(width, height)
        page.shade(dark=False)
        try:
            yield page
        finally:
            with suppress(NoAnswerError):  # what a test found is worth more
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

    def shade(self, *, dark: bool) -> None:
        """What the reader prefers."""
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def open(self, address: str | Path, *, until: str = "document.documentElement?.dataset.ready === '1'") -> None:
        self.call("Page.navigate", url=address.resolve().as_uri() if isinstance(address, Path) else address)
        self.wait(until)

    def run(self, code: str, *, seconds: float = CALL_S) -> Any:
        """What an expression is, as plain values."""
        answer = self.call("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True, seconds=seconds)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, until: str) -> None:
        """Until an expression is true. A page that is left meanwhile may refuse to say, or never answer: it is asked
        again."""
        deadline, why = time.monotonic() + PATIENCE_S, "it is not so"
        while time.monotonic() < deadline:
            try:
                if self.run(f"Boolean({until})", seconds=ASKED_AGAIN_S):
                    return
                why = "it is not so"
            except (NoAnswerError, RefusedError) as error:
                why = str(error)
            time.sleep(0.05)
        raise AssertionError(f"waited {PATIENCE_S:.0f} s in vain for {until}: {why}")

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
