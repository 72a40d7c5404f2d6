"""Views are their operations in order, whatever the images are, without waiting for the device."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from flatclr.data import views
from flatclr.data.views import ViewConfig, ViewParameters, apply_views, pipeline
from tests.support.views import EVERYTHING, drawn, photo


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
