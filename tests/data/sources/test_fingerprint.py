"""A fingerprint follows the content of a source, not its place."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from flatclr.data.opening import open_dataset
from flatclr.data.sources import PairedArrays
from tests.support.images import numbered

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
    os.utime(tmp_path / "files" / "0" / "000.png", (0, 0))
    os.utime(tmp_path / "files" / "0" / "002.png", (0, 0))
    assert fingerprint("array.npy") != before["array.npy"]
    assert fingerprint("files") != before["files"]
    pairs = PairedArrays(torch.zeros(3, 2), torch.zeros(3, 2))
    assert pairs.fingerprint() != PairedArrays(torch.zeros(3, 2), torch.ones(3, 2)).fingerprint()


def test_moving_a_folder_keeps_its_fingerprint(tmp_path: Path) -> None:
    numbered(tmp_path)
    before = open_dataset(tmp_path / "files").train.fingerprint()
    (tmp_path / "files").rename(tmp_path / "moved")
    assert open_dataset(tmp_path / "moved").train.fingerprint() == before
