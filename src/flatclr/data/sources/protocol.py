"""What training and evaluation need of images."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class ImageSource(Protocol):
    """What training and evaluation need of images: any class with these attributes will do.

    `ResidentImages` and `FileImages` are two. All images of a source have one size S and one number of channels C.

    >>> source: ImageSource = flatclr.data.fashion_mnist_small().test
    >>> len(source), source.channels, source.image_size, source.classes[0]
    (2000, 1, 28, 'T-shirt/top')
    """

    @property
    def name(self) -> str:
        """For messages and reports."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Their names; empty without labels."""

    @property
    def labels(self) -> Tensor | None:
        """int64 [N] on the CPU, numbers into `classes`."""

    @property
    def channels(self) -> int:
        """1 for grayscale, 3 for RGB."""

    @property
    def image_size(self) -> int:
        """The side of the square images in pixels."""

    def __len__(self) -> int: ...

    def batch(self, index: Tensor) -> Tensor:
        """The images of these numbers, uint8 [B, C, S, S] on the CPU."""

    def fingerprint(self) -> str:
        """Tells whether a resumed run sees the same data."""
