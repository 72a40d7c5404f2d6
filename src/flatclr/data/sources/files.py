"""Images decoded when they are asked for."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from flatclr.data.arrays import CHUNK, checked_labels, require_room, rows_of
from flatclr.data.decoding import JOB, Decoders, available_cores
from flatclr.data.progress import Progress
from flatclr.data.sources.alpha import warn_of_alpha
from flatclr.data.sources.blobs import Blob, DiskFile
from flatclr.data.sources.headers import survey
from flatclr.data.sources.lost import UnusableImagesError, require_reached, tried_again
from flatclr.data.sources.resident import ResidentImages

LARGEST_DEFAULT_SIZE = 224  # photographs are brought to this unless the user names a size
MOST_WORKERS = 16  # unless the user names more
SMALLEST_BATCH = 2  # images: what must fit into memory at least
PROCESSES_FROM = 2048  # images: to decode fewer takes no longer than to start processes for it

FILES_SAMPLED, PIECE = 1000, 4096  # files and bytes of them that a fingerprint reads
BY_CONTENT = "files-2:"  # what such fingerprints begin with


class SkippedImagesWarning(UserWarning):
    """Some files could not be read as images and are left out; `FileImages.skipped` lists them.

    >>> import warnings
    >>> with warnings.catch_warnings():  # to carry on without being told
    ...     warnings.simplefilter("ignore", SkippedImagesWarning)
    ...     data = flatclr.data.open_dataset()
    """


class FileImages:
    """Images decoded on access, the shorter side brought to `image_size` and the centre kept.

    Files whose header is no image are left out at once. One that turns out damaged later is replaced, always by the
    same neighbour of its class, since labels and length are fixed by then. Both are listed in `skipped`, and a
    `SkippedImagesWarning` says so once each.

    Args:
        files: paths, or anything with a `name`, `open()` and `stamp()`.
        labels: class numbers [N], from 0 up.
        classes: their names; without them the numbers are the names.
        image_size: side of the square images; None: of the median image, at most 224.
        channels: 1 or 3; None: 1 if all images are grayscale, else 3.
        name: for messages and reports.
        workers: how many images are decoded at once; None: as many as there are cores, at most 16. They are processes
            where there are more than two workers and many images on a disk, else threads; it makes no difference to
            the images. Several batches may be asked for at once.

    Raises:
        ValueError: no file is a readable image, or labels do not fit the files.

    >>> import tempfile
    >>> from PIL import Image
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Image.new("RGB", (12, 9)).save(f"{folder}/a.png")
    ...     FileImages([f"{folder}/a.png"], image_size=8).batch(torch.tensor([0])).shape
    torch.Size([1, 3, 8, 8])
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
        found = survey(blobs, workers=workers, name=name)
        kept = [i for i in range(len(blobs)) if i not in found.unreadable]
        size = image_size or min(found.shorter_side, LARGEST_DEFAULT_SIZE)
        channels = channels or (1 if found.gray else 3)
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
        self.skipped += [(blobs[i].name, reason) for i, reason in found.unreadable.items()]
        if found.unreadable:
            what = f"{len(found.unreadable)} of {found.checked} files are no readable images and are left out"
            self._report(what, self.skipped[0])
        self.transparent = found.transparent
        warn_of_alpha(name, found.transparent, of=found.checked)

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
        self.skipped: list[tuple[str, str]] = []  # name and what is wrong
        self.shards, self.bad_shards = 0, list[tuple[str, str]]()  # how many, and name and what is wrong
        self.most_bad, self.transparent = 1.0, 0
        self._damaged: dict[int, str] = {}
        self._noting = Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_noting"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _noting=Lock())

    def __len__(self) -> int:
        return len(self.files)

    @property
    def damaged(self) -> frozenset[int]:
        """Numbers of the images that turned out unreadable, for each of which another stands in."""
        return frozenset(self._damaged)

    def batches_in_flight(self, batch_size: int) -> int:
        """How many to ask for ahead so that no worker waits: two jobs for each."""
        return -(-2 * self.decoders.workers // -(-batch_size // JOB))

    def use_workers(self, workers: int) -> None:
        """Decode so many images at once from now on."""
        self.decoders = Decoders(workers, processes=_by_processes(self.files))

    def batch(self, index: Tensor) -> Tensor:
        """The images of these numbers, uint8 [B, C, S, S]."""
        wanted = index.tolist()
        images = torch.empty(len(wanted), self.channels, self.image_size, self.image_size, dtype=torch.uint8)
        for row, reason in self._decode(wanted, images).items():
            images[row] = self._stand_in(wanted[row], reason)
        return images

    def subset(self, index: Tensor, name: str) -> FileImages:
        """The images of these numbers, with their labels, as a source of their own."""
        part = object.__new__(FileImages)
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

    def sized(self, image_size: int, channels: int) -> FileImages:
        """The same images brought to another size and number of channels."""
        part = self.subset(torch.arange(len(self)), self.name)
        part.image_size, part.channels = image_size, channels
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
            good += self._decode_readable(chunk, images[len(good) : len(good) + len(chunk)])
            if progress is not None:
                progress(f"decoding {self.name}", chunk.stop, len(self))
        self.decoders.close()
        if not good:
            raise ValueError(f"{self.name} must hold readable images, got 0 of {len(self)}; check the files.")
        held = ResidentImages(
            images[: len(good)], rows_of(self.labels, torch.tensor(good)), self.classes, name=self.name
        )
        held.shard_sizes = _shard_sizes([self.files[i] for i in good])
        return held

    def leave_out_shards(self, bad: Sequence[tuple[str, str]], *, of: int) -> None:
        """Note that the files come from shards, and say which of these could not be read.

        Args:
            bad: name of each that could not, and what is wrong with it.
            of: how many there are, these included.
        """
        self.shards, self.bad_shards = of, list(bad)
        if bad:
            path, reason = bad[0]
            warnings.warn(
                f"{self.name}: {len(bad)} of {of} shards cannot be read and are left out ({path}: {reason}); "
                "`bad_shards` lists them.",
                SkippedImagesWarning,
                stacklevel=2,
            )

    @property
    def shard_sizes(self) -> tuple[int, ...]:
        """How many images come from each shard, in their order; nothing where they lie in files of their own."""
        return _shard_sizes(self.files)

    def limit_bad(self, share: float) -> None:
        """From now on, refuse to go on with more unreadable images than this share of all.

        Of shards one may be unreadable whatever its share, unless that is 0.

        Args:
            share: from 0 to 1.

        Raises:
            UnusableImagesError: there are more already.
        """
        self.most_bad = share
        self._require_few_bad()
        if len(self.bad_shards) > max(share * self.shards, float(share > 0)):
            path, reason = self.bad_shards[0]
            raise UnusableImagesError(
                f"{self.name} must have at most {share:.3g} of its shards unreadable, got {len(self.bad_shards)} of "
                f"{self.shards}, the first {path} ({reason}); mend them, or allow more with --max-bad-images."
            )

    def fingerprint(self) -> str:
        """A hash of labels, classes, names and sizes of the files, and of the content of a thousand of them."""
        labels = None if self.labels is None else self.labels.tolist()
        digest = hashlib.sha256(_bytes(repr((self.channels, self.image_size, self.classes, labels))))
        for file in self.files:
            digest.update(_bytes(f"{file.stamp()}\n"))
        for file in self.files[:: -(-len(self.files) // FILES_SAMPLED)]:
            digest.update(_sampled(file))
        return f"{BY_CONTENT}{digest.hexdigest()}"

    def _decode(self, wanted: Sequence[int], out: Tensor) -> dict[int, str]:
        """Fill `out`; returns what is wrong, by row. What was damaged once stays so."""
        files = [self.files[i] for i in wanted]

        def read(rows: list[int]) -> dict[int, str]:
            again = torch.empty(len(rows), *out.shape[1:], dtype=torch.uint8)
            still = self.decoders.decode([files[row] for row in rows], again.numpy())
            out[rows] = again
            return {rows[row]: reason for row, reason in still.items()}

        wrong = tried_again(self.decoders.decode(files, out.numpy()), read)
        require_reached(self.name, files, wrong)
        return wrong | {row: self._damaged[i] for row, i in enumerate(wanted) if i in self._damaged}

    def _require_few_bad(self) -> None:
        bad, total = len(self.skipped), len(self.files) + len(self.skipped) - len(self._damaged)
        if bad > self.most_bad * total:
            path, reason = self.skipped[-1]
            raise UnusableImagesError(
                f"{self.name} must have at most {self.most_bad:.3g} of its images unreadable, got {bad} of {total}, "
                f"the last {path} ({reason}); mend them, or allow more with --max-bad-images."
            )

    def _decode_readable(self, wanted: Sequence[int], out: Tensor) -> list[int]:
        """Fill the first rows of `out` with the readable images; returns their numbers."""
        wrong = self._decode(wanted, out)
        for row, reason in wrong.items():
            self._damage(wanted[row], reason)
        kept = [row for row in range(len(wanted)) if row not in wrong]
        if wrong:
            out[: len(kept)] = out[kept]
        return [wanted[row] for row in kept]

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
            self._require_few_bad()
        if first:
            what = "a damaged image is left out, as others will be without further notice"
            self._report(what, (self.files[i].name, reason))

    def _report(self, what: str, example: tuple[str, str]) -> None:
        path, reason = example
        warnings.warn(
            f"{self.name}: {what} ({path}: {reason}); `skipped` lists them.", SkippedImagesWarning, stacklevel=3
        )


def is_comparable(then: str, now: str) -> bool:
    """Whether two fingerprints of one dataset must be equal; those of files went by their times in earlier versions."""
    return then.startswith(BY_CONTENT) or not now.startswith(BY_CONTENT)


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogateescape")  # names of files need not be UTF-8


def _sampled(file: Blob) -> bytes:
    """The content of a small file; of a large one its beginning, middle and end."""
    with file.open() as stream:
        size = stream.seek(0, os.SEEK_END)
        pieces = [(0, size)] if size <= 16 * PIECE else [(at, PIECE) for at in (0, size // 2, size - PIECE)]
        return b"".join(_piece(stream, *piece) for piece in pieces)


def _piece(stream: BinaryIO, start: int, length: int) -> bytes:
    stream.seek(start)
    return stream.read(length)


def _shard_sizes(files: Sequence[Blob]) -> tuple[int, ...]:
    runs = groupby(files, lambda file: getattr(file, "shard", None))
    return tuple(len(list(run)) for shard, run in runs if shard is not None)


def _by_processes(files: Sequence[Blob]) -> bool:
    return len(files) >= PROCESSES_FROM and all(hasattr(file, "place") for file in files)
