"""What the names of files and folders say."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from pathlib import Path

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
TRAIN_PART = "train"
LABELS = ("auto", "folders", "none")  # whether sub-folders of images are classes
TEST_PARTS = ("test", "val", "valid", "validation")
BRACES = re.compile(r"\{([^{}]*(?:,|\.\.)[^{}]*)\}")
MOST_NUMBERS = 100_000  # that a range of shards may have
CLOSE = 0.7  # share of letters in common from which a name may be a misspelling of another


def words(name: str) -> set[str]:
    """The words in a name.

    >>> sorted(words("Train_images-01"))
    ['', 'images', 'train']
    """
    return set(re.split("[^a-z]+", name.lower()))


def expanded(text: str) -> list[str]:
    """The names that braces stand for: a range of numbers, or a list.

    >>> expanded("s-{008..010}.tar")
    ['s-008.tar', 's-009.tar', 's-010.tar']
    >>> expanded("{a,b}-{0..1}.tar")
    ['a-0.tar', 'a-1.tar', 'b-0.tar', 'b-1.tar']
    """
    found = BRACES.search(text)
    if found is None:
        return [text]
    before, after = text[: found.start()], expanded(text[found.end() :])
    return [f"{before}{choice}{rest}" for choice in _choices(found[1]) for rest in after]


def _choices(inside: str) -> list[str]:
    ends = inside.split("..")
    if len(ends) != 2 or not all(end.isdecimal() for end in ends):
        return inside.split(",")
    first, last = map(int, ends)
    if not first <= last < first + MOST_NUMBERS:
        raise ValueError(f"a range must go up by less than {MOST_NUMBERS:,}, got {{{inside}}}; say {{000..099}}.")
    width = max(map(len, ends)) if any(end.startswith("0") and len(end) > 1 for end in ends) else 0
    return [f"{number:0{width}}" for number in range(first, last + 1)]


def nearest(name: str, others: Iterable[str]) -> str | None:
    """What somebody may have meant: by stem, since an ending in common says nothing; the ending decides between equals.

    >>> nearest("imagse.npy", ["images.npz", "images.npy", "labels.npy"])
    'images.npy'
    """
    by_stem: dict[str, list[str]] = {}
    for other in others:
        by_stem.setdefault(Path(other).stem.casefold(), []).append(other)
    near = difflib.get_close_matches(Path(name).stem.casefold(), by_stem, n=1, cutoff=CLOSE)
    return difflib.get_close_matches(name, by_stem[near[0]], n=1, cutoff=0)[0] if near else None
