"""Files appear whole or not at all, and what the system refuses is told in the user's terms."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import pytest

from flatclr.cli import main as cli
from flatclr.files import replace_files, told_of_system
from flatclr.runs import RunDirectory


def _refusing(number: int, *, where: str = "") -> OSError:
    return OSError(number, os.strerror(number), *([where] if where else []))


@pytest.mark.parametrize("stage", ["os.fsync", "os.replace"])
def test_a_write_that_fails_names_the_file_that_was_asked_for(
    stage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise _refusing(errno.ENOSPC)

    monkeypatch.setattr(stage, refuse)
    with pytest.raises(OSError, match="No space left") as failed:
        replace_files({tmp_path / "report.html": b"page"})
    assert failed.value.filename == str(tmp_path / "report.html")
    assert not list(tmp_path.iterdir())


def test_a_part_that_cannot_be_opened_is_told_by_the_name_of_its_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as failed:
        replace_files({tmp_path / "gone" / "report.html": b"page"})
    assert failed.value.filename == str(tmp_path / "gone" / "report.html")


@pytest.mark.parametrize("held", [True, False], ids=["held", "begun"])
def test_a_run_directory_that_cannot_be_written_is_told_by_its_name(
    held: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Path.open

    def refuse(path: Path, mode: str = "r", **options: object) -> object:
        if mode == ("a" if held else "wb"):
            raise _refusing(errno.EROFS, where=str(path))
        return opened(path, mode, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(OSError, match="Read-only file system") as failed:
        RunDirectory.create(tmp_path, {"seed": 0})
    assert failed.value.filename == str(tmp_path if held else tmp_path / "config.yaml")


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (_refusing(errno.ENOSPC, where="out.npz"), "out.npz must be writable, got a full disk; free some space, or"),
        (_refusing(errno.EROFS, where="ro/run3"), "ro/run3 must be open to you, got 'read-only file system'; restore"),
        (_refusing(errno.EACCES, where="shut"), "shut must be open to you, got 'permission denied'; restore the"),
        (_refusing(errno.EISDIR, where="folder"), "folder must be usable, got 'is a directory'; check the path."),
        (_refusing(errno.ENOSPC), "a file must be writable, got a full disk;"),
        (FileNotFoundError("the data must exist, got none; pass it."), "the data must exist, got none; pass it."),
    ],
)
def test_the_command_line_tells_errors_of_the_system_with_the_path_and_what_to_do(
    error: OSError, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr(cli, "app", fail)
    monkeypatch.setattr(sys, "argv", ["flatclr"])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    told = capsys.readouterr().err
    assert stopped.value.code == 2
    assert told.startswith(f"flatclr: {line}")
    assert told.count("\n") == 1
    assert told_of_system(error) in told
