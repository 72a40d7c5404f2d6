"""CIFAR-10 and CIFAR-100: records of bytes, or pickled batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from flatclr.data.named.layouts import Layout, NamedDataset, Remote, one_name_each
from flatclr.data.named.plain_pickle import load_plain_pickle
from flatclr.data.named.reading import lines_of, require_file, whole_records
from flatclr.data.named.splits import Labelled, Splits


def read_cifar10_binary(folder: Path) -> Splits:
    train = [_read_records(folder / f"data_batch_{i}.bin", labels=1) for i in range(1, 6)]
    return Splits(
        Labelled(*map(np.concatenate, zip(*train, strict=True))),
        _read_records(folder / "test_batch.bin", labels=1),
        lines_of(require_file(folder, ("batches.meta.txt",))),
    )


def read_cifar100_binary(folder: Path) -> Splits:
    train, test = (_read_records(folder / file, labels=2) for file in ("train.bin", "test.bin"))
    return Splits(train, test, lines_of(require_file(folder, ("fine_label_names.txt",))))


def _read_records(path: Path, *, labels: int) -> Labelled:
    """Records of label bytes (the last is the fine one) and 3 x 32 x 32 pixels."""
    records = whole_records(path, labels + 3072)
    images_NCHW = np.ascontiguousarray(records[:, labels:]).reshape(-1, 3, 32, 32)
    return Labelled(images_NCHW, records[:, labels - 1].copy())


def read_cifar10_pickled(folder: Path) -> Splits:
    train = [_read_pickled_batch(folder / f"data_batch_{i}", "labels") for i in range(1, 6)]
    return Splits(
        Labelled(*map(np.concatenate, zip(*train, strict=True))),
        _read_pickled_batch(folder / "test_batch", "labels"),
        _pickled_names(folder / "batches.meta", "label_names"),
    )


def read_cifar100_pickled(folder: Path) -> Splits:
    train, test = (_read_pickled_batch(folder / file, "fine_labels") for file in ("train", "test"))
    return Splits(train, test, _pickled_names(folder / "meta", "fine_label_names"))


def _read_pickled_batch(path: Path, label_key: str) -> Labelled:
    content = load_plain_pickle(path)
    data, labels = content.get("data"), content.get(label_key)
    if not (isinstance(data, np.ndarray) and data.dtype == np.uint8 and data.ndim == 2 and data.shape[1] == 3072):
        raise ValueError(f"{path} must hold 'data' of uint8 [N, 3072], got {_kind(data)}; download it again.")
    if not (isinstance(labels, list) and len(labels) == len(data) and all(label in range(256) for label in labels)):
        raise ValueError(
            f"{path} must hold {label_key!r} with {len(data)} entries, got {_kind(labels)}; download it again."
        )
    return Labelled(data.reshape(-1, 3, 32, 32), np.asarray(labels, np.uint8))


def _pickled_names(path: Path, key: str) -> tuple[str, ...]:
    names = load_plain_pickle(path).get(key)
    if not isinstance(names, list):
        raise ValueError(f"{path} must hold {key!r}, a list of names, got {_kind(names)}; download it again.")
    return tuple(name.decode() if isinstance(name, bytes) else str(name) for name in names)


def _kind(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {list(value.shape)}"
    return f"{len(value)} entries" if isinstance(value, list) else type(value).__name__


_CIFAR10_BATCHES = ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch")
_CIFAR10 = (
    Layout(
        ("cifar-10-batches-bin",),
        one_name_each(*(f"{batch}.bin" for batch in _CIFAR10_BATCHES), "batches.meta.txt"),
        read_cifar10_binary,
    ),
    Layout(("cifar-10-batches-py",), one_name_each(*_CIFAR10_BATCHES, "batches.meta"), read_cifar10_pickled),
)
_CIFAR100 = (
    Layout(("cifar-100-binary",), one_name_each("train.bin", "test.bin", "fine_label_names.txt"), read_cifar100_binary),
    Layout(("cifar-100-python",), one_name_each("train", "test", "meta"), read_cifar100_pickled),
)


def _cifar_archive(number: int, sha256: str, size: int) -> Remote:
    file = f"cifar-{number}-binary.tar.gz"
    return Remote(file, sha256, size, (f"https://www.cs.toronto.edu/~kriz/{file}",))


# Checksums as recorded by TensorFlow Datasets (url_checksums/).
CIFAR10 = NamedDataset(
    "cifar10",
    _CIFAR10,
    (_cifar_archive(10, "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd", 170052171),),
    home="cifar-10-batches-bin",
    archived=True,
)
CIFAR100 = NamedDataset(
    "cifar100",
    _CIFAR100,
    (_cifar_archive(100, "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec", 168513733),),
    home="cifar-100-binary",
    archived=True,
)
