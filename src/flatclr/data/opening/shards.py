"""Tar shards in WebDataset's form: key.jpg beside key.cls."""

from __future__ import annotations

import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from flatclr.data.arrays import MOST_CLASSES
from flatclr.data.decoding import NO_FILE, reason_of
from flatclr.data.opening.labelled_files import LabelledFiles, from_files
from flatclr.data.opening.names import IMAGE_SUFFIXES, TEST_PARTS, words
from flatclr.data.opening.split import Split
from flatclr.data.sources import Blob, Dataset, FileImages, TarMember

LONGEST_CLASS = 64  # bytes of a .cls member
LONGEST_END = 2**20  # bytes: writers fill up the last record with zeros


class Shard(NamedTuple):
    """Where the images of a shard lie, and the classes, by key."""

    images: dict[str, TarMember]
    classes: dict[str, str]


class UnreadableShardError(ValueError):
    """A shard that is no whole tar file."""


def open_shards(name: str, shards: Sequence[Path], image_size: int | None, split: Split) -> Dataset:
    """The images of some shards; those with a word like test in their names are the test part.

    A shard that cannot be read is left out, which the training part remembers and a warning says.
    """
    test_shards = [shard for shard in shards if words(shard.stem) & set(TEST_PARTS)]
    train_shards = [shard for shard in shards if shard not in test_shards] or shards
    bad: list[tuple[str, str]] = []
    train = _shard_files(train_shards, bad)
    test = _shard_files(test_shards, bad) if test_shards and train_shards is not shards else None
    numbers = (train.labels or []) + ((test and test.labels) or [])
    classes = [str(i) for i in range(max(map(int, numbers), default=-1) + 1)]
    dataset = from_files(name, train, test, image_size, split, classes)
    assert isinstance(dataset.train, FileImages)
    dataset.train.leave_out_shards(bad, of=len(shards))
    return dataset


def _shard_files(shards: Sequence[Path], bad: list[tuple[str, str]]) -> LabelledFiles:
    """The images of those that can be read; to the others, and why, `bad` grows."""
    files: list[Blob] = []
    labels: list[str | None] = []
    failure = None
    for shard in shards:
        try:
            images, classes = _read_shard(shard)
        except UnreadableShardError as error:
            failure = failure or error
            bad.append((str(shard), reason_of(error)))
            continue
        files += images.values()
        labels += [classes.get(key) for key in images]
    if not files and failure is not None:
        raise ValueError(
            f"{bad[0][0]} must be a whole, uncompressed tar file, got {failure}; copy or pack it again."
        ) from failure
    if not files:
        raise ValueError(
            f"{shards[0]} must hold images as key.jpg or key.png beside key.cls, got none; check how it was packed."
        )
    known = [label for label in labels if label is not None]
    if not known:
        return LabelledFiles(files, None)
    if len(known) < len(files):
        raise ValueError(
            f"{files[labels.index(None)].name} must have a .cls member like the others, got none for "
            f"{len(files) - len(known)} of {len(files)} images; pack the labels of all or of none."
        )
    return LabelledFiles(files, known)


def _read_shard(shard: Path) -> Shard:
    """What a shard holds; a key is the member's name up to the first dot of its file name."""
    found = Shard({}, {})
    try:
        if not shard.is_file():
            raise tarfile.ReadError(NO_FILE if shard.exists() else "a file that is gone")
        if shard.stat().st_size % tarfile.BLOCKSIZE:
            raise tarfile.ReadError("an incomplete last block")
        with tarfile.open(shard, "r:") as tar:
            for member in tar:
                folder, _, file = member.name.rpartition("/")
                stem, _, extension = file.partition(".")
                key = f"{folder}/{stem}" if folder else stem
                if member.issparse():  # a few bytes can become any number
                    raise tarfile.ReadError(f"{member.name} with holes")
                content = tar.extractfile(member) if member.isreg() and extension == "cls" else None
                if content is not None:
                    found.classes[key] = _class_number(content.read(LONGEST_CLASS), shard)
                elif member.isreg() and f".{extension.lower()}" in IMAGE_SUFFIXES:
                    found.images[key] = TarMember(shard, key, member.offset_data, member.size)
            _require_end(tar)
    except (tarfile.TarError, OSError, EOFError) as error:
        raise UnreadableShardError(reason_of(error)) from error
    return found


def _require_end(tar: tarfile.TarFile) -> None:
    """Python takes a damaged header for the end, and so leaves out what follows without a word."""
    assert tar.fileobj is not None
    tar.fileobj.seek(tar.offset)
    end = tar.fileobj.read(LONGEST_END)
    if not end:
        raise tarfile.ReadError("no end: it was cut off")
    if end.strip(b"\0"):
        raise tarfile.ReadError(f"a damaged header at byte {tar.offset}")


def _class_number(content: bytes, shard: Path) -> str:
    number = int(content) if content.strip().isdigit() else -1
    if not 0 <= number < MOST_CLASSES:
        raise ValueError(
            f"{shard} must have a class number in every .cls member, got {content[:20]!r}; number the classes from 0."
        )
    return str(number)
