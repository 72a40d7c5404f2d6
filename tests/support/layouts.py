"""Known datasets in their published layouts, with a few random images."""

import gzip
import pickle
from pathlib import Path

import numpy as np

from flatclr.data.sources import Dataset
from tests.support.images import RNG, pixels
from tests.support.sources import assert_holds


class Made:
    """Random images and labels as written by one of the writers below."""

    def __init__(self, train: int, test: int, shape: tuple[int, ...], classes: int = 10) -> None:
        self.train, self.test = pixels(train, *shape), pixels(test, *shape)
        self.train_labels, self.test_labels = (RNG.integers(0, classes, n, dtype=np.uint8) for n in (train, test))

    def check(self, dataset: Dataset) -> None:
        assert_holds(dataset.train, self.train, self.train_labels)
        assert_holds(dataset.test, self.test, self.test_labels)


def write_idx(folder: Path, made: Made, *, end: str = "", separator: str = "-") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for part, images, labels in (("train", made.train, made.train_labels), ("t10k", made.test, made.test_labels)):
        for kind, array in (("images", images[:, 0]), ("labels", labels)):
            header = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
            content = header + array.tobytes()
            file = folder / f"{part}-{kind}{separator}idx{array.ndim}-ubyte{end}"
            file.write_bytes(gzip.compress(content) if end == ".gz" else content)
    return folder


def cifar10_batches(made: Made) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Five training files of two images, and the test file."""
    parts = zip(np.split(made.train, 5), np.split(made.train_labels, 5), strict=True)
    batches = {f"data_batch_{i}": part for i, part in enumerate(parts, start=1)}
    return batches | {"test_batch": (made.test, made.test_labels)}


def write_cifar10_binary(base: Path, made: Made) -> Path:
    folder = base / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    for file, (images, labels) in cifar10_batches(made).items():
        records = np.concatenate([labels[:, None], images.reshape(len(images), -1)], axis=1)
        (folder / f"{file}.bin").write_bytes(records.tobytes())
    (folder / "batches.meta.txt").write_text("\n".join(f"class {i}" for i in range(10)) + "\n\n")
    return folder


def write_cifar10_pickled(base: Path, made: Made, protocol: int = 2) -> Path:
    folder = base / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    for file, (images, labels) in cifar10_batches(made).items():
        content = {b"data": images.reshape(len(images), -1), b"labels": labels.tolist(), b"batch_label": b"a batch"}
        (folder / file).write_bytes(pickle.dumps(content, protocol=protocol))
    names = {b"label_names": [f"class {i}".encode() for i in range(10)]}
    (folder / "batches.meta").write_bytes(pickle.dumps(names, protocol=protocol))
    return folder


def write_cifar100_binary(base: Path, made: Made) -> Path:
    folder = base / "cifar-100-binary"
    folder.mkdir(parents=True)
    for file, images, labels in (("train", made.train, made.train_labels), ("test", made.test, made.test_labels)):
        coarse = np.full_like(labels, 7)
        records = np.concatenate([coarse[:, None], labels[:, None], images.reshape(len(images), -1)], axis=1)
        (folder / f"{file}.bin").write_bytes(records.tobytes())
    (folder / "fine_label_names.txt").write_text("\n".join(f"fine {i}" for i in range(100)))
    return folder


def write_cifar100_pickled(base: Path, made: Made) -> Path:
    folder = base / "cifar-100-python"
    folder.mkdir(parents=True)
    for file, images, labels in (("train", made.train, made.train_labels), ("test", made.test, made.test_labels)):
        content = {"data": images.reshape(len(images), -1), "fine_labels": labels.tolist(), "coarse_labels": [0]}
        (folder / file).write_bytes(pickle.dumps(content))
    (folder / "meta").write_bytes(pickle.dumps({"fine_label_names": [f"fine {i}" for i in range(100)]}))
    return folder


def write_stl10(base: Path, made: Made, unlabelled: np.ndarray | None = None) -> Path:
    folder = base / "stl10_binary"
    folder.mkdir(parents=True)
    for part, images, labels in (("train", made.train, made.train_labels), ("test", made.test, made.test_labels)):
        (folder / f"{part}_X.bin").write_bytes(images.transpose(0, 1, 3, 2).tobytes())
        (folder / f"{part}_y.bin").write_bytes((labels + 1).tobytes())
    if unlabelled is not None:
        (folder / "unlabeled_X.bin").write_bytes(unlabelled.transpose(0, 1, 3, 2).tobytes())
    (folder / "class_names.txt").write_text("\n".join(f"kind {i}" for i in range(10)))
    return folder


def tiny_cifar() -> Made:
    return Made(10, 3, (3, 32, 32))
