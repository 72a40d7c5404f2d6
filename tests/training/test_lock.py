"""A run is written by one process at a time."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from flatclr.runs import RunDirectory
from flatclr.training.config import TrainConfig
from flatclr.training.trainer import train
from tests.support.training_worker import config


def test_a_run_is_written_by_one_process_at_a_time(tmp_path: Path) -> None:
    run = RunDirectory(train(config(tmp_path / "run", 6)).path)
    (run.path / "checkpoint" / "step-000000006.pt").unlink()
    before = run.metrics()
    with run.locked(), pytest.raises(ValueError, match=r"by one process at a time, got .*run, where one is"):
        train(TrainConfig(), resume=run.path)
    assert run.metrics() == before
    with run.locked():
        pass  # the one that was refused holds nothing


@pytest.mark.parametrize("reason", [errno.EBADF, errno.ENOSYS, errno.ENOLCK], ids=errno.errorcode.get)
def test_a_file_system_without_holds_does_not_keep_a_run_from_starting(
    reason: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(reason, "no holds here")

    monkeypatch.setattr("fcntl.flock", refuse)
    assert train(config(tmp_path / "run", 2)).steps == 2
