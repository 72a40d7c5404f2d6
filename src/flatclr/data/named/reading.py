"""Files that must be there, must be whole, and may be compressed."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from flatclr.data.named.splits import Bytes


def existing(folder: Path, names: Iterable[str]) -> Path | None:
    """The first of the names that a folder has."""
    return next((folder / name for name in names if (folder / name).is_file()), None)


def require_file(folder: Path, names: Sequence[str]) -> Path:
    """Refuse a folder that has none of the names."""
    found = existing(folder, names)
    if found is None:
        raise FileNotFoundError(f"{folder} must hold {names[0]}, got no such file; complete the folder or remove it.")
    return found


@contextmanager
def reading(path: Path) -> Iterator[IO[bytes]]:
    """The content of a file, of a .gz uncompressed as it is read."""
    try:
        with path.open("rb") as file:
            stream: Any = gzip.GzipFile(fileobj=file) if path.suffix == ".gz" else file
            yield stream
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(
            f"{path} must be a readable gzip file, got {reason_of(error)}; the file is truncated or damaged: "
            "download it again."
        ) from error


def lines_of(path: Path) -> tuple[str, ...]:
    """The lines of a text file that are not empty."""
    return tuple(line.strip() for line in path.read_text().splitlines() if line.strip())


def reason_of(error: BaseException) -> str:
    """What went wrong, in one line."""
    return f"{type(error).__name__}: {error}".splitlines()[0].rstrip(": .")


def whole_records(path: Path, record: int, *, mapped: bool = False) -> Bytes:
    """The records [N, record] of a file that holds nothing else; mapped, they stay on disk until they are read."""
    size = require_file(path.parent, (path.name,)).stat().st_size
    if size == 0 or size % record:
        raise ValueError(
            f"{path} must hold whole records of {record} bytes, got {size} bytes; "
            "the file is truncated or damaged: download it again."
        )
    content = np.memmap(path, np.uint8, mode="c") if mapped else np.fromfile(path, np.uint8)
    return content.reshape(-1, record)
