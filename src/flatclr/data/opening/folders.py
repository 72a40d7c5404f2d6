"""Folders: of a known dataset, of images with one sub-folder per class or without, of tar shards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from flatclr.data import named
from flatclr.data.opening.known import from_splits
from flatclr.data.opening.labelled_files import LabelledFiles, from_files
from flatclr.data.opening.names import IMAGE_SUFFIXES, TEST_PARTS, TRAIN_PART
from flatclr.data.opening.shards import open_shards
from flatclr.data.opening.split import Split
from flatclr.data.sources import Blob, Dataset, DiskFile


def open_folder(folder: Path, image_size: int | None, split: Split) -> Dataset:
    """The dataset that a folder holds."""
    name = folder.resolve().name
    if (known := named.recognise(folder)) is not None:
        return from_splits(*known, image_size)
    by_folder = _grouped(_walk(folder), folder)
    if by_folder:
        return from_files(name, *_train_and_test(by_folder, folder), image_size, split)
    if shards := sorted(folder.glob("*.tar")):
        return open_shards(name, shards, image_size, split)
    others = sorted({entry.suffix or entry.name for entry in folder.iterdir()})
    raise ValueError(
        f"{folder} must hold images ({', '.join(IMAGE_SUFFIXES)}), "
        f"got {'only ' + ', '.join(others[:5]) if others else 'an empty folder'}; "
        "put images there, or one sub-folder of images per class."
    )


def _train_and_test(by_folder: Mapping[str, list[Path]], folder: Path) -> tuple[LabelledFiles, LabelledFiles | None]:
    """Sub-folders train/ and test/ or val/ are the parts; others are classes, and no part is for testing."""
    if TRAIN_PART not in by_folder or not set(by_folder) <= {TRAIN_PART, *TEST_PARTS}:
        return _labelled(by_folder, folder), None
    at = folder / TRAIN_PART
    train = _labelled(_grouped(by_folder[TRAIN_PART], at), at)
    test_part = next((part for part in TEST_PARTS if part in by_folder), None)
    if test_part is None:
        return train, None
    at = folder / test_part
    return train, _labelled(_grouped(by_folder[test_part], at), at, one_class=train.labels is not None)


def _labelled(by_folder: Mapping[str, list[Path]], folder: Path, *, one_class: bool = False) -> LabelledFiles:
    files: list[Blob] = [DiskFile(path) for paths in by_folder.values() for path in paths]
    if len(by_folder) == 1 and ("" in by_folder or not one_class):  # one class tells nothing apart
        return LabelledFiles(files, None)
    if "" in by_folder:
        raise ValueError(
            f"{folder} must hold either images or one sub-folder per class, got both ({by_folder[''][0].name} beside "
            f"{max(by_folder)}/); move the images into a sub-folder."
        )
    return LabelledFiles(files, [label for label, paths in by_folder.items() for _ in paths])


def _grouped(paths: Iterable[Path], folder: Path) -> dict[str, list[Path]]:
    """Paths below a folder by the sub-folder they are in; those beside the sub-folders under ''."""
    groups: dict[str, list[Path]] = {}
    for path in paths:
        parts = path.relative_to(folder).parts
        groups.setdefault(parts[0] if len(parts) > 1 else "", []).append(path)
    return groups


def _walk(folder: Path) -> Iterator[Path]:
    """Images below a folder, sorted; also what is only named like one."""
    seen, waiting = set[tuple[int, int]](), [folder]  # a stack: folders may be nested more deeply than calls
    while waiting:
        path = waiting.pop()
        if not path.is_dir():
            yield path
            continue
        status = path.stat()
        if (status.st_dev, status.st_ino) in seen:  # a link back to a folder above
            continue
        seen.add((status.st_dev, status.st_ino))
        entries = [entry for entry in path.iterdir() if not entry.name.startswith(".")]
        waiting += sorted((e for e in entries if e.suffix.lower() in IMAGE_SUFFIXES or e.is_dir()), reverse=True)
