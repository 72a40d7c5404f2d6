"""Views that others make: items that are views already, or any function from an image to a view."""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from flatclr.data.sources.items import kind_of

TIMED = 4  # items that say how fast views are made


class ReadyViews:
    """Samples whose views are made on the CPU, by worker processes, as training asks for them.

    The views of a sample in a step are drawn from a seed of their own, in PyTorch's, NumPy's and Python's generators,
    so that a resumed run sees the same.

    Args:
        samples: a function from a number to the views of that sample, a tuple of tensors [C, H, W]; a label may follow
            as a tensor of one whole number, for evaluations alone.
        count: how many samples there are.
        name: for messages and reports.
        workers: how many processes make views; 0: the training process itself.
        seed: of the views.
        fingerprint: what tells the samples from others.
        collate: from a list of samples to a tuple of batches [B, C, H, W]; stacks the views unless given.

    >>> views = ReadyViews(lambda i: (torch.zeros(3, 8, 8), torch.ones(3, 8, 8)), 10)
    >>> views.views_per_sample, [part.shape for part in views.batch(torch.tensor([0, 1]))]
    (2, [torch.Size([2, 3, 8, 8]), torch.Size([2, 3, 8, 8])])
    """

    labels, classes = None, ()

    def __init__(
        self,
        samples: Callable[[int], tuple[Tensor, ...]],
        count: int,
        *,
        name: str = "views",
        workers: int = 0,
        seed: int = 0,
        collate: Callable[[list[Any]], Any] | None = None,
        fingerprint: str = "",
    ) -> None:
        self.samples, self.count, self.name, self.workers, self.seed = samples, count, name, workers, seed
        self.collate = collate
        started = time.perf_counter()
        first = self.batch(torch.arange(min(TIMED, count)))
        self.views_a_second = len(first) * min(TIMED, count) / (time.perf_counter() - started) * max(1, workers)
        self.shapes = tuple(tuple(part.shape[1:]) for part in first)
        self.channels, self.image_size = self.shapes[0][0], self.shapes[0][1]
        self._fingerprint = fingerprint

    @property
    def views_per_sample(self) -> int:
        """How many there are of each sample."""
        return len(self.shapes)

    def __len__(self) -> int:
        return self.count

    def batch(self, index: Tensor) -> tuple[Tensor, ...]:
        """The views of these samples, [B, C, H, W] each."""
        return next(iter(self.stream([index], workers=0)))

    def stream(self, indices: Iterable[Tensor], *, workers: int | None = None) -> Iterator[tuple[Tensor, ...]]:
        """The views of one index after another, made ahead by the workers."""
        return (views for views, _ in self.labelled(indices, workers=workers))

    def labelled(
        self, indices: Iterable[Tensor], *, workers: int | None = None
    ) -> Iterator[tuple[tuple[Tensor, ...], Tensor | None]]:
        """The views, and the labels [B] where the samples bring some."""
        workers = self.workers if workers is None else workers
        loader: DataLoader[Any] = DataLoader(
            _Keyed(self.samples, self.seed),
            batch_sampler=_Keys(indices),
            num_workers=workers,
            collate_fn=self._collated,
            prefetch_factor=4 if workers else None,
            generator=torch.Generator().manual_seed(0),  # else the random state of the run would move on
        )
        yield from loader

    def subset(self, index: Tensor, name: str) -> ReadyViews:
        """Some of the samples."""
        chosen, samples = index.tolist(), self.samples
        return ReadyViews(
            lambda i: samples(chosen[i]),
            len(chosen),
            name=name,
            workers=self.workers,
            seed=self.seed,
            collate=self.collate,
            fingerprint=f"{self._fingerprint} {hash(tuple(chosen))}",
        )

    def fingerprint(self) -> str:
        """A hash of what is known of the samples without making views of all."""
        return hashlib.sha256(repr((self.count, self.shapes, self._fingerprint)).encode()).hexdigest()

    def _collated(self, samples: list[Any]) -> tuple[tuple[Tensor, ...], Tensor | None]:
        brought = self.collate(samples) if self.collate is not None else _stacked(samples, self.name)
        return require_views_of(brought, self.name), labels_of(brought, len(samples))


class _Keyed(Dataset[Any]):
    """A map-style dataset of (number, key of the batch): what is random in a sample depends on both."""

    def __init__(self, samples: Callable[[int], Any], seed: int) -> None:
        self.samples, self.seed = samples, seed

    def __getitem__(self, place: tuple[int, str]) -> Any:
        digest = hashlib.sha256(f"{self.seed}/{place[1]}/{place[0]}".encode()).digest()
        key = int.from_bytes(digest[:4], "little")
        states = random.getstate(), np.random.get_state()
        try:
            with torch.random.fork_rng(devices=()):
                torch.default_generator.manual_seed(key)
                random.seed(key)
                np.random.seed(key)
                return self.samples(place[0])
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])


class _Keys:
    """Indices with the key of their batch."""

    def __init__(self, indices: Iterable[Tensor]) -> None:
        self.indices = indices

    def __iter__(self) -> Iterator[list[tuple[int, str]]]:
        for index in self.indices:
            numbers = index.tolist()
            key = hashlib.sha256(repr(numbers).encode()).hexdigest()[:16]
            yield [(number, key) for number in numbers]


