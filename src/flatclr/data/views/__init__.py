"""Batched image augmentation on the device: every sample of a batch has its own parameters.

`draw_views` draws the parameters of a whole global batch from a generator on the host, `apply_views` applies them on
any device, and `gathered_views` does so to images picked by their index, on a GPU in one launch. Nothing there waits
for the device or loops over samples, so a step can be captured in a CUDA graph.

Images are float in [0, 1], [N, C, H, W]. The single operations, from `resized_crop` to `normalize`, are here too.
"""

from flatclr.data.views.blur import gaussian_blur
from flatclr.data.views.colour import (
    LUMA,
    adjust_brightness,
    adjust_contrast,
    adjust_hue,
    adjust_saturation,
    luminance,
    normalize,
    solarize,
    to_grayscale,
)
from flatclr.data.views.config import ViewConfig
from flatclr.data.views.drawing import draw_uniforms, draw_views, views_from
from flatclr.data.views.gathered import gathered_views
from flatclr.data.views.geometry import horizontal_flip, resized_crop
from flatclr.data.views.parameters import ViewParameters
from flatclr.data.views.pipeline import apply_views
from flatclr.data.views.presets import (
    crops_and_flips,
    grayscale_views,
    no_augmentation,
    simclr_cifar_views,
    views_for,
)

__all__ = [
    "LUMA",
    "ViewConfig",
    "ViewParameters",
    "adjust_brightness",
    "adjust_contrast",
    "adjust_hue",
    "adjust_saturation",
    "apply_views",
    "crops_and_flips",
    "draw_uniforms",
    "draw_views",
    "gathered_views",
    "gaussian_blur",
    "grayscale_views",
    "horizontal_flip",
    "luminance",
    "no_augmentation",
    "normalize",
    "resized_crop",
    "simclr_cifar_views",
    "solarize",
    "to_grayscale",
    "views_for",
    "views_from",
]
