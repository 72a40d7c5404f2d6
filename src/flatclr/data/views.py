"""Batched image augmentation on the device: every sample of a batch has its own parameters.

`draw_views` draws the parameters of a whole global batch from a generator on the host, `apply_views` applies them on
any device, and `gathered_views` does so to images picked by their index, on a GPU in one launch. Nothing there waits
for the device or loops over samples, so a step can be captured in a CUDA graph.

Images are float in [0, 1], [N, C, H, W]. Shape suffixes: N samples, S output pixels, P parameters per sample.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from flatclr.checks import FLOAT_TYPES, require_count, require_number, require_one_of
from flatclr.contrast.kernels import fused_kernels_run, with_triton

# Rec. 601 luma, what Pillow's "L" mode and the published recipes use
LUMA = (0.299, 0.587, 0.114)

# proposals for a crop box before the fallback, as in torchvision's RandomResizedCrop
CROP_PROPOSALS = 10

# how many times smaller a view in one launch may be: each of its pixels reads the square of twice that
MOST_SHRINKING = 16


@dataclass(frozen=True)
class ViewConfig:
    """Which views of an image count as the same thing. The defaults are SimCLR's for small images.

    An operation whose probability is 0, or whose strength is 0, costs nothing. Sequences become tuples.

    >>> ViewConfig(flip_probability=1.5)
    Traceback (most recent call last):
    ValueError: flip_probability must be within [0, 1], got 1.5; 0 turns the operation off, 1 applies it to every image.
    """

    crop_scale: tuple[float, float] = (0.2, 1.0)  # share of the area; (1, 1) keeps the whole image whatever the ratio
    crop_ratio: tuple[float, float] = (3 / 4, 4 / 3)  # width / height
    flip_probability: float = 0.5
    jitter_probability: float = 0.8  # of all four together
    brightness: float = 0.4  # factor uniform in [max(0, 1 - strength), 1 + strength]
    contrast: float = 0.4
    saturation: float = 0.4
    hue: float = 0.1  # shift uniform in [-strength, strength] turns
    grayscale_probability: float = 0.2
    blur_probability: float = 0.0
    blur_sigma: tuple[float, float] = (0.1, 2.0)  # pixels of the view
    solarize_probability: float = 0.0
    solarize_threshold: float = 0.5
    mean: tuple[float, ...] | None = None  # per channel, or one value for all; None: views stay in [0, 1]
    std: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("crop_scale", "crop_ratio", "blur_sigma"):
            object.__setattr__(self, name, _range(name, getattr(self, name)))
        if self.crop_scale[1] > 1:
            raise ValueError(
                f"crop_scale must be within (0, 1], got {self.crop_scale}; it is the crop's share of the image's area."
            )
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
        if (self.mean is None) != (self.std is None):
            raise ValueError(f"mean and std must come together, got {self.mean} and {self.std}; pass both or neither.")
        if self.mean is not None and self.std is not None:
            object.__setattr__(self, "mean", _channel_values("mean", self.mean))
            object.__setattr__(self, "std", _channel_values("std", self.std, above=0.0))
            if len(self.mean) != len(self.std):
                raise ValueError(
                    f"mean and std must have one value per channel, got {len(self.mean)} and {len(self.std)}; "
                    "pass as many of each."
                )

    @property
    def crops(self) -> bool:
        return self.crop_scale != (1.0, 1.0)


def simclr_cifar_views() -> ViewConfig:
    """SimCLR's views of CIFAR images (Chen et al. 2020, appendix B.9: no blur), with CIFAR-10's channel statistics."""
    return ViewConfig(mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616))


def grayscale_views() -> ViewConfig:
    """Views of one-channel images: crop, flip, brightness and contrast, then to [-1, 1]."""
    return ViewConfig(saturation=0.0, hue=0.0, grayscale_probability=0.0, mean=(0.5,), std=(0.5,))


def views_for(channels: int) -> ViewConfig:
    """The default views: `grayscale_views` of one channel, else `simclr_cifar_views`."""
    return grayscale_views() if channels == 1 else simclr_cifar_views()


def crops_and_flips(
    smallest: float = 0.9, *, mean: Sequence[float] | None = None, std: Sequence[float] | None = None
) -> ViewConfig:
    """Most of the image, perhaps mirrored: for training with labels.

    A smaller crop would show objects larger than in the whole images they are tested on (Touvron et al. 2019).

    >>> crops_and_flips().jitter_probability
    0.0
    """
    return replace(no_augmentation(mean=mean, std=std), crop_scale=(smallest, 1.0), flip_probability=0.5)


def no_augmentation(*, mean: Sequence[float] | None = None, std: Sequence[float] | None = None) -> ViewConfig:
    """The image itself, normalised as its training views were: for evaluation.

    >>> train = grayscale_views()
    >>> no_augmentation(mean=train.mean, std=train.std).crops
    False
    """
    return ViewConfig(
        crop_scale=(1.0, 1.0),
        flip_probability=0.0,
        jitter_probability=0.0,
        grayscale_probability=0.0,
        mean=None if mean is None else tuple(mean),
        std=None if std is None else tuple(std),
    )


@dataclass(frozen=True)
class ViewParameters:
    """What happens to each sample: one row per sample, one column per parameter.

    One tensor, so that a step moves it in one copy, and a captured graph is fed by `static.values_NP.copy_(...)`.
    A sample an operation leaves alone has its neutral value: factor 1, hue 0, sigma 0, flag 0.
    """

    values_NP: Tensor  # float32; columns as in COLUMNS
    height: int  # of the images the boxes were drawn for
    width: int

    COLUMNS = (
        *("top", "left", "height", "width", "flip", "brightness", "contrast", "saturation", "hue"),
        *("grayscale", "blur_sigma", "solarize"),
    )

    def __len__(self) -> int:
        return len(self.values_NP)

    @property
    def boxes(self) -> Tensor:
        """(top, left, height, width) of each crop in pixels of the image, [N, 4]; not rounded."""
        return self.values_NP[:, :4]

    @property
    def flip(self) -> Tensor:
        return self._column("flip") != 0

    @property
    def brightness(self) -> Tensor:
        return self._column("brightness")

    @property
    def contrast(self) -> Tensor:
        return self._column("contrast")

    @property
    def saturation(self) -> Tensor:
        return self._column("saturation")

    @property
    def hue(self) -> Tensor:
        return self._column("hue")

    @property
    def grayscale(self) -> Tensor:
        return self._column("grayscale") != 0

    @property
    def blur_sigma(self) -> Tensor:
        return self._column("blur_sigma")

    @property
    def solarize(self) -> Tensor:
        return self._column("solarize") != 0

    def rows(self, index: slice | Sequence[int] | Tensor) -> ViewParameters:
        """The parameters of some samples, say this rank's share of the global batch.

        >>> drawn = draw_views(ViewConfig(), 6, height=8, width=8, generator=torch.Generator().manual_seed(0))
        >>> len(drawn.rows(slice(2, 4))), len(drawn.rows([5, 0, 5]))
        (2, 3)
        """
        if not isinstance(index, slice | Sequence | Tensor) or (isinstance(index, Tensor) and index.dim() != 1):
            raise TypeError(f"index must be a slice or a list of row numbers, got {index!r}; pass [i] for one row.")
        return ViewParameters(self.values_NP[index], self.height, self.width)

    def to(self, device: torch.device | str) -> ViewParameters:
        """The same on `device`; a host copy to a GPU goes through pinned memory, so that nothing waits."""
        target = torch.device(device)
        values = self.values_NP
        if values.device.type == "cpu" and target.type == "cuda":
            values = values.contiguous().pin_memory()
        return ViewParameters(values.to(target, non_blocking=True), self.height, self.width)

    def _column(self, name: str) -> Tensor:
        return self.values_NP[:, self.COLUMNS.index(name)]


def draw_views(
    config: ViewConfig,
    samples: int,
    *,
    height: int,
    width: int,
    generator: torch.Generator,
    device: torch.device | str | None = None,
) -> ViewParameters:
    """The parameters of one view of `samples` images of height x width.

    One draw of a fixed number of uniforms per sample, on the generator's device: the parameters depend on the state
    of the generator alone, not on images, ranks or target device. Draw for the global batch and take `rows`. With a
    CPU generator the first rows do not depend on how many follow, and changing one operation's probability leaves
    the draws of the others alone.

    >>> views = draw_views(ViewConfig(), 4, height=32, width=32, generator=torch.Generator().manual_seed(0))
    >>> views.boxes.shape, views.flip.dtype
    (torch.Size([4, 4]), torch.bool)
    """
    advice = "pass the size of the images and of the global batch."
    require_count("samples", samples, advice=advice)
    require_count("height", height, advice=advice)
    require_count("width", width, advice=advice)
    if not isinstance(generator, torch.Generator):
        raise TypeError(
            f"generator must be a torch.Generator, got {type(generator).__name__}; "
            "use torch.Generator().manual_seed(seed)."
        )
    drawn = views_from(config, draw_uniforms(samples, generator), height=height, width=width)
    return drawn if device is None else drawn.to(device)


def draw_uniforms(samples: int, generator: torch.Generator) -> Tensor:
    """What `draw_views` draws: the same number of uniforms for every sample, [N, U]."""
    return torch.rand(samples, 2 * CROP_PROPOSALS + 12, generator=generator, device=generator.device)


def views_from(config: ViewConfig, uniforms: Tensor, *, height: int, width: int) -> ViewParameters:
    """The parameters that these uniforms, a row for each sample, stand for."""
    areas, ratios = uniforms[:, :CROP_PROPOSALS], uniforms[:, CROP_PROPOSALS : 2 * CROP_PROPOSALS]
    top, left, flip, jitter, brightness, contrast, saturation, hue, gray, blur, sigma, solar = uniforms.T[-12:]
    jittered = jitter < config.jitter_probability

    def factor(uniform: Tensor, strength: float) -> Tensor:
        low, high = max(0.0, 1 - strength), 1 + strength
        return torch.where(jittered, low + (high - low) * uniform, 1.0)

    low, high = config.blur_sigma
    columns = [
        *_crop_boxes(config, height, width, areas, ratios, top, left),
        flip < config.flip_probability,
        factor(brightness, config.brightness),
        factor(contrast, config.contrast),
        factor(saturation, config.saturation),
        torch.where(jittered, config.hue * (2 * hue - 1), 0.0),
        gray < config.grayscale_probability,
        torch.where(blur < config.blur_probability, low + (high - low) * sigma, 0.0),
        solar < config.solarize_probability,
    ]
    return ViewParameters(torch.stack([column.float() for column in columns], 1), height, width)


def _crop_boxes(
    config: ViewConfig, height: int, width: int, areas: Tensor, ratios: Tensor, top: Tensor, left: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Random resized crops without a loop: the first of ten proposals (area, log ratio uniform) that fits the image.

    Where none fits, the largest centred box whose ratio is allowed. Both as torchvision has it, but not rounded.
    """
    if not config.crops:
        zero = torch.zeros_like(top)
        return zero, zero, zero + height, zero + width
    (small, large), (tall, wide) = config.crop_scale, config.crop_ratio
    area = height * width * (small + (large - small) * areas)
    ratio = torch.exp(math.log(tall) + (math.log(wide) - math.log(tall)) * ratios)
    heights, widths = (area / ratio).sqrt(), (area * ratio).sqrt()
    fits = (heights <= height) & (widths <= width)
    first = fits.int().argmax(1, keepdim=True)
    found = fits.any(1)
    fallback_height, fallback_width = min(height, width / tall), min(width, height * wide)
    box_height = torch.where(found, heights.gather(1, first).squeeze(1), fallback_height)
    box_width = torch.where(found, widths.gather(1, first).squeeze(1), fallback_width)
    return (
        torch.where(found, top, 0.5) * (height - box_height),
        torch.where(found, left, 0.5) * (width - box_width),
        box_height,
        box_width,
    )


