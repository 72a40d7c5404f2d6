"""`flatclr report`, and the report that training ends with."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from flatclr.cli.main import main
from tests.support.reports import ROWS, Elements, new_run, only


def call(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["flatclr", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        main()
    return int(end.value.code or 0)


def test_the_command_writes_the_page_and_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = new_run(tmp_path / "run", [only(row, "loss") for row in ROWS])
    assert call(monkeypatch, "report", run.path) == 0
    assert capsys.readouterr().out == f"report: {run.path / 'report.html'}\n"
    assert call(monkeypatch, "report", run.path, "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"report": str(run.path / "report.html")}
    Elements((run.path / "report.html").read_text())


def test_the_command_refuses_what_is_no_run_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "report", tmp_path) == 2
    error = capsys.readouterr().err
    assert error.startswith("flatclr: a run directory must hold config.yaml")
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_training_ends_with_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = (
        "--batch-size",
        8,
        "--set",
        "encoder_options={width: 8}",
        "--set",
        "eval_samples=50",
        "--device",
        "cpu",
        "--json",
    )
    assert call(monkeypatch, "train", "--steps", 2, "--out", tmp_path / "run", *settings) == 0
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last == {"kind": "report", "path": str(tmp_path / "run" / "report.html")}
    assert "views/s, finished" in (tmp_path / "run" / "report.html").read_text()
