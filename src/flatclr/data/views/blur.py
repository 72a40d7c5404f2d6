"""Gaussian blur.

Shape suffixes: N samples, K taps of the kernel.
"""

from __future__ import annotations

import torch
from torch import Tensor

from flatclr.checks import require_count
from flatclr.data.views.checks import per_sample, require_images
from flatclr.data.views.separable import product, separable


def gaussian_blur(images: Tensor, sigma_N: Tensor, kernel_size: int) -> Tensor:
    """Blur each image with its own sigma in pixels; sigma 0 leaves it alone.

    The kernel is cut to `kernel_size` taps and renormalised; borders mirror about the edge pixel ("reflect").

    Args:
        images: float in [0, 1], [N, C, H, W].
        sigma_N: one per image, in pixels.
        kernel_size: odd, and less than twice the shorter side.

    Returns:
        the images, in their shape and type.

    >>> stripe = torch.tensor([0.0, 1.0, 0.0]).expand(1, 1, 3, 3)
    >>> gaussian_blur(stripe, torch.tensor([0.5]), kernel_size=3)[0, 0, 0]
    tensor([0.2130, 0.7870, 0.2130])
    """
    require_images(images)
    sigma = per_sample("sigma", sigma_N, images)
    height, width = images.shape[-2:]
    require_count("kernel_size", kernel_size, advice="pass an odd number, say a tenth of the image.")
    radius = kernel_size // 2
    if kernel_size % 2 == 0 or radius >= min(height, width):
        raise ValueError(
            f"kernel_size must be odd and < {2 * min(height, width)} for {height} x {width} images, got {kernel_size}; "
            "pass about a tenth of the image."
        )
    taps = torch.arange(-radius, radius + 1, device=images.device, dtype=images.dtype)
    # at sigma 0 the exponent is 0 at the middle and -inf beside it, never 0 / 0
    exponents = -(taps**2) / (2 * sigma.view(-1, 1) ** 2).clamp_min(torch.finfo(images.dtype).tiny)
    kernel_NK = torch.softmax(exponents, dim=1)
    rows = product(kernel_NK, _mirrored_shifts(height, radius, images))
    columns = rows if width == height else product(kernel_NK, _mirrored_shifts(width, radius, images))
    return separable(images, rows.view(-1, height, height), columns.view(-1, width, width))


def _mirrored_shifts(size: int, radius: int, like: Tensor) -> Tensor:
    """One row per tap: the [size * size] matrix that reads each pixel's neighbour at that distance."""
    pixels = torch.arange(size, device=like.device)
    sources = (pixels + torch.arange(-radius, radius + 1, device=like.device)[:, None]).abs_()
    sources = (size - 1) - ((size - 1) - sources).abs_()
    return (sources[:, :, None] == pixels).to(like.dtype).flatten(1)


def simclr_kernel_size(side: int) -> int:
    """A tenth of the image, made odd; at least 3."""
    return max(3, side // 10 // 2 * 2 + 1) if side > 1 else 1
