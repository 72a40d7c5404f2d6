"""`flatclr doctor`, and the diagnosis that training ends with."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from flatclr.cli.main import main
from tests.support.made_up_run import SETTINGS, evidence
from tests.support.reports import new_run

SATURATED = [dict(row) for row in evidence({"saturation": 0.95}).rows]


def call(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["flatclr", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        main()
    return int(end.value.code or 0)


def test_the_command_says_what_is_wrong_and_what_to_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = new_run(tmp_path / "run", SATURATED, **SETTINGS)
    assert call(monkeypatch, "doctor", run.path) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith("One thing is wrong: the bound is at its ceiling, which costs about 76%")
    assert "The bound is at 95% of the 4.84 nats that 126 negatives can show." in said
    assert "$ flatclr train --data photos" in said
    assert "--objective flatnce" in said


def test_the_command_prints_one_object_as_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = new_run(tmp_path / "run", [dict(row) for row in evidence().rows], **SETTINGS)
    assert call(monkeypatch, "doctor", run.path, "--json") == 0
    verdict = "Nothing is wrong that the metrics of 300 steps can show."
    assert json.loads(capsys.readouterr().out) == {"verdict": verdict, "healthy": True, "findings": []}


def test_metrics_of_another_library_are_examined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "log.csv").write_text("step,loss\n" + "\n".join(f"{i},0.05" for i in range(9)))
    assert call(monkeypatch, "doctor", "--metrics", tmp_path / "log.csv", "--negatives", 62, "--json") == 0
    assert json.loads(capsys.readouterr().out)["findings"][0]["name"] == "bound_saturated"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "flatclr: either a run or metrics and embeddings of another must be given, got neither"),
        (["gone"], "flatclr: a run directory must hold config.yaml"),
        (["--metrics", "gone.csv"], "flatclr: metrics must be a file or folder, got 'gone.csv'"),
        (["--embeddings", "gone.npy"], "flatclr: embeddings must be a file"),
    ],
)
def test_bad_input_ends_with_one_line(
    arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "doctor", *arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith(said)
    assert error.count("\n") == 1
