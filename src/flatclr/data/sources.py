"""Where images come from: arrays, folders, archives of a known layout, tar shards, the Hugging Face hub.

`open_dataset` turns what a user names into a `Dataset` of sources. A source hands out uint8 images [B, C, S, S]; all
its images have one size S and one number of channels C. Shape suffixes: N images, B of them, C channels, H rows,
W columns.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import io
import os
import re
import tarfile
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from flatclr.checks import require_count, require_number
from flatclr.data import embedded, named
from flatclr.data.decoding import JOB, Decoders, Place, available_cores, reason_of
from flatclr.data.loading import seeded_generator
from flatclr.data.named import Progress

Array = NDArray[Any]
T = TypeVar("T")

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
NAMES = (embedded.NAME, *named.NAMED)
LARGEST_DEFAULT_SIZE = 224  # photographs are brought to this unless the user names a size
HEADERS_CHECKED = 100_000  # of more files, this many evenly spaced ones
MOST_CLASSES = 1_000_000
CHUNK = 1024
MOST_WORKERS = 16  # unless the user names more
PROCESSES_FROM = 2048  # images: to decode fewer takes no longer than to start processes for it


class ImageSource(Protocol):
    """What training and evaluation need of images."""

    @property
    def name(self) -> str: ...
    @property
    def classes(self) -> tuple[str, ...]: ...
    @property
    def labels(self) -> Tensor | None:
        """int64 [N] on the CPU, numbers into `classes`."""

    @property
    def channels(self) -> int: ...
    @property
    def image_size(self) -> int: ...
    def __len__(self) -> int: ...
    def batch(self, index: Tensor) -> Tensor:
        """uint8 [B, C, S, S] on the CPU."""

    def fingerprint(self) -> str:
        """Tells whether a resumed run sees the same data."""


class SkippedImagesWarning(UserWarning):
    """Some files could not be read as images and are left out."""


class ResidentImages:
    """Images in memory.

    >>> source = ResidentImages(torch.zeros(4, 1, 8, 8, dtype=torch.uint8), torch.tensor([0, 1, 0, 1]))
    >>> source.classes, source.batch(torch.tensor([2])).shape
    (('0', '1'), torch.Size([1, 1, 8, 8]))
    """

    def __init__(
        self,
        images: Tensor,
        labels: Tensor | None = None,
        classes: Sequence[str] = (),
        *,
        targets: Tensor | None = None,
        name: str = "images",
    ) -> None:
        if images.dtype != torch.uint8 or images.dim() != 4 or images.shape[2] != images.shape[3]:
            raise ValueError(
                f"{name} must be uint8 [N, C, S, S], got {images.dtype} {list(images.shape)}; "
                "ResidentImages.of takes other shapes and types."
            )
        self.name, self.images = name, images
        self.labels, self.classes = _checked_labels(labels, classes, images=len(images), name=name)
        self.targets = targets  # bool [N, classes] where an image may be of several classes; then labels are None
        if targets is not None:
            self.classes = _checked_targets(targets, classes, images=len(images), name=name)

    @classmethod
    def of(
        cls,
        images: Any,
        labels: Any = None,
        classes: Sequence[str] = (),
        *,
        image_size: int | None = None,
        name: str = "images",
    ) -> ResidentImages:
        """From an array [N, H, W], [N, H, W, C] or [N, C, H, W], uint8 or float in [0, 1], and class numbers or names.

        Without `image_size` the shorter side decides; the centre is kept. Labels may also be a table [N, classes] of
        0 and 1 for images of several classes: they become `targets`.
        """
        targets = _as_targets(labels)
        labels = labels if targets is None else None
        numbers, names = (None, tuple(classes)) if labels is None else _class_numbers(labels, classes, name)
        tensor = image_tensor(images, image_size=image_size, name=name)
        if not isinstance(images, np.memmap):  # a mapped file stays on disk
            tensor = tensor.contiguous()
        return cls(tensor, numbers, names, targets=targets, name=name)

    @property
    def channels(self) -> int:
        return self.images.shape[1]

    @property
    def image_size(self) -> int:
        return self.images.shape[2]

    def __len__(self) -> int:
        return len(self.images)

    @property
    def in_memory(self) -> tuple[Tensor]:
        return (self.images,)

    def batch(self, index: Tensor) -> Tensor:
        return self.images[index].contiguous()

    def subset(self, index: Tensor, name: str) -> ResidentImages:
        labels, targets = _rows(self.labels, index), _rows(self.targets, index)
        return ResidentImages(self.images[index], labels, self.classes, targets=targets, name=name)

    def fingerprint(self) -> str:
        parts = [part for part in (self.images, self.labels, self.targets) if part is not None]
        return _content_hash(parts, self.classes)


class Blob(Protocol):
    """One stored image, still encoded."""

    @property
    def name(self) -> str: ...
    def open(self) -> BinaryIO: ...
    def stamp(self) -> str:
        """Name and what changes with the content, without reading it."""


class DiskFile(NamedTuple):
    path: Path

    @property
    def name(self) -> str:
        return str(self.path)

    @property
    def place(self) -> Place:
        return Place(str(self.path))

    def open(self) -> BinaryIO:
        return self.place.open()

    def stamp(self) -> str:
        status = self.path.stat()
        return f"{self.path.parent.name}/{self.path.name} {status.st_size} {status.st_mtime_ns}"


class TarMember(NamedTuple):
    shard: Path
    key: str
    offset: int
    size: int

    @property
    def name(self) -> str:
        return f"{self.shard}:{self.key}"

    @property
    def place(self) -> Place:
        return Place(str(self.shard), self.offset, self.size)

    def open(self) -> BinaryIO:
        return self.place.open()

    def stamp(self) -> str:
        return f"{self.key} {self.offset} {DiskFile(self.shard).stamp()}"


class HubRow(NamedTuple):
    table: Any  # datasets.Dataset with undecoded images
    column: str
    row: int
    source: str

    @property
    def name(self) -> str:
        return f"{self.source}[{self.row}]"

    def open(self) -> BinaryIO:
        value = self.table[self.row][self.column]
        return io.BytesIO(value["bytes"]) if value["bytes"] is not None else Path(value["path"]).open("rb")

    def stamp(self) -> str:
        return f"{self.row} {self.table._fingerprint}"


class FileImages:
    """Images decoded on access, the shorter side brought to `image_size` and the centre kept.

    Files whose header is no image are left out at once. One that turns out damaged later is replaced, always by the
    same neighbour of its class, since labels and length are fixed by then. Both are listed in `skipped`, and a
    warning says so once each. Images are grayscale if all are, else RGB; `channels` decides otherwise.

    `workers` of them are decoded at once, by processes where there are many on a disk and more than two workers, else
    by threads; it makes no difference to the images. Several batches may be asked for at once.
    """

    def __init__(
        self,
        files: Iterable[str | Path | Blob],
        labels: Tensor | None = None,
        classes: Sequence[str] = (),
        *,
        image_size: int | None = None,
        channels: int | None = None,
        name: str = "files",
        workers: int | None = None,
    ) -> None:
        blobs = [DiskFile(Path(file)) if isinstance(file, str | Path) else file for file in files]
        if channels not in (None, 1, 3):
            raise ValueError(f"channels must be 1 (grayscale) or 3 (RGB), got {channels}; pass one of them.")
        numbers, names = _checked_labels(labels, classes, images=len(blobs), name=name)
        workers = workers or min(MOST_WORKERS, available_cores())
        step = -(-len(blobs) // HEADERS_CHECKED) or 1
        with ThreadPoolExecutor(workers, thread_name_prefix="flatclr-headers") as pool:
            headers = dict(zip(range(0, len(blobs), step), pool.map(_header, blobs[::step]), strict=True))
        unreadable = {i: header for i, header in headers.items() if isinstance(header, str)}
        readable = [header for header in headers.values() if not isinstance(header, str)]
        self.skipped = [(blobs[i].name, reason) for i, reason in unreadable.items()]
        if not readable:
            first = f"; the first is {self.skipped[0][0]}: {self.skipped[0][1]}" if self.skipped else ""
            raise ValueError(f"{name} must hold readable images, got 0 of {len(blobs)}{first}; check the files.")
        kept = [i for i in range(len(blobs)) if i not in unreadable]
        self._set(
            [blobs[i] for i in kept],
            _rows(numbers, torch.tensor(kept)),
            names,
            image_size=image_size or min(int(np.median([h.shorter_side for h in readable])), LARGEST_DEFAULT_SIZE),
            channels=channels or (1 if all(h.gray for h in readable) else 3),
            name=name,
            decoders=Decoders(workers, processes=_by_processes(blobs)),
        )
        if unreadable:
            what = f"{len(unreadable)} of {len(headers)} files are no readable images and are left out"
            self._report(what, self.skipped[0])

    def _set(
        self,
        files: list[Blob],
        labels: Tensor | None,
        classes: tuple[str, ...],
        *,
        image_size: int,
        channels: int,
        name: str,
        decoders: Decoders,
    ) -> None:
        self.files, self.labels, self.classes, self.decoders = files, labels, classes, decoders
        self.image_size, self.channels, self.name = image_size, channels, name
        self._damaged: dict[int, str] = {}
        self._noting = Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_noting"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _noting=Lock())

    def __len__(self) -> int:
        return len(self.files)

    def batches_in_flight(self, batch_size: int) -> int:
        """How many to ask for ahead so that no worker waits: two jobs for each."""
        return -(-2 * self.decoders.workers // -(-batch_size // JOB))

    def use_workers(self, workers: int) -> None:
        self.decoders = Decoders(workers, processes=_by_processes(self.files))

    def batch(self, index: Tensor) -> Tensor:
        wanted = index.tolist()
        images = torch.empty(len(wanted), self.channels, self.image_size, self.image_size, dtype=torch.uint8)
        for row, reason in self._decode(wanted, images).items():
            images[row] = self._stand_in(wanted[row], reason)
        return images

    def subset(self, index: Tensor, name: str) -> FileImages:
        part = object.__new__(FileImages)
        part.skipped = []
        part._set(
            [self.files[i] for i in index.tolist()],
            _rows(self.labels, index),
            self.classes,
            image_size=self.image_size,
            channels=self.channels,
            name=name,
            decoders=self.decoders,
        )
        return part

    def resident(self, max_bytes: int, progress: Progress | None = None) -> ResidentImages | None:
        """All images decoded into memory, less the damaged ones; None if they need more than `max_bytes`."""
        shape = (len(self), self.channels, self.image_size, self.image_size)
        if np.prod(shape, dtype=object) > max_bytes:
            return None
        images = torch.empty(shape, dtype=torch.uint8)
        good: list[int] = []
        for start in range(0, len(self), CHUNK):
            chunk = range(start, min(start + CHUNK, len(self)))
            rows = images[len(good) : len(good) + len(chunk)]
            wrong = self._decode(chunk, rows)
            for row, reason in wrong.items():
                self._damage(chunk[row], reason)
            kept = [row for row in range(len(chunk)) if row not in wrong]
            if wrong:
                rows[: len(kept)] = rows[kept]
            good += [chunk[row] for row in kept]
            if progress is not None:
                progress(f"decoding {self.name}", chunk.stop, len(self))
        self.decoders.close()
        if not good:
            raise ValueError(f"{self.name} must hold readable images, got 0 of {len(self)}; check the files.")
        return ResidentImages(images[: len(good)], _rows(self.labels, torch.tensor(good)), self.classes, name=self.name)

    def fingerprint(self) -> str:
        labels = None if self.labels is None else self.labels.tolist()
        digest = hashlib.sha256(repr((self.channels, self.image_size, self.classes, labels)).encode())
        for file in self.files:
            digest.update(f"{file.stamp()}\n".encode())
        return digest.hexdigest()

    def _decode(self, wanted: Sequence[int], out: Tensor) -> dict[int, str]:
        """Fill `out`; returns what is wrong, by row. What was damaged once stays so."""
        wrong = self.decoders.decode([self.files[i] for i in wanted], out.numpy())
        return wrong | {row: self._damaged[i] for row, i in enumerate(wanted) if i in self._damaged}

    def _stand_in(self, i: int, reason: str) -> Tensor:
        self._damage(i, reason)
        others = torch.arange(len(self)) if self.labels is None else (self.labels == self.labels[i]).nonzero()[:, 0]
        for j in torch.cat([others[others > i], others[others < i]]).tolist():
            image = torch.empty(1, self.channels, self.image_size, self.image_size, dtype=torch.uint8)
            wrong = self._decode([j], image)
            if not wrong:
                return image[0]
            self._damage(j, wrong[0])
        kind = "" if self.labels is None else f" of class {self.classes[int(self.labels[i])]!r}"
        raise ValueError(
            f"{self.name} must have a readable image{kind}, got 0 of {len(others)} ({reason}); "
            "check these files or remove them."
        )

    def _damage(self, i: int, reason: str) -> None:
        with self._noting:
            if i in self._damaged:
                return
            first = not self._damaged
            self._damaged[i] = reason
            self.skipped.append((self.files[i].name, reason))
        if first:
            what = "a damaged image is left out, as others will be without further notice"
            self._report(what, (self.files[i].name, reason))

    def _report(self, what: str, example: tuple[str, str]) -> None:
        path, reason = example
        warnings.warn(
            f"{self.name}: {what} ({path}: {reason}); `skipped` lists them.", SkippedImagesWarning, stacklevel=3
        )


def _by_processes(files: Sequence[Blob]) -> bool:
    return len(files) >= PROCESSES_FROM and all(hasattr(file, "place") for file in files)


class PairedArrays:
    """Two arrays whose rows belong together, say embeddings of two modalities: x [N, ...] and y [N, ...], float32.

    >>> pairs = PairedArrays(torch.zeros(3, 2), torch.ones(3))
    >>> [part.shape for part in pairs.batch(torch.tensor([0, 2]))]
    [torch.Size([2, 2]), torch.Size([2, 1])]
    """

    def __init__(self, x: Any, y: Any, *, name: str = "pairs") -> None:
        self.name = name
        self.x, self.y = (_float_rows(value, f"{name}: {side}") for side, value in (("x", x), ("y", y)))
        if len(self.x) != len(self.y):
            raise ValueError(
                f"{name}: x and y must have as many rows, got {len(self.x)} and {len(self.y)}; "
                "row i of both must belong together."
            )

    def __len__(self) -> int:
        return len(self.x)

    @property
    def in_memory(self) -> tuple[Tensor, Tensor]:
        return self.x, self.y

    def batch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        return self.x[index], self.y[index]

    def subset(self, index: Tensor, name: str) -> PairedArrays:
        return PairedArrays(self.x[index], self.y[index], name=name)

    def fingerprint(self) -> str:
        return _content_hash([self.x, self.y], ())


@dataclass(frozen=True)
class Dataset:
    """`bank` has labelled images for evaluation where `train` has no labels (STL-10's unlabelled part)."""

    name: str
    train: ImageSource | PairedArrays
    test: ImageSource | PairedArrays | None
    bank: ImageSource | None = None

    @property
    def labelled(self) -> ImageSource | None:
        """The labelled images that neighbours and linear classifiers may learn from."""
        if self.bank is None and not isinstance(self.train, PairedArrays) and self.train.labels is not None:
            return self.train
        return self.bank


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
            - `.npz` with images and labels, or x and y, or train_images, train_labels, test_images, test_labels
            - `.npy` images; `images.npy,labels.npy`; `x.npy,y.npy` for paired data
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


def fashion_mnist_small(*, image_size: int | None = None) -> Dataset:
    """The embedded subset of Fashion-MNIST: 10,000 training and 2,000 test images, balanced over its 10 classes."""
    return _from_splits(embedded.NAME, embedded.read_embedded(), image_size)


def image_tensor(images: Any, *, image_size: int | None = None, name: str = "images") -> Tensor:
    """uint8 [N, C, S, S] from an array [N, H, W], [N, H, W, C] or [N, C, H, W], uint8 or float in [0, 1].

    >>> image_tensor(torch.ones(2, 6, 4)).shape
    torch.Size([2, 1, 4, 4])
    """
    given = _as_tensor(images, name)
    images_NCHW = _channels_first(given, name)
    if given.dtype != torch.uint8 and not given.is_floating_point():
        raise TypeError(f"{name} must be uint8, or float in [0, 1], got {given.dtype}; call .astype('uint8') on it.")
    H, W = images_NCHW.shape[2:]
    side = min(H, W)
    top, left = (H - side) // 2, (W - side) // 2
    square = images_NCHW[:, :, top : top + side, left : left + side]
    size = image_size or side
    if size == side and square.dtype == torch.uint8:
        return square
    out = torch.empty(len(square), square.shape[1], size, size, dtype=torch.uint8)
    for start in range(0, len(square), CHUNK):  # in chunks: the float copy of everything may not fit
        chunk = square[start : start + CHUNK]
        levels = chunk.float() if chunk.dtype == torch.uint8 else _from_unit_range(chunk.float(), name)
        if size != side:
            levels = F.interpolate(levels, size=(size, size), mode="bilinear", antialias=True)
        out[start : start + CHUNK] = levels.round().clamp(0, 255).to(torch.uint8)
    return out


def _as_tensor(value: Any, name: str) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach().cpu()
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{name} must be an array of numbers, got {array.dtype}; convert it before saving.")
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    usable = native.flags.writeable and all(stride >= 0 for stride in native.strides)
    return torch.from_numpy(native if usable else native.copy())


def _channels_first(images: Tensor, name: str) -> Tensor:
    if images.dim() == 3:
        images = images.unsqueeze(1)
    elif images.dim() == 4 and images.shape[3] in (1, 3):
        images = images.permute(0, 3, 1, 2)
    elif images.dim() != 4 or images.shape[1] not in (1, 3):
        raise ValueError(
            f"{name} must have shape [N, H, W], [N, H, W, C] or [N, C, H, W] with C = 1 or 3, "
            f"got {list(images.shape)}; reorder or reshape the array."
        )
    if images.numel() == 0:
        raise ValueError(f"{name} must not be empty, got shape {list(images.shape)}; check how the array was made.")
    return images


def _from_unit_range(values: Tensor, name: str) -> Tensor:
    low, high = values.min().item(), values.max().item()
    if not (low >= 0 and high <= 1 + 1e-6):
        raise ValueError(
            f"{name} must be within [0, 1] if float, got [{low:g}, {high:g}]; "
            "divide by the largest value or pass uint8."
        )
    return values * 255


def _float_rows(value: Any, name: str) -> Tensor:
    rows = _as_tensor(value, name)
    if not rows.is_floating_point():
        raise TypeError(f"{name} must be a float array [N, ...], got {rows.dtype}; call .astype('float32') on it.")
    if rows.dim() == 0 or rows.numel() == 0:
        raise ValueError(f"{name} must have shape [N, ...], got {list(rows.shape)}; give one row per sample.")
    rows = (rows.unsqueeze(1) if rows.dim() == 1 else rows).float()
    finite = torch.isfinite(rows.flatten(1)).all(dim=1)
    if not finite.all():
        raise ValueError(
            f"{name} must be finite, got NaN or Inf in {int((~finite).sum())} of {len(rows)} rows, "
            f"first in row {int((~finite).nonzero()[0])}; remove these rows from both arrays."
        )
    return rows


def _class_numbers(labels: Any, classes: Sequence[str], name: str) -> tuple[Tensor, tuple[str, ...]]:
    """Labels as numbers, and the names of these; text labels bring their own names."""
    given = np.asarray(labels)
    if given.ndim == 2 and given.shape[1] == 1:
        given = given[:, 0]
    if given.ndim != 1 or given.dtype.kind not in "iubUS":
        raise TypeError(
            f"{name}: labels must be class numbers or names [N], got {given.dtype} {list(given.shape)}; "
            "pass one integer per image."
        )
    if given.dtype.kind in "US":
        text = given.astype(str)
        names = tuple(classes) or tuple(np.unique(text).tolist())
        unknown = set(text.tolist()) - set(names)
        if unknown:
            raise ValueError(f"{name}: labels must be among {', '.join(names)}, got {min(unknown)!r}; add the class.")
        number = {label: i for i, label in enumerate(names)}
        return torch.tensor([number[label] for label in text.tolist()], dtype=torch.int64), names
    return torch.from_numpy(given.astype(np.int64)), tuple(classes)


def _checked_labels(
    labels: Tensor | None, classes: Sequence[str], *, images: int, name: str
) -> tuple[Tensor | None, tuple[str, ...]]:
    if labels is None:
        return None, tuple(classes)
    if labels.shape != (images,):
        raise ValueError(
            f"{name}: labels must have one entry per image, got shape {list(labels.shape)} for {images} images; "
            "check that both come from the same files."
        )
    numbers = labels.to("cpu", torch.int64)
    low, high = (int(numbers.min()), int(numbers.max())) if images else (0, 0)
    most = len(classes) or MOST_CLASSES
    if low < 0 or high >= most:
        raise ValueError(
            f"{name}: labels must be class numbers from 0 to {most - 1}, got {low} to {high}; "
            "number the classes from 0, or name all of them."
        )
    return numbers, tuple(classes) or tuple(str(i) for i in range(high + 1))


def _as_targets(labels: Any) -> Tensor | None:
    """A table of 0 and 1 with several columns as bool [N, classes]; None for anything else."""
    given = np.asarray(labels)
    if given.ndim != 2 or given.shape[1] < 2 or given.dtype.kind not in "biu" or not given.any():
        return None
    if not np.isin(given, (0, 1)).all():
        return None
    return torch.from_numpy(given.astype(bool))


def _checked_targets(targets: Tensor, classes: Sequence[str], *, images: int, name: str) -> tuple[str, ...]:
    wanted = (images, len(classes) or targets.shape[-1])
    if targets.dtype != torch.bool or targets.shape != wanted:
        raise ValueError(
            f"{name}: targets must be bool of shape {list(wanted)}, got {targets.dtype} {list(targets.shape)}; "
            "give every image a yes or no for every class."
        )
    return tuple(classes) or tuple(str(i) for i in range(wanted[1]))


def _rows(labels: Tensor | None, index: Tensor) -> Tensor | None:
    return None if labels is None else labels[index]


def _content_hash(parts: Iterable[Tensor], classes: tuple[str, ...]) -> str:
    digest = hashlib.sha256(repr(classes).encode())
    for part in parts:
        digest.update(f"{part.dtype} {list(part.shape)}".encode())
        for chunk in part.split(CHUNK):
            digest.update(chunk.reshape(-1).numpy())
    return digest.hexdigest()


class _Header(NamedTuple):
    shorter_side: int
    gray: bool


def _header(file: Blob) -> _Header | str:
    try:
        with file.open() as stream, Image.open(stream) as image:
            return _Header(min(image.size), image.mode in ("1", "L", "LA") or image.mode.startswith("I;16"))
    except Exception as error:  # decoders fail in many ways on damaged files
        return reason_of(error)


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
            return _open_two_arrays(name, *(_load_npy(part) for part in paths), image_size=image_size, split=split)
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
    beside = [str(path.parent / entry.name) for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    near = difflib.get_close_matches(text, [*NAMES, *beside], n=1)
    advice = f"did you mean {near[0]!r}?" if near else "check the spelling, or the folder you are in."
    return f"data must be an existing path, hf:NAME or one of {', '.join(NAMES)}, got {text!r}; {advice}"


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
        return _open_two_arrays(name, images, labels, image_size=image_size, split=split, classes=classes)
    if not classes and labels is not None and test_labels is not None:
        classes = _common_classes(labels, test_labels)
    train = ResidentImages.of(images, labels, classes, image_size=image_size, name=f"{name}/train")
    test = ResidentImages.of(test_images, test_labels, train.classes, image_size=train.image_size, name=f"{name}/test")
    if test.channels != train.channels:
        raise ValueError(
            f"{path} must have as many channels in test as in training images, got {test.channels} and "
            f"{train.channels}; convert one of them."
        )
    return Dataset(name, train, test)


def _first(arrays: Mapping[str, Array], keys: Iterable[str]) -> Array | None:
    return next((arrays[key] for key in keys if key in arrays), None)


def _common_classes(*labels: Array) -> tuple[str, ...]:
    if all(part.dtype.kind in "US" for part in labels):
        return tuple(np.unique(np.concatenate([part.astype(str).ravel() for part in labels])).tolist())
    highest = max((int(part.max()) for part in labels if part.size and part.dtype.kind in "iu"), default=-1)
    return tuple(str(i) for i in range(min(highest + 1, MOST_CLASSES)))


def _open_two_arrays(
    name: str,
    first: Array,
    second: Array | None,
    *,
    image_size: int | None,
    split: _Split,
    classes: Sequence[str] = (),
) -> Dataset:
    """Images with labels if the second array is of class numbers or names, else pairs."""
    if second is not None and second.dtype.kind == "f":
        return split.of(name, PairedArrays(first, second, name=name))
    return split.of(name, ResidentImages.of(first, second, classes, image_size=image_size, name=name))


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
    test_shards = [shard for shard in shards if set(re.split("[^a-z]+", shard.stem.lower())) & set(TEST_FOLDERS)]
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
