"""What the headers of stored images say, without decoding them."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from PIL import Image

from flatclr.data.decoding import has_alpha, what_is_wrong
from flatclr.data.sources.blobs import Blob, DiskFile
from flatclr.data.sources.lost import require_reached, tried_again

HEADERS_CHECKED = 100_000  # of more files, this many evenly spaced ones


@dataclass(frozen=True)
class Survey:
    """What the headers say of all files."""

    checked: int  # files whose header was read
    unreadable: dict[int, str]  # what is wrong, by the number of the file
    shorter_side: int  # of the median image
    gray: bool  # all of them
    transparent: int  # how many have an alpha channel


class _Header(NamedTuple):
    shorter_side: int
    gray: bool
    transparent: bool


def survey(files: Sequence[Blob], *, workers: int, name: str) -> Survey:
    """Read the headers; refuse files that cannot be reached, and files of which none is an image."""
    step = -(-len(files) // HEADERS_CHECKED) or 1
    headers: dict[int, _Header | str] = {}
    with ThreadPoolExecutor(workers, thread_name_prefix="flatclr-headers") as pool:

        def read(numbers: Sequence[int]) -> dict[int, str]:
            headers.update(zip(numbers, pool.map(_header, [files[i] for i in numbers]), strict=True))
            return {i: header for i in numbers if isinstance(header := headers[i], str)}

        unreadable = tried_again(read(range(0, len(files), step)), read)
    require_reached(name, files, unreadable)
    readable = [header for header in headers.values() if not isinstance(header, str)]
    if not readable:
        first = next((f"; the first is {files[i].name}: {reason}" for i, reason in unreadable.items()), "")
        raise ValueError(f"{name} must hold readable images, got 0 of {len(files)}{first}; check the files.")
    side = int(np.median([header.shorter_side for header in readable]))
    transparent = sum(header.transparent for header in readable)
    return Survey(len(headers), unreadable, side, all(header.gray for header in readable), transparent)


def _header(file: Blob) -> _Header | str:
    try:
        with file.open() as stream, Image.open(stream) as image:
            gray = image.mode in ("1", "L", "LA", "I") or image.mode.startswith("I;16")
            return _Header(min(image.size), gray, has_alpha(image))
    except Exception as error:  # decoders fail in many ways on damaged files
        if isinstance(error, FileNotFoundError) and isinstance(file, DiskFile) and file.path.is_symlink():
            return "a link that leads nowhere"
        return what_is_wrong(error)
