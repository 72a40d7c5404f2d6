"""From what a user names to a dataset: arrays, folders, archives of a known layout, tar shards, the hub."""

from __future__ import annotations

import difflib
import importlib
import os
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from flatclr.checks import require_count, require_number
from flatclr.data import embedded, named
from flatclr.data.arrays import MOST_CLASSES, as_targets, label_array
from flatclr.data.decoding import reason_of
from flatclr.data.loading import seeded_generator
from flatclr.data.named import Progress
from flatclr.data.sources import Blob, Dataset, DiskFile, FileImages, HubRow, PairedArrays, ResidentImages, TarMember

Array = NDArray[Any]
T = TypeVar("T")

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
NAMES = (embedded.NAME, *named.NAMED)
CLOSE = 0.7  # share of letters in common from which a name may be a misspelling of another


def open_dataset(
    spec: str | Path | None = None,
    *,
    data_dir: str | Path | None = None,
    image_size: int | None = None,
    download: bool = True,
    test_fraction: float = 0.1,
    seed: int = 0,
    progress: Progress | None = None,
) -> Dataset:
    """The dataset a user means.

    Args:
        spec: None for the embedded images, or a name of `NAMES` (a folder of such a name needs `./` before it), or

            - a folder of images: one sub-folder per class, or no sub-folders (unlabelled); optionally in `train/` and
              `test/` or `val/`
            - a folder in the layout of a known dataset
            - `.npz` with images and labels, or train_images, train_labels, test_images, test_labels, or x and y, which
              are paired data if y is float
            - `.npy` images; `images.npy,labels.npy`; `x.npy,y.npy` for paired data if y is float
            - `.tar` shards (WebDataset: key.jpg beside key.cls): one, a folder or a pattern `shards/*.tar`
            - `hf:NAME` or `hf:NAME:SPLIT` from the Hugging Face hub
        data_dir: where named datasets stand or are put, before $FLATCLR_DATA and ./data.
        image_size: side of the square images; the data's own size if None, for files at most 224.
        download: whether a named dataset that is not there may be downloaded.
        test_fraction: share held out for testing where the data itself has no test part; 0 for none.
        seed: of that choice.
        progress: called with (what, done, total) during downloads.
    """
    if image_size is not None:
        require_count("image_size", image_size, advice="pass the side of the square images in pixels.")
    require_number("test_fraction", test_fraction, below=1, advice="0.1 holds out every tenth image.")
    if test_fraction < 0:
        raise ValueError(f"test_fraction must be >= 0, got {test_fraction}; pass 0 to hold out nothing.")
    split = _Split(test_fraction, seed)
    text = embedded.NAME if spec is None else str(spec)
    if text == embedded.NAME:
        dataset = fashion_mnist_small(image_size=image_size)
    elif text in named.NAMED:
        dataset = _from_splits(
            text, named.load(text, _bases(data_dir), download=download, progress=progress), image_size
        )
    elif text.startswith("hf:"):
        dataset = _open_hub(text, image_size, split, download=download)
    else:
        dataset = _open_path(text, image_size, split)
    if len(dataset.train) < 2:
        raise ValueError(f"{dataset.name} must have at least 2 training images, got {len(dataset.train)}; add more.")
    return dataset


def from_anywhere(spec: str | None) -> str | None:
    """What names the same data in every folder: paths that lead somewhere become absolute, all else stays.

    >>> from_anywhere("cifar10"), from_anywhere("no-such-folder")
    ('cifar10', 'no-such-folder')
    """
    if spec is None or spec in NAMES or spec.startswith("hf:"):
        return spec
    whole = Path(spec).expanduser()
    parts = [whole] if whole.exists() else [Path(part.strip()).expanduser() for part in spec.split(",")]
    if all(part.exists() or any(part.parent.glob(part.name)) for part in parts):
        return ",".join(str(part.absolute()) for part in parts)
    return spec


