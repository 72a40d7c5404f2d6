"""STL-10, with or without its unlabelled images."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from flatclr.data.named.layouts import Layout, NamedDataset, Remote, one_name_each
from flatclr.data.named.reading import lines_of, require_file, whole_records
from flatclr.data.named.splits import Bytes, Labelled, Splits


def read_stl10(folder: Path) -> Splits:
    train, test = (
        Labelled(_read_stl10_images(folder / f"{part}_X.bin"), _read_stl10_labels(folder, part))
        for part in ("train", "test")
    )
    unlabelled = folder / "unlabeled_X.bin"
    return Splits(
        train,
        test,
        lines_of(require_file(folder, ("class_names.txt",))),
        _read_stl10_images(unlabelled) if unlabelled.is_file() else None,
    )


def _read_stl10_images(path: Path) -> Bytes:
    # mapped, because unlabeled_X.bin has 2.8 GB; private pages, because torch wants to be able to write
    return whole_records(path, 3 * 96 * 96, mapped=True).reshape(-1, 3, 96, 96).transpose(0, 1, 3, 2)  # by columns


def _read_stl10_labels(folder: Path, part: str) -> Bytes:
    return whole_records(folder / f"{part}_y.bin", 1)[:, 0] - np.uint8(1)  # the file counts from 1


_STL10_FILES = ("train_X.bin", "train_y.bin", "test_X.bin", "test_y.bin", "class_names.txt")
# Checksum as recorded by TensorFlow Datasets (url_checksums/).
_STL10_ARCHIVE = Remote(
    "stl10_binary.tar.gz",
    "f31fd99273a1acb8609c8db427cebb1de3f71de77758cdc0e22956e1289b9866",
    2640397119,
    (
        "https://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz",
        "http://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz",
    ),
)
STL10 = NamedDataset(
    "stl10",
    (Layout(("stl10_binary",), one_name_each(*_STL10_FILES), read_stl10),),
    (_STL10_ARCHIVE,),
    home="stl10_binary",
    archived=True,
)
STL10_UNLABELLED = NamedDataset(
    "stl10-unlabeled",
    (Layout(("stl10_binary",), one_name_each(*_STL10_FILES, "unlabeled_X.bin"), read_stl10),),
    (_STL10_ARCHIVE,),
    home="stl10_binary",
    archived=True,
)
