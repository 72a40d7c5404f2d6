"""What the files of a known dataset hold.

Shape suffixes: N images, C channels, H rows, W columns.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


class Labelled(NamedTuple):
    images_NCHW: Bytes
    labels_N: Bytes


class Splits(NamedTuple):
    """What the files of a known dataset hold."""

    train: Labelled
    test: Labelled
    classes: tuple[str, ...]
    unlabelled_NCHW: Bytes | None = None