def fashion_mnist_small(*, image_size: int | None = None) -> Dataset:
    """The embedded subset of Fashion-MNIST: 10,000 training and 2,000 test images, balanced over its 10 classes."""
    return _from_splits(embedded.NAME, embedded.read_embedded(), image_size)


class _Split(NamedTuple):
    """The seeded choice of test samples for data that has no test part of its own."""

    fraction: float
    seed: int

    def of(self, name: str, source: ResidentImages | FileImages | PairedArrays) -> Dataset:
        held_out = int(len(source) * self.fraction)
        if held_out == 0:
            return Dataset(name, source, None)
        order = torch.randperm(len(source), generator=seeded_generator(self.seed, "test split"))
        test, train = (part.sort().values for part in (order[:held_out], order[held_out:]))
        dataset = Dataset(name, source.subset(train, f"{name}/train"), source.subset(test, f"{name}/test"))
        if isinstance(source, FileImages) and isinstance(dataset.train, FileImages):
            dataset.train.skipped += source.skipped
        return dataset


def _bases(data_dir: str | Path | None) -> list[Path]:
    given = [data_dir, os.environ.get("FLATCLR_DATA"), "data"]
    return [Path(base).expanduser().absolute() for base in given if base]


def _from_splits(name: str, splits: named.Splits, image_size: int | None) -> Dataset:
    def source(part: str, images: Array, labels: Array | None) -> ResidentImages:
        return ResidentImages.of(images, labels, splits.classes, image_size=image_size, name=f"{name}/{part}")

    train, test = source("train", *splits.train), source("test", *splits.test)
    if name != "stl10-unlabeled" or splits.unlabelled_NCHW is None:
        return Dataset(name, train, test)
    return Dataset(name, source("unlabeled", splits.unlabelled_NCHW, None), test, bank=train)


def _open_path(text: str, image_size: int | None, split: _Split) -> Dataset:
    path = Path(text).expanduser()
    if path.is_dir():
        return _open_folder(path, image_size, split)
    if not path.exists():
        paths = [Path(part.strip()).expanduser() for part in text.split(",")]
        if len(paths) == 2 and all(part.suffix == ".npy" for part in paths):
            name = "+".join(part.stem for part in paths)
            first, second = map(_load_npy, paths)
            if second.dtype.kind == "f" and not _are_labels(second, *paths):
                return split.of(name, PairedArrays(first, second, name=name))
            return split.of(name, ResidentImages.of(first, second, image_size=image_size, name=name))
        if path.suffix == ".tar" and (shards := sorted(path.parent.glob(path.name))):
            return _open_shards(path.parent.resolve().name, shards, image_size, split)
        raise FileNotFoundError(_absence(text, path))
    if path.suffix == ".npz":
        return _open_npz(path, image_size, split)
    if path.suffix == ".npy":
        return split.of(path.stem, ResidentImages.of(_load_npy(path), image_size=image_size, name=str(path)))
    if path.suffix == ".tar":
        return _open_shards(path.stem, [path], image_size, split)
    raise ValueError(
        f"data must be a folder or end in .npz, .npy or .tar, got {str(path)!r}; "
        "unpack a compressed archive first, and point at the folder of single images."
    )


def _absence(text: str, path: Path) -> str:
    beside = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    near = _nearest(path.name, [*beside, *(NAMES if text == path.name else ())])
    advice = f"did you mean {str(path.parent / near)!r}?" if near else "check the spelling, or the folder you are in."
    return f"data must be an existing path, hf:NAME or one of {', '.join(NAMES)}, got {text!r}; {advice}"


def _nearest(name: str, others: Iterable[str]) -> str | None:
    """By stem, since an ending in common says nothing; the ending decides between equal ones."""
    by_stem: dict[str, list[str]] = {}
    for other in others:
        by_stem.setdefault(Path(other).stem.casefold(), []).append(other)
    near = difflib.get_close_matches(Path(name).stem.casefold(), by_stem, n=1, cutoff=CLOSE)
    return difflib.get_close_matches(name, by_stem[near[0]], n=1, cutoff=0)[0] if near else None