def _stacked(samples: list[Any], name: str) -> tuple[Tensor, ...]:
    try:
        return tuple(torch.stack(views) for views in zip(*samples, strict=True))
    except (RuntimeError, ValueError, TypeError) as error:
        raise ValueError(
            f"{name} must give every sample as many views of the same sizes, got {kind_of(samples[0])} and "
            f"{kind_of(samples[-1])}; crop them to one size."
        ) from error


def require_views_of(views: Any, name: str) -> tuple[Tensor, ...]:
    """Refuse what is no batch of two or more views; labels at the end are left out."""
    parts = list(views.values()) if isinstance(views, Mapping) else views
    if _is_list(parts) and len(parts) and _is_list(parts[0]):
        parts = parts[0]  # (views, labels, file names), as lightly's loaders give them
    found = [part for part in parts if isinstance(part, Tensor) and part.dim() == 4] if _is_list(parts) else []
    if len(found) < 2:
        raise ValueError(
            f"{name} must give batches of 2 or more views [B, C, H, W], got {kind_of(views)}; return (view_1, view_2)."
        )
    return tuple(part.float() / 255 if part.dtype == torch.uint8 else part.float() for part in found)


def labels_of(brought: Any, rows: int) -> Tensor | None:
    """The labels among what a batch brings: its first whole numbers, one a sample.

    >>> labels_of((torch.zeros(2, 3, 8, 8), torch.zeros(2, 3, 8, 8), torch.tensor([4, 1])), 2)
    tensor([4, 1])
    """
    parts = list(brought.values()) if isinstance(brought, Mapping) else brought
    for part in parts if _is_list(parts) else ():
        if isinstance(part, Tensor) and part.shape == (rows,) and not part.is_floating_point():
            return part.long()
    return None


def _is_list(value: Any) -> bool:
    return isinstance(value, tuple | list)


class ViewsBy:
    """Views of an image by any function: torchvision's, albumentations', kornia's transforms, or one of your own.

    Args:
        image_of: from a number to the image, as the function takes it.
        function: from an image to a view, or to several at once.
        count: how often a function of one view is called.
    """

    def __init__(self, image_of: Callable[[int], Any], function: Callable[..., Any], count: int) -> None:
        self.image_of, self.function, self.count = image_of, function, count
        self.family = _family_of(function)

    def __call__(self, number: int) -> tuple[Tensor, ...]:
        image = self.image_of(number)
        first = self._called(image)
        if isinstance(first, tuple | list):
            return tuple(view_tensor(view) for view in first)
        views = [first, *(self._called(image) for _ in range(self.count - 1))]
        return tuple(view_tensor(view) for view in views)

    def _called(self, image: Any) -> Any:
        if self.family == "albumentations":
            return self.function(image=_channels_last(image))["image"]
        if self.family == "kornia":
            return self.function(view_tensor(image)[None])[0]
        return self.function(image)


def _family_of(function: Callable[..., Any]) -> str:
    """The library a function comes from: its own, or kornia where it is a container of kornia's modules."""
    parts = function.modules() if isinstance(function, nn.Module) else [function]
    names = [type(part).__module__.partition(".")[0] for part in parts]
    return "kornia" if "kornia" in names else names[0]


def view_tensor(view: Any) -> Tensor:
    """Float [C, H, W] of a view in whichever form; 8-bit levels become [0, 1].

    >>> view_tensor(np.full((4, 6, 3), 255, np.uint8)).shape
    torch.Size([3, 4, 6])
    """
    if isinstance(view, Image.Image):
        view = np.array(view)
    if isinstance(view, np.ndarray):
        with_channels = view[..., None] if view.ndim == 2 else view
        view = torch.from_numpy(np.require(with_channels, requirements=["C", "W"])).permute(2, 0, 1)
    if not isinstance(view, Tensor) or view.dim() != 3:
        raise TypeError(f"a view must be a tensor [C, H, W], an array [H, W, C] or a PIL image, got {kind_of(view)}.")
    return view.float() / 255 if view.dtype == torch.uint8 else view.float()


def _channels_last(image: Any) -> Any:
    if isinstance(image, Tensor):
        return image.permute(1, 2, 0).numpy()
    return np.array(image) if isinstance(image, Image.Image) else image


def views_in_item(item: Any) -> Sequence[Any] | None:
    """The views that an item of a dataset is made of, a label at the end left out; None where it is one image."""
    if _is_list(item) and len(item) and _is_list(item[0]):
        item = item[0]
    if not isinstance(item, tuple | list):
        return None
    views = [part for part in item if isinstance(part, Image.Image) or (_has_sides(part) and part.ndim == 3)]
    return views if len(views) >= 2 else None


def label_in_item(item: Any) -> Tensor | None:
    """The label that follows the views of an item."""
    last = item[-1]
    if not isinstance(last, int | Tensor | np.ndarray | np.generic):
        return None
    label = torch.as_tensor(last)
    return None if label.dim() or label.is_floating_point() else label.long()


def _has_sides(value: Any) -> bool:
    return isinstance(value, Tensor | np.ndarray)
