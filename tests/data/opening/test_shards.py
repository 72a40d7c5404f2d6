"""Tar shards give back the images and classes that were packed."""

import os
import tarfile
from pathlib import Path

import numpy as np
import pytest

from flatclr.data.opening import open_dataset
from flatclr.data.opening.names import expanded
from flatclr.data.sources import FileImages, SkippedImagesWarning, UnusableImagesError
from flatclr.training.events import Event, Warned
from flatclr.training.trainer import train
from tests.support.shards import numbered_shards, samples, write_shard
from tests.support.sources import all_images, assert_holds
from tests.support.training_worker import config

pytestmark = pytest.mark.usefixtures("_nowhere_else")


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


def test_a_member_whose_holes_would_fill_memory_is_refused(tmp_path: Path) -> None:
    members, _ = samples(["0"], [0])
    content = write_shard(tmp_path / "a.tar", members).read_bytes()
    sparse = tarfile.TarInfo("1.cls")
    sparse.type = tarfile.GNUTYPE_SPARSE
    header = bytearray(sparse.tobuf(tarfile.GNU_FORMAT))
    header[386:410] = b"00000000000\0" * 2  # no bytes at offset 0
    header[483:495] = b"77777777777\0"  # of 8 GiB
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    (tmp_path / "a.tar").write_bytes(bytes(header) + content)
    with pytest.raises(ValueError, match=r"a\.tar must be a whole, uncompressed tar file, got 1\.cls with holes"):
        open_dataset(tmp_path / "a.tar")


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
    with pytest.raises(
        ValueError, match=r"a\.tar must have a class number in every \.cls member, got b'cat'; number the classes"
    ):
        open_dataset(whole)
    write_shard(whole, {"readme.txt": b"hello"})
    with pytest.raises(ValueError, match=r"a\.tar must hold images as key\.jpg or key\.png beside key\.cls, got none"):
        open_dataset(whole)


def test_braces_name_shards_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numbered_shards(tmp_path / "s", 12, 2)
    monkeypatch.chdir(tmp_path)
    data = open_dataset("s/{000..009}.tar", test_fraction=0)
    assert all_images(data.train)[:, 0, 0, 0].tolist() == list(range(20))
    assert data.name == "s"
    assert len(open_dataset("s/{011,003}.tar", test_fraction=0).train) == 4
    assert len(open_dataset("s/{00,01}*.tar", test_fraction=0).train) == 24
    with pytest.raises(
        FileNotFoundError, match=r"got no s/012\.tar, and 4 of the 6 that 's/\{010\.\.015\}\.tar' stands for"
    ):
        open_dataset("s/{010..015}.tar")
    with pytest.raises(FileNotFoundError, match=r"data must be an existing path"):
        open_dataset("s/{100..103}.tar")
    with pytest.raises(ValueError, match=r"a range must go up by less than 100,000, got \{0\.\.99999999999\}"):
        open_dataset("s/{0..99999999999}.tar")
    assert expanded("{8..11}") == ["8", "9", "10", "11"]
    assert expanded("a{0}b{}") == ["a{0}b{}"]


def damage_cut(shard: Path) -> None:
    shard.write_bytes(shard.read_bytes()[:700])


def damage_end(shard: Path) -> None:
    with tarfile.open(shard) as tar:
        last = tar.getmembers()[-1]
    shard.write_bytes(shard.read_bytes()[: last.offset])  # a whole number of members, but not all


def damage_header(shard: Path) -> None:
    with tarfile.open(shard) as tar:
        second = tar.getmembers()[1]
    content = bytearray(shard.read_bytes())
    content[second.offset + 3] ^= 1  # in its name: the header's checksum is wrong
    shard.write_bytes(content)


def damage_whole(shard: Path) -> None:
    shard.write_bytes(b"no tar" * 1024)


def replace_by_pipe(shard: Path) -> None:
    shard.unlink()
    os.mkfifo(shard)


def replace_by_folder(shard: Path) -> None:
    shard.unlink()
    shard.mkdir()


@pytest.mark.parametrize(
    "damage", [damage_cut, damage_end, damage_header, damage_whole, replace_by_pipe, replace_by_folder]
)
def test_one_unreadable_shard_is_left_out_counted_and_reported(damage, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    damage(numbered_shards(tmp_path / "s", 4, 6) / "001.tar")
    with pytest.warns(SkippedImagesWarning, match=r"1 of 4 shards cannot be read and are left out \(.*001\.tar: "):
        train_part = open_dataset(tmp_path / "s", test_fraction=0).train
    assert all_images(train_part)[:, 0, 0, 0].tolist() == [*range(6), *range(12, 24)]
    assert isinstance(train_part, FileImages)
    assert [Path(name).name for name, _ in train_part.bad_shards] == ["001.tar"]


def test_a_run_says_that_a_shard_is_left_out_and_refuses_more_than_allowed(tmp_path: Path) -> None:
    shards, heard = numbered_shards(tmp_path / "s", 12, 6), list[Event]()
    damage_header(shards / "001.tar")
    settings = config(tmp_path / "run", 2, data=shards, resident_gib=0, eval_samples=8)
    train(settings, on_event=[heard.append])
    (said,) = [event.message for event in heard if isinstance(event, Warned)]
    assert said.startswith(f"1 of 12 shards cannot be read and are left out, the first {shards / '001.tar'}: a damaged")
    with pytest.raises(UnusableImagesError, match=r"at most 0 of its shards unreadable, got 1 of 12"):
        train(settings.changed(out=str(tmp_path / "none"), max_bad_images=0), on_event=[heard.append])
    damage_cut(shards / "002.tar")
    with pytest.raises(
        UnusableImagesError, match=r"at most 0\.1 of its shards unreadable, got 2 of 12, the first .*001"
    ):
        train(settings.changed(out=str(tmp_path / "none")), on_event=[heard.append])
    assert not (tmp_path / "none").exists()
    more = settings.changed(out=str(tmp_path / "more"), max_bad_images=0.2)
    assert train(more, on_event=[heard.append]).steps == 2
