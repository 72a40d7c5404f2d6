"""What images, sizes and values per sample or per channel must be."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from flatclr.checks import FLOAT_TYPES, require_count, require_dense, require_number, shown


def require_images(images: Any, *, bytes_too: bool = False) -> None:
    """Refuse anything but a non-empty floating-point tensor [N, C, H, W], or uint8 where that is allowed."""
    if not isinstance(images, Tensor):
        raise TypeError(
            f"images must be a torch.Tensor of shape [N, C, H, W], got {type(images).__name__}; use torch.as_tensor."
        )
    if images.dim() != 4 or images.numel() == 0:
        raise ValueError(
            f"images must have shape [N, C, H, W] and not be empty, got {list(images.shape)}; "
            "add the missing dimension, or permute if channels come last."
        )
    if images.dtype not in FLOAT_TYPES and not (bytes_too and images.dtype == torch.uint8):
        kinds = "uint8 or floating point" if bytes_too else "floating point"
        raise TypeError(f"images must be {kinds}, got {images.dtype}; convert to float in [0, 1].")
    require_dense("images", images)


def checked_sides(size: Any) -> tuple[int, int]:
    """(height, width) from a side or both."""
    sides = (size, size) if isinstance(size, int) else size
    if not isinstance(sides, Sequence) or len(sides) != 2:
        raise TypeError(
            f"size must be a whole number or (height, width), got {shown(size)}; pass the side of the views."
        )
    for side in sides:
        require_count("size", side, advice="pass the side of the views in pixels.")
    return sides[0], sides[1]


def per_sample(name: str, value: Any, images: Tensor) -> Tensor:
    """One number per image as [N, 1, 1, 1] in the type of the images."""
    _require_one_per_image(name, value, images)
    return value.to(images.dtype).view(-1, 1, 1, 1)  # type: ignore[no-any-return]


def flags_per_sample(name: str, value: Any, images: Tensor) -> Tensor:
    """One yes or no per image as [N, 1, 1, 1]."""
    _require_one_per_image(name, value, images)
    if value.dtype != torch.bool:
        raise TypeError(f"{name} must be a bool tensor, got {value.dtype}; compare with 0 first.")
    return value.view(-1, 1, 1, 1)  # type: ignore[no-any-return]


def _require_one_per_image(name: str, value: Any, images: Tensor) -> None:
    if not isinstance(value, Tensor) or value.shape != (len(images),):
        raise ValueError(
            f"{name} must have shape [{len(images)}], one value per image, got {shape_of(value)}; "
            "use torch.full((N,), value) for the same value everywhere."
        )


def checked_channel_values(name: str, value: Any, above: float = -math.inf) -> tuple[float, ...]:
    """A sequence of finite numbers above a limit, as a tuple."""
    if isinstance(value, str) or not isinstance(value, Sequence) or not value:
        raise TypeError(f"{name} must be one number per channel, got {shown(value)}; pass a tuple, say (0.5,).")
    for entry in value:
        require_number(name, entry, above=above)
    return tuple(float(entry) for entry in value)


def for_each_channel(name: str, values: tuple[float, ...], channels: int) -> tuple[float, ...]:
    """One value per channel, from as many or from one for all."""
    if len(values) not in (1, channels):
        raise ValueError(
            f"{name} must have one value or one per channel, {channels}, got {len(values)}; "
            "pass the statistics of these images."
        )
    return values if len(values) == channels else values * channels


def shape_of(value: Any) -> str:
    """For messages: the shape of a tensor, the type of anything else."""
    return str(list(value.shape)) if isinstance(value, Tensor) else type(value).__name__
