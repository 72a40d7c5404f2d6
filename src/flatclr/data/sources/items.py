"""Images that a sequence of items holds: a torch Dataset, a table of the Hugging Face hub, a list."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from flatclr.data.arrays import CHUNK, checked_labels, class_numbers, image_tensor, label_array, rows_of
from flatclr.data.decoding import eight_bit, has_alpha, on_white
from flatclr.data.progress import Progress
from flatclr.data.sources.alpha import warn_of_alpha
from flatclr.data.sources.resident import ResidentImages

LARGEST_DEFAULT_SIZE = 224  # photographs are brought to this unless the user names a size
LOOKED_AT = 16  # items that say what the others are like
IMAGE_KEYS, LABEL_KEYS = ("image", "img", "images", "pixel_values"), ("label", "labels", "fine_label", "target")


class Item(NamedTuple):
    """An image as it came, and its class where the item has one."""

    image: Any
    label: Any


class ItemImages:
    """Images of anything with `__len__` and `__getitem__`, read when they are asked for.

    An item is an image, (image, label), or a mapping with "image" and perhaps "label". An image is a PIL image, or an
    array or tensor [H, W], [H, W, C] or [C, H, W], uint8 or float in [0, 1]. The shorter side is brought to
    `image_size` and the centre kept.

    Args:
        items: the sequence.
        image_size: side of the square images; None: of the median of the first items, at most 224.
        channels: 1 or 3; None: 1 if the first items are grayscale, else 3.
        labels: class numbers [N], where they are known without reading the items.
        classes: their names.
        name: for messages and reports.

    Raises:
        TypeError: an item is no image.

    >>> source = ItemImages([(torch.zeros(3, 8, 10), 1), (torch.ones(3, 8, 10), 0)])
    >>> len(source), source.image_size, source.batch(torch.tensor([1])).shape
    (2, 8, torch.Size([1, 3, 8, 8]))
    """

    def __init__(
        self,
        items: Any,
        *,
        image_size: int | None = None,
        channels: int | None = None,
        labels: Tensor | None = None,
        classes: Sequence[str] = (),
        name: str = "items",
    ) -> None:
        if len(items) == 0:
            raise ValueError(f"{name} must hold images, got none; add some.")
        self.items, self.name = items, name
        places = sorted({round(i * (len(items) - 1) / (LOOKED_AT - 1)) for i in range(LOOKED_AT)})
        looked_at = [item_of(items[i], name).image for i in places]
        seen = [_pixels(image, i, name) for image, i in zip(looked_at, places, strict=True)]
        self.transparent = sum(isinstance(image, Image.Image) and has_alpha(image) for image in looked_at)
        warn_of_alpha(name, self.transparent, of=len(seen))
        self.channels = channels or max(image.shape[0] for image in seen)
        shorter = int(median(min(image.shape[1:]) for image in seen))
        self.image_size = image_size or min(shorter, LARGEST_DEFAULT_SIZE)
        self.labels, self.classes = checked_labels(labels, classes, images=len(items), name=name)

    def __len__(self) -> int:
        return len(self.items)

    def batch(self, index: Tensor) -> Tensor:
        """The images of these numbers, uint8 [B, C, S, S]."""
        return torch.stack([self._image(item_of(self.items[i], self.name).image, i) for i in index.tolist()])

    def labelled(self) -> ItemImages:
        """The same with the labels that the items bring, which are read for it; as it is where these are no classes."""
        if self.labels is not None:
            return self
        found = []
        for i in range(len(self)):
            found.append(item_of(self.items[i], self.name).label)
            if found[-1] is None:
                return self
        try:
            numbers, names = class_numbers(label_array(found, self.name), self.classes, self.name)
            labels, classes = checked_labels(numbers, names, images=len(self), name=self.name)
        except (TypeError, ValueError):
            return self
        part = object.__new__(ItemImages)
        part.__dict__.update(self.__dict__, labels=labels, classes=classes)
        return part

    def subset(self, index: Tensor, name: str) -> ItemImages:
        """The images of these numbers, with their labels, as a source of their own."""
        part = object.__new__(ItemImages)
        part.__dict__.update(self.__dict__, name=name, labels=rows_of(self.labels, index), transparent=0)
        part.items = Chosen(self.items, index.tolist())
        return part

    def resident(self, max_bytes: int, progress: Progress | None = None) -> ResidentImages | None:
        """All images in memory, with the labels the items bring; None if they need more than `max_bytes`."""
        shape = (len(self), self.channels, self.image_size, self.image_size)
        if int(np.prod(shape, dtype=object)) > max_bytes:
            return None
        images, found = torch.empty(shape, dtype=torch.uint8), []
        for i in range(len(self)):
            item = item_of(self.items[i], self.name)
            images[i] = self._image(item.image, i)
            found.append(item.label)
            if progress is not None and (i + 1) % CHUNK == 0:
                progress(f"reading {self.name}", i + 1, len(self))
        if self.labels is None and all(label is not None for label in found):
            return ResidentImages.of(images, np.asarray(found), self.classes, name=self.name)
        return ResidentImages(images, self.labels, self.classes, name=self.name)

    def fingerprint(self) -> str:
        """A hash of size, labels and the content of the items that were looked at first."""
        labels = None if self.labels is None else self.labels.tolist()
        digest = hashlib.sha256(repr((len(self), self.channels, self.image_size, self.classes, labels)).encode())
        step = max(1, len(self) // LOOKED_AT)
        digest.update(self.batch(torch.arange(0, len(self), step)).numpy().tobytes())
        return digest.hexdigest()

    def _image(self, image: Any, number: int) -> Tensor:
        pixels = _pixels(image, number, self.name)
        if pixels.shape[0] != self.channels:
            pixels = _with_channels(pixels, self.channels)
        return image_tensor(pixels[None], image_size=self.image_size, name=self.name)[0]


class Chosen:
    """Some of the items, by number."""

    def __init__(self, items: Any, numbers: Sequence[int]) -> None:
        self.items, self.numbers = items, numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, place: int) -> Any:
        return self.items[self.numbers[place]]


def item_of(value: Any, name: str) -> Item:
    """Image and label of an item, in whichever of the usual forms."""
    if isinstance(value, Mapping):
        key = next((key for key in IMAGE_KEYS if key in value), None)
        if key is None:
            raise TypeError(f"{name} must have items with an image, got {kind_of(value)}; call the image 'image'.")
        label = next((value[key] for key in LABEL_KEYS if key in value), None)
        return Item(value[key], _plain_label(label))
    if isinstance(value, tuple | list) and len(value) == 2 and not _is_image(value[1]):
        return Item(value[0], _plain_label(value[1]))
    if isinstance(value, tuple | list) and len(value) == 1:
        return Item(value[0], None)
    return Item(value, None)


def kind_of(value: Any) -> str:
    """What arrived, in words for a message.

    >>> kind_of((torch.zeros(3, 8, 8), 1)), kind_of({"text": "a"})
    ('(float32 tensor [3, 8, 8], int)', "a mapping with 'text'")
    """
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} tensor {list(value.shape)}"
    if isinstance(value, np.ndarray):
        return f"{value.dtype} array {list(value.shape)}"
    if isinstance(value, Image.Image):
        return f"a PIL image {value.width} x {value.height}"
    if isinstance(value, Mapping):
        return f"a mapping with {', '.join(map(repr, list(value)[:5]))}"
    if isinstance(value, tuple | list):
        return f"({', '.join(kind_of(part) for part in list(value)[:4])}{', ...' if len(value) > 4 else ''})"
    return type(value).__name__


def _is_image(value: Any) -> bool:
    return isinstance(value, Image.Image) or (isinstance(value, Tensor | np.ndarray) and value.ndim >= 2)


def _plain_label(label: Any) -> Any:
    return label.item() if isinstance(label, Tensor | np.generic) and label.ndim == 0 else label


def _pixels(image: Any, number: int, name: str) -> Tensor:
    """[C, H, W], uint8 or float, from an image in any of the usual forms."""
    if isinstance(image, Image.Image):
        flat = on_white(eight_bit(image))
        flat = flat.convert("L" if flat.mode in ("1", "L") and not has_alpha(flat) else "RGB")
        array = np.array(flat)
        return torch.from_numpy(array[None] if array.ndim == 2 else array.transpose(2, 0, 1).copy())
    if not _is_image(image) or image.ndim > 3:
        raise TypeError(
            f"{name} must have items with an image, got {kind_of(image)} at {number}; return a PIL image, or an array "
            "[H, W, C] or tensor [C, H, W]."
        )
    if isinstance(image, Tensor):
        tensor = image.detach().cpu()
    else:
        tensor = torch.from_numpy(np.require(image, requirements=["C", "W"]))  # PIL's arrays must not be written to
    if tensor.ndim == 2:
        return tensor[None]
    if tensor.shape[0] not in (1, 3) and tensor.shape[2] in (1, 3):
        return tensor.permute(2, 0, 1)
    return tensor


def _with_channels(pixels: Tensor, channels: int) -> Tensor:
    if channels == 3:
        return pixels.expand(3, -1, -1)
    mean = pixels.float().mean(0, keepdim=True)
    return mean.round().to(torch.uint8) if pixels.dtype == torch.uint8 else mean