def _load_numpy(path: Path, take: Callable[[Any], T], advice: str) -> T:
    if not path.exists():
        raise FileNotFoundError(f"{path} must exist, got no such file; check the spelling.")
    try:
        with path.open("rb") as file:
            return take(np.load(file))
    except (ValueError, EOFError, OSError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path} must be a readable {path.suffix} file, got {reason_of(error)}; {advice}") from error


def _load_npy(path: Path) -> Array:
    return _load_numpy(path, np.asarray, "write it again with numpy.save.")


IMAGE_KEYS = ("train_images", "x_train", "train_x", "images", "x")
LABEL_KEYS = ("train_labels", "y_train", "train_y", "labels", "y")
TEST_IMAGE_KEYS = ("test_images", "x_test", "test_x")
TEST_LABEL_KEYS = ("test_labels", "y_test", "test_y")


def _open_npz(path: Path, image_size: int | None, split: _Split) -> Dataset:
    def take(file: Any) -> dict[str, Array]:
        if isinstance(file, np.ndarray):
            raise ValueError("a single array, as .npy files hold")
        return {key.lower(): file[key] for key in file.files}

    arrays = _load_numpy(path, take, "write it again with numpy.savez(path, images=..., labels=...).")
    images, labels = _first(arrays, IMAGE_KEYS), _first(arrays, LABEL_KEYS)
    test_images, test_labels = _first(arrays, TEST_IMAGE_KEYS), _first(arrays, TEST_LABEL_KEYS)
    if images is None:
        raise ValueError(
            f"{path} must hold one of {', '.join(IMAGE_KEYS)} (labels in {', '.join(LABEL_KEYS)}), "
            f"got {', '.join(arrays) or 'nothing'}; rename the array."
        )
    name = path.stem
    classes = tuple(map(str, arrays["classes"].tolist())) if "classes" in arrays else ()
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


def _are_labels(numbers: Array, first: Path, second: Path) -> bool:
    """By the name of their file, or by that of the images where they can be class numbers."""
    if "labels" in _words(second.stem):
        return True
    return "images" in _words(first.stem) and bool((np.trunc(numbers) == numbers).all())


def _words(name: str) -> set[str]:
    return set(re.split("[^a-z]+", name.lower()))


def _first(arrays: Mapping[str, Array], keys: Iterable[str]) -> Array | None:
    return next((arrays[key] for key in keys if key in arrays), None)


def _common_classes(*labels: Array) -> tuple[str, ...]:
    if all(part.dtype.kind in "US" for part in labels):
        return tuple(np.unique(np.concatenate([part.astype(str).ravel() for part in labels])).tolist())
    if any(as_targets(part) is not None for part in labels):  # their columns are the classes
        return ()
    highest = max((int(part.max()) for part in labels if part.size and part.dtype.kind in "iu"), default=-1)
    return tuple(str(i) for i in range(min(highest + 1, MOST_CLASSES)))


TRAIN_FOLDER = "train"
TEST_FOLDERS = ("test", "val", "valid", "validation")


def _open_folder(folder: Path, image_size: int | None, split: _Split) -> Dataset:
    name = folder.resolve().name
    if (known := named.recognise(folder)) is not None:
        return _from_splits(*known, image_size)
    by_folder = _grouped(_walk(folder, set()), folder)
    if not by_folder:
        if shards := sorted(folder.glob("*.tar")):
            return _open_shards(name, shards, image_size, split)
        others = sorted({entry.suffix or entry.name for entry in folder.iterdir()})
        raise ValueError(
            f"{folder} must hold images ({', '.join(SUFFIXES)}), "
            f"got {'only ' + ', '.join(others[:5]) if others else 'an empty folder'}; "
            "put images there, or one sub-folder of images per class."
        )
    if TRAIN_FOLDER not in by_folder or not set(by_folder) <= {TRAIN_FOLDER, *TEST_FOLDERS}:
        return _from_files(name, _labelled_files(by_folder, folder), None, image_size, split)
    at = folder / TRAIN_FOLDER
    train = _labelled_files(_grouped(by_folder[TRAIN_FOLDER], at), at)
    test_folder = next((part for part in TEST_FOLDERS if part in by_folder), None)
    if test_folder is None:
        return _from_files(name, train, None, image_size, split)
    at = folder / test_folder
    test = _labelled_files(_grouped(by_folder[test_folder], at), at, one_class=train.labels is not None)
    return _from_files(name, train, test, image_size, split)


