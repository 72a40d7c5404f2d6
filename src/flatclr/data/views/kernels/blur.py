"""Blur along one axis; launched once along each, it finishes the views that `views_kernel` leaves to it."""

import triton
import triton.language as tl

from flatclr.data.views.kernels.pixels import read, store, within_range

SHARPEST = tl.constexpr(1e-30)  # exp(-1 / SHARPEST) is 0, and no exponent overflows


@triton.jit
def _mirrored(position, SIZE: tl.constexpr):
    """Beyond the edge pixel back again."""
    return (SIZE - 1) - tl.abs((SIZE - 1) - tl.abs(position))


@triton.jit
def blur_kernel(
    sharp,
    values,
    out,
    threshold,
    means,
    stds,
    ALONG_ROWS: tl.constexpr,
    SOLARIZE: tl.constexpr,
    NORMALIZE: tl.constexpr,
    CHANNELS: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    RADIUS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A Gaussian of each view's own sigma along one axis; 0 leaves it alone."""
    PIXELS: tl.constexpr = HEIGHT * WIDTH
    view = tl.program_id(0)
    row = values + view * COLUMNS
    sigma = tl.load(row + 10)
    width = tl.maximum(2 * sigma * sigma, SHARPEST)
    threshold = tl.where(tl.load(row + 11) != 0, threshold, float("inf"))
    first = view.to(tl.int64) * (CHANNELS * PIXELS)
    pixel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    held = tl.minimum(pixel, PIXELS - 1)
    y, x = held // WIDTH, held % WIDTH
    red = tl.zeros([BLOCK], tl.float32)
    green, blue, total = red, red, 0.0
    for tap in range(-RADIUS, RADIUS + 1):
        weight = tl.exp(tap * tap / -width)
        total += weight
        source = y * WIDTH + _mirrored(x + tap, WIDTH) if ALONG_ROWS else _mirrored(y + tap, HEIGHT) * WIDTH + x
        near_red, near_green, near_blue = read(sharp + first + source * CHANNELS, 1, CHANNELS)
        red += weight * near_red
        green += weight * near_green
        blue += weight * near_blue
    red, green, blue = within_range(red / total), within_range(green / total), within_range(blue / total)
    place, inside = out + first + pixel * CHANNELS, pixel < PIXELS
    store(place, inside, red, green, blue, threshold, means, stds, CHANNELS, SOLARIZE, NORMALIZE)
