"""MNIST and Fashion-MNIST: four idx files of images and labels, plain or .gz."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from flatclr.data.named.layouts import Layout, NamedDataset, Remote
from flatclr.data.named.reading import reading, require_file
from flatclr.data.named.splits import Bytes, Labelled, Splits
from flatclr.data.unpacking import require_no_bomb

DIGITS = tuple("0123456789")
FASHION = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)


def read_idx(folder: Path, classes: tuple[str, ...]) -> Splits:
    """The four idx files of MNIST and its kin, plain or .gz."""
    splits = []
    for images_names, labels_names in (IDX_FILES[:2], IDX_FILES[2:]):
        images_NHW = _read_idx_file(require_file(folder, images_names), dimensions=3)
        labels_N = _read_idx_file(require_file(folder, labels_names), dimensions=1)
        splits.append(Labelled(images_NHW[:, None], labels_N))
    return Splits(splits[0], splits[1], classes)


def _read_idx_file(path: Path, *, dimensions: int) -> Bytes:
    with reading(path) as stream:
        header = stream.read(4 + 4 * dimensions)
        if len(header) < 4 + 4 * dimensions or header[:4] != bytes([0, 0, 8, dimensions]):
            raise ValueError(
                f"{path} must start with the idx magic number of {dimensions}-dimensional bytes, got "
                f"{header[:4].hex()}; the file is damaged or of another kind: download it again."
            )
        shape = [int.from_bytes(header[4 + 4 * d : 8 + 4 * d], "big") for d in range(dimensions)]
        expected = math.prod(shape)
        try:
            require_no_bomb(expected, packed=path.stat().st_size)
        except ValueError as error:
            raise ValueError(f"{path} must be a file of images or labels, got {error}; download it again.") from None
        content = stream.read(expected + 1)  # one more than the header promises tells that there is more
    if len(content) != expected:
        got = len(content) if len(content) < expected else "more"
        raise ValueError(
            f"{path} must hold {shape} = {expected} bytes after its header, got {got}; "
            "the file is truncated or damaged: download it again."
        )
    return np.frombuffer(bytearray(content), np.uint8).reshape(shape)


def _idx(kind: str, dimensions: int) -> tuple[str, ...]:
    names = (f"{kind}-idx{dimensions}-ubyte", f"{kind}.idx{dimensions}-ubyte")
    return tuple(name + end for name in names for end in ("", ".gz"))


IDX_FILES = (_idx("train-images", 3), _idx("train-labels", 1), _idx("t10k-images", 3), _idx("t10k-labels", 1))
IDX_DIGITS = Layout(("mnist", "MNIST/raw", "MNIST"), IDX_FILES, lambda at: read_idx(at, DIGITS), ambiguous=True)
IDX_FASHION = Layout(
    ("fashion-mnist", "FashionMNIST/raw", "FashionMNIST"), IDX_FILES, lambda at: read_idx(at, FASHION), ambiguous=True
)


def _idx_remotes(addresses: tuple[str, ...], files: dict[str, tuple[int, str]]) -> tuple[Remote, ...]:
    return tuple(
        Remote(file, sha256, size, tuple(address + file for address in addresses))
        for file, (size, sha256) in files.items()
    )


# Checksums as recorded by TensorFlow Datasets (url_checksums/).
MNIST = NamedDataset(
    "mnist",
    (IDX_DIGITS,),
    _idx_remotes(
        (  # its author's page no longer serves the files
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
        ),
        {
            "train-images-idx3-ubyte.gz": (
                9912422,
                "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            ),
            "train-labels-idx1-ubyte.gz": (
                28881,
                "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            ),
            "t10k-images-idx3-ubyte.gz": (
                1648877,
                "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            ),
            "t10k-labels-idx1-ubyte.gz": (
                4542,
                "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            ),
        },
    ),
    home="mnist",
    archived=False,
)
FASHION_MNIST = NamedDataset(
    "fashion-mnist",
    (IDX_FASHION,),
    _idx_remotes(
        (
            "https://storage.googleapis.com/tensorflow/tf-keras-datasets/",
            "https://fashion-mnist.s3.eu-central-1.amazonaws.com/",
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",  # its official one, which has no https
        ),
        {
            "train-images-idx3-ubyte.gz": (
                26421880,
                "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            ),
            "train-labels-idx1-ubyte.gz": (
                29515,
                "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            ),
            "t10k-images-idx3-ubyte.gz": (
                4422102,
                "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            ),
            "t10k-labels-idx1-ubyte.gz": (
                5148,
                "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
            ),
        },
    ),
    home="fashion-mnist",
    archived=False,
)
