"""Images, labels and paired data in `.npy` and `.npz` files."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from flatclr.data.arrays import MOST_CLASSES, as_targets, label_array
from flatclr.data.decoding import reason_of
from flatclr.data.opening.names import words
from flatclr.data.opening.split import Split
from flatclr.data.sources import Dataset, PairedArrays, ResidentImages
from flatclr.data.unpacking import require_honest_arrays

Array = NDArray[Any]
T = TypeVar("T")

UNREADABLE = (ValueError, EOFError, OSError, MemoryError, NotImplementedError, SyntaxError, zipfile.BadZipFile)
IMAGE_KEYS = ("train_images", "x_train", "train_x", "images", "x")
LABEL_KEYS = ("train_labels", "y_train", "train_y", "labels", "y")
TEST_IMAGE_KEYS = ("test_images", "x_test", "test_x")
TEST_LABEL_KEYS = ("test_labels", "y_test", "test_y")


def open_npy(path: Path, image_size: int | None, split: Split) -> Dataset:
    """Images without labels."""
    return split.of(path.stem, ResidentImages.of(_load_npy(path), image_size=image_size, name=str(path)))


def open_npy_pair(paths: tuple[Path, Path], image_size: int | None, split: Split) -> Dataset:
    """Images and labels, or paired data if the second are float and no labels."""
    name = "+".join(path.stem for path in paths)
    first, second = map(_load_npy, paths)
    if second.dtype.kind == "f" and not _are_labels(second, *paths):
        return split.of(name, PairedArrays(first, second, name=name))
    return split.of(name, ResidentImages.of(first, second, image_size=image_size, name=name))


def open_npz(path: Path, image_size: int | None, split: Split) -> Dataset:
    """Images and labels, with or without a test part, or paired data named x and y."""
    arrays = _load_npz(path)
    images, labels = _first(arrays, IMAGE_KEYS), _first(arrays, LABEL_KEYS)
    if images is None:
        raise ValueError(
            f"{path} must hold one of {', '.join(IMAGE_KEYS)} (labels in {', '.join(LABEL_KEYS)}), "
            f"got {', '.join(arrays) or 'nothing'}; rename the array."
        )
    name = path.stem
    classes = tuple(map(str, arrays["classes"].tolist())) if "classes" in arrays else ()
    test_images, test_labels = _first(arrays, TEST_IMAGE_KEYS), _first(arrays, TEST_LABEL_KEYS)
    if test_images is None:
        named_x_and_y = images is arrays.get("x") and labels is arrays.get("y")
        if named_x_and_y and labels is not None and labels.dtype.kind == "f":
            return split.of(name, PairedArrays(images, labels, name=name))
        return split.of(name, ResidentImages.of(images, labels, classes, image_size=image_size, name=name))
    if not classes and labels is not None and test_labels is not None:
        classes = _common_classes(*(label_array(part, name) for part in (labels, test_labels)))
    train = ResidentImages.of(images, labels, classes, image_size=image_size, name=f"{name}/train")
    test = ResidentImages.of(test_images, test_labels, train.classes, image_size=train.image_size, name=f"{name}/test")
    if test.channels != train.channels:
        raise ValueError(
            f"{path} must have as many channels in test as in training images, got {test.channels} and "
            f"{train.channels}; convert one of them."
        )
    return Dataset(name, train, test)


def _load_npy(path: Path) -> Array:
    return _load(path, np.asarray, "write it again with numpy.save.")


def _load_npz(path: Path) -> dict[str, Array]:
    def take(file: Any) -> dict[str, Array]:
        if isinstance(file, np.ndarray):
            raise ValueError("a single array, as .npy files hold")
        return {key.lower(): file[key] for key in file.files}

    return _load(path, take, "write it again with numpy.savez(path, images=..., labels=...).")


def _load(path: Path, take: Callable[[Any], T], advice: str) -> T:
    if not path.exists():
        raise FileNotFoundError(f"{path} must exist, got no such file; check the spelling.")
    try:
        require_honest_arrays(path)
        with path.open("rb") as file:
            return take(np.load(file))
    except (*UNREADABLE, zlib.error) as error:
        raise ValueError(f"{path} must be a readable {path.suffix} file, got {reason_of(error)}; {advice}") from error


def _first(arrays: Mapping[str, Array], keys: Iterable[str]) -> Array | None:
    return next((arrays[key] for key in keys if key in arrays), None)


def _are_labels(numbers: Array, first: Path, second: Path) -> bool:
    """By the name of their file, or by that of the images where they can be class numbers."""
    if "labels" in words(second.stem):
        return True
    return "images" in words(first.stem) and bool((np.trunc(numbers) == numbers).all())


def _common_classes(*labels: Array) -> tuple[str, ...]:
    if all(part.dtype.kind in "US" for part in labels):
        return tuple(np.unique(np.concatenate([part.astype(str).ravel() for part in labels])).tolist())
    if any(as_targets(part) is not None for part in labels):  # their columns are the classes
        return ()
    highest = max((int(part.max()) for part in labels if part.size and part.dtype.kind in "iu"), default=-1)
    return tuple(str(i) for i in range(min(highest + 1, MOST_CLASSES)))
