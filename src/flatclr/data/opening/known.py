"""Datasets known by name, and the embedded one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from flatclr.data import embedded, named
from flatclr.data.sources import Dataset, ResidentImages

DATASETS = (embedded.NAME, *named.NAMED)
"""The names that `open_dataset` knows; the first is embedded, the others are downloaded when they are asked for."""


def fashion_mnist_small(*, image_size: int | None = None) -> Dataset:
    """The embedded subset of Fashion-MNIST: 10,000 training and 2,000 test images, balanced over its 10 classes.

    Args:
        image_size: side of the square images; None leaves their own, 28.

    Returns:
        the dataset; it needs no download.

    >>> data = fashion_mnist_small(image_size=8)
    >>> len(data.train), len(data.test), data.train.image_size
    (10000, 2000, 8)
    """
    return from_splits(embedded.NAME, embedded.read_embedded(), image_size)


def data_folders(data_dir: str | Path | None) -> list[Path]:
    """Where named datasets are looked for."""
    given = [data_dir, os.environ.get("FLATCLR_DATA"), "data"]
    return [Path(base).expanduser().absolute() for base in given if base]


def from_splits(name: str, splits: named.Splits, image_size: int | None) -> Dataset:
    """What the files of a known dataset hold, as a dataset."""

    def source(part: str, images: NDArray[Any], labels: NDArray[Any] | None) -> ResidentImages:
        return ResidentImages.of(images, labels, splits.classes, image_size=image_size, name=f"{name}/{part}")

    train, test = source("train", *splits.train), source("test", *splits.test)
    if name != "stl10-unlabeled" or splits.unlabelled_NCHW is None:
        return Dataset(name, train, test)
    return Dataset(name, source("unlabeled", splits.unlabelled_NCHW, None), test, bank=train)
