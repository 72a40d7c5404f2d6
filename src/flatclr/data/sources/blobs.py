"""Stored images that are still encoded: files, members of tar shards, rows of a table of the hub."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

from flatclr.data.decoding import Place


class Blob(Protocol):
    """One stored image, still encoded. Those with a `place` on the disk can be decoded by other processes."""

    @property
    def name(self) -> str: ...
    def open(self) -> BinaryIO: ...
    def stamp(self) -> str:
        """Name and size, or what else changes with the content, without reading it."""


class DiskFile(NamedTuple):
    """A file of its own."""

    path: Path

    @property
    def name(self) -> str:
        return str(self.path)

    @property
    def place(self) -> Place:
        return Place(str(self.path))

    def open(self) -> BinaryIO:
        return self.place.open()

    def stamp(self) -> str:
        return f"{self.path.parent.name}/{self.path.name} {self.path.stat().st_size}"


class TarMember(NamedTuple):
    """A member of an uncompressed tar file, read where it lies."""

    shard: Path
    key: str
    offset: int
    size: int

    @property
    def name(self) -> str:
        return f"{self.shard}:{self.key}"

    @property
    def place(self) -> Place:
        return Place(str(self.shard), self.offset, self.size)

    def open(self) -> BinaryIO:
        return self.place.open()

    def stamp(self) -> str:
        return f"{self.shard.name} {self.key} {self.offset} {self.size}"


class HubRow(NamedTuple):
    """A row of a table of the Hugging Face hub."""

    table: Any  # datasets.Dataset with undecoded images
    column: str
    row: int
    source: str

    @property
    def name(self) -> str:
        return f"{self.source}[{self.row}]"

    def open(self) -> BinaryIO:
        value = self.table[self.row][self.column]
        return io.BytesIO(value["bytes"]) if value["bytes"] is not None else Path(value["path"]).open("rb")

    def stamp(self) -> str:
        return f"{self.row} {self.table._fingerprint}"
