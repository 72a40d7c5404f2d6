"""Tar shards in WebDataset's form: key.jpg beside key.cls."""

from __future__ import annotations

import tarfile
from collections.abc import Sequence
from pathlib import Path

from flatclr.data.arrays import MOST_CLASSES
from flatclr.data.decoding import reason_of
from flatclr.data.opening.labelled_files import LabelledFiles, from_files
from flatclr.data.opening.names import IMAGE_SUFFIXES, TEST_PARTS, words
from flatclr.data.opening.split import Split
from flatclr.data.sources import Blob, Dataset, TarMember


def open_shards(name: str, shards: Sequence[Path], image_size: int | None, split: Split) -> Dataset:
    """The images of some shards; those with a word like test in their names are the test part."""
    test_shards = [shard for shard in shards if words(shard.stem) & set(TEST_PARTS)]
    train_shards = [shard for shard in shards if shard not in test_shards] or shards
    train = _shard_files(train_shards)
    test = _shard_files(test_shards) if test_shards and train_shards is not shards else None
    numbers = (train.labels or []) + ((test and test.labels) or [])
    classes = [str(i) for i in range(max(map(int, numbers), default=-1) + 1)]
    return from_files(name, train, test, image_size, split, classes)


def _shard_files(shards: Sequence[Path]) -> LabelledFiles:
    files: list[Blob] = []
    labels: list[str | None] = []
    for shard in shards:
        images, classes = _read_shard(shard)
        files += images.values()
        labels += [classes.get(key) for key in images]
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


def _read_shard(shard: Path) -> tuple[dict[str, TarMember], dict[str, str]]:
    """Where the images lie and the classes by key; a key is the member's name up to the first dot of its file name."""
    images: dict[str, TarMember] = {}
    classes: dict[str, str] = {}
    try:
        if shard.stat().st_size % tarfile.BLOCKSIZE:
            raise tarfile.ReadError("an incomplete last block")
        with tarfile.open(shard, "r:") as tar:
            for member in tar:
                folder, _, file = member.name.rpartition("/")
                stem, _, extension = file.partition(".")
                key = f"{folder}/{stem}" if folder else stem
                content = tar.extractfile(member) if member.isreg() and extension == "cls" else None
                if content is not None:
                    classes[key] = _class_number(content.read())
                elif member.isreg() and f".{extension.lower()}" in IMAGE_SUFFIXES:
                    images[key] = TarMember(shard, key, member.offset_data, member.size)
    except (tarfile.TarError, OSError, ValueError) as error:
        raise ValueError(
            f"{shard} must be a whole, uncompressed tar file, got {reason_of(error)}; copy or pack it again."
        ) from error
    return images, classes


def _class_number(content: bytes) -> str:
    number = int(content) if content.strip().isdigit() else -1
    if not 0 <= number < MOST_CLASSES:
        raise ValueError(f"a .cls member that is no class number: {content[:20]!r}")
    return str(number)
