"""Files with the names of their classes, as folders, shards and the hub give them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from flatclr.data.opening.split import Split
from flatclr.data.sources import Blob, Dataset, FileImages, alpha_is_told


class LabelledFiles(NamedTuple):
    """Stored images and, where they are known, the names of their classes."""

    files: list[Blob]
    labels: list[str] | None


def from_files(
    name: str,
    train: LabelledFiles,
    test: LabelledFiles | None,
    image_size: int | None,
    split: Split,
    classes: Sequence[str] | None = None,
) -> Dataset:
    """A dataset of these files; without a test part some are held out. The classes that occur are all unless given."""
    labels = (train.labels or []) + ((test and test.labels) or [])
    names = tuple(classes or sorted(set(labels)))
    number = {label: i for i, label in enumerate(names)}

    def source(part: str, content: LabelledFiles, size: int | None, channels: int | None = None) -> FileImages:
        numbers = None if content.labels is None else torch.tensor([number[label] for label in content.labels])
        return FileImages(content.files, numbers, names, image_size=size, channels=channels, name=part)

    if test is None:
        return split.of(name, source(name, train, image_size))
    first = source(f"{name}/train", train, image_size)
    with alpha_is_told(bool(first.transparent)):
        return Dataset(name, first, source(f"{name}/test", test, first.image_size, first.channels))
