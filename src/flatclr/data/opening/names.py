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
CLOSE = 0.7  # share of letters in common from which a name may be a misspelling of another


def words(name: str) -> set[str]:
    """The words in a name.

    >>> sorted(words("Train_images-01"))
    ['', 'images', 'train']
    """
    return set(re.split("[^a-z]+", name.lower()))


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
