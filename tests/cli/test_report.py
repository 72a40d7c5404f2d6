"""`flatclr report`, and the report that training ends with."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from flatclr.cli.main import main
from flatclr.report.bundle import plotly_gzipped, plotly_inline
from tests.support.reports import ROWS, Elements, evaluation_row, new_run, only

TINY = (
    *("--batch-size", 8, "--set", "encoder_options={width: 8}", "--set", "eval_samples=50", "--set", "log_every=1"),
    *("--device", "cpu"),
)


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
    assert call(monkeypatch, "train", "--steps", 2, "--out", tmp_path / "run", *TINY, "--json") == 0
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last == {"kind": "report", "path": str(tmp_path / "run" / "report.html")}
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Nearest neighbours" in page
    resolved = json.loads((tmp_path / "run" / "environment.json").read_text())["resolved"]
    assert (resolved["graph"], resolved["pairing"], resolved["samples"]) == (False, "two_view", 10_000)
    assert (resolved["total_steps"], resolved["steps_per_epoch"], resolved["views_per_sample"]) == (2, 1_250, 2)


def test_without_plotly_a_run_ends_well_and_says_how_to_get_its_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    for kept in (plotly_gzipped, plotly_inline):
        kept.cache_clear()
    assert call(monkeypatch, "train", "--steps", 1, "--out", tmp_path / "run", "--quiet", *TINY) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "encoder.safetensors" in said
    assert call(monkeypatch, "report", tmp_path / "run", "--no-pictures") == 2
    assert "a report page needs plotly, which is not installed; pip install plotly" in capsys.readouterr().err


def test_several_runs_are_ranked_on_one_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, knn in (("a", 0.5), ("b", 0.75)):
        new_run(tmp_path / name, [only(evaluation_row(9, knn), "knn")], batch_size=int(64 * knn))
    assert call(monkeypatch, "report", tmp_path / "a", tmp_path / "b") == 0
    assert capsys.readouterr().out == f"report: {tmp_path / 'report.html'}\n"
    assert "Best by kNN: batch_size 48, with 75.0 %" in (tmp_path / "report.html").read_text()
    assert call(monkeypatch, "report", tmp_path, "--out", tmp_path / "x.html", "--by", "loss") == 2
    assert "--by must be a number that the runs have, got 'loss'; they have 'kNN'" in capsys.readouterr().err
    assert not (tmp_path / "x.html").exists()