class _LabelledFiles(NamedTuple):
    files: list[Blob]
    labels: list[str] | None  # class names


def _from_files(
    name: str,
    train: _LabelledFiles,
    test: _LabelledFiles | None,
    image_size: int | None,
    split: _Split,
    classes: Sequence[str] | None = None,
) -> Dataset:
    labels = (train.labels or []) + ((test and test.labels) or [])
    names = tuple(classes or sorted(set(labels)))
    number = {label: i for i, label in enumerate(names)}

    def source(part: str, content: _LabelledFiles, size: int | None, channels: int | None = None) -> FileImages:
        numbers = None if content.labels is None else torch.tensor([number[label] for label in content.labels])
        return FileImages(content.files, numbers, names, image_size=size, channels=channels, name=part)

    if test is None:
        return split.of(name, source(name, train, image_size))
    first = source(f"{name}/train", train, image_size)
    return Dataset(name, first, source(f"{name}/test", test, first.image_size, first.channels))


def _grouped(paths: Iterable[Path], folder: Path) -> dict[str, list[Path]]:
    """Paths below a folder by the sub-folder they are in; those beside the sub-folders under ''."""
    groups: dict[str, list[Path]] = {}
    for path in paths:
        parts = path.relative_to(folder).parts
        groups.setdefault(parts[0] if len(parts) > 1 else "", []).append(path)
    return groups


def _walk(folder: Path, seen: set[Path]) -> Iterator[Path]:
    """Images below a folder, sorted."""
    real = folder.resolve()
    if real in seen:  # a link back to a folder above
        return
    seen.add(real)
    for entry in sorted(folder.iterdir()):
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            yield from _walk(entry, seen)
        elif entry.suffix.lower() in SUFFIXES:
            yield entry


def _labelled_files(by_folder: Mapping[str, list[Path]], folder: Path, *, one_class: bool = False) -> _LabelledFiles:
    files: list[Blob] = [DiskFile(path) for paths in by_folder.values() for path in paths]
    if len(by_folder) == 1 and ("" in by_folder or not one_class):  # one class tells nothing apart
        return _LabelledFiles(files, None)
    if "" in by_folder:
        raise ValueError(
            f"{folder} must hold either images or one sub-folder per class, got both ({by_folder[''][0].name} beside "
            f"{max(by_folder)}/); move the images into a sub-folder."
        )
    return _LabelledFiles(files, [label for label, paths in by_folder.items() for _ in paths])


def _open_shards(name: str, shards: Sequence[Path], image_size: int | None, split: _Split) -> Dataset:
    test_shards = [shard for shard in shards if _words(shard.stem) & set(TEST_FOLDERS)]
    train_shards = [shard for shard in shards if shard not in test_shards] or shards
    train = _shard_files(train_shards)
    test = _shard_files(test_shards) if test_shards and train_shards is not shards else None
    numbers = (train.labels or []) + ((test and test.labels) or [])
    classes = [str(i) for i in range(max(map(int, numbers), default=-1) + 1)]
    return _from_files(name, train, test, image_size, split, classes)


def _shard_files(shards: Sequence[Path]) -> _LabelledFiles:
    files: list[Blob] = []
    labels: list[str | None] = []
    for shard in shards:
        images, classes = _read_shard(shard)
        files += images.values()
        labels += [classes.get(key) for key in images]
    if not files:
        raise ValueError(
            f"{shards[0]} must hold images as key.jpg or key.png beside key.cls, got none; check how it was packed."
        )
    known = [label for label in labels if label is not None]
    if not known:
        return _LabelledFiles(files, None)
    if len(known) < len(files):
        raise ValueError(
            f"{files[labels.index(None)].name} must have a .cls member like the others, got none for "
            f"{len(files) - len(known)} of {len(files)} images; pack the labels of all or of none."
        )
    return _LabelledFiles(files, known)


