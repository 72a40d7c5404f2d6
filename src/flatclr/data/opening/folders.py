"""Folders: of a known dataset, of images in any layout, of tar shards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from flatclr.data import named
from flatclr.data.opening.known import from_splits
from flatclr.data.opening.labelled_files import LabelledFiles, from_files
from flatclr.data.opening.names import IMAGE_SUFFIXES, LABELS, TEST_PARTS, TRAIN_PART
from flatclr.data.opening.shards import open_shards
from flatclr.data.opening.split import Split
from flatclr.data.sources import Blob, Dataset, DiskFile


def open_folder(folder: Path, image_size: int | None, split: Split, labels: str = LABELS[0]) -> Dataset:
    """The dataset that a folder holds, in any layout.

    Sub-folders are classes where `labels` is "folders", or where it is "auto" and every image lies in one of several
    sub-folders, none of them deeper.
    """
    name = folder.resolve().name
    if (known := named.recognise(folder)) is not None:
        return from_splits(*known, image_size)
    images = list(_walk(folder))
    if images:
        train, test = _train_and_test(images, folder, labels)
        dataset = from_files(name, train, test, image_size, split)
        return replace(dataset, notes=(_choice(train, labels),))
    if shards := sorted(folder.glob("*.tar")):
        return open_shards(name, shards, image_size, split)
    others = sorted({entry.suffix or entry.name for entry in folder.iterdir()})
    raise ValueError(
        f"{folder} must hold images ({', '.join(IMAGE_SUFFIXES)}), "
        f"got {'only ' + ', '.join(others[:5]) if others else 'an empty folder'}; "
        "put images there, or one sub-folder of images per class."
    )


def _choice(train: LabelledFiles, labels: str) -> str:
    """What was made of the sub-folders, and how to say otherwise."""
    if train.labels is not None:
        how = "" if labels == "folders" else "; --labels none if they are not"
        return f"{len(set(train.labels))} sub-folders are taken for classes{how}"
    how = "; --labels folders if sub-folders are classes" if labels == "auto" else ""
    return f"no labels{how}"


def _train_and_test(images: list[Path], folder: Path, labels: str) -> tuple[LabelledFiles, LabelledFiles | None]:
    """Sub-folders train/ and test/ or val/ are the parts; others may be classes, and no part is for testing."""
    by_folder = _grouped(images, folder)
    if TRAIN_PART not in by_folder or not set(by_folder) <= {TRAIN_PART, *TEST_PARTS}:
        return _labelled(images, folder, labels), None
    train = _labelled(by_folder[TRAIN_PART], folder / TRAIN_PART, labels)
    test_part = next((part for part in TEST_PARTS if part in by_folder), None)
    if test_part is None:
        return train, None
    of_test = "none" if train.labels is None else "folders"
    return train, _labelled(by_folder[test_part], folder / test_part, of_test, one_class=True)


def _labelled(images: list[Path], folder: Path, labels: str, *, one_class: bool = False) -> LabelledFiles:
    by_folder = _grouped(images, folder)
    several = len(by_folder) > 1 or one_class  # one class tells nothing apart
    deepest = max(len(path.relative_to(folder).parts) for path in images)
    if labels == "none" or (labels == "auto" and ("" in by_folder or deepest > 2 or not several)):
        return LabelledFiles([DiskFile(path) for path in images], None)
    if "" in by_folder or not several:
        got = f"{by_folder[''][0].name} beside them" if "" in by_folder else f"{next(iter(by_folder))}/ alone"
        raise ValueError(
            f"{folder} must hold nothing but several sub-folders for --labels folders, got {got}; move the images "
            "into sub-folders, or pass --labels none."
        )
    files: list[Blob] = [DiskFile(path) for paths in by_folder.values() for path in paths]
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
