"""A bad configuration or call says what was expected, what arrived and what to do."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from flatclr.data import views
from flatclr.data.views import ViewConfig, apply_views, draw_views
from tests.support.views import BOXES, drawn


# bad input
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"flip_probability": 1.5}, ValueError, r"flip_probability must be within \[0, 1\], got 1.5; 0 turns"),
        ({"jitter_probability": -0.1}, ValueError, r"jitter_probability must be within \[0, 1\], got -0.1; 0 turns"),
        ({"blur_probability": "half"}, TypeError, r"blur_probability must be a finite number, got 'half'; 0 turns"),
        (
            {"solarize_probability": math.nan},
            ValueError,
            r"solarize_probability must be a finite number, got nan; 0 turns",
        ),
        (
            {"crop_scale": (0.2, 1.2)},
            ValueError,
            r"crop_scale must be within \(0, 1\], got \(0.2, 1.2\); it is the crop's share",
        ),
        ({"crop_scale": (0.0, 1.0)}, ValueError, r"crop_scale must be a finite number > 0, got 0.0; pass"),
        ({"crop_scale": 0.5}, TypeError, r"crop_scale must be a pair \(low, high\), got 0.5; pass two numbers"),
        (
            {"crop_ratio": (2.0, 0.5)},
            ValueError,
            r"crop_ratio must be a pair \(low, high\) with low <= high, got \(2.0, 0.5\); swap",
        ),
        ({"blur_sigma": (0.1,)}, TypeError, r"blur_sigma must be a pair \(low, high\), got \(0.1,\); pass two numbers"),
        ({"brightness": -0.4}, ValueError, r"brightness must be >= 0, got -0.4; 0 turns it off"),
        ({"contrast": True}, TypeError, r"contrast must be a finite number, got True; 0 turns it off"),
        ({"hue": 0.6}, ValueError, r"hue must be within \[0, 0.5\], got 0.6; it is in turns"),
        (
            {"solarize_threshold": 128},
            ValueError,
            r"solarize_threshold must be within \[0, 1\], got 128; images are in \[0, 1\]",
        ),
        ({"mean": (0.5,)}, ValueError, r"mean and std must come together, got \(0.5,\) and None; pass both"),
        ({"mean": (0.5,), "std": (1.0, 1.0)}, ValueError, r"one value per channel, got 1 and 2; pass as many"),
        ({"mean": (0.5,), "std": (0.0,)}, ValueError, r"std must be a finite number > 0, got 0.0; pass"),
        ({"mean": 0.5, "std": 0.5}, TypeError, r"mean must be one number per channel, got 0.5; pass a tuple"),
    ],
)
def test_a_bad_configuration_is_refused_by_name(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ViewConfig(**options)


def test_a_configuration_from_a_file_with_lists_equals_one_with_tuples() -> None:
    listed = ViewConfig(crop_scale=[0.2, 1], mean=[0.5], std=[0.5])  # type: ignore[arg-type]
    assert listed == ViewConfig(mean=(0.5,), std=(0.5,))
    assert hash(listed) == hash(ViewConfig(mean=(0.5,), std=(0.5,)))


X = torch.rand(3, 3, 8, 8)
ONES = torch.ones(3)
FLAGS = torch.ones(3, dtype=torch.bool)
PARAMETERS = drawn(ViewConfig(), 3, height=8, width=8)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: apply_views(X[0], PARAMETERS, ViewConfig()),
            ValueError,
            r"images must have shape \[N, C, H, W\].*got \[3, 8, 8\]; add",
        ),
        (
            lambda: apply_views(X[:0], PARAMETERS, ViewConfig()),
            ValueError,
            r"images must .* not be empty, got \[0, 3, 8, 8\]; add",
        ),
        (
            lambda: apply_views(X.numpy(), PARAMETERS, ViewConfig()),
            TypeError,
            r"images must be a torch.Tensor.*got ndarray; use",
        ),
        (
            lambda: apply_views(X.long(), PARAMETERS, ViewConfig()),
            TypeError,
            r"images must be uint8 or floating point, got torch.int64; convert",
        ),
        (
            lambda: apply_views(X, ONES, ViewConfig()),
            TypeError,
            r"parameters must be ViewParameters, got Tensor; call draw_views",
        ),
        (
            lambda: apply_views(X[:2], PARAMETERS, ViewConfig()),
            ValueError,
            r"parameters must have one row per image, 2, got 3; take this rank's",
        ),
        (
            lambda: apply_views(X[..., :7], PARAMETERS, ViewConfig()),
            ValueError,
            r"drawn for images of 8 x 7, got 8 x 8; pass height",
        ),
        (
            lambda: apply_views(X, PARAMETERS.to("meta"), ViewConfig()),
            ValueError,
            r"on the images' device cpu, got meta; call parameters.to",
        ),
        (
            lambda: apply_views(X, PARAMETERS, ViewConfig(), size=0),
            ValueError,
            r"size must be a whole number >= 1, got 0; pass the side",
        ),
        (
            lambda: apply_views(X, PARAMETERS, ViewConfig(), size="8"),
            TypeError,
            r"size must be a whole number or \(height, width\), got '8'; pass",
        ),
        (
            lambda: apply_views(X, PARAMETERS, ViewConfig(mean=(0.1, 0.2), std=(1, 1))),
            ValueError,
            r"mean must have one value or one per channel, 3, got 2; pass",
        ),
        (lambda: PARAMETERS.rows(1), TypeError, r"index must be a slice or a list of row numbers, got 1; pass \[i\]"),
        (
            lambda: draw_views(ViewConfig(), 0, height=8, width=8, generator=torch.Generator()),
            ValueError,
            r"samples must be a whole number >= 1, got 0; pass",
        ),
        (
            lambda: draw_views(ViewConfig(), 3, height=8.0, width=8, generator=torch.Generator()),
            TypeError,
            r"height must be a whole number >= 1, got 8.0; pass",
        ),
        (
            lambda: draw_views(ViewConfig(), 3, height=8, width=8, generator=7),
            TypeError,
            r"generator must be a torch.Generator, got int; use",
        ),
        (
            lambda: views.resized_crop(X, ONES, 8),
            ValueError,
            r"boxes must have shape \[3, 4\].*got \[3\]; pass \(top, left",
        ),
        (
            lambda: views.resized_crop(X.byte(), BOXES, 8),
            TypeError,
            r"images must be floating point, got torch.uint8; convert",
        ),
        (lambda: views.horizontal_flip(X, ONES), TypeError, r"flip must be a bool tensor, got torch.float32; compare"),
        (
            lambda: views.adjust_brightness(X, ONES[:2]),
            ValueError,
            r"brightness must have shape \[3\].*got \[2\]; use torch.full",
        ),
        (
            lambda: views.adjust_contrast(X, 1.0),
            ValueError,
            r"contrast must have shape \[3\].*got float; use torch.full",
        ),
        (lambda: views.adjust_hue(X[:, :2], ONES), ValueError, r"images of 1 or 3 channels, got 2; set"),
        (lambda: views.to_grayscale(X[:, :2], FLAGS), ValueError, r"images of 1 or 3 channels, got 2; set"),
        (
            lambda: views.gaussian_blur(X, ONES, 4),
            ValueError,
            r"kernel_size must be odd and < 16 for 8 x 8 images, got 4; pass",
        ),
        (
            lambda: views.gaussian_blur(X, ONES, 17),
            ValueError,
            r"kernel_size must be odd and < 16 for 8 x 8 images, got 17; pass",
        ),
        (lambda: views.normalize(X, (0.5,), ()), TypeError, r"std must be one number per channel, got \(\); pass"),
    ],
)
def test_bad_input_says_what_was_expected_what_arrived_and_what_to_do(
    call: Callable[[], object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call()
