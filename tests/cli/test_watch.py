"""`flatclr watch` says where its pages are, and ends with a line."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from flatclr.cli.main import main
from flatclr.report.serving import Server
from tests.support.reports import ROWS, new_run


def called(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["flatclr", "watch", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def interrupted(server: Server) -> None:
    raise KeyboardInterrupt


def test_an_interrupted_command_ends_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Server, "serve_forever", interrupted)
    new_run(tmp_path / "a", ROWS)
    assert called(monkeypatch, tmp_path, "--json") == 0
    said = capsys.readouterr()
    told = json.loads(said.out)
    assert told["runs"] == 1
    assert told["address"].startswith("http://127.0.0.1:")
    assert said.err == "flatclr: no longer watching.\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gone"], "a folder of runs must exist, got gone"),
        ([".", "--port", "70000"], "less than or equal to 65535"),
        ([".", "--host", "no.such.host.invalid"], "host and port must be free to serve at"),
    ],
)
def test_what_cannot_be_served_is_refused_with_one_line(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert called(monkeypatch, *arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
