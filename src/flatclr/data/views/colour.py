"""Colour: brightness, contrast, saturation, hue, grayscale, solarization, normalisation.

Shape suffix: N samples. Images are float in [0, 1], [N, C, H, W].
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from flatclr.checks import require_number
from flatclr.data.views.checks import (
    checked_channel_values,
    flags_per_sample,
    for_each_channel,
    per_sample,
    require_images,
)

# Rec. 601 luma, what Pillow's "L" mode and the published recipes use
LUMA = (0.299, 0.587, 0.114)
"""The weights of red, green and blue in the grayscale value of a pixel (ITU-R BT.601)."""


def adjust_brightness(images: Tensor, factor_N: Tensor) -> Tensor:
    """factor * image, clipped to [0, 1].

    Args:
        images: float in [0, 1], [N, C, H, W].
        factor_N: one per image; 1 leaves it as it is.

    Returns:
        the images, in their shape and type.

    >>> adjust_brightness(torch.full((2, 1, 1, 1), 0.4), torch.tensor([0.5, 3.0])).flatten()
    tensor([0.2000, 1.0000])
    """
    require_images(images)
    return (images * per_sample("brightness", factor_N, images)).clamp_(0, 1)


def adjust_contrast(images: Tensor, factor_N: Tensor) -> Tensor:
    """Blend with the mean gray level of each image: mean + factor * (image - mean), clipped to [0, 1].

    Args:
        images: float in [0, 1], [N, C, H, W].
        factor_N: one per image; 1 leaves it as it is.

    Returns:
        the images, in their shape and type.

    >>> adjust_contrast(torch.tensor([0.2, 0.6]).view(1, 1, 1, 2), torch.tensor([0.5])).flatten()
    tensor([0.3000, 0.5000])
    """
    require_images(images)
    mean = luminance(images).mean((1, 2, 3), keepdim=True)
    return torch.lerp(mean, images, per_sample("contrast", factor_N, images)).clamp_(0, 1)


def adjust_saturation(images: Tensor, factor_N: Tensor) -> Tensor:
    """Blend with the gray image: gray + factor * (image - gray), clipped to [0, 1]. One channel has no saturation.

    Args:
        images: float in [0, 1], [N, C, H, W].
        factor_N: one per image; 1 leaves it as it is.

    Returns:
        the images, in their shape and type.

    >>> adjust_saturation(torch.tensor([1.0, 0.0, 0.0]).view(1, 3, 1, 1), torch.tensor([0.0])).flatten()
    tensor([0.2990, 0.2990, 0.2990])
    """
    require_images(images)
    factor = per_sample("saturation", factor_N, images)
    if images.shape[1] == 1:
        return images
    return torch.lerp(luminance(images), images, factor).clamp_(0, 1)


def adjust_hue(images: Tensor, shift_N: Tensor) -> Tensor:
    """Turn the hue by `shift` turns of the colour wheel, keeping HSV's saturation and value. One channel has no hue.

    With v = max, c = max - min and angles in sixths of a turn:

        hue     = sign(g - b) (1 + ((g - min) + (b - r)) / c)  mod 6
        channel = v - c clip(2 - |hue - opposite|, 0, 1),  opposite = 3, 5, 7 for r, g, b, distance around the wheel

    Args:
        images: float in [0, 1], [N, C, H, W].
        shift_N: one per image; 0 leaves it as it is, 1 is once around.

    Returns:
        the images, in their shape and type.

    >>> adjust_hue(torch.tensor([1.0, 0.0, 0.0]).view(1, 3, 1, 1), torch.tensor([1 / 3])).flatten()
    tensor([0., 1., 0.])
    """
    require_images(images)
    shift = per_sample("hue", shift_N, images)
    if images.shape[1] == 1:
        return images
    red, green, blue = _channels(images)
    value, low = images.amax(1, keepdim=True), images.amin(1, keepdim=True)
    chroma = value - low
    # gray pixels have no hue: 0 / tiny, and chroma 0 takes it out again
    hue = (green - low).add_(blue - red).div_(chroma.clamp_min(torch.finfo(images.dtype).tiny)).add_(1)
    hue = hue.copysign_(green - blue).add_(6 * shift)
    around = hue - torch.arange(3, 8, 2, device=images.device, dtype=images.dtype).view(3, 1, 1)
    distance = around.sub_((around / 6).round_(), alpha=6).abs_()
    return value - (2 - distance).clamp_(0, 1).mul_(chroma)


def to_grayscale(images: Tensor, flags_N: Tensor) -> Tensor:
    """Replace the images whose flag is set by their luminance in all three channels. One channel stays as it is.

    Args:
        images: float in [0, 1], [N, C, H, W].
        flags_N: bool, one per image.

    Returns:
        the images, in their shape and type.

    >>> to_grayscale(torch.tensor([0.0, 1.0, 0.0]).view(1, 3, 1, 1), torch.tensor([True])).flatten()
    tensor([0.5870, 0.5870, 0.5870])
    """
    require_images(images)
    flags = flags_per_sample("grayscale", flags_N, images)
    return images if images.shape[1] == 1 else torch.where(flags, luminance(images), images)


def luminance(images: Tensor) -> Tensor:
    """0.299 red + 0.587 green + 0.114 blue; of one channel, itself.

    Args:
        images: of 1 or 3 channels, [N, C, H, W].

    Returns:
        the gray images, [N, 1, H, W].

    >>> luminance(torch.tensor([0.0, 0.0, 1.0]).view(1, 3, 1, 1)).flatten()
    tensor([0.1140])
    """
    require_images(images, bytes_too=True)
    if images.shape[1] == 1:
        return images
    red, green, blue = _channels(images)
    return (red * LUMA[0]).add_(green, alpha=LUMA[1]).add_(blue, alpha=LUMA[2])


def _channels(images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    if images.shape[1] != 3:
        raise ValueError(
            f"colour operations need images of 1 or 3 channels, got {images.shape[1]}; set contrast, saturation, hue "
            "and grayscale_probability to 0 for other images."
        )
    return images[:, 0:1], images[:, 1:2], images[:, 2:3]


def solarize(images: Tensor, flags_N: Tensor, threshold: float) -> Tensor:
    """Invert the pixels at or above the threshold, in the images whose flag is set.

    Args:
        images: float in [0, 1], [N, C, H, W].
        flags_N: bool, one per image.
        threshold: in [0, 1].

    Returns:
        the images, in their shape and type.

    >>> solarize(torch.tensor([0.25, 0.75]).view(1, 1, 1, 2), torch.tensor([True]), 0.5).flatten()
    tensor([0.2500, 0.2500])
    """
    require_images(images)
    require_number("threshold", threshold, advice="images are in [0, 1].")
    return torch.where(flags_per_sample("solarize", flags_N, images) & (images >= float(threshold)), 1 - images, images)


def normalize(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """(image - mean) / std.

    Args:
        images: [N, C, H, W].
        mean: one value per channel or one for all.
        std: likewise, above 0.

    Returns:
        the images, in their shape and type.

    >>> normalize(torch.tensor([0.0, 1.0]).view(1, 1, 1, 2), (0.5,), (0.5,)).flatten()
    tensor([-1.,  1.])
    """
    require_images(images)
    means, stds = checked_channel_values("mean", mean), checked_channel_values("std", std, above=0.0)
    means, stds = (for_each_channel(n, v, images.shape[1]) for n, v in (("mean", means), ("std", stds)))
    return (images - _constants(means, images)) / _constants(stds, images)


def _constants(values: Sequence[float], like: Tensor) -> Tensor:
    """[C, 1, 1], filled on the device: a copy from the host would wait, and cannot be captured."""
    return torch.cat([like.new_full((1, 1, 1), value) for value in values])
