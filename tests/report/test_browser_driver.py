"""What drives the browser never waits without end, whatever the browser does."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from tests.support import browser as driver
from tests.support.browser import Browser, NoAnswerError, Page

TALKS = """\
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
while True:
    os.write(4, b'{"method": "news", "params": {}}\\0')
    time.sleep(0.02)
"""


@pytest.fixture
def talker(tmp_path: Path) -> str:
    """A browser that tells news all the time, answers nothing and does not end when it is told to."""
    path = tmp_path / "browser"
    path.write_text(f"#!{sys.executable}\n{TALKS}")
    path.chmod(0o755)
    return str(path)


def test_a_command_that_is_never_answered_fails_in_time_and_the_browser_is_ended(
    talker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "END_S", 0.2)
    monkeypatch.setattr(driver, "PATIENCE_S", 0.3)
    monkeypatch.setattr(driver, "ASKED_AGAIN_S", 0.1)
    browser, began = Browser(talker), time.monotonic()
    try:
        with pytest.raises(NoAnswerError, match=r"did not answer Page.enable in time"):
            browser.call("Page.enable", seconds=0.3)
        with pytest.raises(AssertionError, match=r"in vain for 1 > 2: the browser did not answer Runtime.evaluate"):
            Page(browser, "a").wait("1 > 2")
    finally:
        browser.close()
    assert browser.process.poll() is not None
    assert time.monotonic() - began < 20


def test_a_browser_that_ends_is_said_to_have_with_what_it_said(tmp_path: Path) -> None:
    path = tmp_path / "browser"
    path.write_text("#!/bin/sh\necho no display >&2\n")
    path.chmod(0o755)
    browser = Browser(str(path))
    try:
        with pytest.raises(NoAnswerError, match=r"ended before it answered Page.enable; it said: no display"):
            browser.call("Page.enable", seconds=20)
    finally:
        browser.close()
