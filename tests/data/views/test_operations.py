"""Views: each operation against a separate reference, per-sample parameters, draws, and no waiting for the device."""

import colorsys
import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageEnhance, ImageOps
from scipy import ndimage
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from flatclr.data import views
from flatclr.data.views import ViewConfig, ViewParameters, apply_views, draw_views, pipeline

EVERYTHING = ViewConfig(
    blur_probability=0.5, solarize_probability=0.3, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4), hue=0.5
)
LEVEL = 1 / 255  # of an 8-bit image

Oracle = Callable[[np.ndarray, float], np.ndarray]


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


def pillow(image: Tensor) -> Image.Image:
    return Image.fromarray(image.permute(1, 2, 0).numpy() if len(image) == 3 else image[0].numpy())


def from_pillow(image: Image.Image) -> Tensor:
    array = torch.from_numpy(np.array(image)).double() / 255
    return array.permute(2, 0, 1) if array.dim() == 3 else array[None]


def drawn(config: ViewConfig, samples: int, *, height: int = 32, width: int = 32, seed: int = 0) -> ViewParameters:
    return draw_views(config, samples, height=height, width=width, generator=torch.Generator().manual_seed(seed))


# crops


def pillow_crop(image: Tensor, box: Tensor, size: tuple[int, int]) -> Tensor:
    top, left, height, width = box.tolist()
    edges = (left, top, left + width, top + height)
    planes = [Image.fromarray(plane.float().numpy()) for plane in image]  # mode F: no rounding to 8 bits
    shrunk = [plane.resize(size[::-1], Image.Resampling.BILINEAR, box=edges) for plane in planes]
    return torch.stack([torch.from_numpy(np.array(plane)) for plane in shrunk]).double()


BOXES = torch.tensor([[0.0, 0.0, 12.0, 10.0], [3.0, 2.0, 6.0, 5.0], [0.7, 1.2, 9.1, 6.4]], dtype=torch.float64)


@pytest.mark.parametrize("size", [(12, 10), (5, 4), (20, 24), (3, 17), (1, 1)])
def test_resized_crop_is_pillows_bilinear_resize_of_the_box(size: tuple[int, int]) -> None:
    images = unit(photo())
    got = views.resized_crop(images, BOXES, size)
    for image, box, view in zip(images, BOXES, got, strict=True):
        torch.testing.assert_close(view, pillow_crop(image, box, size), atol=1e-6, rtol=0)


def test_an_enlarged_crop_is_bilinear_interpolation_at_half_pixel_centres() -> None:
    image, (top, left, height, width), size = unit(photo(1, 1))[0, 0], (2.3, 1.1, 5.5, 4.25), 8
    expected = np.zeros((size, size))
    for i in range(size):
        for j in range(size):
            y, x = top + (i + 0.5) * height / size - 0.5, left + (j + 0.5) * width / size - 0.5
            y0, x0 = math.floor(y), math.floor(x)
            for dy, wy in ((0, y0 + 1 - y), (1, y - y0)):
                for dx, wx in ((0, x0 + 1 - x), (1, x - x0)):
                    pixel = image[min(max(y0 + dy, 0), 11), min(max(x0 + dx, 0), 9)].item()
                    expected[i, j] += wy * wx * pixel
    boxes = torch.tensor([[top, left, height, width]], dtype=torch.float64)
    got = views.resized_crop(image[None, None], boxes, size)[0, 0]
    np.testing.assert_allclose(got.numpy(), expected, atol=1e-12)


@pytest.mark.parametrize("size", [(7, 5), (12, 10), (30, 21)])
def test_a_box_of_the_whole_image_is_torchs_antialiased_interpolation(size: tuple[int, int]) -> None:
    images = unit(photo())
    whole = torch.tensor([[0.0, 0.0, 12.0, 10.0]] * 3)
    expected = F.interpolate(images, size, mode="bilinear", antialias=True, align_corners=False)
    torch.testing.assert_close(views.resized_crop(images, whole, size), expected, atol=1e-9, rtol=0)


def test_a_flipped_crop_is_the_crop_mirrored() -> None:
    images = unit(photo())
    flags = torch.tensor([True, False, True])
    plain = views.resized_crop(images, BOXES, 9)
    fused = views.resized_crop(images, BOXES, 9, flip_N=flags)
    torch.testing.assert_close(fused, views.horizontal_flip(plain, flags), atol=1e-12, rtol=0)