def apply_views(
    images: Tensor,
    parameters: ViewParameters,
    config: ViewConfig,
    *,
    size: int | tuple[int, int] | None = None,
) -> Tensor:
    """The views of `images` that `parameters` describe, float32 [N, C, size, size], in this order:

    crop and flip, brightness, contrast, saturation, hue, grayscale, blur, solarize, normalise

    Args:
        images: [N, C, H, W], uint8 or floating point in [0, 1]. One channel: colour operations do nothing.
        parameters: from `draw_views` with the same config, for these N images, on their device.
        config: what is off there is skipped; its mean and std are applied last.
        size: of the views, a side or (height, width); None keeps that of the images.

    >>> images = torch.randint(256, (4, 3, 32, 32), dtype=torch.uint8)
    >>> config = simclr_cifar_views()
    >>> drawn = draw_views(config, 4, height=32, width=32, generator=torch.Generator().manual_seed(0))
    >>> apply_views(images, drawn, config, size=24).shape
    torch.Size([4, 3, 24, 24])
    """
    _require_images(images, bytes_too=True)
    _require_parameters(parameters, images, len(images))
    out = images.float().div(255) if images.dtype == torch.uint8 else images.float()
    stored = (images.shape[-2], images.shape[-1])
    sides = stored if size is None else _sides(size)

    if config.crops or sides != stored:
        # the weights sum to 1 only up to rounding
        out = resized_crop(out, parameters.boxes, sides, flip_N=parameters.flip).clamp_(0, 1)
    elif config.flip_probability:
        out = horizontal_flip(out, parameters.flip)
    if config.jitter_probability:
        if config.brightness:
            out = adjust_brightness(out, parameters.brightness)
        if config.contrast:
            out = adjust_contrast(out, parameters.contrast)
        if config.saturation:
            out = adjust_saturation(out, parameters.saturation)
        if config.hue:
            out = adjust_hue(out, parameters.hue)
    if config.grayscale_probability:
        out = to_grayscale(out, parameters.grayscale)
    if config.blur_probability:
        out = gaussian_blur(out, parameters.blur_sigma, _blur_kernel(min(sides))).clamp_(0, 1)
    if config.solarize_probability:
        out = solarize(out, parameters.solarize, config.solarize_threshold)
    if config.mean is not None and config.std is not None:
        out = normalize(out, config.mean, config.std)
    return out


