"""Colour operations against loops over pixels and against Pillow."""

import colorsys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from flatclr.data import views
from tests.support.views import OPERATIONS, photo, unit

LEVEL = 1 / 255  # of an 8-bit image
Oracle = Callable[[np.ndarray, float], np.ndarray]


def pillow(image: Tensor) -> Image.Image:
    return Image.fromarray(image.permute(1, 2, 0).numpy() if len(image) == 3 else image[0].numpy())


def from_pillow(image: Image.Image) -> Tensor:
    array = torch.from_numpy(np.array(image)).double() / 255
    return array.permute(2, 0, 1) if array.dim() == 3 else array[None]


# colour
def gray_level(pixel: np.ndarray) -> float:
    return float(0.299 * pixel[0] + 0.587 * pixel[1] + 0.114 * pixel[2])


def by_pixel(change: Callable[[list[float]], list[float]], image: np.ndarray) -> np.ndarray:
    out = np.empty_like(image)
    for i in range(image.shape[1]):
        for j in range(image.shape[2]):
            out[:, i, j] = [min(max(c, 0.0), 1.0) for c in change(list(image[:, i, j]))]
    return out


def brightness_oracle(image: np.ndarray, factor: float) -> np.ndarray:
    return by_pixel(lambda pixel: [factor * c for c in pixel], image)


def contrast_oracle(image: np.ndarray, factor: float) -> np.ndarray:
    pixels = [image[:, i, j] for i in range(image.shape[1]) for j in range(image.shape[2])]
    mean = sum(gray_level(pixel) for pixel in pixels) / len(pixels)
    return by_pixel(lambda pixel: [mean + factor * (c - mean) for c in pixel], image)


def saturation_oracle(image: np.ndarray, factor: float) -> np.ndarray:
    def change(pixel: list[float]) -> list[float]:
        gray = gray_level(np.array(pixel))
        return [gray + factor * (c - gray) for c in pixel]

    return by_pixel(change, image)


def hue_oracle(image: np.ndarray, shift: float) -> np.ndarray:
    def change(pixel: list[float]) -> list[float]:
        hue, saturation, value = colorsys.rgb_to_hsv(*pixel)
        return list(colorsys.hsv_to_rgb((hue + shift) % 1, saturation, value))

    return by_pixel(change, image)


COLOUR: list[Any] = [
    pytest.param(views.adjust_brightness, brightness_oracle, (0.3, 1.0, 1.7), id="brightness"),
    pytest.param(views.adjust_contrast, contrast_oracle, (0.0, 1.0, 1.9), id="contrast"),
    pytest.param(views.adjust_saturation, saturation_oracle, (0.0, 0.6, 1.8), id="saturation"),
    pytest.param(views.adjust_hue, hue_oracle, (-0.45, 0.1, 0.5), id="hue"),
]


@pytest.mark.parametrize(("adjust", "oracle", "factors"), COLOUR)
@pytest.mark.parametrize(("dtype", "atol"), [(torch.float64, 1e-12), (torch.float32, 1e-6)], ids=["float64", "float32"])
def test_colour_operations_agree_with_loops_over_pixels(
    adjust: Callable[..., Tensor], oracle: Oracle, factors: tuple[float, ...], dtype: torch.dtype, atol: float
) -> None:
    images = unit(photo())
    got = adjust(images.to(dtype), torch.tensor(factors, dtype=dtype))
    assert got.dtype == dtype
    for image, factor, view in zip(images, factors, got, strict=True):
        np.testing.assert_allclose(view.numpy(), oracle(image.numpy(), factor), atol=atol, rtol=0)


@pytest.mark.parametrize(
    ("adjust", "enhance"),
    [
        (views.adjust_brightness, ImageEnhance.Brightness),
        (views.adjust_contrast, ImageEnhance.Contrast),
        (views.adjust_saturation, ImageEnhance.Color),
    ],
)
@pytest.mark.parametrize("factor", [0.0, 0.6, 1.0, 1.4])
def test_colour_operations_agree_with_pillow_to_its_rounding(
    adjust: Callable[..., Tensor], enhance: Callable[..., Any], factor: float
) -> None:
    image = photo(1)
    got = adjust(unit(image), torch.tensor([factor]))[0]
    expected = from_pillow(enhance(pillow(image[0])).enhance(factor))
    # Pillow rounds the gray level to 8 bits (half a level, times |1 - factor|), then cuts the result to 8 bits
    torch.testing.assert_close(got, expected, atol=(1 + 0.5 * abs(1 - factor)) * LEVEL + 1e-9, rtol=0)


def test_hue_wraps_around_the_wheel() -> None:
    images = unit(photo(4))
    turned = views.adjust_hue(images, torch.tensor([0.3, 1.3, -0.7, 2.3], dtype=torch.float64))
    once = views.adjust_hue(images, torch.full((4,), 0.3, dtype=torch.float64))
    torch.testing.assert_close(turned, once, atol=1e-12, rtol=0)
    back = views.adjust_hue(once, torch.full((4,), -0.3, dtype=torch.float64))
    torch.testing.assert_close(back, images, atol=1e-12, rtol=0)


def test_hue_of_nearly_gray_pixels_is_finite_and_nearly_gray() -> None:
    images = torch.rand(4, 1, 16, 16).expand(-1, 3, -1, -1).nextafter(torch.rand(4, 3, 16, 16))
    turned = views.adjust_hue(images, torch.tensor([0.0, 0.2, -0.5, 0.5]))
    torch.testing.assert_close(turned, images, atol=1e-6, rtol=0)


def test_grayscale_is_pillows_luminance_to_its_rounding() -> None:
    images = photo()
    flags = torch.tensor([True, False, True])
    got = views.to_grayscale(unit(images), flags)
    for image, flag, view in zip(images, flags, got, strict=True):
        if flag:
            expected = from_pillow(pillow(image).convert("L")).expand(3, -1, -1)
            torch.testing.assert_close(view, expected, atol=0.51 * LEVEL, rtol=0)
        else:
            assert torch.equal(view, unit(image))


@pytest.mark.parametrize("threshold", [0, 1, 128, 255])
@pytest.mark.parametrize("channels", [1, 3])
def test_solarize_is_pillows(threshold: int, channels: int) -> None:
    images = photo(2, channels)
    got = views.solarize(unit(images), torch.tensor([True, False]), threshold / 255)
    torch.testing.assert_close(got[0], from_pillow(ImageOps.solarize(pillow(images[0]), threshold)), atol=1e-12, rtol=0)
    assert torch.equal(got[1], unit(images[1]))


@pytest.mark.parametrize("name", ["adjust_saturation", "adjust_hue", "to_grayscale"])
def test_one_channel_has_no_colour_to_change(name: str) -> None:
    operation, parameters, _ = OPERATIONS[name]
    images = unit(photo(3, 1)).float()
    assert torch.equal(operation(images, parameters), images)


def test_contrast_and_brightness_of_one_channel_are_those_of_a_gray_image() -> None:
    gray = unit(photo(3, 1))
    for adjust in (views.adjust_brightness, views.adjust_contrast):
        factors = torch.tensor([0.5, 1.0, 1.5])
        colour = adjust(gray.expand(-1, 3, -1, -1), factors)
        torch.testing.assert_close(adjust(gray, factors).expand(-1, 3, -1, -1), colour, atol=1e-12, rtol=0)
