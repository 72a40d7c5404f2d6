"""Which views of an image count as the same thing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flatclr.checks import require_number, shown
from flatclr.data.views.checks import checked_channel_values


@dataclass(frozen=True)
class ViewConfig:
    """Which views of an image count as the same thing. The defaults are SimCLR's for small images.

    An operation whose probability is 0, or whose strength is 0, costs nothing. Sequences become tuples.

    Args:
        crop_scale: the crop's share of the image's area, (lowest, highest); (1, 1) keeps the whole image whatever the
            ratio.
        crop_ratio: its width / height, (lowest, highest).
        flip_probability: of being mirrored left to right.
        jitter_probability: of changing brightness, contrast, saturation and hue, all four together.
        brightness: strength; the factor is uniform in [max(0, 1 - strength), 1 + strength].
        contrast: likewise.
        saturation: likewise.
        hue: strength; the shift is uniform in [-strength, strength] turns of the colour wheel.
        grayscale_probability: of losing the colours.
        blur_probability: of being blurred.
        blur_sigma: (lowest, highest) in pixels of the view.
        solarize_probability: of having the bright pixels inverted.
        solarize_threshold: from where on a pixel is bright; images are in [0, 1].
        mean: taken from every channel at the end, one value per channel or one for all; None: views stay in [0, 1].
        std: every channel is divided by; comes with `mean`.

    Raises:
        ValueError: a number is out of its range, or only one of `mean` and `std` is given.
        TypeError: a value is not a number, or a range is not a pair.

    >>> ViewConfig(blur_probability=0.5).blur_sigma
    (0.1, 2.0)
    >>> ViewConfig(flip_probability=1.5)
    Traceback (most recent call last):
    ValueError: flip_probability must be within [0, 1], got 1.5; 0 turns the operation off, 1 applies it to every image.
    """

    crop_scale: tuple[float, float] = (0.2, 1.0)
    crop_ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip_probability: float = 0.5
    jitter_probability: float = 0.8
    brightness: float = 0.4
    contrast: float = 0.4
    saturation: float = 0.4
    hue: float = 0.1
    grayscale_probability: float = 0.2
    blur_probability: float = 0.0
    blur_sigma: tuple[float, float] = (0.1, 2.0)
    solarize_probability: float = 0.0
    solarize_threshold: float = 0.5
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        self._check_ranges()
        self._check_strengths()
        self._check_statistics()

    @property
    def crops(self) -> bool:
        """Whether a view may show less than the whole image."""
        return self.crop_scale != (1.0, 1.0)

    def _check_ranges(self) -> None:
        for name in ("crop_scale", "crop_ratio", "blur_sigma"):
            object.__setattr__(self, name, _range(name, getattr(self, name)))
        if self.crop_scale[1] > 1:
            raise ValueError(
                f"crop_scale must be within (0, 1], got {self.crop_scale}; it is the crop's share of the image's area."
            )

    def _check_strengths(self) -> None:
        for name in ("flip", "jitter", "grayscale", "blur", "solarize"):
            _require_within(
                f"{name}_probability",
                getattr(self, f"{name}_probability"),
                1.0,
                "0 turns the operation off, 1 applies it to every image.",
            )
        for name in ("brightness", "contrast", "saturation"):
            _require_within(name, getattr(self, name), math.inf, "0 turns it off, 0.4 is a good start.")
        _require_within("hue", self.hue, 0.5, "it is in turns of the colour wheel, half a turn reaches every hue.")
        _require_within("solarize_threshold", self.solarize_threshold, 1.0, "images are in [0, 1].")

    def _check_statistics(self) -> None:
        if (self.mean is None) != (self.std is None):
            got = f"{shown(self.mean)} and {shown(self.std)}"
            raise ValueError(f"mean and std must come together, got {got}; pass both or neither.")
        if self.mean is None or self.std is None:
            return
        object.__setattr__(self, "mean", checked_channel_values("mean", self.mean))
        object.__setattr__(self, "std", checked_channel_values("std", self.std, above=0.0))
        if len(self.mean) != len(self.std):
            raise ValueError(
                f"mean and std must have one value per channel, got {len(self.mean)} and {len(self.std)}; "
                "pass as many of each."
            )


def _range(name: str, value: Any) -> tuple[float, float]:
    if isinstance(value, str) or not isinstance(value, Sequence) or len(value) != 2:
        raise TypeError(f"{name} must be a pair (low, high), got {shown(value)}; pass two numbers.")
    low, high = value
    for end in (low, high):
        require_number(name, end, above=0)
    if low > high:
        raise ValueError(f"{name} must be a pair (low, high) with low <= high, got {(low, high)}; swap them.")
    return float(low), float(high)


def _require_within(name: str, value: Any, high: float, advice: str) -> None:
    require_number(name, value, advice=advice)
    if not 0 <= value <= high:
        expected = "must be >= 0" if high == math.inf else f"must be within [0, {high:g}]"
        raise ValueError(f"{name} {expected}, got {value}; {advice}")