def _read_shard(shard: Path) -> tuple[dict[str, TarMember], dict[str, str]]:
    """Where the images lie and the classes by key; a key is the member's name up to the first dot of its file name."""
    images: dict[str, TarMember] = {}
    classes: dict[str, str] = {}
    try:
        if shard.stat().st_size % tarfile.BLOCKSIZE:
            raise tarfile.ReadError("an incomplete last block")
        with tarfile.open(shard, "r:") as tar:
            for member in tar:
                folder, _, file = member.name.rpartition("/")
                stem, _, extension = file.partition(".")
                key = f"{folder}/{stem}" if folder else stem
                content = tar.extractfile(member) if member.isreg() and extension == "cls" else None
                if content is not None:
                    classes[key] = _class_number(content.read())
                elif member.isreg() and f".{extension.lower()}" in SUFFIXES:
                    images[key] = TarMember(shard, key, member.offset_data, member.size)
    except (tarfile.TarError, OSError, ValueError) as error:
        raise ValueError(
            f"{shard} must be a whole, uncompressed tar file, got {reason_of(error)}; copy or pack it again."
        ) from error
    return images, classes


def _class_number(content: bytes) -> str:
    number = int(content) if content.strip().isdigit() else -1
    if not 0 <= number < MOST_CLASSES:
        raise ValueError(f"a .cls member that is no class number: {content[:20]!r}")
    return str(number)


def _open_hub(text: str, image_size: int | None, split: _Split, *, download: bool) -> Dataset:
    try:
        hub = importlib.import_module("datasets")
    except ImportError as error:
        raise ImportError(
            f'{text} needs the Hugging Face library datasets, got no such module; pip install "flatclr[hub]".'
        ) from error
    _, _, rest = text.partition(":")
    name, _, part = rest.partition(":")
    options = {} if download else {"download_config": hub.DownloadConfig(local_files_only=True)}
    try:
        loaded = hub.load_dataset(name, split=part or None, **options)
    except Exception as error:  # the hub has its own kinds for every failure
        raise ValueError(
            f"{text} must name a dataset of the Hugging Face hub, got {reason_of(error)}; "
            "check the name, the split and the network."
        ) from error
    tables = {part: loaded} if part else dict(loaded)
    train_part = part or ("train" if "train" in tables else next(iter(tables)))
    test_part = next((key for key in TEST_FOLDERS if key in tables and key != train_part), None)
    train = _hub_files(hub, tables[train_part], f"{text}/{train_part}")
    test = _hub_files(hub, tables[test_part], f"{text}/{test_part}") if test_part else None
    label = _hub_label(hub, tables[train_part])
    return _from_files(
        name, train, test, image_size, split, tables[train_part].features[label].names if label else None
    )


def _hub_label(hub: Any, table: Any) -> str | None:
    labels = [column for column, kind in table.features.items() if isinstance(kind, hub.ClassLabel)]
    return "label" if "label" in labels else next(iter(labels), None)


def _hub_files(hub: Any, table: Any, source: str) -> _LabelledFiles:
    columns = table.features
    image = next((column for column, kind in columns.items() if isinstance(kind, hub.Image)), None)
    if image is None:
        raise ValueError(f"{source} must have a column of images, got {', '.join(columns)}; pick another dataset.")
    undecoded = table.cast_column(image, hub.Image(decode=False))
    files: list[Blob] = [HubRow(undecoded, image, row, source) for row in range(len(table))]
    label = _hub_label(hub, table)
    numbers = [] if label is None else list(table[label])
    if label is None or any(number is None or number < 0 for number in numbers):  # the hub hides some test labels so
        return _LabelledFiles(files, None)
    return _LabelledFiles(files, [columns[label].names[number] for number in numbers])
