"""From stored images to batches of augmented views."""

from flatclr.data.views import (
    ViewConfig,
    ViewParameters,
    apply_views,
    crops_and_flips,
    draw_views,
    gathered_views,
    grayscale_views,
    no_augmentation,
    simclr_cifar_views,
    views_for,
)

__all__ = [
    "ViewConfig",
    "ViewParameters",
    "apply_views",
    "crops_and_flips",
    "draw_views",
    "gathered_views",
    "grayscale_views",
    "no_augmentation",
    "simclr_cifar_views",
    "views_for",
]
