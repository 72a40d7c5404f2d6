"""Pixels read, held in range, finished and stored."""

import triton
import triton.language as tl


@triton.jit
def within_range(x):
    return tl.clamp(x, 0.0, 1.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def read(place, channel_stride, CHANNELS: tl.constexpr):
    """(red, green, blue) at these places; one channel is all three."""
    red = tl.load(place).to(tl.float32)
    if CHANNELS == 1:
        return red, red, red
    return red, tl.load(place + channel_stride).to(tl.float32), tl.load(place + 2 * channel_stride).to(tl.float32)


@triton.jit
def _finished(x, threshold, mean, std, SOLARIZE: tl.constexpr, NORMALIZE: tl.constexpr):
    if SOLARIZE:
        x = tl.where(x >= threshold, 1 - x, x)
    if NORMALIZE:
        x = (x - mean) / std
    return x


@triton.jit
def store(
    place,
    inside,
    red,
    green,
    blue,
    threshold,
    means,
    stds,
    CHANNELS: tl.constexpr,
    SOLARIZE: tl.constexpr,
    NORMALIZE: tl.constexpr,
):
    """The last operations; channels lie side by side."""
    red = _finished(red, threshold, means[0], stds[0], SOLARIZE, NORMALIZE)
    tl.store(place, red.to(place.dtype.element_ty), mask=inside)
    if CHANNELS == 3:
        green = _finished(green, threshold, means[1], stds[1], SOLARIZE, NORMALIZE)
        blue = _finished(blue, threshold, means[2], stds[2], SOLARIZE, NORMALIZE)
        tl.store(place + 1, green.to(place.dtype.element_ty), mask=inside)
        tl.store(place + 2, blue.to(place.dtype.element_ty), mask=inside)
