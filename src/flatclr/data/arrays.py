"""From what a user has to tensors: images, rows of numbers, and labels that are checked.

Shape suffixes: N images, C channels, H rows, W columns.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from flatclr.checks import require_dense
from flatclr.data.unpacking import memory_bytes

CHUNK = 1024
MOST_CLASSES = 1_000_000
LARGEST_EXACT = 2**53  # above it float64 has no fractions left, so that being whole says nothing


def image_tensor(images: Any, *, image_size: int | None = None, name: str = "images", mode: str = "bilinear") -> Tensor:
    """uint8 [N, C, S, S] from an array [N, H, W], [N, H, W, C] or [N, C, H, W], uint8 or float in [0, 1].

    Resized by a mode of `torch.nn.functional.interpolate` that can be antialiased.

    >>> image_tensor(torch.ones(2, 6, 4)).shape
    torch.Size([2, 1, 4, 4])
    """
    given = _as_tensor(images, name)
    images_NCHW = _channels_first(given, name)
    if given.dtype != torch.uint8 and not given.is_floating_point():
        raise TypeError(f"{name} must be uint8, or float in [0, 1], got {_how_to_convert(given.numpy())}")
    H, W = images_NCHW.shape[2:]
    side = min(H, W)
    top, left = (H - side) // 2, (W - side) // 2
    square = images_NCHW[:, :, top : top + side, left : left + side]
    size = image_size or side
    if size == side and square.dtype == torch.uint8:
        return square
    shape_NCHW = (len(square), square.shape[1], size, size)
    require_room(shape_NCHW, name)
    out = torch.empty(shape_NCHW, dtype=torch.uint8)
    for start in range(0, len(square), CHUNK):  # in chunks: the float copy of everything may not fit
        chunk = square[start : start + CHUNK]
        levels = chunk.float() if chunk.dtype == torch.uint8 else _from_unit_range(chunk, start, name)
        if size != side:
            levels = F.interpolate(levels, size=(size, size), mode=mode, antialias=True)
        out[start : start + CHUNK] = levels.round().clamp(0, 255).to(torch.uint8)
    return out


def _as_tensor(value: Any, name: str) -> Tensor:
    if isinstance(value, Tensor):
        require_dense(name, value)
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


def height_and_width(images: Any) -> tuple[int, int]:
    """Of what `image_tensor` takes.

    >>> height_and_width(torch.ones(2, 6, 4)), height_and_width(torch.ones(2, 6, 4, 3))
    ((6, 4), (6, 4))
    """
    shape = np.shape(images)
    height, width = shape[1:3] if len(shape) == 3 or shape[3] in (1, 3) else shape[2:4]
    return height, width


def _how_to_convert(images: NDArray[Any]) -> str:
    """What integers these are, and what makes images of them; .astype('uint8') takes all modulo 256."""
    low, high = int(images.min()), int(images.max())
    if low < 0:
        advice = "map them to float in [0, 1]."
    elif high <= 1:
        advice = "call .astype('float32') on them."
    elif high <= 255:
        advice = "call .astype('uint8') on them."
    else:
        advice = "divide first, say (a >> 8).astype('uint8') for 16 bits, or a / a.max() for float in [0, 1]."
    return f"{images.dtype} from {low} to {high}; {advice}"


def require_room(shape_NCHW: tuple[int, int, int, int], name: str) -> None:
    """Refuse images that the machine cannot hold: as uint8, and a chunk of them as float to resize it."""
    N, C, H, W = shape_NCHW
    need = (N + 4 * min(N, CHUNK)) * C * H * W
    if need > (installed := memory_bytes()):
        raise ValueError(
            f"{name} must fit into memory, got {N} images of {C} x {H} x {W} that need {need / 2**30:,.0f} GiB of "
            f"{installed / 2**30:,.0f}; pass a smaller image size, or fewer images."
        )


def _from_unit_range(images: Tensor, first: int, name: str) -> Tensor:
    """Levels from 0 to 255; `first` is the number of the first of these images."""
    low, high = images.min().item(), images.max().item()
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ValueError(f"{name} must be finite, got {_first_not_finite(images.flatten(1), first)}")
    if low < 0 or high > 1 + 1e-6:
        way = "divide by the largest value" if low >= 0 else "subtract the lowest value, then divide by the largest,"
        raise ValueError(f"{name} must be within [0, 1] if float, got [{low:g}, {high:g}]; {way} or pass uint8.")
    return images.float() * 255


def _first_not_finite(rows: Tensor, first: int) -> str:
    bad = ~torch.isfinite(rows)
    row = int(bad.any(dim=1).nonzero()[0])
    kind = "NaN" if rows[row].isnan().any() else "Inf"
    return (
        f"{kind} in image {first + row}, in {int(bad[row].sum())} of its {rows.shape[1]} values; "
        "mend or remove this image and its label."
    )


def float_rows(value: Any, name: str) -> Tensor:
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


def label_array(labels: Any, name: str) -> NDArray[Any]:
    """Labels as they are, but whole numbers stored as float become integers.

    >>> label_array([0.0, 2.0], "images")
    array([0, 2])
    """
    if isinstance(labels, Tensor):
        require_dense(f"{name}: labels", labels)
        labels = labels.detach().cpu()
        labels = labels.double() if labels.is_floating_point() else labels  # NumPy knows no bfloat16
    given = np.asarray(labels)
    if given.dtype.kind != "f":
        return given
    whole = (np.trunc(given) == given) & (abs(given) <= LARGEST_EXACT)
    if not whole.all():
        where = tuple(np.argwhere(~whole)[0])
        raise ValueError(
            f"{name}: labels must be class numbers or names [N], or a table [N, classes] of 0 and 1, "
            f"got {given[where]:g} in row {where[0] if where else 0}; pass one whole number per image, or for pairs of "
            "arrays call them x and y."
        )
    return given.astype(np.int64)


def class_numbers(labels: Any, classes: Sequence[str], name: str) -> tuple[Tensor, tuple[str, ...]]:
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


def checked_labels(
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


def as_targets(labels: Any) -> Tensor | None:
    """A table of 0 and 1 with several columns as bool [N, classes]; None for anything else."""
    given = np.asarray(labels)
    if given.ndim != 2 or given.shape[1] < 2 or given.dtype.kind not in "biu" or not given.any():
        return None
    if not np.isin(given, (0, 1)).all():
        return None
    return torch.from_numpy(given.astype(bool))


def checked_targets(targets: Tensor, classes: Sequence[str], *, images: int, name: str) -> tuple[str, ...]:
    wanted = (images, len(classes) or targets.shape[-1])
    if targets.dtype != torch.bool or targets.shape != wanted:
        raise ValueError(
            f"{name}: targets must be bool of shape {list(wanted)}, got {targets.dtype} {list(targets.shape)}; "
            "give every image a yes or no for every class."
        )
    return tuple(classes) or tuple(str(i) for i in range(wanted[1]))


def rows_of(labels: Tensor | None, index: Tensor) -> Tensor | None:
    return None if labels is None else labels[index]


def content_hash(parts: Iterable[Tensor], classes: tuple[str, ...]) -> str:
    digest = hashlib.sha256(repr(classes).encode())
    for part in parts:
        digest.update(f"{part.dtype} {list(part.shape)}".encode())
        for chunk in part.split(CHUNK):
            digest.update(chunk.reshape(-1).numpy())
    return digest.hexdigest()
