"""Images, view parameters and every operation of a view."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from flatclr.data import views
from flatclr.data.views import ViewConfig, ViewParameters, draw_views

EVERYTHING = ViewConfig(
    blur_probability=0.5, solarize_probability=0.3, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4), hue=0.5
)


def photo(samples: int = 3, channels: int = 3, height: int = 12, width: int = 10, seed: int = 0) -> Tensor:
    """Random 8-bit images with gray, black, white and primary pixels among them, uint8."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(256, (samples, channels, height, width), dtype=torch.uint8, generator=generator)
    special = [
        (0, 0, 0),
        (255, 255, 255),
        (90, 90, 90),
        (255, 0, 0),
        (0, 255, 0),
        (0, 0, 255),
        (7, 7, 8),
        (200, 10, 200),
    ]
    for column, colour in enumerate(special[:width]):
        images[:, :, 0, column] = torch.tensor(colour, dtype=torch.uint8)[:channels]
    return images


def unit(images: Tensor) -> Tensor:
    return images.double() / 255


def drawn(config: ViewConfig, samples: int, *, height: int = 32, width: int = 32, seed: int = 0) -> ViewParameters:
    return draw_views(config, samples, height=height, width=width, generator=torch.Generator().manual_seed(seed))


BOXES = torch.tensor([[0.0, 0.0, 12.0, 10.0], [3.0, 2.0, 6.0, 5.0], [0.7, 1.2, 9.1, 6.4]], dtype=torch.float64)


# every operation
OPERATIONS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], Tensor, Any]] = {
    # name: (operation of images and per-sample parameter, parameters of three samples, the neutral one)
    "resized_crop": (lambda x, p: views.resized_crop(x, p, (12, 10)), BOXES.float(), BOXES[0].tolist()),
    "horizontal_flip": (views.horizontal_flip, torch.tensor([True, False, False]), False),
    "adjust_brightness": (views.adjust_brightness, torch.tensor([0.5, 1.0, 1.5]), 1.0),
    "adjust_contrast": (views.adjust_contrast, torch.tensor([0.5, 1.0, 1.5]), 1.0),
    "adjust_saturation": (views.adjust_saturation, torch.tensor([0.5, 1.0, 1.5]), 1.0),
    "adjust_hue": (views.adjust_hue, torch.tensor([0.5, 0.1, -0.2]), 0.0),
    "to_grayscale": (views.to_grayscale, torch.tensor([True, False, False]), False),
    "gaussian_blur": (lambda x, p: views.gaussian_blur(x, p, 5), torch.tensor([0.0, 0.7, 1.5]), 0.0),
    "solarize": (lambda x, p: views.solarize(x, p, 0.5), torch.tensor([True, False, False]), False),
}
