"""Whatever is done to the files of a run: the same result, said where an older checkpoint gave it, or one clear line."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import flatclr
from flatclr.cli.main import main
from flatclr.files import UncheckedWarning
from flatclr.training.trainer import train
from tests.support.training import assert_same
from tests.support.training_worker import config, network_of

FILES = (
    *("checkpoint/step-000000012.pt", "checkpoint/step-000000012.sha256"),
    *("checkpoint/step-000000008.pt", "checkpoint/step-000000008.sha256"),
    *("encoder.json", "encoder.safetensors", "config.yaml"),
)
TRIES = 400


def _flip(path: Path, luck: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[luck.randrange(len(content))] ^= 1 << luck.randrange(8)
    path.write_bytes(content)


def _overwrite(path: Path, luck: random.Random) -> None:
    content = bytearray(path.read_bytes())
    start = luck.randrange(len(content))
    content[start : start + 16] = luck.randbytes(16)
    path.write_bytes(content)


def _cut(path: Path, luck: random.Random) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: luck.randrange(len(content))])


def _noise(path: Path, luck: random.Random) -> None:
    path.write_bytes(b"\xff" + luck.randbytes(luck.randrange(2000)))


def _nothing(path: Path, luck: random.Random) -> None:
    path.unlink()


def _folder(path: Path, luck: random.Random) -> None:
    path.unlink()
    path.mkdir()


def _link_loop(path: Path, luck: random.Random) -> None:
    path.unlink()
    path.symlink_to(path.name)


def _pipe(path: Path, luck: random.Random) -> None:
    path.unlink()
    os.mkfifo(path)


def _nested(path: Path, luck: random.Random) -> None:
    path.write_text(luck.choice(["[" * 100_000, "{a: " * 5_000, '{"a":' * 50_000]))


WAYS: tuple[Callable[[Path, random.Random], None], ...] = (
    *(_flip, _flip, _flip, _overwrite, _cut, _noise),
    *(_nothing, _folder, _link_loop, _pipe, _nested),
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("whole")
    images = np.random.default_rng(0).integers(0, 256, (40, 12, 12), dtype=np.uint8)
    np.save(home / "images.npy", images)
    return train(config(home / "run", 12, data=str(home / "images.npy"), eval_samples=4)).path


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_no_tampering_changes_a_result_in_silence(
    seed: int, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("flatclr.cli.train.write_report", lambda path, **_: path / "report.html")  # a second each
    weights, encoder = network_of(whole), flatclr.load_encoder(whole)
    luck, fallen_back = random.Random(seed), 0
    for number in range(TRIES // 4):
        name, way = luck.choice(FILES), luck.choice(WAYS)
        run, what = tmp_path / str(number), f"{way.__name__} of {name}, number {number}"
        shutil.copytree(whole, run)
        way(run / name, luck)
        _require_same_encoder(run, encoder, what)
        code, lines = _resumed(run, monkeypatch, capsys)
        if code == 0:
            assert_same(network_of(run), weights)
            trained_again = any(line.startswith("training") for line in lines)
            assert not trained_again or any("step-000000012" in line for line in lines), (what, lines)
            fallen_back += trained_again
        else:
            assert code in (1, 2), (what, lines)  # 1: the end of the run could not be written
            assert len(lines) == 1, (what, lines)
        shutil.rmtree(run)
    assert fallen_back > 10


def _require_same_encoder(run: Path, truth: nn.Module, what: str) -> None:
    """Or an error in one line."""
    try:
        found = flatclr.load_encoder(run)
    except UncheckedWarning:
        return
    except (ValueError, OSError) as error:
        said = str(error)
    else:
        said = ""
    if said:
        assert "\n" not in said, what
        assert str(run) in said, what
        return
    assert (found.description, found.normalisation) == (truth.description, truth.normalisation), what
    torch.testing.assert_close(found.state_dict(), truth.state_dict(), rtol=0, atol=0)


def _resumed(run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    monkeypatch.setattr("sys.argv", ["flatclr", "train", "--resume", str(run)])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert isinstance(stopped.value.code, int)
    said = capsys.readouterr()
    lines = said.err if stopped.value.code else said.out + said.err
    return stopped.value.code, [line for line in lines.strip().splitlines() if line]
