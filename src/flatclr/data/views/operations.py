"""Which operations a configuration asks for, and in which order: the same for PyTorch's operations and for kernels."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from flatclr.data.views.blur import simclr_kernel_size
from flatclr.data.views.config import ViewConfig


@dataclass(frozen=True)
class Operations:
    """What happens to a view, in this order; how much of it is in its parameters."""

    crop: bool  # or a resize; without it the view has the pixels of the image
    flip: bool
    brightness: bool
    contrast: bool
    saturation: bool
    hue: bool
    grayscale: bool
    blur_size: int  # taps of the kernel; 0: no blur
    solarize: bool
    solarize_threshold: float
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None


def operations_on(images: Tensor, config: ViewConfig, sides: tuple[int, int]) -> Operations:
    """What makes views of these sides from the images; one channel has no colours to change."""
    crop = config.crops or sides != (images.shape[-2], images.shape[-1])
    jitter, colour = bool(config.jitter_probability), images.shape[1] != 1
    return Operations(
        crop=crop,
        flip=crop or bool(config.flip_probability),
        brightness=jitter and bool(config.brightness),
        contrast=jitter and bool(config.contrast),
        saturation=jitter and colour and bool(config.saturation),
        hue=jitter and colour and bool(config.hue),
        grayscale=colour and bool(config.grayscale_probability),
        blur_size=simclr_kernel_size(min(sides)) if config.blur_probability else 0,
        solarize=bool(config.solarize_probability),
        solarize_threshold=config.solarize_threshold,
        mean=config.mean,
        std=config.std,
    )