def gathered_views(
    images: Tensor,
    index: Tensor | None,
    parameters: ViewParameters,
    config: ViewConfig,
    *,
    size: int | tuple[int, int] | None = None,
    dtype: torch.dtype = torch.float32,
    backend: str = "auto",
) -> Tensor:
    """`apply_views` of `images[index]`, over and over until every row of parameters has its view.

    Args:
        images: [M, C, H, W] as for `apply_views`, say all there are.
        index: which of them, [N] on their device, within range; None: all, N = M. View v shows image v mod N.
        parameters: a multiple of N rows: those of view a, then those of view b.
        config, size: as for `apply_views`.
        dtype: of the views.
        backend: "triton" gathers, augments and rounds in one launch, "torch" operation by operation. "auto" takes the
            first on a GPU where it can: uint8 or float32 images of 1 or 3 channels, no gradient. Blur takes two more.

    Returns:
        views in channels-last order on a GPU, where convolutions read it.

    >>> images = torch.randint(256, (9, 3, 32, 32), dtype=torch.uint8)
    >>> drawn = draw_views(ViewConfig(), 4, height=32, width=32, generator=torch.Generator().manual_seed(0))
    >>> gathered_views(images, torch.tensor([7, 1]), drawn, ViewConfig()).shape
    torch.Size([4, 3, 32, 32])
    """
    require_one_of("backend", backend, ("auto", "torch", "triton"))
    _require_images(images, bytes_too=True)
    samples = len(images) if index is None else _indices(index, images)
    _require_parameters(parameters, images, samples, in_turn=True)
    obstacle = _why_not_fused(images, size)
    if backend == "triton" and obstacle is not None:
        raise ValueError(f"backend='triton' must be given views that it knows, got {obstacle}; use backend='torch'.")
    fits = backend == "auto" and images.is_cuda and obstacle is None
    if backend == "triton" or (fits and fused_kernels_run(images.device)):
        return _fused_views(images, index, parameters, config, size, dtype)
    picked = images if index is None else images[index]
    views = apply_views(picked.repeat(len(parameters) // samples, 1, 1, 1), parameters, config, size=size)
    layout = torch.channels_last if views.is_cuda else torch.preserve_format
    return views.to(dtype, memory_format=layout)


def _why_not_fused(images: Tensor, size: int | tuple[int, int] | None) -> str | None:
    if images.dtype not in (torch.uint8, torch.float32):
        return f"{images.dtype} images"
    if images.shape[1] not in (1, 3):
        return f"{images.shape[1]} channels"
    if size is not None and max(images.shape[-2:]) > MOST_SHRINKING * min(_sides(size)):
        return f"views of {size} pixels from images of {max(images.shape[-2:])}"
    return "images that need a gradient" if images.requires_grad else None


def _fused_views(
    images: Tensor,
    index: Tensor | None,
    parameters: ViewParameters,
    config: ViewConfig,
    size: int | tuple[int, int] | None,
    dtype: torch.dtype,
) -> Tensor:
    kernels = with_triton("fused_views")
    if not (images.is_cuda or kernels.INTERPRETED):
        raise ValueError(
            f"backend='triton' must be given images on a CUDA device, got {images.device}; "
            "move them there, or use backend='torch'."
        )
    channels, stored = images.shape[1], (images.shape[-2], images.shape[-1])
    sides = stored if size is None else _sides(size)
    crop, jitter, colour = config.crops or sides != stored, bool(config.jitter_probability), channels == 3
    mean, std = (
        None if values is None else _per_channel(name, values, channels)
        for name, values in (("mean", config.mean), ("std", config.std))
    )
    operations = kernels.Operations(
        crop=crop,
        flip=crop or bool(config.flip_probability),
        brightness=jitter and bool(config.brightness),
        contrast=jitter and bool(config.contrast),
        saturation=jitter and colour and bool(config.saturation),
        hue=jitter and colour and bool(config.hue),
        grayscale=colour and bool(config.grayscale_probability),
        blur_radius=_blur_kernel(min(sides)) // 2 if config.blur_probability else 0,
        solarize=bool(config.solarize_probability),
        solarize_threshold=config.solarize_threshold,
        mean=mean,
        std=std,
    )
    with torch.cuda.device_of(images):  # Triton launches on the current one
        views: Tensor = kernels.fused_views(
            images, index, parameters.values_NP.contiguous(), operations, sides=sides, dtype=dtype
        )
    return views


def resized_crop(
    images: Tensor, boxes_N4: Tensor, size: int | tuple[int, int], *, flip_N: Tensor | None = None
) -> Tensor:
    """Crop each image to its box (top, left, height, width; pixels, fractions allowed), resize, and flip where told.

    Bilinear with antialiasing, pixel centres at halves: Pillow's `resize(size, BILINEAR, box=box)`. When the box is
    enlarged this is plain bilinear interpolation (`grid_sample` with align_corners=False and border padding); when
    it is shrunk the triangle widens with it. Pixels just outside the box contribute to its border as they do there.
    Boxes must lie within the image; their values are not looked at, as that would wait for the device.

    >>> image = torch.arange(4.0).view(1, 1, 1, 4)
    >>> resized_crop(image, torch.tensor([[0.0, 1.0, 1.0, 2.0]]), (1, 2))
    tensor([[[[1., 2.]]]])
    """
    _require_images(images)
    if not isinstance(boxes_N4, Tensor) or boxes_N4.shape != (len(images), 4):
        raise ValueError(
            f"boxes must have shape [{len(images)}, 4] for these images, got {_shape(boxes_N4)}; "
            "pass (top, left, height, width) per image."
        )
    height, width = _sides(size)
    top, left, box_height, box_width = boxes_N4.to(images.dtype).unbind(1)
    steps = box_width / width
    if flip_N is not None:
        steps = torch.where(_flags("flip", flip_N, images).view(-1), -steps, steps)
    rows = _triangle_weights(top + box_height / 2, box_height / height, images.shape[-2], height)
    columns = _triangle_weights(left + box_width / 2, steps, images.shape[-1], width)
    return _separable(images, rows, columns)


def _triangle_weights(middle_N: Tensor, step_N: Tensor, pixels: int, size: int) -> Tensor:
    """Weights [N, size, pixels] of samples `step` apart around `middle`; a negative step reads backwards."""
    grid = torch.arange(max(pixels, size), device=middle_N.device, dtype=middle_N.dtype)
    # whole and half steps from the middle are exact, so that a box of the whole image gives back the image
    centres_NS = torch.addcmul(middle_N[:, None], step_N[:, None], grid[:size] - (size - 1) / 2)
    support_N = step_N.abs().clamp_min(1)
    distances_NSH = (centres_NS[:, :, None] - (grid[:pixels] + 0.5)).abs_()
    weights_NSH = distances_NSH.div_(support_N[:, None, None]).neg_().add_(1).clamp_min_(0)
    return weights_NSH.div_(weights_NSH.sum(-1, keepdim=True))


def _separable(images: Tensor, rows_NSH: Tensor, columns_NSW: Tensor) -> Tensor:
    """rows @ image @ columns^T for every channel of every sample."""
    samples, channels, height, _ = images.shape
    narrowed = _product(images.reshape(samples, channels * height, -1), columns_NSW.mT)
    return _product(rows_NSH[:, None], narrowed.view(samples, channels, height, -1))


def _product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b in the type of a: autocast would round to half precision. Where TF32 is allowed CUDA keeps 10 bits."""
    with torch.autocast(a.device.type, enabled=False):
        return a @ b


def horizontal_flip(images: Tensor, flags_N: Tensor) -> Tensor:
    """Mirror the images whose flag is set.

    >>> horizontal_flip(torch.arange(4.0).view(2, 1, 1, 2), torch.tensor([True, False])).flatten()
    tensor([1., 0., 2., 3.])
    """
    _require_images(images)
    return torch.where(_flags("flip", flags_N, images), images.flip(-1), images)


def adjust_brightness(images: Tensor, factor_N: Tensor) -> Tensor:
    """factor * image, clipped to [0, 1].

    >>> adjust_brightness(torch.full((2, 1, 1, 1), 0.4), torch.tensor([0.5, 3.0])).flatten()
    tensor([0.2000, 1.0000])
    """
    _require_images(images)
    return (images * _per_sample("brightness", factor_N, images)).clamp_(0, 1)


def adjust_contrast(images: Tensor, factor_N: Tensor) -> Tensor:
    """Blend with the mean gray level of each image: mean + factor * (image - mean), clipped to [0, 1].

    >>> adjust_contrast(torch.tensor([0.2, 0.6]).view(1, 1, 1, 2), torch.tensor([0.5])).flatten()
    tensor([0.3000, 0.5000])
    """
    _require_images(images)
    mean = luminance(images).mean((1, 2, 3), keepdim=True)
    return torch.lerp(mean, images, _per_sample("contrast", factor_N, images)).clamp_(0, 1)


def adjust_saturation(images: Tensor, factor_N: Tensor) -> Tensor:
    """Blend with the gray image: gray + factor * (image - gray), clipped to [0, 1]. One channel has no saturation."""
    _require_images(images)
    factor = _per_sample("saturation", factor_N, images)
    if images.shape[1] == 1:
        return images
    return torch.lerp(luminance(images), images, factor).clamp_(0, 1)


def adjust_hue(images: Tensor, shift_N: Tensor) -> Tensor:
    """Turn the hue by `shift` turns of the colour wheel, keeping HSV's saturation and value. One channel has no hue.

    With v = max, c = max - min and angles in sixths of a turn:

        hue     = sign(g - b) (1 + ((g - min) + (b - r)) / c)  mod 6
        channel = v - c clip(2 - |hue - opposite|, 0, 1),  opposite = 3, 5, 7 for r, g, b, distance around the wheel

    >>> adjust_hue(torch.tensor([1.0, 0.0, 0.0]).view(1, 3, 1, 1), torch.tensor([1 / 3])).flatten()
    tensor([0., 1., 0.])
    """
    _require_images(images)
    shift = _per_sample("hue", shift_N, images)
    if images.shape[1] == 1:
        return images
    red, green, blue = _channels(images)
    value, low = images.amax(1, keepdim=True), images.amin(1, keepdim=True)
    chroma = value - low
    # gray pixels have no hue: 0 / tiny, and chroma 0 takes it out again
    hue = (green - low).add_(blue - red).div_(chroma.clamp_min(torch.finfo(images.dtype).tiny)).add_(1)
    hue = hue.copysign_(green - blue).add_(6 * shift)
    around = hue - torch.arange(3, 8, 2, device=images.device, dtype=images.dtype).view(3, 1, 1)
    distance = around.sub_((around / 6).round_(), alpha=6).abs_()
    return value - (2 - distance).clamp_(0, 1).mul_(chroma)


def to_grayscale(images: Tensor, flags_N: Tensor) -> Tensor:
    """Replace the images whose flag is set by their luminance in all three channels. One channel stays as it is."""
    _require_images(images)
    flags = _flags("grayscale", flags_N, images)
    return images if images.shape[1] == 1 else torch.where(flags, luminance(images), images)


def luminance(images: Tensor) -> Tensor:
    """0.299 red + 0.587 green + 0.114 blue, [N, 1, H, W]; of one channel, itself."""
    if images.shape[1] == 1:
        return images
    red, green, blue = _channels(images)
    return (red * LUMA[0]).add_(green, alpha=LUMA[1]).add_(blue, alpha=LUMA[2])


def gaussian_blur(images: Tensor, sigma_N: Tensor, kernel_size: int) -> Tensor:
    """Blur each image with its own sigma in pixels; sigma 0 leaves it alone.

    The kernel is cut to `kernel_size` taps and renormalised; borders mirror about the edge pixel ("reflect").
    """
    _require_images(images)
    sigma = _per_sample("sigma", sigma_N, images)
    height, width = images.shape[-2:]
    require_count("kernel_size", kernel_size, advice="pass an odd number, say a tenth of the image.")
    radius = kernel_size // 2
    if kernel_size % 2 == 0 or radius >= min(height, width):
        raise ValueError(
            f"kernel_size must be odd and < {2 * min(height, width)} for {height} x {width} images, got {kernel_size}; "
            "pass about a tenth of the image."
        )
    taps = torch.arange(-radius, radius + 1, device=images.device, dtype=images.dtype)
    # at sigma 0 the exponent is 0 at the middle and -inf beside it, never 0 / 0
    exponents = -(taps**2) / (2 * sigma.view(-1, 1) ** 2).clamp_min(torch.finfo(images.dtype).tiny)
    kernel_NK = torch.softmax(exponents, dim=1)
    rows = _product(kernel_NK, _mirrored_shifts(height, radius, images))
    columns = rows if width == height else _product(kernel_NK, _mirrored_shifts(width, radius, images))
    return _separable(images, rows.view(-1, height, height), columns.view(-1, width, width))


def _mirrored_shifts(size: int, radius: int, like: Tensor) -> Tensor:
    """One row per tap: the [size * size] matrix that reads each pixel's neighbour at that distance."""
    pixels = torch.arange(size, device=like.device)
    sources = (pixels + torch.arange(-radius, radius + 1, device=like.device)[:, None]).abs_()
    sources = (size - 1) - ((size - 1) - sources).abs_()
    return (sources[:, :, None] == pixels).to(like.dtype).flatten(1)


def _blur_kernel(size: int) -> int:
    """SimCLR's: a tenth of the image, made odd; at least 3."""
    return max(3, size // 10 // 2 * 2 + 1) if size > 1 else 1


def solarize(images: Tensor, flags_N: Tensor, threshold: float) -> Tensor:
    """Invert the pixels at or above the threshold, in the images whose flag is set.

    >>> solarize(torch.tensor([0.25, 0.75]).view(1, 1, 1, 2), torch.tensor([True]), 0.5).flatten()
    tensor([0.2500, 0.2500])
    """
    _require_images(images)
    return torch.where(_flags("solarize", flags_N, images) & (images >= threshold), 1 - images, images)


def normalize(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """(image - mean) / std, one value per channel or one for all.

    >>> normalize(torch.tensor([0.0, 1.0]).view(1, 1, 1, 2), (0.5,), (0.5,)).flatten()
    tensor([-1.,  1.])
    """
    _require_images(images)
    means, stds = _channel_values("mean", mean), _channel_values("std", std, above=0.0)
    means, stds = (_per_channel(n, v, images.shape[1]) for n, v in (("mean", means), ("std", stds)))
    return (images - _constants(means, images)) / _constants(stds, images)


def _per_channel(name: str, values: tuple[float, ...], channels: int) -> tuple[float, ...]:
    if len(values) not in (1, channels):
        raise ValueError(
            f"{name} must have one value or one per channel, {channels}, got {len(values)}; "
            "pass the statistics of these images."
        )
    return values if len(values) == channels else values * channels


def _constants(values: Sequence[float], like: Tensor) -> Tensor:
    """[C, 1, 1], filled on the device: a copy from the host would wait, and cannot be captured."""
    return torch.cat([like.new_full((1, 1, 1), value) for value in values])


def _range(name: str, value: Any) -> tuple[float, float]:
    if isinstance(value, str) or not isinstance(value, Sequence) or len(value) != 2:
        raise TypeError(f"{name} must be a pair (low, high), got {value!r}; pass two numbers.")
    low, high = value
    for end in (low, high):
        require_number(name, end, above=0)
    if low > high:
        raise ValueError(f"{name} must be a pair (low, high) with low <= high, got {(low, high)}; swap them.")
    return float(low), float(high)


def _channel_values(name: str, value: Any, above: float = -math.inf) -> tuple[float, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence) or not value:
        raise TypeError(f"{name} must be one number per channel, got {value!r}; pass a tuple, say (0.5,).")
    for entry in value:
        require_number(name, entry, above=above)
    return tuple(float(entry) for entry in value)


def _require_within(name: str, value: Any, high: float, advice: str) -> None:
    require_number(name, value, advice=advice)
    if not 0 <= value <= high:
        expected = "must be >= 0" if high == math.inf else f"must be within [0, {high:g}]"
        raise ValueError(f"{name} {expected}, got {value}; {advice}")


def _require_images(images: Any, *, bytes_too: bool = False) -> None:
    if not isinstance(images, Tensor):
        raise TypeError(
            f"images must be a torch.Tensor of shape [N, C, H, W], got {type(images).__name__}; use torch.as_tensor."
        )
    if images.dim() != 4 or images.numel() == 0:
        raise ValueError(
            f"images must have shape [N, C, H, W] and not be empty, got {list(images.shape)}; "
            "add the missing dimension, or permute if channels come last."
        )
    if images.dtype not in FLOAT_TYPES and not (bytes_too and images.dtype == torch.uint8):
        kinds = "uint8 or floating point" if bytes_too else "floating point"
        raise TypeError(f"images must be {kinds}, got {images.dtype}; convert to float in [0, 1].")


def _channels(images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    if images.shape[1] != 3:
        raise ValueError(
            f"colour operations need images of 1 or 3 channels, got {images.shape[1]}; set contrast, saturation, hue "
            "and grayscale_probability to 0 for other images."
        )
    return images[:, 0:1], images[:, 1:2], images[:, 2:3]


def _indices(index: Any, images: Tensor) -> int:
    """How many there are."""
    if not isinstance(index, Tensor) or index.dtype != torch.int64 or index.dim() != 1 or len(index) == 0:
        got = f"{index.dtype} {_shape(index)}" if isinstance(index, Tensor) else type(index).__name__
        raise TypeError(f"index must be a tensor of int64 row numbers [N], got {got}; use torch.tensor([...]).")
    if index.device != images.device:
        raise ValueError(f"index must be on the images' device {images.device}, got {index.device}; move it there.")
    return len(index)


def _require_parameters(parameters: Any, images: Tensor, samples: int, *, in_turn: bool = False) -> None:
    if not isinstance(parameters, ViewParameters):
        raise TypeError(f"parameters must be ViewParameters, got {type(parameters).__name__}; call draw_views.")
    if len(parameters) % samples if in_turn else len(parameters) != samples:
        rows = "a multiple of one row per image" if in_turn else "one row per image"
        raise ValueError(
            f"parameters must have {rows}, {samples}, got {len(parameters)}; "
            "take this rank's with parameters.rows(...)."
        )
    if (parameters.height, parameters.width) != images.shape[-2:]:
        raise ValueError(
            f"parameters must be drawn for images of {images.shape[-2]} x {images.shape[-1]}, "
            f"got {parameters.height} x {parameters.width}; pass height and width of the stored images to draw_views."
        )
    if parameters.values_NP.device != images.device:
        raise ValueError(
            f"parameters must be on the images' device {images.device}, got {parameters.values_NP.device}; "
            "call parameters.to(device)."
        )


def _per_sample(name: str, value: Any, images: Tensor) -> Tensor:
    """[N, 1, 1, 1] in the type of the images."""
    _require_one_per_image(name, value, images)
    return value.to(images.dtype).view(-1, 1, 1, 1)  # type: ignore[no-any-return]


def _flags(name: str, value: Any, images: Tensor) -> Tensor:
    _require_one_per_image(name, value, images)
    if value.dtype != torch.bool:
        raise TypeError(f"{name} must be a bool tensor, got {value.dtype}; compare with 0 first.")
    return value.view(-1, 1, 1, 1)  # type: ignore[no-any-return]


def _require_one_per_image(name: str, value: Any, images: Tensor) -> None:
    if not isinstance(value, Tensor) or value.shape != (len(images),):
        raise ValueError(
            f"{name} must have shape [{len(images)}], one value per image, got {_shape(value)}; "
            "use torch.full((N,), value) for the same value everywhere."
        )


def _shape(value: Any) -> str:
    return str(list(value.shape)) if isinstance(value, Tensor) else type(value).__name__


def _sides(size: Any) -> tuple[int, int]:
    sides = (size, size) if isinstance(size, int) else size
    if not isinstance(sides, Sequence) or len(sides) != 2:
        raise TypeError(f"size must be a whole number or (height, width), got {size!r}; pass the side of the views.")
    for side in sides:
        require_count("size", side, advice="pass the side of the views in pixels.")
    return sides[0], sides[1]
