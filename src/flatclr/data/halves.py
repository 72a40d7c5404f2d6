"""Two halves of an image as its two views: a dataset of images as pairs."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from flatclr.checks import require_dense, require_one_of, shown
from flatclr.data.sources import AnySource, Dataset, FileImages, ItemImages, PairedArrays, ResidentImages
from flatclr.data.unpacking import memory_bytes

HALVES = ("top-bottom", "left-right")
FLOATS_AND_COPY = 12  # times the bytes of images: their halves as float32, before and after they are checked


def split_in_halves(images_NCHW: Tensor, how: str = HALVES[0]) -> tuple[Tensor, Tensor]:
    """Both halves, which need not be square; the middle line of an odd side is in neither.

    Args:
        images_NCHW: of any type.
        how: "top-bottom" or "left-right".

    Returns:
        Upper and lower, or left and right.

    >>> top, bottom = split_in_halves(torch.arange(6.0).view(1, 1, 3, 2))
    >>> top.flatten(), bottom.flatten()
    (tensor([0., 1.]), tensor([4., 5.]))
    """
    require_one_of("how", how, HALVES)
    if not isinstance(images_NCHW, Tensor) or images_NCHW.dim() != 4:
        raise ValueError(f"images must be a tensor [N, C, H, W], got {shown(images_NCHW)}; stack them to a batch.")
    require_dense("images", images_NCHW)
    axis = 2 + HALVES.index(how)
    side = images_NCHW.shape[axis]
    return images_NCHW.narrow(axis, 0, side // 2), images_NCHW.narrow(axis, side - side // 2, side // 2)


def halved(dataset: Dataset, how: str = HALVES[0]) -> Dataset:
    """Pairs of the halves of its images, in [0, 1], with the images' labels.

    Args:
        dataset: of images that fit into memory.
        how: as for `split_in_halves`.

    Returns:
        The same parts as `PairedArrays`.

    Raises:
        ValueError: it has other data, or images of one pixel.

    >>> pairs = halved(flatclr.data.open_dataset(image_size=8)).train
    >>> pairs.x.shape, len(pairs.labels)
    (torch.Size([10000, 1, 4, 8]), 10000)
    """
    if not isinstance(dataset, Dataset):
        raise TypeError(f"dataset must be a Dataset, got {type(dataset).__name__}; open one with open_dataset.")
    test = None if dataset.test is None else _halves_of(dataset.test, how)
    return replace(dataset, train=_halves_of(dataset.train, how), test=test, bank=None)


def _halves_of(source: AnySource, how: str) -> PairedArrays:
    images: AnySource | None = source
    if isinstance(source, FileImages | ItemImages):
        images = source.resident(int(min(memory_bytes() / FLOATS_AND_COPY, 2**62)))
    if images is None:
        raise ValueError(f"halves must fit into memory, got {len(source):,} images; pass a smaller image size.")
    if not isinstance(images, ResidentImages):
        raise ValueError(f"halves must be of images, got {source.name}, which has none; leave halves out.")
    if images.image_size < 2:
        raise ValueError(f"halves must be of images of 2 pixels or more, got {source.name}; leave halves out.")
    x, y = (half.float() / 255 for half in split_in_halves(images.images, how))
    return PairedArrays(x, y, labels=images.labels, classes=images.classes, name=source.name)
