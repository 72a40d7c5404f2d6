"""Checkpoints survive damage, a full disk and code smuggled into them."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from flatclr import checkpoint
from flatclr.training.config import TrainConfig
from flatclr.training.errors import TrainingStoppedError
from flatclr.training.events import Event, Warned
from flatclr.training.trainer import train
from tests.support.training_worker import config


def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before(tmp_path: Path) -> None:
    run = train(config(tmp_path / "run", 12)).path
    newest = sorted((run / "checkpoint").glob("*.pt"))[-1]
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    loaded = checkpoint.load_checkpoint(run / "checkpoint")
    assert loaded.step == 8
    assert "step-000000012.pt: its content does not match its checksum" in loaded.passed_over
    heard: list[Event] = []
    train(TrainConfig(), resume=run, on_event=[heard.append])
    assert any(isinstance(event, Warned) and "damaged checkpoint" in event.message for event in heard)


def test_only_the_last_two_checkpoints_are_kept(tmp_path: Path) -> None:
    run = train(config(tmp_path / "run", 14)).path
    assert sorted(p.name for p in (run / "checkpoint").iterdir()) == [
        *("step-000000012.pt", "step-000000012.sha256", "step-000000014.pt", "step-000000014.sha256")
    ]


def test_a_full_disk_stops_the_run_and_leaves_the_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = checkpoint.replace_files

    def full_after_the_first(contents: Any) -> None:
        if any("000000008" in path.name for path in contents):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        save(contents)

    monkeypatch.setattr(checkpoint, "replace_files", full_after_the_first)
    with pytest.raises(TrainingStoppedError, match=r"No space left on device; the last checkpoint is intact"):
        train(config(tmp_path / "run", 12))
    assert checkpoint.load_checkpoint(tmp_path / "run" / "checkpoint").step == 4


def test_a_checkpoint_with_code_in_it_is_not_run(tmp_path: Path) -> None:
    import hashlib
    import pickle

    class Evil:
        def __reduce__(self) -> Any:
            return os.system, (f"touch {tmp_path / 'exploded'}",)

    folder = tmp_path / "checkpoint"
    folder.mkdir()
    torch.save({"step": Evil()}, folder / "step-000000001.pt")
    digest = hashlib.sha256((folder / "step-000000001.pt").read_bytes()).hexdigest()
    (folder / "step-000000001.sha256").write_text(digest)
    with pytest.raises(pickle.UnpicklingError):
        checkpoint.load_checkpoint(folder)
    assert not (tmp_path / "exploded").exists()
