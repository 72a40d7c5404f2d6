"""A fingerprint follows the content of a source, not its place."""

import io
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

from flatclr.data.opening import open_dataset
from flatclr.data.sources import PairedArrays
from tests.support.images import numbered, png

pytestmark = pytest.mark.usefixtures("_nowhere_else")


def test_a_fingerprint_follows_the_content(tmp_path: Path) -> None:
    numbered(tmp_path)

    def fingerprint(data: str) -> str:
        return open_dataset(tmp_path / data).train.fingerprint()

    before = {data: fingerprint(data) for data in ("files", "array.npy")}
    assert {data: fingerprint(data) for data in before} == before
    changed = np.load(tmp_path / "array.npy")
    changed[:, 7, 7] = 200
    np.save(tmp_path / "array.npy", changed)
    assert fingerprint("array.npy") != before["array.npy"]
    image = tmp_path / "files" / "0" / "002.png"
    image.write_bytes(image.read_bytes()[:-20] + bytes(20))
    assert fingerprint("files") != before["files"]
    pairs = PairedArrays(torch.zeros(3, 2), torch.zeros(3, 2))
    assert pairs.fingerprint() != PairedArrays(torch.zeros(3, 2), torch.ones(3, 2)).fingerprint()


def test_touching_an_image_keeps_the_fingerprint(tmp_path: Path) -> None:
    numbered(tmp_path)
    before = open_dataset(tmp_path / "files").train.fingerprint()
    for image in (tmp_path / "files").rglob("*.png"):
        os.utime(image, (0, 0))
    assert open_dataset(tmp_path / "files").train.fingerprint() == before


def test_a_change_inside_a_shard_changes_the_fingerprint(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    shard = tmp_path / "shard.tar"
    with tarfile.open(shard, "w") as tar:
        for i in range(20):
            content = png(rng.integers(0, 256, (8, 8), dtype=np.uint8))
            member = tarfile.TarInfo(f"{i:03}.png")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    before = open_dataset(shard, test_fraction=0).train.fingerprint()
    os.utime(shard, (0, 0))
    assert open_dataset(shard, test_fraction=0).train.fingerprint() == before
    content = bytearray(shard.read_bytes())
    content[512 + 60] ^= 1
    shard.write_bytes(content)
    assert open_dataset(shard, test_fraction=0).train.fingerprint() != before


def test_moving_a_folder_keeps_its_fingerprint(tmp_path: Path) -> None:
    numbered(tmp_path)
    before = open_dataset(tmp_path / "files").train.fingerprint()
    (tmp_path / "files").rename(tmp_path / "moved")
    assert open_dataset(tmp_path / "moved").train.fingerprint() == before
