"""What files promise to become in memory, looked at before they are unpacked."""

from __future__ import annotations

import math
import os
import zipfile
from pathlib import Path
from typing import IO

import numpy as np

MOST_HARMLESS, MOST_PACKED = 2**30, 100  # bytes that any file may unpack to; and how many times its own size beyond


def memory_bytes() -> float:
    """What is installed; infinite where the system does not say."""
    if not {"SC_PHYS_PAGES", "SC_PAGE_SIZE"} <= set(getattr(os, "sysconf_names", ())):
        return math.inf
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def require_no_bomb(unpacked: int, *, packed: int) -> None:
    """Refuse to unpack what memory does not hold, or what only files made to fill it hold.

    Args:
        unpacked: bytes that the headers promise.
        packed: bytes of the file.

    Raises:
        ValueError: with what was found, for a message about the file.

    >>> require_no_bomb(5 * 2**20, packed=2**10)  # small: whatever it is, it does no harm
    >>> require_no_bomb(5 * 2**30, packed=2**20)
    Traceback (most recent call last):
    ValueError: 5.0 GiB packed into 1.0 MiB, as in files that are made to fill memory
    """
    if unpacked > MOST_HARMLESS and unpacked > MOST_PACKED * packed:
        raise ValueError(
            f"{unpacked / 2**30:,.1f} GiB packed into {packed / 2**20:,.1f} MiB, "
            "as in files that are made to fill memory"
        )
    if unpacked > memory_bytes():
        raise ValueError(f"arrays of {unpacked / 2**30:,.0f} GiB, more than memory holds")


def require_no_zip_bomb(path: Path) -> None:
    """Refuse a zip archive as `require_no_bomb` does; a file of another kind is left to who reads it."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            require_no_bomb(_unpacked(archive), packed=path.stat().st_size)


def _unpacked(archive: zipfile.ZipFile) -> int:
    return sum(member.file_size for member in archive.infolist())


def require_honest_arrays(path: Path) -> None:
    """Refuse an .npy or .npz file whose headers claim more than it holds, or than memory holds; nothing else is read.

    Raises:
        ValueError: with what was found, for a message about the file.
    """
    with path.open("rb") as file:
        if not zipfile.is_zipfile(file):
            file.seek(0)
            if file.read(2) == b"PK":  # which numpy would open as an archive, and leave open
                raise ValueError("a damaged archive")
            file.seek(0)
            size = path.stat().st_size
            _require_claim(file, size)
            require_no_bomb(size, packed=size)
            return
    with zipfile.ZipFile(path) as archive:
        require_no_bomb(_unpacked(archive), packed=path.stat().st_size)
        for member in archive.infolist():
            with archive.open(member) as stream:
                _require_claim(stream, member.file_size)


def _require_claim(stream: IO[bytes], size: int) -> None:
    second = np.lib.format.read_array_header_2_0  # the third version differs in the letters of names only
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): second, (3, 0): second}
    if size == 0:
        raise ValueError("an empty file")
    if stream.read(6) != b"\x93NUMPY":
        return  # whoever reads it says what it is
    version = tuple(stream.read(2))
    if version in readers:
        shape, _, dtype = readers[version](stream)
        claimed, there = math.prod(shape) * dtype.itemsize, size - stream.tell()
        if claimed > there and not dtype.hasobject:
            raise ValueError(f"a header that claims {claimed:,} bytes where {there:,} follow")
