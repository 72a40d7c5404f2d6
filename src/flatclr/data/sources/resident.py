"""Images in memory.

Shape suffixes: N images, B of them, C channels, S pixels along a side.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flatclr.data.arrays import (
    as_targets,
    checked_labels,
    checked_targets,
    class_numbers,
    content_hash,
    height_and_width,
    image_tensor,
    label_array,
    rows_of,
)


class ResidentImages:
    """Images in memory.

    Args:
        images: uint8 [N, C, S, S]; `ResidentImages.of` takes other shapes and types.
        labels: class numbers [N], from 0 up.
        classes: their names; without them the numbers are the names.
        targets: bool [N, classes] where an image may be of several classes; then there are no labels.
        name: for messages and reports.

    Raises:
        ValueError: the images have another shape or type, or labels or targets do not fit them.

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
        self.shard_sizes: tuple[int, ...] = ()  # how many came from each shard, if they did
        self.cropped_from: tuple[int, int] | None = None  # height and width, if they were no squares
        self.labels, self.classes = checked_labels(labels, classes, images=len(images), name=name)
        self.targets = targets
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
        """From arrays of any usual shape and type.

        Args:
            images: [N, H, W], [N, H, W, C] or [N, C, H, W], uint8 or float in [0, 1].
            labels: class numbers or names [N], or a table [N, classes] of 0 and 1 for images of several classes: that
                becomes `targets`.
            classes: names of the classes.
            image_size: the shorter side is brought to; None leaves it as it is. The centre is kept.
            name: for messages and reports.

        Returns:
            the images as uint8 [N, C, S, S], with their labels.

        Raises:
            ValueError: a shape is another, numbers are out of range, or labels do not fit the images.
            TypeError: the arrays do not hold numbers that images or labels can have.

        >>> ResidentImages.of(torch.rand(2, 6, 4, 3), ["cat", "dog"]).classes
        ('cat', 'dog')
        """
        labels = None if labels is None else label_array(labels, name)
        targets = as_targets(labels)
        labels = labels if targets is None else None
        numbers, names = (None, tuple(classes)) if labels is None else class_numbers(labels, classes, name)
        tensor = image_tensor(images, image_size=image_size, name=name)
        if not isinstance(images, np.memmap):  # a mapped file stays on disk
            tensor = tensor.contiguous()
        found = cls(tensor, numbers, names, targets=targets, name=name)
        height, width = height_and_width(images)
        found.cropped_from = None if height == width else (height, width)
        return found

    @property
    def channels(self) -> int:
        """1 for grayscale, 3 for RGB."""
        return self.images.shape[1]

    @property
    def image_size(self) -> int:
        """The side of the square images in pixels."""
        return self.images.shape[2]

    def __len__(self) -> int:
        return len(self.images)

    @property
    def in_memory(self) -> tuple[Tensor]:
        """All images, for a loader that holds them on the device."""
        return (self.images,)

    def batch(self, index: Tensor) -> Tensor:
        """The images of these numbers, uint8 [B, C, S, S]."""
        return self.images[index].contiguous()

    def subset(self, index: Tensor, name: str) -> ResidentImages:
        """The images of these numbers, with their labels, as a source of their own."""
        labels, targets = rows_of(self.labels, index), rows_of(self.targets, index)
        part = ResidentImages(self.images[index], labels, self.classes, targets=targets, name=name)
        part.cropped_from = self.cropped_from
        return part

    def fingerprint(self) -> str:
        """A hash of images, labels and classes."""
        parts = [part for part in (self.images, self.labels, self.targets) if part is not None]
        return content_hash(parts, self.classes)
