"""A resized crop in registers; formulas are those of `flatclr.data.views.geometry`.

Nothing is read behind a mask: indices are held within the image, and a pixel outside it has weight 0.
"""

import triton
import triton.language as tl

from flatclr.data.views.kernels.pixels import read, within_range


@triton.jit
def _samples(start, length, backwards, position, SIZE: tl.constexpr):
    """(centre, support, first tap) of output positions along one axis of a box."""
    step = length / SIZE
    support = tl.maximum(step, 1.0)
    # whole and half steps from the middle are exact, so that a box of the whole image gives back the image
    centre = start + length / 2 + tl.where(backwards, -step, step) * (position.to(tl.float32) - (SIZE - 1) / 2)
    return centre, support, tl.floor(centre - support - 0.5).to(tl.int32) + 1


@triton.jit
def _triangle(centre, support, pixel, PIXELS: tl.constexpr):
    """Weight of a stored pixel, not yet normalised."""
    weight = tl.maximum(1 - tl.abs(centre - (pixel.to(tl.float32) + 0.5)) / support, 0.0)
    return tl.where((pixel >= 0) & (pixel < PIXELS), weight, 0.0)


@triton.jit
def _held(pixel, PIXELS: tl.constexpr):
    return tl.minimum(tl.maximum(pixel, 0), PIXELS - 1)


@triton.jit
def bright(
    image,
    strides,
    box,
    flip,
    brightness,
    pixel,
    BYTES: tl.constexpr,
    CROP: tl.constexpr,
    BRIGHTNESS: tl.constexpr,
    CHANNELS: tl.constexpr,
    STORED_HEIGHT: tl.constexpr,
    STORED_WIDTH: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    ROW_PAIRS: tl.constexpr,
    COLUMN_TAPS: tl.constexpr,
):
    """(red, green, blue) of the view's pixels up to brightness: all that comes before its mean."""
    pixel = tl.minimum(pixel, HEIGHT * WIDTH - 1)
    y, x = pixel // WIDTH, pixel % WIDTH
    if CROP:
        centre_y, support_y, first_row = _samples(box[0], box[2], False, y, HEIGHT)
        centre_x, support_x, first_column = _samples(box[1], box[3], flip, x, WIDTH)
        total_x = tl.zeros_like(centre_x)
        for tap in tl.static_range(COLUMN_TAPS):
            total_x += _triangle(centre_x, support_x, first_column + tap, STORED_WIDTH)
        red = tl.zeros_like(centre_y)
        green, blue, total_y = red, red, red
        # an enlarged crop has two rows of taps and no loop here, so that all its loads are under way together
        for pair in range(ROW_PAIRS):
            for half in tl.static_range(2):
                row = first_row + 2 * pair + half
                weight_y = _triangle(centre_y, support_y, row, STORED_HEIGHT)
                total_y += weight_y
                for tap in tl.static_range(COLUMN_TAPS):
                    column = first_column + tap
                    weight = weight_y * _triangle(centre_x, support_x, column, STORED_WIDTH)
                    place = image + _held(row, STORED_HEIGHT) * strides[1] + _held(column, STORED_WIDTH) * strides[2]
                    stored_red, stored_green, stored_blue = read(place, strides[0], CHANNELS)
                    red += weight * stored_red
                    green += weight * stored_green
                    blue += weight * stored_blue
        total = total_x * total_y
        red, green, blue = red / total, green / total, blue / total
    else:
        place = image + y * strides[1] + tl.where(flip, WIDTH - 1 - x, x) * strides[2]
        red, green, blue = read(place, strides[0], CHANNELS)
    if BYTES:
        red, green, blue = red / 255, green / 255, blue / 255
    if CROP:  # the weights sum to 1 only up to rounding
        red, green, blue = within_range(red), within_range(green), within_range(blue)
    if BRIGHTNESS:
        red, green, blue = red * brightness, green * brightness, blue * brightness
        red, green, blue = within_range(red), within_range(green), within_range(blue)
    return red, green, blue
