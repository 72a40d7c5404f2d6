"""Sources of images in one form: resident in memory, or files that are decoded when they are asked for.

A source hands out uint8 images [B, C, S, S]; all its images have one size S and one number of channels C. Shape
suffixes: N images, B of them, C channels, H rows, W columns.
"""

from __future__ import annotations

import hashlib
import io
import warnings
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO, NamedTuple, Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from flatclr.data.arrays import (
    CHUNK,
    as_targets,
    checked_labels,
    checked_targets,
    class_numbers,
    content_hash,
    float_rows,
    image_tensor,
    label_array,
    require_room,
    rows_of,
)
from flatclr.data.decoding import JOB, Decoders, Place, available_cores, reason_of
from flatclr.data.named import Progress

LARGEST_DEFAULT_SIZE = 224  # photographs are brought to this unless the user names a size
HEADERS_CHECKED = 100_000  # of more files, this many evenly spaced ones
MOST_WORKERS = 16  # unless the user names more
SMALLEST_BATCH = 2  # images: what must fit into memory at least
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
        self.labels, self.classes = checked_labels(labels, classes, images=len(images), name=name)
        self.targets = targets  # bool [N, classes] where an image may be of several classes; then labels are None
        if targets is not None:
            self.classes = checked_targets(targets, classes, images=len(images), name=name)

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
        labels = None if labels is None else label_array(labels, name)
        targets = as_targets(labels)
        labels = labels if targets is None else None
        numbers, names = (None, tuple(classes)) if labels is None else class_numbers(labels, classes, name)
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
        labels, targets = rows_of(self.labels, index), rows_of(self.targets, index)
        return ResidentImages(self.images[index], labels, self.classes, targets=targets, name=name)

    def fingerprint(self) -> str:
        parts = [part for part in (self.images, self.labels, self.targets) if part is not None]
        return content_hash(parts, self.classes)


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
        numbers, names = checked_labels(labels, classes, images=len(blobs), name=name)
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
        size = image_size or min(int(np.median([h.shorter_side for h in readable])), LARGEST_DEFAULT_SIZE)
        channels = channels or (1 if all(h.gray for h in readable) else 3)
        require_room((min(len(kept), SMALLEST_BATCH), channels, size, size), name)
        self._set(
            [blobs[i] for i in kept],
            rows_of(numbers, torch.tensor(kept)),
            names,
            image_size=size,
            channels=channels,
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
            rows_of(self.labels, index),
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
        return ResidentImages(
            images[: len(good)], rows_of(self.labels, torch.tensor(good)), self.classes, name=self.name
        )

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
        self.x, self.y = (float_rows(value, f"{name}: {side}") for side, value in (("x", x), ("y", y)))
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
        return content_hash([self.x, self.y], ())


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


class _Header(NamedTuple):
    shorter_side: int
    gray: bool


def _header(file: Blob) -> _Header | str:
    try:
        with file.open() as stream, Image.open(stream) as image:
            return _Header(min(image.size), image.mode in ("1", "L", "LA") or image.mode.startswith("I;16"))
    except Exception as error:  # decoders fail in many ways on damaged files
        return reason_of(error)
