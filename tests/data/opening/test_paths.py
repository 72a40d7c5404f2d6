"""Paths and names that lead nowhere: what is meant is suggested where something is close."""

from pathlib import Path

import numpy as np
import pytest

from flatclr.data.opening import open_dataset
from tests.support.images import pixels

pytestmark = pytest.mark.usefixtures("_nowhere_else")


def test_a_misspelt_name_or_path_is_corrected(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"or one of .*stl10.*, got 'cifra10'; did you mean 'cifar10'"):
        open_dataset("cifra10")
    (tmp_path / "photos").mkdir()
    with pytest.raises(FileNotFoundError, match=rf"did you mean '{tmp_path}/photos'"):
        open_dataset(tmp_path / "photso")
    with pytest.raises(FileNotFoundError, match=rf"did you mean '{tmp_path}/photos'"):
        open_dataset(tmp_path / "Photo")
    with pytest.raises(FileNotFoundError, match="got '/no/such/thing'; check the spelling"):
        open_dataset("/no/such/thing")
    np.save(tmp_path / "a.npy", pixels(2, 8, 8))
    with pytest.raises(FileNotFoundError, match=r"b\.npy must exist, got no such file; check the spelling"):
        open_dataset(f"{tmp_path}/a.npy,{tmp_path}/b.npy")


def test_a_file_of_another_ending_is_suggested_and_the_nearest_of_several(tmp_path: Path) -> None:
    for name in ("train.npy", "train.txt", "photos.txt"):
        (tmp_path / name).write_text("")
    with pytest.raises(FileNotFoundError, match=rf"did you mean '{tmp_path}/train\.npy'"):
        open_dataset(tmp_path / "train.npz")


@pytest.mark.parametrize("asked", ["a.npz", "mine.npz", "birds", "nowhere.tar"])
def test_nothing_is_suggested_where_nothing_is_close(tmp_path: Path, asked: str) -> None:
    folder = tmp_path / "a-long-folder-that-all-of-these-paths-have-in-common"
    for name in ("b.npz", "holiday.npz", "thesis.tar", "stuff"):
        (folder / name).mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match="; check the spelling, or the folder you are in"):
        open_dataset(folder / asked)


def test_an_unknown_kind_of_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(b"")
    with pytest.raises(
        ValueError, match=r"must be a folder or end in \.npz, \.npy, \.tar, \.txt or \.csv, got .*a\.zip'; unpack"
    ):
        open_dataset(tmp_path / "a.zip")
