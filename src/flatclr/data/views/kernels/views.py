"""A program makes one view, a block of its pixels at a time, in registers."""

import triton
import triton.language as tl

from flatclr.data.views.kernels.colour import blended, hue_turned, luminance
from flatclr.data.views.kernels.crop import bright
from flatclr.data.views.kernels.pixels import store


@triton.jit
def views_kernel(
    images,
    index,
    values,
    out,
    samples,
    image_stride,
    strides,
    threshold,
    means,
    stds,
    GATHER: tl.constexpr,
    BYTES: tl.constexpr,
    CROP: tl.constexpr,
    FLIP: tl.constexpr,
    BRIGHTNESS: tl.constexpr,
    CONTRAST: tl.constexpr,
    SATURATION: tl.constexpr,
    HUE: tl.constexpr,
    GRAYSCALE: tl.constexpr,
    SOLARIZE: tl.constexpr,
    NORMALIZE: tl.constexpr,
    CHANNELS: tl.constexpr,
    STORED_HEIGHT: tl.constexpr,
    STORED_WIDTH: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    ROW_PAIRS: tl.constexpr,
    COLUMN_TAPS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCKS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """View v shows image index[v % samples] as row v of `values` says."""
    PIXELS: tl.constexpr = HEIGHT * WIDTH
    view = tl.program_id(0)
    source = view % samples
    if GATHER:
        source = tl.load(index + source)
    image = images + source.to(tl.int64) * image_stride
    row = values + view * COLUMNS
    box = (tl.load(row), tl.load(row + 1), tl.load(row + 2), tl.load(row + 3))
    flip = (tl.load(row + 4) != 0) & FLIP
    brightness, contrast, saturation = tl.load(row + 5), tl.load(row + 6), tl.load(row + 7)
    shift, gray_only = tl.load(row + 8), tl.load(row + 9) != 0
    threshold = tl.where(tl.load(row + 11) != 0, threshold, float("inf"))

    within = tl.arange(0, BLOCK)
    red = tl.zeros([BLOCK], tl.float32)
    green, blue, grays = red, red, red
    if CONTRAST or BLOCKS == 1:
        for block in range(BLOCKS):
            pixel = block * BLOCK + within
            red, green, blue = bright(
                image,
                strides,
                box,
                flip,
                brightness,
                pixel,
                BYTES,
                CROP,
                BRIGHTNESS,
                CHANNELS,
                STORED_HEIGHT,
                STORED_WIDTH,
                HEIGHT,
                WIDTH,
                ROW_PAIRS,
                COLUMN_TAPS,
            )
            grays += tl.where(pixel < PIXELS, luminance(red, green, blue, CHANNELS), 0.0)
    mean = tl.sum(grays, 0) / PIXELS

    first = out + view.to(tl.int64) * (CHANNELS * PIXELS)
    for block in range(BLOCKS):
        pixel = block * BLOCK + within
        if BLOCKS > 1:  # larger views do not stay in registers until their mean is known
            red, green, blue = bright(
                image,
                strides,
                box,
                flip,
                brightness,
                pixel,
                BYTES,
                CROP,
                BRIGHTNESS,
                CHANNELS,
                STORED_HEIGHT,
                STORED_WIDTH,
                HEIGHT,
                WIDTH,
                ROW_PAIRS,
                COLUMN_TAPS,
            )
        if CONTRAST:
            red, green, blue = blended(red, green, blue, mean, contrast)
        if SATURATION:
            red, green, blue = blended(red, green, blue, luminance(red, green, blue, CHANNELS), saturation)
        if HUE:
            red, green, blue = hue_turned(red, green, blue, shift)
        if GRAYSCALE:
            gray = luminance(red, green, blue, CHANNELS)
            red, green = tl.where(gray_only, gray, red), tl.where(gray_only, gray, green)
            blue = tl.where(gray_only, gray, blue)
        inside = pixel < PIXELS
        store(first + pixel * CHANNELS, inside, red, green, blue, threshold, means, stds, CHANNELS, SOLARIZE, NORMALIZE)
