"""The views of images picked by their index: on a GPU in one launch where the kernels can, else in PyTorch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from flatclr.accelerator import triton_runs, with_triton
from flatclr.checks import require_one_of
from flatclr.data.views.checks import checked_sides, require_images, shape_of
from flatclr.data.views.config import ViewConfig
from flatclr.data.views.operations import operations_on
from flatclr.data.views.parameters import ViewParameters, require_parameters
from flatclr.data.views.pipeline import apply_views

# how many times smaller a view in one launch may be: each of its pixels reads the square of twice that
MOST_SHRINKING = 16


def gathered_views(
    images: Tensor,
    index: Tensor | None,
    parameters: ViewParameters,
    config: ViewConfig,
    *,
    size: int | tuple[int, int] | None = None,
    dtype: torch.dtype = torch.float32,
    backend: str = "auto",
) -> Tensor:
    """`apply_views` of `images[index]`, over and over until every row of parameters has its view.

    Args:
        images: [M, C, H, W] as for `apply_views`, say all there are.
        index: which of them, [N] on their device, within range; None: all, N = M. View v shows image v mod N.
        parameters: a multiple of N rows: those of view a, then those of view b.
        config: as for `apply_views`.
        size: as for `apply_views`.
        dtype: of the views.
        backend: "triton" gathers, augments and rounds in one launch, "torch" operation by operation. "auto" takes the
            first on a GPU where it can: uint8 or float32 images of 1 or 3 channels, no gradient. Blur takes two more.

    Returns:
        one view per row of parameters, in channels-last order on a GPU, where convolutions read it.

    Raises:
        ValueError: the parameters are for other images, or `backend="triton"` cannot make these views.
        TypeError: the images are no tensor of uint8 or floating point, or the index is none of int64.

    >>> from flatclr.data import draw_views
    >>> images = torch.randint(256, (9, 3, 32, 32), dtype=torch.uint8)
    >>> drawn = draw_views(ViewConfig(), 4, height=32, width=32, generator=torch.Generator().manual_seed(0))
    >>> gathered_views(images, torch.tensor([7, 1]), drawn, ViewConfig()).shape
    torch.Size([4, 3, 32, 32])
    """
    require_one_of("backend", backend, ("auto", "torch", "triton"))
    require_images(images, bytes_too=True)
    samples = len(images) if index is None else _count(index, images)
    require_parameters(parameters, images, samples, in_turn=True)
    if _takes_kernels(backend, images, size):
        return _in_one_launch(images, index, parameters, config, size, dtype)
    picked = images if index is None else images[index]
    views = apply_views(picked.repeat(len(parameters) // samples, 1, 1, 1), parameters, config, size=size)
    layout = torch.channels_last if views.is_cuda else torch.preserve_format
    return views.to(dtype, memory_format=layout)


def _count(index: Any, images: Tensor) -> int:
    """How many images an index picks; refuses what is none."""
    if not isinstance(index, Tensor) or index.dtype != torch.int64 or index.dim() != 1 or len(index) == 0:
        got = f"{index.dtype} {shape_of(index)}" if isinstance(index, Tensor) else type(index).__name__
        raise TypeError(f"index must be a tensor of int64 row numbers [N], got {got}; use torch.tensor([...]).")
    if index.device != images.device:
        raise ValueError(f"index must be on the images' device {images.device}, got {index.device}; move it there.")
    return len(index)


def _takes_kernels(backend: str, images: Tensor, size: int | tuple[int, int] | None) -> bool:
    obstacle = _obstacle(images, size)
    if backend == "triton" and obstacle is not None:
        raise ValueError(f"backend='triton' must be given views that it knows, got {obstacle}; use backend='torch'.")
    fits = backend == "auto" and images.is_cuda and obstacle is None
    return backend == "triton" or (fits and triton_runs(images.device, _try_launch))


def _obstacle(images: Tensor, size: int | tuple[int, int] | None) -> str | None:
    """What the kernels do not know."""
    if images.dtype not in (torch.uint8, torch.float32):
        return f"{images.dtype} images"
    if images.shape[1] not in (1, 3):
        return f"{images.shape[1]} channels"
    if size is not None and max(images.shape[-2:]) > MOST_SHRINKING * min(checked_sides(size)):
        return f"views of {size} pixels from images of {max(images.shape[-2:])}"
    return "images that need a gradient" if images.requires_grad else None


def _kernels() -> Any:
    return with_triton("flatclr.data.views.fused")


def _try_launch(device: torch.device) -> None:
    _kernels().try_launch(device)


def _in_one_launch(
    images: Tensor,
    index: Tensor | None,
    parameters: ViewParameters,
    config: ViewConfig,
    size: int | tuple[int, int] | None,
    dtype: torch.dtype,
) -> Tensor:
    kernels = _kernels()
    if not (images.is_cuda or kernels.INTERPRETED):
        raise ValueError(
            f"backend='triton' must be given images on a CUDA device, got {images.device}; "
            "move them there, or use backend='torch'."
        )
    sides = (images.shape[-2], images.shape[-1]) if size is None else checked_sides(size)
    operations = operations_on(images, config, sides)
    views: Tensor = kernels.fused_views(
        images, index, parameters.values_NP.contiguous(), operations, sides=sides, dtype=dtype
    )
    return views
