"""Fixtures of the tests of data."""

from pathlib import Path

import pytest


@pytest.fixture
def _nowhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder of its own, a test does not look at the data folders of the machine."""
    monkeypatch.delenv("FLATCLR_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
