"""The command that shares out the tests of a GPU; here tests of its own, which need none."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import gpu_tests

TESTS = """
import os

import pytest

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("number", range(5))
def test_right(number):
    assert number < 5


def test_wrong():
    assert 1 == 2


@pytest.mark.skip(reason="not today")
def test_skipped():
    pass
"""
ENDS = """

def test_that_ends_its_process():
    os._exit(0)
"""


def shared_out(tmp_path: Path, text: str) -> int:
    (tmp_path / "test_them.py").write_text(text)
    return gpu_tests.main(["--processes", "2", str(tmp_path)])


def test_every_test_is_run_once_and_counted(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert shared_out(tmp_path, TESTS) == 1
    said = capfd.readouterr().out
    assert "7 tests: 5 passed, 1 failed, 1 skipped" in said
    assert "test_them.py::test_wrong" in said.rpartition("failed: ")[2]
    assert "assert 1 == 2" in said


def test_all_is_well_only_where_something_ran_to_its_end(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    fine = TESTS.replace("assert 1 == 2", "pass")
    assert shared_out(tmp_path, fine) == 0
    assert "7 tests: 6 passed, 0 failed, 1 skipped" in capfd.readouterr().out
    assert shared_out(tmp_path, fine + ENDS) == 1
    assert "1 of 2 processes did not come to their end" in capfd.readouterr().out
    assert shared_out(tmp_path, "") == 1
    assert "0 tests" in capfd.readouterr().out


def test_bad_input_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        gpu_tests.main(["--processes", "0"])
    assert "--processes must be a whole number >= 1, got 0" in capsys.readouterr().err
