"""The views that published recipes take, as configurations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flatclr.checks import require_count
from flatclr.data.views.checks import checked_channel_values
from flatclr.data.views.config import ViewConfig


def simclr_cifar_views() -> ViewConfig:
    """SimCLR's views of CIFAR images (Chen et al. 2020, appendix B.9: no blur), with CIFAR-10's channel statistics.

    Returns:
        a configuration to use as it is or to change with `dataclasses.replace`.

    >>> simclr_cifar_views().mean
    (0.4914, 0.4822, 0.4465)
    """
    return ViewConfig(mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616))


def grayscale_views() -> ViewConfig:
    """Views of one-channel images: crop, flip, brightness and contrast, then to [-1, 1].

    Returns:
        a configuration to use as it is or to change with `dataclasses.replace`.

    >>> grayscale_views().hue
    0.0
    """
    return ViewConfig(saturation=0.0, hue=0.0, grayscale_probability=0.0, mean=(0.5,), std=(0.5,))


def views_for(channels: int) -> ViewConfig:
    """The default views of images with so many channels.

    Args:
        channels: of the images, say `source.channels`.

    Returns:
        `grayscale_views` for one channel, else `simclr_cifar_views`.

    >>> views_for(1) == grayscale_views()
    True
    """
    require_count("channels", channels, advice="1 is grayscale, 3 is RGB.")
    return grayscale_views() if channels == 1 else simclr_cifar_views()


def crops_and_flips(
    smallest: float = 0.9, *, mean: Sequence[float] | None = None, std: Sequence[float] | None = None
) -> ViewConfig:
    """Most of the image, perhaps mirrored: for training with labels.

    A smaller crop would show objects larger than in the whole images they are tested on (Touvron et al. 2019).

    Args:
        smallest: share of the image's area that a crop has at least.
        mean: as in `ViewConfig`.
        std: as in `ViewConfig`.

    Returns:
        a configuration with crops and flips alone.

    >>> crops_and_flips().jitter_probability
    0.0
    """
    return replace(no_augmentation(mean=mean, std=std), crop_scale=(smallest, 1.0), flip_probability=0.5)


def no_augmentation(*, mean: Sequence[float] | None = None, std: Sequence[float] | None = None) -> ViewConfig:
    """The image itself, normalised as its training views were: for evaluation.

    Args:
        mean: as in `ViewConfig`.
        std: as in `ViewConfig`.

    Returns:
        a configuration that leaves images as they are, but for `mean` and `std`.

    >>> train = grayscale_views()
    >>> no_augmentation(mean=train.mean, std=train.std).crops
    False
    """
    return ViewConfig(
        crop_scale=(1.0, 1.0),
        flip_probability=0.0,
        jitter_probability=0.0,
        grayscale_probability=0.0,
        mean=None if mean is None else checked_channel_values("mean", mean),
        std=None if std is None else checked_channel_values("std", std),
    )
