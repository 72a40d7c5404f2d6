"""Colours in registers; formulas and clamps are those of `flatclr.data.views.colour`."""

import triton
import triton.language as tl

from flatclr.data.views.kernels.pixels import within_range

TINY = tl.constexpr(1.1754943508222875e-38)  # the smallest normal float32


@triton.jit
def luminance(red, green, blue, CHANNELS: tl.constexpr):
    if CHANNELS == 1:
        return red
    return 0.299 * red + 0.587 * green + 0.114 * blue


@triton.jit
def _blend(start, end, weight):
    """start + weight (end - start); exactly `end` at weight 1."""
    return tl.where(weight < 0.5, start + weight * (end - start), end - (end - start) * (1 - weight))


@triton.jit
def blended(red, green, blue, gray, factor):
    red, green, blue = _blend(gray, red, factor), _blend(gray, green, factor), _blend(gray, blue, factor)
    return within_range(red), within_range(green), within_range(blue)


@triton.jit
def _turned(hue, opposite, value, chroma):
    """One channel of an HSV colour; `opposite` is the hue where it is lowest."""
    around = hue - opposite
    distance = tl.abs(around - 6 * tl.floor(around / 6 + 0.5))
    return value - within_range(2 - distance) * chroma


@triton.jit
def hue_turned(red, green, blue, shift):
    value = tl.maximum(tl.maximum(red, green), blue)
    low = tl.minimum(tl.minimum(red, green), blue)
    chroma = value - low
    # gray pixels have no hue: 0 / tiny, and chroma 0 takes it out again
    hue = tl.abs(1 + ((green - low) + (blue - red)) / tl.maximum(chroma, TINY))
    hue = tl.where(green < blue, -hue, hue) + 6 * shift
    return _turned(hue, 3.0, value, chroma), _turned(hue, 5.0, value, chroma), _turned(hue, 7.0, value, chroma)
