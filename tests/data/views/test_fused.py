"""Views in one launch, through Triton's interpreter: the pixels of `apply_views`, on the CPU."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from flatclr.data.views import ViewConfig, ViewParameters, apply_views, draw_views, gathered, gathered_views, operations
from flatclr.distributed import Ranks
from flatclr.models.encoders import ENCODERS, KEEPS_IMAGES, build_encoder
from flatclr.training.inputs import ImageViews
from flatclr.training.view_groups import ViewGroup
from tests.support.views import photo

pytest.importorskip("triton")
from flatclr.data.views import fused as kernels

interpreted = pytest.mark.skipif(
    torch.cuda.is_available(), reason="with a CUDA device the kernel is compiled: see test_gpu"
)

EVERYTHING = ViewConfig(hue=0.5, grayscale_probability=0.3, blur_probability=0.5, solarize_probability=0.4)
OFF = {
    "crop_scale": (1.0, 1.0),
    "flip_probability": 0.0,
    "brightness": 0.0,
    "contrast": 0.0,
    "saturation": 0.0,
    "hue": 0.0,
    "grayscale_probability": 0.0,
    "blur_probability": 0.0,
    "solarize_probability": 0.0,
}


def drawn(config: ViewConfig, samples: int, images: Tensor, seed: int = 0) -> ViewParameters:
    height, width = images.shape[-2:]
    generator = torch.Generator().manual_seed(seed)
    return draw_views(config, samples, height=height, width=width, generator=generator)


def fused(images: Tensor, parameters: ViewParameters, config: ViewConfig, **options: Any) -> Tensor:
    return gathered_views(images, options.pop("index", None), parameters, config, backend="triton", **options)


def assert_same_pixels(got: Tensor, want: Tensor, threshold: float | None = None) -> None:
    """Within rounding; where rounding decides whether a pixel is inverted, either will do."""
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    apart = (got - want).abs()
    if threshold is not None:
        inverted = ((got + want - 1).abs() < 1e-5) & ((got - threshold).abs() < 1e-5)
        apart = apart.masked_fill(inverted, 0)
    assert apart.max() <= 1e-5


@interpreted
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", [*OFF, "mean", "everything"])
def test_each_operation_alone_gives_the_pixels_of_apply_views(name: str, channels: int) -> None:
    images = photo(4, channels)
    config = EVERYTHING
    if name == "mean":
        config = replace(EVERYTHING, **OFF, mean=(0.5, 0.4, 0.3)[:channels], std=(0.9, 0.8, 0.7)[:channels])
    elif name != "everything":
        config = replace(EVERYTHING, **{option: value for option, value in OFF.items() if option != name})
    parameters = drawn(EVERYTHING, 4, images)
    assert_same_pixels(
        fused(images, parameters, config),
        apply_views(images, parameters, config),
        config.solarize_threshold if config.solarize_probability else None,
    )


@interpreted
@given(
    seed=st.integers(0, 10**6),
    channels=st.sampled_from([1, 3]),
    height=st.integers(1, 12),
    width=st.integers(1, 12),
    size=st.sampled_from([None, 1, 5, (4, 9), 14]),
    off=st.sets(st.sampled_from(sorted(OFF))),
    whole=st.booleans(),
)
@settings(max_examples=15)
def test_any_mixture_on_any_shape_gives_the_pixels_of_apply_views(
    seed: int,
    channels: int,
    height: int,
    width: int,
    size: int | tuple[int, int] | None,
    off: set[str],
    whole: bool,
) -> None:
    strong = {"brightness": 1.5, "contrast": 1.5, "saturation": 1.5}
    config = replace(EVERYTHING, **strong | {name: OFF[name] for name in off})
    images = torch.randint(
        256, (1, channels, height, width), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed)
    )
    parameters = drawn(replace(config, crop_scale=(1.0, 1.0)) if whole else config, 1, images, seed)
    assert_same_pixels(
        fused(images, parameters, config, size=size),
        apply_views(images, parameters, config, size=size),
        config.solarize_threshold,
    )


@interpreted
@pytest.mark.parametrize("flip_probability", [0.0, 1.0])
@pytest.mark.parametrize("crop_scale", [(1.0, 1.0), (0.2, 1.0)], ids=["as it is", "cropped"])
def test_a_box_of_the_whole_image_gives_it_back_exactly(
    flip_probability: float, crop_scale: tuple[float, float]
) -> None:
    images = photo(3, height=13, width=10)
    config = replace(EVERYTHING, **OFF | {"flip_probability": flip_probability})
    parameters = drawn(config, 3, images)
    got = fused(images, parameters, replace(config, crop_scale=crop_scale))
    image = images.float() / 255
    assert torch.equal(got, image.flip(-1) if flip_probability else image)


@interpreted
def test_an_image_untouched_by_the_operations_that_are_on_keeps_its_values() -> None:
    images = photo(2)
    neutral = drawn(replace(EVERYTHING, **OFF), 2, images)
    without_hue = replace(EVERYTHING, hue=0.0)  # which takes every colour apart and puts it together again
    assert torch.equal(fused(images, neutral, without_hue), images.float() / 255)


@interpreted
@pytest.mark.parametrize("size", [None, 7])
def test_floats_and_bytes_give_the_same_views_whatever_their_strides(size: int | None) -> None:
    images = photo(2)
    parameters = drawn(EVERYTHING, 2, images)
    want = fused(images, parameters, EVERYTHING, size=size)
    as_floats = images.float() / 255
    strided = images.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    cut = torch.nn.functional.pad(images, (2, 1, 3, 0))[:, :, 3:, 2:-1]
    assert_same_pixels(fused(as_floats, parameters, EVERYTHING, size=size), want, 0.5)
    for other in (strided, cut):
        assert torch.equal(fused(other, parameters, EVERYTHING, size=size), want)


@interpreted
@pytest.mark.parametrize("contrast", [0.0, 0.4])
def test_views_larger_than_a_block_are_the_same(contrast: float, monkeypatch: pytest.MonkeyPatch) -> None:
    images = photo(1, height=11, width=9)
    config = replace(EVERYTHING, contrast=contrast)
    parameters = drawn(config, 1, images)
    want = fused(images, parameters, config)
    monkeypatch.setattr(kernels, "MOST_PIXELS", 32)
    torch.testing.assert_close(fused(images, parameters, config), want, atol=1e-6, rtol=0)


@interpreted
def test_views_so_large_that_blur_reaches_beyond_the_neighbours_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    images = photo(2, height=9, width=7)
    config = replace(EVERYTHING, **OFF | {"blur_probability": 1.0})
    parameters = drawn(config, 2, images)
    monkeypatch.setattr(operations, "simclr_kernel_size", lambda side: 13)
    assert_same_pixels(fused(images, parameters, config), apply_views(images, parameters, config))


@interpreted
@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_every_index_is_shown_once_per_round_of_parameters(backend: str) -> None:
    images, index = photo(7), torch.tensor([6, 0, 2])
    parameters = drawn(EVERYTHING, 6, images)
    want = apply_views(images[[6, 0, 2, 6, 0, 2]], parameters, EVERYTHING)
    assert_same_pixels(gathered_views(images, index, parameters, EVERYTHING, backend=backend), want, 0.5)
    picked = gathered_views(images[index], None, parameters, EVERYTHING, backend=backend)
    assert_same_pixels(picked, want, 0.5)


@interpreted
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_views_are_the_float32_ones_rounded(dtype: torch.dtype) -> None:
    """The interpreter cuts bfloat16 off instead of rounding: test_gpu has the equality."""
    images = photo(3)
    config = replace(EVERYTHING, mean=(0.5,), std=(0.25,))
    parameters = drawn(config, 3, images)
    exact = fused(images, parameters, config)
    half = fused(images, parameters, config, dtype=dtype)
    assert half.dtype == dtype
    if dtype == torch.float16:
        assert torch.equal(half, exact.to(dtype))
    assert ((half.float() - exact).abs() <= torch.finfo(dtype).eps * exact.abs()).all()


@interpreted
def test_a_crop_of_white_stays_within_range() -> None:
    """Weights that sum to 1 + 1e-7 would show."""
    images = torch.full((8, 1, 9, 9), 255, dtype=torch.uint8)
    config = replace(EVERYTHING, **{option: value for option, value in OFF.items() if option != "crop_scale"})
    got = fused(images, drawn(EVERYTHING, 8, images), config, size=7)
    assert got.max() <= 1
    assert got.min() >= 1 - 1e-6


@interpreted
def test_fused_views_are_channels_last() -> None:
    images = photo(3)
    got = fused(images, drawn(EVERYTHING, 3, images), EVERYTHING, size=7)
    assert got.is_contiguous(memory_format=torch.channels_last)


@interpreted
def test_a_nan_stays_one() -> None:
    """So that a bad image is seen as a bad step."""
    images = photo(1).float() / 255
    images[0, 1, 5, 5] = torch.nan
    parameters = drawn(replace(EVERYTHING, **OFF), 1, images)
    got = fused(images, parameters, replace(EVERYTHING, contrast=0.0, solarize_probability=0.0))
    assert got[0, :, 5, 5].isnan().all()
    assert fused(images, parameters, EVERYTHING).isnan().all()


def test_two_views_of_micro_batches_are_those_of_the_batch() -> None:
    images = photo(6, height=16, width=16)
    inputs = ImageViews(ViewConfig(), (ViewGroup(2, 16),), 6, 0, Ranks())
    view_a, view_b = inputs.draw((images,), 3)(slice(0, 6))
    for rows in (slice(0, 4), slice(4, 6)):
        part_a, part_b = inputs.draw((images,), 3)(rows)
        torch.testing.assert_close(part_a, view_a[rows], atol=1e-6, rtol=0)
        torch.testing.assert_close(part_b, view_b[rows], atol=1e-6, rtol=0)
    static = inputs.parameters(images, 3)
    index = torch.tensor([5, 4, 3, 2, 1, 0])
    again_a, again_b = inputs.apply(images.flip(0), index, static)(slice(0, 6))
    assert torch.equal(again_a, view_a)
    assert torch.equal(again_b, view_b)
    assert not torch.equal(view_a, view_b)


def test_views_of_many_steps_are_drawn_at_once_as_one_by_one() -> None:
    images = photo(6, height=16, width=16)[2:4]
    inputs = ImageViews(ViewConfig(), (ViewGroup(2, 16),), 4, 0, Ranks(size=2, rank=1))
    one_by_one = [inputs.parameters(images, key).values_NP for key in (3, 9, "probe")]
    assert torch.equal(inputs.parameters(images, 3, 9, "probe").values_NP, torch.cat(one_by_one))
    assert not torch.equal(one_by_one[0], one_by_one[1])


@pytest.mark.parametrize("name", [name for name in ENCODERS if name not in KEEPS_IMAGES])
def test_autocast_rounds_the_views_in_the_first_layer_of_every_encoder_of_ours(name: str) -> None:
    """What allows the trainer to ask for rounded ones."""
    images = torch.rand(2, 3, 8, 8)
    encoder = build_encoder(name, channels=3, image_size=8, width=8).eval()
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(encoder(images), encoder(images.bfloat16()))


X = photo(4)
P4 = drawn(ViewConfig(), 4, X)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: gathered_views(X, None, P4, ViewConfig(), backend="cuda"), ValueError, r"backend must be one of 'auto'"),
        (lambda: gathered_views(X, [0], P4, ViewConfig()), TypeError, r"index must be a tensor of int64 .*, got list"),
        (lambda: gathered_views(X, torch.ones(4) > 0, P4, ViewConfig()), TypeError, r"int64 .* got torch.bool \[4\]"),
        (lambda: gathered_views(X, torch.tensor([0, 1, 2]), P4, ViewConfig()), ValueError, r"a multiple of one row per image, 3, got 4"),
        (lambda: fused(X.double(), P4, ViewConfig()), ValueError, r"got torch.float64 images; use backend='torch'"),
        (lambda: fused(X[:, :2], P4, ViewConfig()), ValueError, r"got 2 channels; use backend='torch'"),
        (lambda: fused(X.float().requires_grad_(), P4, ViewConfig()), ValueError, r"images that need a gradient"),
        (lambda: fused(X, P4, ViewConfig(mean=(0.1, 0.2), std=(1, 1))), ValueError, r"mean must have one value or one per channel, 3, got 2"),
    ],
)  # fmt: skip
def test_what_cannot_be_shown_is_refused(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


@interpreted
def test_images_on_the_cpu_are_refused_by_a_compiled_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "INTERPRETED", False)
    with pytest.raises(ValueError, match=r"images on a CUDA device, got cpu; move them there, or use backend='torch'"):
        fused(X, P4, ViewConfig())


def test_on_the_cpu_auto_takes_the_torch_path(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Tensor:
        raise AssertionError("called")

    monkeypatch.setattr(gathered, "_in_one_launch", refuse)
    assert torch.equal(gathered_views(X, None, P4, ViewConfig()), apply_views(X, P4, ViewConfig()))
