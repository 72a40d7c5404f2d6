"""The views of a batch, operation by operation, in PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor

from flatclr.data.views.blur import gaussian_blur
from flatclr.data.views.checks import checked_sides, require_images
from flatclr.data.views.colour import (
    adjust_brightness,
    adjust_contrast,
    adjust_hue,
    adjust_saturation,
    normalize,
    solarize,
    to_grayscale,
)
from flatclr.data.views.config import ViewConfig
from flatclr.data.views.geometry import horizontal_flip, resized_crop
from flatclr.data.views.operations import Operations, operations_on
from flatclr.data.views.parameters import ViewParameters, require_parameters


def apply_views(
    images: Tensor,
    parameters: ViewParameters,
    config: ViewConfig,
    *,
    size: int | tuple[int, int] | None = None,
) -> Tensor:
    """The views of `images` that `parameters` describe.

    In this order: crop and flip, brightness, contrast, saturation, hue, grayscale, blur, solarize, normalise.

    Args:
        images: [N, C, H, W], uint8 or floating point in [0, 1]. One channel: colour operations do nothing.
        parameters: from `draw_views` with the same config, for these N images, on their device.
        config: what is off there is skipped; its mean and std are applied last.
        size: of the views, a side or (height, width); None keeps that of the images.

    Returns:
        the views, float32 [N, C, height, width].

    Raises:
        ValueError: the parameters are for other images, or the config has colour operations for images of 2 channels
            or of more than 3.
        TypeError: the images are no tensor of uint8 or floating point.

    >>> from flatclr.data import draw_views, simclr_cifar_views
    >>> images = torch.randint(256, (4, 3, 32, 32), dtype=torch.uint8)
    >>> config = simclr_cifar_views()
    >>> drawn = draw_views(config, 4, height=32, width=32, generator=torch.Generator().manual_seed(0))
    >>> apply_views(images, drawn, config, size=24).shape
    torch.Size([4, 3, 24, 24])
    """
    require_images(images, bytes_too=True)
    require_parameters(parameters, images, len(images))
    out = images.float().div(255) if images.dtype == torch.uint8 else images.float()
    sides = (images.shape[-2], images.shape[-1]) if size is None else checked_sides(size)
    operations = operations_on(images, config, sides)

    if operations.crop:
        # the weights sum to 1 only up to rounding
        out = resized_crop(out, parameters.boxes, sides, flip_N=parameters.flip).clamp_(0, 1)
    elif operations.flip:
        out = horizontal_flip(out, parameters.flip)
    out = _recoloured(out, parameters, operations)
    if operations.blur_size:
        out = gaussian_blur(out, parameters.blur_sigma, operations.blur_size).clamp_(0, 1)
    if operations.solarize:
        out = solarize(out, parameters.solarize, operations.solarize_threshold)
    if operations.mean is not None and operations.std is not None:
        out = normalize(out, operations.mean, operations.std)
    return out


def _recoloured(images: Tensor, parameters: ViewParameters, operations: Operations) -> Tensor:
    if operations.brightness:
        images = adjust_brightness(images, parameters.brightness)
    if operations.contrast:
        images = adjust_contrast(images, parameters.contrast)
    if operations.saturation:
        images = adjust_saturation(images, parameters.saturation)
    if operations.hue:
        images = adjust_hue(images, parameters.hue)
    if operations.grayscale:
        images = to_grayscale(images, parameters.grayscale)
    return images
