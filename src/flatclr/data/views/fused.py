"""Views of images in one launch, or three with blur; what runs on the device is in `kernels`. Needs Triton.

At small batches the sixty small launches of `apply_views` take longer than their arithmetic. Here a program gathers one
image, crops, recolours and normalises it, and writes it as the encoder reads it. Nothing waits for the device, so a
CUDA graph can hold it, and results repeat bit by bit.

Shape suffixes: M stored images, N of them shown, V views, P parameters per view.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from triton.runtime import JITFunction

from flatclr.data.views.checks import for_each_channel
from flatclr.data.views.kernels.blur import blur_kernel
from flatclr.data.views.kernels.views import views_kernel
from flatclr.data.views.operations import Operations, operations_on
from flatclr.data.views.parameters import ViewParameters
from flatclr.data.views.presets import no_augmentation

INTERPRETED = not isinstance(views_kernel, JITFunction)  # by TRITON_INTERPRET=1, on the CPU
MOST_PIXELS = 4096  # of a view that stays in registers while its mean is summed
PIXELS_PER_WARP = 128
BLURRED_PIXELS = 512  # by a program


def try_launch(device: torch.device) -> None:
    """Raises whatever keeps a kernel from running there."""
    pixel = torch.zeros(1, 1, 1, 1, dtype=torch.uint8, device=device)
    values = torch.zeros(1, len(ViewParameters.COLUMNS), device=device)
    operations = operations_on(pixel, no_augmentation(), (1, 1))
    fused_views(pixel, None, values, operations, sides=(1, 1), dtype=torch.float32)


def fused_views(
    images_MCHW: Tensor,
    index_N: Tensor | None,
    values_VP: Tensor,
    operations: Operations,
    *,
    sides: tuple[int, int],
    dtype: torch.dtype,
) -> Tensor:
    """Views [V, C, *sides], channels last, of `images[index]` (of `images` where that is None).

    View v shows image v mod N as row v of the parameters says: 2 N rows make two views of every image.
    """
    assert images_MCHW.shape[1] in (1, 3)
    assert images_MCHW.dtype in (torch.uint8, torch.float32)
    assert values_VP.is_contiguous()
    assert index_N is None or (index_N.dtype == torch.int64 and index_N.is_contiguous())
    assert operations.crop or sides == (images_MCHW.shape[-2], images_MCHW.shape[-1])
    with torch.cuda.device_of(images_MCHW):  # Triton launches on the current one
        if operations.blur_size <= 1:
            return _sharp(images_MCHW, index_N, values_VP, operations, sides, dtype)
        unfinished = replace(operations, solarize=False, mean=None, std=None)
        out = _sharp(images_MCHW, index_N, values_VP, unfinished, sides, torch.float32)
        out = _blurred(out, values_VP, unfinished, torch.float32, rows=True)
        return _blurred(out, values_VP, operations, dtype, rows=False)


def _sharp(
    images_MCHW: Tensor,
    index_N: Tensor | None,
    values_VP: Tensor,
    operations: Operations,
    sides: tuple[int, int],
    dtype: torch.dtype,
) -> Tensor:
    """The views without blur."""
    _, channels, stored_height, stored_width = images_MCHW.shape
    image_stride, *strides = images_MCHW.stride()
    height, width = sides
    out = _channels_last((len(values_VP), channels, height, width), dtype, images_MCHW)
    block = min(MOST_PIXELS, 1 << (height * width - 1).bit_length())
    views_kernel[(len(values_VP),)](
        images_MCHW,
        images_MCHW if index_N is None else index_N,
        values_VP,
        out,
        len(images_MCHW if index_N is None else index_N),
        image_stride,
        tuple(strides),
        *_last_numbers(operations, channels),
        GATHER=index_N is not None,
        BYTES=images_MCHW.dtype == torch.uint8,
        CROP=operations.crop,
        FLIP=operations.flip,
        BRIGHTNESS=operations.brightness,
        CONTRAST=operations.contrast,
        SATURATION=operations.saturation,
        HUE=operations.hue,
        GRAYSCALE=operations.grayscale,
        SOLARIZE=operations.solarize,
        NORMALIZE=operations.mean is not None,
        CHANNELS=channels,
        STORED_HEIGHT=stored_height,
        STORED_WIDTH=stored_width,
        HEIGHT=height,
        WIDTH=width,
        ROW_PAIRS=-(-most_taps(stored_height, height) // 2),
        COLUMN_TAPS=most_taps(stored_width, width),
        COLUMNS=values_VP.shape[1],
        BLOCKS=-(-height * width // block),
        BLOCK=block,
        num_warps=max(1, min(16, block // PIXELS_PER_WARP)),
        enable_fp_fusion=True,
    )
    return out


def _blurred(sharp: Tensor, values_VP: Tensor, operations: Operations, dtype: torch.dtype, *, rows: bool) -> Tensor:
    """The views blurred along their rows or columns, then finished."""
    views, channels, height, width = sharp.shape
    out = _channels_last(sharp.shape, dtype, sharp)
    blur_kernel[(views, -(-height * width // BLURRED_PIXELS))](
        sharp,
        values_VP,
        out,
        *_last_numbers(operations, channels),
        ALONG_ROWS=rows,
        SOLARIZE=operations.solarize,
        NORMALIZE=operations.mean is not None,
        CHANNELS=channels,
        HEIGHT=height,
        WIDTH=width,
        RADIUS=operations.blur_size // 2,
        COLUMNS=values_VP.shape[1],
        BLOCK=BLURRED_PIXELS,
        num_warps=4,
        enable_fp_fusion=True,
    )
    return out


def _last_numbers(operations: Operations, channels: int) -> tuple[float, tuple[float, ...], tuple[float, ...]]:
    mean = for_each_channel("mean", operations.mean or (0.0,), channels)
    std = for_each_channel("std", operations.std or (1.0,), channels)
    return float(operations.solarize_threshold), mean, std


def _channels_last(shape: Sequence[int], dtype: torch.dtype, like: Tensor) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=like.device, memory_format=torch.channels_last)


def most_taps(pixels: int, size: int) -> int:
    """Stored pixels under a triangle that is two steps wide, or two pixels, in a box of at most all of them.

    >>> most_taps(32, 32), most_taps(32, 64), most_taps(64, 32), most_taps(40, 32)
    (2, 2, 4, 3)
    """
    return max(2, -(-2 * pixels // size))
