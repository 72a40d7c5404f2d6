"""Images with an alpha channel are put on white, which is said."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager


class TransparentImagesWarning(UserWarning):
    """Some images have an alpha channel and are put on white."""


def warn_of_alpha(name: str, transparent: int, *, of: int) -> None:
    """Say it of data in which so many of the images that were looked at have one; of none, nothing is said."""
    if transparent:
        message = f"{name}: {transparent} of {of} images have an alpha channel and are put on white."
        warnings.warn(message, TransparentImagesWarning, stacklevel=3)


@contextmanager
def alpha_is_told(told: bool) -> Iterator[None]:
    """Say nothing of it for the time of a `with` block, where it was said of the other part of the data."""
    with warnings.catch_warnings():
        if told:
            warnings.simplefilter("ignore", TransparentImagesWarning)
        yield
