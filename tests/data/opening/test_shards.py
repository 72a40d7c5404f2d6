"""Tar shards give back the images and classes that were packed."""

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest

from flatclr.data.opening import open_dataset
from tests.support.images import pixels, png
from tests.support.sources import assert_holds

pytestmark = pytest.mark.usefixtures("_nowhere_else")


def write_shard(path: Path, members: dict[str, bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def samples(keys: list[str], labels: list[int] | None) -> tuple[dict[str, bytes], np.ndarray]:
    images = pixels(len(keys), 8, 8, 3)
    members: dict[str, bytes] = {}
    for i, key in enumerate(keys):
        members[f"{key}.json"] = b"{}"
        if labels is not None:
            members[f"{key}.cls"] = f"{labels[i]}\n".encode()
        members[f"{key}.png"] = png(images[i])
    return members, images.transpose(0, 3, 1, 2)


def test_tar_shards_round_trip(tmp_path: Path) -> None:
    first, images_a = samples(["d.1/000", "d.1/001"], [2, 0])
    second, images_b = samples(["002"], [5])
    write_shard(tmp_path / "s" / "shard-0.tar", first)
    write_shard(tmp_path / "s" / "shard-1.tar", second)
    for spec in (tmp_path / "s", f"{tmp_path}/s/shard-*.tar"):
        dataset = open_dataset(spec)
        assert_holds(dataset.train, np.concatenate([images_a, images_b]), [2, 0, 5])
        assert (dataset.name, dataset.train.classes) == ("s", tuple("012345"))  # type: ignore[union-attr]
    assert_holds(open_dataset(tmp_path / "s" / "shard-0.tar").train, images_a, [2, 0])


def test_shards_without_classes_are_unlabelled(tmp_path: Path) -> None:
    members, images = samples(["0", "1"], None)
    assert_holds(open_dataset(write_shard(tmp_path / "latest.tar", members)).train, images, None)


def test_shards_named_train_and_val_are_used_so(tmp_path: Path) -> None:
    train, train_images = samples(["0", "1"], [0, 1])
    test, test_images = samples(["0"], [3])
    write_shard(tmp_path / "set_train.tar", train)
    write_shard(tmp_path / "set_val.tar", test)
    dataset = open_dataset(tmp_path)
    assert_holds(dataset.train, train_images, [0, 1])
    assert_holds(dataset.test, test_images, [3])


def test_a_bad_shard_is_refused(tmp_path: Path) -> None:
    members, _ = samples(["0", "1", "2"], [0, 1, 0])
    whole = write_shard(tmp_path / "a.tar", members)
    content = whole.read_bytes()
    for kept in (0, 700, len(content) - 10_000):
        whole.write_bytes(content[:kept])
        with pytest.raises(ValueError, match=r"a\.tar must be a whole, uncompressed tar file, got .*; copy or pack"):
            open_dataset(whole)
    write_shard(whole, {key: value for key, value in members.items() if key != "1.cls"})
    with pytest.raises(ValueError, match=r"a\.tar:1 must have a \.cls member like the others, got none for 1 of 3"):
        open_dataset(whole)
    write_shard(whole, members | {"1.cls": b"cat"})
    with pytest.raises(ValueError, match=r"a\.tar must .*, got a \.cls member that is no class number: b'cat'"):
        open_dataset(whole)
    write_shard(whole, {"readme.txt": b"hello"})
    with pytest.raises(ValueError, match=r"a\.tar must hold images as key\.jpg or key\.png beside key\.cls, got none"):
        open_dataset(whole)
