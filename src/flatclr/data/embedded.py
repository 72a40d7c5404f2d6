"""The images that come with the package: a balanced subset of Fashion-MNIST (MIT licence, see `files/`).

`scripts/make_embedded_dataset.py` made the file: four arrays in numpy's format, one after the other, in one xz stream.
"""

from __future__ import annotations

import lzma
from importlib import resources

import numpy as np

from flatclr.data.named import FASHION, Labelled, Splits

NAME = "fashion-mnist-small"
FILE = "fashion_mnist_small.npy.xz"


def read_embedded() -> Splits:
    """10,000 training and 2,000 test images [N, 1, 28, 28], as many of each class."""
    with (resources.files("flatclr.data") / "files" / FILE).open("rb") as packed, lzma.open(packed) as file:
        train_NHW, train_labels, test_NHW, test_labels = (np.load(file) for _ in range(4))
    return Splits(Labelled(train_NHW[:, None], train_labels), Labelled(test_NHW[:, None], test_labels), classes=FASHION)
