"""The parameters of a batch of views, from uniforms that a generator on the host draws.

Shape suffixes: N samples, U uniforms per sample.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from flatclr.checks import require_count
from flatclr.data.views.config import ViewConfig
from flatclr.data.views.parameters import ViewParameters

# proposals for a crop box before the fallback, as in torchvision's RandomResizedCrop
CROP_PROPOSALS = 10
DRAWN_ROWS = 3072  # of views for several steps at once, in a millisecond or two


def draw_views(
    config: ViewConfig,
    samples: int,
    *,
    height: int,
    width: int,
    generator: torch.Generator,
    device: torch.device | str | None = None,
) -> ViewParameters:
    """The parameters of one view of `samples` images of height x width.

    One draw of a fixed number of uniforms per sample, on the generator's device: the parameters depend on the state
    of the generator alone, not on images, ranks or target device. Draw for the global batch and take `rows`. With a
    CPU generator the first rows do not depend on how many follow, and changing one operation's probability leaves
    the draws of the others alone.

    Args:
        config: which views there are.
        samples: in the global batch.
        height: of the stored images.
        width: of the stored images.
        generator: what the parameters are drawn from.
        device: where they go; None: they stay on the generator's.

    Returns:
        one row of parameters per sample.

    Raises:
        ValueError: samples, height or width is less than 1.
        TypeError: one of them is no whole number, or the generator is no `torch.Generator`.

    >>> views = draw_views(ViewConfig(), 4, height=32, width=32, generator=torch.Generator().manual_seed(0))
    >>> views.boxes.shape, views.flip.dtype
    (torch.Size([4, 4]), torch.bool)
    """
    advice = "pass the size of the images and of the global batch."
    require_count("height", height, advice=advice)
    require_count("width", width, advice=advice)
    drawn = views_from(config, draw_uniforms(samples, generator), height=height, width=width)
    return drawn if device is None else drawn.to(device)


def draw_uniforms(samples: int, generator: torch.Generator) -> Tensor:
    """What `draw_views` draws: the same number of uniforms for every sample.

    Args:
        samples: how many.
        generator: what they are drawn from, on its device.

    Returns:
        uniforms [N, U] that `views_from` makes parameters of.

    >>> draw_uniforms(4, torch.Generator().manual_seed(0)).shape
    torch.Size([4, 32])
    """
    require_count("samples", samples, advice="pass the size of the global batch.")
    if not isinstance(generator, torch.Generator):
        raise TypeError(
            f"generator must be a torch.Generator, got {type(generator).__name__}; "
            "use torch.Generator().manual_seed(seed)."
        )
    return torch.rand(samples, 2 * CROP_PROPOSALS + 12, generator=generator, device=generator.device)


def views_from(config: ViewConfig, uniforms: Tensor, *, height: int, width: int) -> ViewParameters:
    """The parameters that these uniforms, a row for each sample, stand for.

    Args:
        config: which views there are.
        uniforms: [N, U], of one or of several calls of `draw_uniforms`.
        height: of the stored images.
        width: of the stored images.

    Returns:
        one row of parameters per row of uniforms.

    >>> len(views_from(ViewConfig(), draw_uniforms(4, torch.Generator().manual_seed(0)), height=8, width=8))
    4
    """
    areas, ratios = uniforms[:, :CROP_PROPOSALS], uniforms[:, CROP_PROPOSALS : 2 * CROP_PROPOSALS]
    top, left, flip, jitter, brightness, contrast, saturation, hue, gray, blur, sigma, solar = uniforms.T[-12:]
    jittered = jitter < config.jitter_probability

    def factor(uniform: Tensor, strength: float) -> Tensor:
        low, high = max(0.0, 1 - strength), 1 + strength
        return torch.where(jittered, low + (high - low) * uniform, 1.0)

    low, high = config.blur_sigma
    columns = [
        *_crop_boxes(config, height, width, areas, ratios, top, left),
        flip < config.flip_probability,
        factor(brightness, config.brightness),
        factor(contrast, config.contrast),
        factor(saturation, config.saturation),
        torch.where(jittered, config.hue * (2 * hue - 1), 0.0),
        gray < config.grayscale_probability,
        torch.where(blur < config.blur_probability, low + (high - low) * sigma, 0.0),
        solar < config.solarize_probability,
    ]
    return ViewParameters(torch.stack([column.float() for column in columns], 1), height, width)


def _crop_boxes(
    config: ViewConfig, height: int, width: int, areas: Tensor, ratios: Tensor, top: Tensor, left: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Random resized crops without a loop: the first of ten proposals (area, log ratio uniform) that fits the image.

    Where none fits, the largest centred box whose ratio is allowed. Both as torchvision has it, but not rounded.
    """
    if not config.crops:
        zero = torch.zeros_like(top)
        return zero, zero, zero + height, zero + width
    (small, large), (tall, wide) = config.crop_scale, config.crop_ratio
    area = height * width * (small + (large - small) * areas)
    ratio = torch.exp(math.log(tall) + (math.log(wide) - math.log(tall)) * ratios)
    heights, widths = (area / ratio).sqrt(), (area * ratio).sqrt()
    fits = (heights <= height) & (widths <= width)
    first = fits.int().argmax(1, keepdim=True)
    found = fits.any(1)
    fallback_height, fallback_width = min(height, width / tall), min(width, height * wide)
    box_height = torch.where(found, heights.gather(1, first).squeeze(1), fallback_height)
    box_width = torch.where(found, widths.gather(1, first).squeeze(1), fallback_width)
    return (
        torch.where(found, top, 0.5) * (height - box_height),
        torch.where(found, left, 0.5) * (width - box_width),
        box_height,
        box_width,
    )