def test_horizontal_flip_mirrors_the_flagged_images_only() -> None:
    images = photo().float()
    got = views.horizontal_flip(images, torch.tensor([True, False, True]))
    np.testing.assert_array_equal(got[0].numpy(), images[0].numpy()[:, :, ::-1])
    np.testing.assert_array_equal(got[1].numpy(), images[1].numpy())
    np.testing.assert_array_equal(got[2].numpy(), images[2].numpy()[:, :, ::-1])


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


@pytest.mark.parametrize(("height", "width"), [(12, 10), (9, 9)])
@pytest.mark.parametrize("kernel_size", [1, 3, 7, 17])
def test_gaussian_blur_is_scipys_with_mirrored_borders(height: int, width: int, kernel_size: int) -> None:
    images, sigmas = unit(photo(4, height=height, width=width)), (0.1, 0.8, 2.0, 5.0)
    got = views.gaussian_blur(images, torch.tensor(sigmas, dtype=torch.float64), kernel_size)
    for image, sigma, view in zip(images, sigmas, got, strict=True):
        for plane, blurred in zip(image, view, strict=True):
            expected = ndimage.gaussian_filter(plane.numpy(), sigma, mode="mirror", radius=kernel_size // 2)
            np.testing.assert_allclose(blurred.numpy(), expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("channels", [1, 3])
def test_normalize_subtracts_the_mean_and_divides_by_the_std_of_each_channel(channels: int) -> None:
    images = unit(photo(2, channels))
    mean, std = (0.5, 0.2, 0.1)[:channels], (0.5, 0.3, 0.7)[:channels]
    got = views.normalize(images, mean, std)
    for channel in range(channels):
        expected = (images[:, channel].numpy() - mean[channel]) / std[channel]
        np.testing.assert_allclose(got[:, channel].numpy(), expected, atol=1e-12)
    torch.testing.assert_close(views.normalize(images, (0.5,), (0.25,)), (images - 0.5) * 4)


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
every_operation = pytest.mark.parametrize("name", OPERATIONS)


@every_operation
@pytest.mark.parametrize("channels", [1, 3])
def test_a_batch_is_its_rows_done_one_by_one(name: str, channels: int) -> None:
    operation, parameters, _ = OPERATIONS[name]
    images = unit(photo(3, channels)).float()
    together = operation(images, parameters)
    alone = torch.cat([operation(images[i : i + 1], parameters[i : i + 1]) for i in range(3)])
    torch.testing.assert_close(together, alone, atol=1e-6, rtol=0)
    if channels == 3 or name not in ("adjust_saturation", "adjust_hue", "to_grayscale"):
        shuffled = operation(images, parameters.roll(1, 0))
        assert all((together[i] - shuffled[i]).abs().max() > 0.01 for i in range(2))  # they do depend on it


@every_operation
@pytest.mark.parametrize("channels", [1, 3])
def test_the_neutral_parameter_leaves_the_image_alone(name: str, channels: int) -> None:
    operation, parameters, neutral = OPERATIONS[name]
    images = unit(photo(3, channels)).float()
    same = operation(images, torch.tensor([neutral] * 3, dtype=parameters.dtype))
    # only hue goes through another colour space and back
    torch.testing.assert_close(same, images, atol=1e-6 if name == "adjust_hue" else 0, rtol=0)


@every_operation
def test_operations_leave_their_input_as_it_was(name: str) -> None:
    operation, parameters, _ = OPERATIONS[name]
    images = unit(photo()).float()
    before, parameters_before = images.clone(), parameters.clone()
    operation(images, parameters)
    assert torch.equal(images, before)
    assert torch.equal(parameters, parameters_before)


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


# the whole


def test_views_are_the_operations_in_their_stated_order() -> None:
    images = photo(8, height=32, width=32)
    p = drawn(EVERYTHING, 8)
    x = images.float() / 255
    x = views.resized_crop(x, p.boxes, 24)
    x = views.horizontal_flip(x, p.flip)
    x = views.adjust_brightness(x, p.brightness)
    x = views.adjust_contrast(x, p.contrast)
    x = views.adjust_saturation(x, p.saturation)
    x = views.adjust_hue(x, p.hue)
    x = views.to_grayscale(x, p.grayscale)
    x = views.gaussian_blur(x, p.blur_sigma, 3)
    at_the_threshold = (x - EVERYTHING.solarize_threshold).abs() < 1e-5
    x = views.solarize(x, p.solarize, EVERYTHING.solarize_threshold)
    x = views.normalize(x, (0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
    got = apply_views(images, p, EVERYTHING, size=24)
    assert got.shape == (8, 3, 24, 24)
    assert at_the_threshold.sum() < 5
    torch.testing.assert_close(got[~at_the_threshold], x[~at_the_threshold], atol=1e-5, rtol=0)


def test_no_augmentation_gives_back_the_image() -> None:
    images = photo(4, height=28, width=20)
    config = views.no_augmentation()
    p = drawn(config, 4, height=28, width=20)
    assert torch.equal(apply_views(images, p, config), images.float() / 255)
    normalised = views.no_augmentation(mean=[0.5], std=[0.5])
    torch.testing.assert_close(apply_views(images, p, normalised), images.float() / 127.5 - 1)


def test_no_augmentation_resizes_the_whole_image() -> None:
    images = photo(4, height=28, width=20)
    config = views.no_augmentation()
    got = apply_views(images, drawn(config, 4, height=28, width=20), config, size=16)
    expected = F.interpolate(images.float() / 255, (16, 16), mode="bilinear", antialias=True)
    torch.testing.assert_close(got, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bytes_and_floats_give_the_same_views(dtype: torch.dtype) -> None:
    images = photo(6, height=32, width=32)
    p = drawn(EVERYTHING, 6)
    from_bytes, from_floats = (apply_views(x, p, EVERYTHING) for x in (images, images.to(dtype) / 255))
    assert from_bytes.dtype == from_floats.dtype == torch.float32
    torch.testing.assert_close(from_bytes, from_floats, atol=1e-5, rtol=0)


def test_autocast_does_not_coarsen_the_views() -> None:
    images = photo(6, height=32, width=32)
    p = drawn(EVERYTHING, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = apply_views(images, p, EVERYTHING)
    assert torch.equal(inside, apply_views(images, p, EVERYTHING))


def test_strided_images_give_the_same_views() -> None:
    images = photo(6, height=32, width=32)
    p = drawn(EVERYTHING, 6)
    strided = images.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    torch.testing.assert_close(apply_views(strided, p, EVERYTHING), apply_views(images, p, EVERYTHING))


@given(
    seed=st.integers(0, 10**6),
    channels=st.sampled_from([1, 3]),
    height=st.integers(4, 40),
    width=st.integers(4, 40),
    size=st.sampled_from([None, 1, 3, 8, (5, 9), 33]),
    white=st.booleans(),
    alone=st.sampled_from([None, "crop", "blur", "colour"]),
)
def test_views_are_within_0_and_1_before_normalisation(
    seed: int,
    channels: int,
    height: int,
    width: int,
    size: int | tuple[int, int] | None,
    white: bool,
    alone: str | None,
) -> None:
    config = replace(EVERYTHING, brightness=2.0, contrast=3.0, saturation=3.0, mean=None, std=None)
    if alone is not None:
        jitter, blur = float(alone == "colour"), float(alone == "blur")
        config = replace(config, jitter_probability=jitter, blur_probability=blur, grayscale_probability=jitter)
    images = photo(8, channels, height, width, seed)
    if white:  # the edge of the range: weights that sum to 1 + 1e-7 would show
        images = torch.full_like(images, 255)
    got = apply_views(images, drawn(config, 8, height=height, width=width, seed=seed), config, size=size)
    sides = (height, width) if size is None else size if isinstance(size, tuple) else (size, size)
    assert got.shape == (8, channels, *sides)
    assert got.min() >= 0
    assert got.max() <= 1


def test_one_channel_views_need_no_colour() -> None:
    config = views.grayscale_views()
    images = photo(16, 1, 28, 28)
    p = drawn(config, 16, height=28, width=28)
    got = apply_views(images, p, config)
    assert got.shape == (16, 1, 28, 28)
    assert -1 <= got.min() < -0.5
    assert 0.5 < got.max() <= 1
    assert (p.hue == 0).all()
    assert (p.saturation == 1).all()
    assert torch.equal(got, apply_views(images, p, replace(config, saturation=0.4, hue=0.1, grayscale_probability=0.2)))


def test_other_channel_counts_work_without_colour_operations() -> None:
    images = torch.rand(4, 5, 16, 16)
    config = ViewConfig(contrast=0.0, saturation=0.0, hue=0.0, grayscale_probability=0.0, blur_probability=1.0)
    assert apply_views(images, drawn(config, 4, height=16, width=16), config).shape == (4, 5, 16, 16)
    with pytest.raises(ValueError, match=r"need images of 1 or 3 channels, got 5; set contrast"):
        apply_views(images, drawn(config, 4, height=16, width=16), ViewConfig())


@pytest.mark.parametrize(
    ("off", "name"),
    [
        ({"crop_scale": (1.0, 1.0)}, "resized_crop"),
        ({"crop_scale": (1.0, 1.0), "flip_probability": 0.0}, "horizontal_flip"),
        ({"brightness": 0.0}, "adjust_brightness"),
        ({"jitter_probability": 0.0}, "adjust_contrast"),
        ({"saturation": 0}, "adjust_saturation"),
        ({"hue": 0.0}, "adjust_hue"),
        ({"grayscale_probability": 0.0}, "to_grayscale"),
        ({"blur_probability": 0.0}, "gaussian_blur"),
        ({"solarize_probability": 0.0}, "solarize"),
        ({"mean": None, "std": None}, "normalize"),
    ],
)
def test_an_operation_that_is_off_is_not_called(
    off: dict[str, Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> Tensor:
        raise AssertionError("called")

    monkeypatch.setattr(pipeline, name, refuse)
    config = replace(EVERYTHING, **off)
    apply_views(photo(4, height=32, width=32), drawn(config, 4), config)
    on = replace(EVERYTHING, crop_scale=(1.0, 1.0)) if name == "horizontal_flip" else EVERYTHING
    with pytest.raises(AssertionError, match="called"):
        apply_views(photo(4, height=32, width=32), drawn(on, 4), on)


# draws


def test_equal_seeds_draw_equal_views_and_others_do_not() -> None:
    first, again, other = (drawn(EVERYTHING, 16, seed=seed).values_NP for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert ((first - other).abs() > 1e-3).any(0).all()


def test_two_views_drawn_in_turn_differ() -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = (draw_views(EVERYTHING, 16, height=32, width=32, generator=generator).values_NP for _ in range(2))
    assert ((a - b).abs() > 1e-3).any(0).all()


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_ranks_shares_together_are_the_global_batch(ranks: int) -> None:
    images = photo(16, height=32, width=32)
    whole = drawn(EVERYTHING, 16)
    share = 16 // ranks
    parts = [slice(rank * share, (rank + 1) * share) for rank in range(ranks)]
    assert torch.equal(torch.cat([drawn(EVERYTHING, 16).rows(part).values_NP for part in parts]), whole.values_NP)
    together = torch.cat([apply_views(images[part], whole.rows(part), EVERYTHING) for part in parts])
    torch.testing.assert_close(together, apply_views(images, whole, EVERYTHING), atol=1e-5, rtol=0)


def test_rows_take_slices_lists_and_index_tensors() -> None:
    whole = drawn(EVERYTHING, 8)
    assert torch.equal(whole.rows(slice(6, None)).boxes, whole.boxes[6:])
    for index in ([5, 0, 5], torch.tensor([5, 0, 5])):
        part = whole.rows(index)
        assert len(part) == 3
        assert torch.equal(part.flip, torch.stack([whole.flip[5], whole.flip[0], whole.flip[5]]))
        assert (part.height, part.width) == (32, 32)


def test_the_first_rows_do_not_depend_on_how_many_follow() -> None:
    assert torch.equal(drawn(EVERYTHING, 3).values_NP, drawn(EVERYTHING, 100).values_NP[:3])


def test_changing_one_operation_leaves_the_draws_of_the_others_alone() -> None:
    changed = replace(EVERYTHING, flip_probability=0.0, crop_scale=(0.5, 0.6), blur_probability=0.0)
    before, after = drawn(EVERYTHING, 64), drawn(changed, 64)
    for name in ("brightness", "contrast", "saturation", "hue", "grayscale", "solarize"):
        assert torch.equal(getattr(before, name), getattr(after, name))
    assert not after.flip.any()
    assert (after.blur_sigma == 0).all()


def test_columns_are_the_properties_of_the_same_name() -> None:
    p = drawn(EVERYTHING, 4)
    assert p.values_NP.shape == (4, len(ViewParameters.COLUMNS))
    assert torch.equal(p.boxes, p.values_NP[:, :4])
    for column, name in enumerate(ViewParameters.COLUMNS[4:], start=4):
        assert torch.equal(getattr(p, name).float(), p.values_NP[:, column])


MANY = 20_000


def assert_rate(flags: Tensor, probability: float) -> None:
    error = math.sqrt(probability * (1 - probability) / len(flags))
    assert abs(flags.double().mean().item() - probability) <= 4 * error


def assert_uniform(values: Tensor, low: float, high: float) -> None:
    """Range, mean and variance of a uniform distribution, within four standard errors."""
    assert low - 1e-5 <= values.min() < low + 0.02 * (high - low)
    assert high - 0.02 * (high - low) < values.max() <= high + 1e-5
    scaled = (values.double() - low) / (high - low)
    assert abs(scaled.mean().item() - 1 / 2) < 4 * math.sqrt(1 / 12 / len(values))
    assert abs((scaled - 1 / 2).square().mean().item() - 1 / 12) < 4 * math.sqrt(1 / 180 / len(values))


def test_operations_happen_at_their_rates_with_parameters_uniform_in_their_ranges() -> None:
    config = replace(EVERYTHING, brightness=1.5, flip_probability=0.3)
    p = drawn(config, MANY)
    jittered, blurred = p.hue != 0, p.blur_sigma > 0
    assert_rate(p.flip, 0.3)
    assert_rate(jittered, 0.8)
    assert_rate(p.grayscale, 0.2)
    assert_rate(blurred, 0.5)
    assert_rate(p.solarize, 0.3)
    assert_uniform(p.brightness[jittered], 0.0, 2.5)
    assert_uniform(p.contrast[jittered], 0.6, 1.4)
    assert_uniform(p.saturation[jittered], 0.6, 1.4)
    assert_uniform(p.hue[jittered], -0.5, 0.5)
    assert_uniform(p.blur_sigma[blurred], 0.1, 2.0)
    for name in ("brightness", "contrast", "saturation"):
        assert (getattr(p, name)[~jittered] == 1).all()


@pytest.mark.parametrize("probability", [0.0, 1.0])
def test_probability_0_is_never_and_1_is_always(probability: float) -> None:
    p = drawn(ViewConfig(flip_probability=probability, jitter_probability=probability), MANY)
    assert (p.flip == bool(probability)).all()
    assert ((p.hue != 0) == bool(probability)).float().mean() > 0.999  # a drawn shift may be 0


@pytest.mark.parametrize(("height", "width"), [(32, 32), (40, 24), (20, 31)])
def test_crops_stay_in_the_image_and_in_the_ranges_of_area_and_ratio(height: int, width: int) -> None:
    top, left, tall, wide = drawn(ViewConfig(), MANY, height=height, width=width).boxes.double().unbind(1)
    assert top.min() >= 0
    assert left.min() >= 0
    assert (top + tall).max() <= height + 1e-4
    assert (left + wide).max() <= width + 1e-4
    area, ratio = tall * wide / (height * width), wide / tall
    assert 0.2 - 1e-5 <= area.min() < 0.21
    largest = min(1.0, width / height / (3 / 4), height / width * (4 / 3))
    assert 0.95 * largest < area.max() <= largest + 1e-5
    assert 3 / 4 - 1e-5 <= ratio.min() < 0.76
    assert 1.32 < ratio.max() <= 4 / 3 + 1e-5
    roomy = (height - tall) > 1
    assert_uniform((top / (height - tall))[roomy], 0.0, 1.0)


@pytest.mark.parametrize(("height", "width"), [(32, 32), (40, 24)])
def test_crops_have_the_distribution_of_the_rejection_loop(height: int, width: int) -> None:
    rng = random.Random(0)
    accepted = []
    while len(accepted) < MANY:
        area = height * width * rng.uniform(0.2, 1.0)
        ratio = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        if math.sqrt(area * ratio) <= width and math.sqrt(area / ratio) <= height:
            accepted.append((area / (height * width), math.log(ratio)))
    _, _, tall, wide = drawn(ViewConfig(), MANY, height=height, width=width).boxes.double().unbind(1)
    mine = torch.stack([tall * wide / (height * width), (wide / tall).log()], 1)
    theirs = torch.tensor(accepted, dtype=torch.float64)
    for moment in (1, 2):
        a, b = mine**moment, theirs**moment
        error = ((a.var(0) + b.var(0)) / MANY).sqrt()
        assert ((a.mean(0) - b.mean(0)).abs() < 4 * error).all()


@pytest.mark.parametrize(
    ("height", "width", "box"),
    [(8, 64, (0, 32 - 16 / 3, 8, 32 / 3)), (64, 8, (32 - 16 / 3, 0, 32 / 3, 8)), (31, 32, (0, 0, 31, 32))],
)
def test_an_image_no_proposal_fits_gives_its_largest_centred_box(
    height: int, width: int, box: tuple[float, ...]
) -> None:
    config = ViewConfig(crop_scale=(0.9999, 1.0))
    boxes = drawn(config, 64, height=height, width=width).boxes
    torch.testing.assert_close(boxes.median(0).values, torch.tensor(box, dtype=torch.float32))


# device


class CountOperations(TorchDispatchMode):
    calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += 1
        return func(*args, **(kwargs or {}))


def test_the_number_of_operations_does_not_depend_on_the_batch() -> None:
    counts = []
    for samples in (2, 50):
        images, p = photo(samples, height=32, width=32), drawn(EVERYTHING, samples)
        with CountOperations() as counter:
            apply_views(images, p, EVERYTHING)
        counts.append(counter.calls)
    assert counts[0] == counts[1]


@pytest.mark.parametrize("channels", [1, 3])
def test_views_never_wait_for_the_device(channels: int) -> None:
    """Fake tensors hold no data, so any read of a value on the host raises."""
    values = drawn(EVERYTHING, 4).values_NP
    config = EVERYTHING if channels == 3 else replace(EVERYTHING, mean=(0.5,), std=(0.5,))
    with FakeTensorMode() as mode:
        p = ViewParameters(mode.from_tensor(values), 32, 32)
        for dtype in (torch.uint8, torch.float32):
            images = torch.zeros(4, channels, 32, 32, dtype=dtype)
            out = apply_views(images, p.rows(slice(0, 4)), config, size=24)
            assert out.shape == (4, channels, 24, 24)
        with pytest.raises(Exception, match=r"data-dependent|data dependent|_local_scalar_dense"):
            out.max().item()


cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.gpu
@cuda
@pytest.mark.parametrize("name", OPERATIONS)
def test_cuda_gives_the_views_of_the_cpu(name: str) -> None:
    operation, parameters, _ = OPERATIONS[name]
    images = unit(photo()).float()
    got = operation(images.cuda(), parameters.cuda())
    torch.testing.assert_close(got.cpu(), operation(images, parameters), atol=1e-5, rtol=0)


@pytest.mark.gpu
@cuda
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_drawing_and_applying_do_not_wait_for_the_device() -> None:
    images = photo(16, height=32, width=32).cuda()
    generator = torch.Generator().manual_seed(0)

    def step() -> Tensor:
        p = draw_views(EVERYTHING, 32, height=32, width=32, generator=generator, device="cuda")
        return apply_views(images, p.rows(slice(16, 32)), EVERYTHING)

    step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
@cuda
def test_views_replay_inside_a_cuda_graph_with_new_parameters() -> None:
    images = photo(16, height=32, width=32).cuda()
    static = drawn(EVERYTHING, 16).to("cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        apply_views(images, static, EVERYTHING)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = apply_views(images, static, EVERYTHING)
    for seed in (1, 2):
        fresh = drawn(EVERYTHING, 16, seed=seed).to("cuda")
        static.values_NP.copy_(fresh.values_NP)
        graph.replay()
        torch.testing.assert_close(out, apply_views(images, fresh, EVERYTHING), atol=1e-5, rtol=0)


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
