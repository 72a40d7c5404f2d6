"""Checkpoints survive damage, a full disk and code smuggled into them."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from flatclr import checkpoint
from flatclr.models.trained import load_network
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


def test_checkpoints_of_every_so_many_steps_stay_and_can_be_opened(tmp_path: Path) -> None:
    run = train(config(tmp_path / "run", 14, checkpoint_every=3, keep_checkpoints="every:4")).path
    assert sorted(checkpoint.steps_in(run / "checkpoint")) == [4, 8, 12, 14]
    early, late = (load_network(run, step=step).state_dict() for step in (4, None))
    assert any(not torch.equal(early[name], late[name]) for name in early)
    assert checkpoint.load_checkpoint(run / "checkpoint", step=8).step == 8
    with pytest.raises(FileNotFoundError, match=r"must hold a checkpoint of step 5, got those of \[4, 8, 12, 14\]"):
        load_network(run, step=5)


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
    class Evil:
        def __reduce__(self) -> Any:
            return os.system, (f"touch {tmp_path / 'exploded'}",)

    folder = tmp_path / "checkpoint"
    folder.mkdir()
    torch.save({"step": Evil()}, folder / "step-000000001.pt")
    digest = hashlib.sha256((folder / "step-000000001.pt").read_bytes()).hexdigest()
    (folder / "step-000000001.sha256").write_text(digest)
    with pytest.raises(
        FileNotFoundError, match=r"step-000000001\.pt: it holds more than tensors .* nothing of it is run"
    ):
        checkpoint.load_checkpoint(folder)
    assert not (tmp_path / "exploded").exists()


def _bytes_that_are_no_text(file: Path) -> None:
    file.write_bytes(b"\xff" + file.read_bytes()[1:])


def _a_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def _a_link_loop(file: Path) -> None:
    file.unlink()
    file.symlink_to(file.name)


def _a_pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def _nothing(file: Path) -> None:
    file.write_bytes(b"")


@pytest.mark.parametrize("suffix", [".pt", ".sha256"])
@pytest.mark.parametrize("damage", [_bytes_that_are_no_text, _a_folder, _a_link_loop, _a_pipe, _nothing])
def test_any_damage_of_the_newest_checkpoint_falls_back_and_says_so(
    damage: Callable[[Path], None], suffix: str, tmp_path: Path
) -> None:
    for step in (4, 8):
        checkpoint.save_checkpoint(tmp_path, step, {"step": step})
    damage(tmp_path / f"step-000000008{suffix}")
    loaded = checkpoint.load_checkpoint(tmp_path)
    assert loaded.state["step"] == 4
    assert [problem.partition(":")[0] for problem in loaded.passed_over] == ["step-000000008.pt"]


def test_a_checkpoint_of_another_run_is_refused_and_neither_pruned_nor_counted(tmp_path: Path) -> None:
    one, two = (json.dumps({"seed": seed, "steps": 40}) for seed in (1, 2))
    for step in (30, 40):
        checkpoint.save_checkpoint(tmp_path, step, {"step": step}, identity=two)
    for step in (5, 10, 15):
        checkpoint.save_checkpoint(tmp_path, step, {"step": step}, identity=one)
    assert sorted(checkpoint.steps_in(tmp_path)) == [10, 15, 30, 40]
    with pytest.raises(
        ValueError, match=r"step-000000040\.pt must belong to the run .* another \(seed 2, here 1\); move"
    ):
        checkpoint.load_checkpoint(tmp_path, identity=one)
    assert checkpoint.load_checkpoint(tmp_path, identity=two).step == 40


def test_a_packed_checkpoint_is_passed_over_unopened(tmp_path: Path) -> None:
    checkpoint.save_checkpoint(tmp_path, 1, {"step": 1})
    plain = zipfile.ZipFile(checkpoint.save_checkpoint(tmp_path, 2, {"zeros": torch.zeros(10_000)}))
    packed = io.BytesIO()
    with plain, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for member in plain.infolist():
            archive.writestr(member.filename, plain.read(member))
    content = packed.getvalue()
    assert torch.load(io.BytesIO(content), weights_only=True)["zeros"].shape == (10_000,)  # which would unpack it
    (tmp_path / "step-000000002.pt").write_bytes(content)
    (tmp_path / "step-000000002.sha256").write_text(hashlib.sha256(content).hexdigest())
    assert checkpoint.load_checkpoint(tmp_path).passed_over == (
        "step-000000002.pt: it would become more bytes than it has",
    )


def test_a_checkpoint_of_an_earlier_version_loads_and_says_that_it_could_not_be_checked(tmp_path: Path) -> None:
    torch.save({"step": 3}, tmp_path / "step-000000003.pt")
    digest = hashlib.sha256((tmp_path / "step-000000003.pt").read_bytes()).hexdigest()
    (tmp_path / "step-000000003.sha256").write_text(digest)
    loaded = checkpoint.load_checkpoint(tmp_path, identity='{"seed": 1}')
    assert (loaded.step, loaded.unchecked) == (3, True)
