"""Files that cannot be reached: the system is the problem, not the image, and it may come back."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from flatclr.data.decoding import UNREACHABLE
from flatclr.data.sources.blobs import Blob

PAUSES_S = (0.2, 0.8, 2.0)  # before files that are not reached are tried again


class UnusableImagesError(ValueError):
    """Image files went missing, or more of them are damaged than the user allows."""

    everywhere = False  # whether every process of a run raises one at the same place


def tried_again(wrong: Mapping[int, str], read: Callable[[list[int]], Mapping[int, str]]) -> dict[int, str]:
    """What is still wrong when files that were not reached have been read again, a few times.

    Args:
        wrong: what was, by number.
        read: reads those of some numbers; returns what is wrong with them now.
    """
    still = dict(wrong)
    for pause in PAUSES_S:
        lost = [number for number, reason in still.items() if reason.startswith(UNREACHABLE)]
        if not lost:
            break
        time.sleep(pause)  # a network file system may come back
        for number in lost:
            del still[number]
        still |= read(lost)
    return still


def require_reached(name: str, files: Sequence[Blob], wrong: Mapping[int, str]) -> None:
    """Refuse to go on without files that cannot be reached.

    Args:
        name: of the data.
        files: that were read.
        wrong: with which of them what is.
    """
    lost = [number for number, reason in wrong.items() if reason.startswith(UNREACHABLE)]
    if lost:
        first = lost[0]
        raise UnusableImagesError(
            f"{name} must keep its images where they are, got {len(lost)} of {len(files)} that cannot be reached, the "
            f"first {files[first].name} ({wrong[first].removeprefix(UNREACHABLE)}); put them back."
        )
