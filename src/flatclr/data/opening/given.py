"""From what a program has to a dataset: arrays, a torch Dataset, a table of the hub, a sequence, a path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flatclr.checks import require_one_of
from flatclr.data.opening.entry import open_dataset
from flatclr.data.opening.names import LABELS
from flatclr.data.opening.split import Split
from flatclr.data.progress import Progress
from flatclr.data.sources import Dataset, FileImages, ItemImages, PairedArrays, ResidentImages, Sentences, alpha_is_told
from flatclr.data.sources.items import kind_of
from flatclr.data.words import are_texts

TAKEN = (
    "a path or name, a flatclr Dataset, an array or tensor of images, (images, labels), (sentences, labels), (x, y), a "
    "torch Dataset, a Hugging Face dataset or a sequence of images or of their files"
)


def dataset_from(
    given: Any,
    *,
    data_dir: str | Path | None = None,
    image_size: int | None = None,
    labels: str = "auto",
    test_fraction: float = 0.1,
    seed: int = 0,
    name: str = "data",
    progress: Progress | None = None,
) -> Dataset:
    """The dataset that a program means.

    Args:
        given: what `open_dataset` takes; a `Dataset` or a source of images; images as an array or tensor, alone or with
            labels; sentences with labels, both lists; paired data (x, y) of float rows; a torch Dataset or a sequence
            whose items are images or (image, label); a list of image files; a Hugging Face dataset, or a mapping of its
            splits.
        data_dir, image_size, labels, test_fraction, seed, progress: as for `open_dataset`.
        name: for messages and reports, of data that has none.

    Returns:
        The dataset.

    Raises:
        TypeError: it is nothing of these; the message says what arrived.

    >>> data = dataset_from((torch.zeros(20, 3, 8, 8), [0, 1] * 10))
    >>> len(data.train), len(data.test), data.train.classes
    (18, 2, ('0', '1'))
    """
    require_one_of("labels", labels, LABELS)
    split = Split(test_fraction, seed)
    if given is None or isinstance(given, str | Path):
        return open_dataset(
            given,
            data_dir=data_dir,
            image_size=image_size,
            labels=labels,
            test_fraction=test_fraction,
            seed=seed,
            progress=progress,
        )
    if isinstance(given, Dataset):
        return given
    if hasattr(given, "batch") and hasattr(given, "fingerprint"):
        return Dataset(getattr(given, "name", name), given, None)
    if isinstance(given, Tensor | np.ndarray):
        return split.of(name, ResidentImages.of(given, image_size=image_size, name=name))
    if isinstance(given, tuple) and len(given) == 2 and all(_is_array(part) for part in given):
        return split.of(name, _two_arrays(given[0], given[1], image_size, name))
    if isinstance(given, Mapping) and given and all(_is_sequence(part) for part in given.values()):
        return _from_splits(given, image_size, split, name)
    if isinstance(given, list | tuple) and given and all(isinstance(item, str | Path) for item in given):
        return split.of(name, FileImages([Path(item).expanduser() for item in given], image_size=image_size, name=name))
    if _is_sequence(given):
        return split.of(name, items_of(given, image_size, name))
    if isinstance(given, torch.utils.data.IterableDataset) or hasattr(given, "__iter__"):
        raise TypeError(
            f"data must have a length and items by number, got {kind_of(given)}, which can only be read in order; pass "
            "a map-style dataset, or a list of its items."
        )
    raise TypeError(f"data must be {TAKEN}, got {kind_of(given)}; pass one of these.")


def items_of(given: Any, image_size: int | None, name: str) -> ItemImages:
    """A source of the images of a sequence, with labels where these can be had without reading the items."""
    labels, classes = _known_labels(given)
    try:
        return ItemImages(given, image_size=image_size, labels=labels, classes=classes, name=name)
    except TypeError as error:
        raise TypeError(f"{_described(given)} cannot be taken for images: {error}") from error


def _described(given: Any) -> str:
    kind = "a torch Dataset" if isinstance(given, torch.utils.data.Dataset) else f"a {type(given).__name__}"
    return f"{kind} whose items are {kind_of(given[0])}"


def _known_labels(given: Any) -> tuple[Tensor | None, Sequence[str]]:
    """As torchvision's datasets and those of the hub tell them."""
    features = getattr(given, "features", None)
    if isinstance(features, Mapping):
        column = next((key for key, kind in features.items() if type(kind).__name__ == "ClassLabel"), None)
        return (None, ()) if column is None else (torch.as_tensor(list(given[column])), features[column].names)
    targets, classes = getattr(given, "targets", None), getattr(given, "classes", ())
    try:
        numbers = None if targets is None else torch.as_tensor(targets)
    except (TypeError, ValueError):
        return None, ()
    if numbers is None or numbers.shape != (len(given),) or numbers.is_floating_point():
        return None, ()
    return numbers, tuple(map(str, classes)) if isinstance(classes, list | tuple) else ()


def _two_arrays(
    first: Any, second: Any, image_size: int | None, name: str
) -> ResidentImages | PairedArrays | Sentences:
    """Images or sentences and their labels; paired data where the second are float rows."""
    if are_texts(first):
        return Sentences(first, second, name=name)
    x, y = (part if isinstance(part, Tensor) else np.asarray(part) for part in (first, second))
    is_float = y.is_floating_point() if isinstance(y, Tensor) else y.dtype.kind == "f"
    if is_float:
        return PairedArrays(x, y, name=name)
    return ResidentImages.of(x, y, image_size=image_size, name=name)


def _from_splits(given: Mapping[str, Any], image_size: int | None, split: Split, name: str) -> Dataset:
    """The train and test tables of the hub."""
    train = next(key for key in ("train", *given) if key in given)
    test = next((key for key in ("test", "validation", "valid", "val") if key in given and key != train), None)
    first = items_of(given[train], image_size, f"{name}/{train}")
    if test is None:
        return split.of(name, first)
    with alpha_is_told(bool(first.transparent)):
        return Dataset(name, first, items_of(given[test], first.image_size, f"{name}/{test}"))


def _is_array(value: Any) -> bool:
    if isinstance(value, Tensor | np.ndarray):
        return True
    return isinstance(value, list) and bool(value) and isinstance(value[0], int | float | str | np.generic)


def _is_sequence(value: Any) -> bool:
    return hasattr(value, "__len__") and hasattr(value, "__getitem__") and not isinstance(value, str | bytes | Mapping)
