"""What `fused_views` runs on the device: a program makes one view, a block of its pixels at a time, in registers.

`blur_kernel` follows, once along each axis, where views are blurred; then the operations behind it are left to it.

Formulas, order and clamps are those of `flatclr.data.views`. Nothing is read behind a mask: indices are held within the
image, and a pixel outside it has weight 0.
"""

import triton
import triton.language as tl

TINY = tl.constexpr(1.1754943508222875e-38)  # the smallest normal float32
SHARPEST = tl.constexpr(1e-30)  # exp(-1 / SHARPEST) is 0, and no exponent overflows


@triton.jit
def _within_range(x):
    return tl.clamp(x, 0.0, 1.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _blend(start, end, weight):
    """start + weight (end - start); exactly `end` at weight 1."""
    return tl.where(weight < 0.5, start + weight * (end - start), end - (end - start) * (1 - weight))


@triton.jit
def _luminance(red, green, blue, CHANNELS: tl.constexpr):
    if CHANNELS == 1:
        return red
    return 0.299 * red + 0.587 * green + 0.114 * blue


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
def _read(place, channel_stride, CHANNELS: tl.constexpr):
    """(red, green, blue) at these places; one channel is all three."""
    red = tl.load(place).to(tl.float32)
    if CHANNELS == 1:
        return red, red, red
    return red, tl.load(place + channel_stride).to(tl.float32), tl.load(place + 2 * channel_stride).to(tl.float32)


@triton.jit
def _bright(
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
                    stored_red, stored_green, stored_blue = _read(place, strides[0], CHANNELS)
                    red += weight * stored_red
                    green += weight * stored_green
                    blue += weight * stored_blue
        total = total_x * total_y
        red, green, blue = red / total, green / total, blue / total
    else:
        place = image + y * strides[1] + tl.where(flip, WIDTH - 1 - x, x) * strides[2]
        red, green, blue = _read(place, strides[0], CHANNELS)
    if BYTES:
        red, green, blue = red / 255, green / 255, blue / 255
    if CROP:  # the weights sum to 1 only up to rounding
        red, green, blue = _within_range(red), _within_range(green), _within_range(blue)
    if BRIGHTNESS:
        red, green, blue = red * brightness, green * brightness, blue * brightness
        red, green, blue = _within_range(red), _within_range(green), _within_range(blue)
    return red, green, blue


@triton.jit
def _blended(red, green, blue, gray, factor):
    red, green, blue = _blend(gray, red, factor), _blend(gray, green, factor), _blend(gray, blue, factor)
    return _within_range(red), _within_range(green), _within_range(blue)


@triton.jit
def _turned(hue, opposite, value, chroma):
    """One channel of an HSV colour; `opposite` is the hue where it is lowest."""
    around = hue - opposite
    distance = tl.abs(around - 6 * tl.floor(around / 6 + 0.5))
    return value - _within_range(2 - distance) * chroma


@triton.jit
def _hue_turned(red, green, blue, shift):
    value = tl.maximum(tl.maximum(red, green), blue)
    low = tl.minimum(tl.minimum(red, green), blue)
    chroma = value - low
    # gray pixels have no hue: 0 / tiny, and chroma 0 takes it out again
    hue = tl.abs(1 + ((green - low) + (blue - red)) / tl.maximum(chroma, TINY))
    hue = tl.where(green < blue, -hue, hue) + 6 * shift
    return _turned(hue, 3.0, value, chroma), _turned(hue, 5.0, value, chroma), _turned(hue, 7.0, value, chroma)


@triton.jit
def _finished(x, threshold, mean, std, SOLARIZE: tl.constexpr, NORMALIZE: tl.constexpr):
    if SOLARIZE:
        x = tl.where(x >= threshold, 1 - x, x)
    if NORMALIZE:
        x = (x - mean) / std
    return x


@triton.jit
def _store(
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
            red, green, blue = _bright(
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
            grays += tl.where(pixel < PIXELS, _luminance(red, green, blue, CHANNELS), 0.0)
    mean = tl.sum(grays, 0) / PIXELS

    first = out + view.to(tl.int64) * (CHANNELS * PIXELS)
    for block in range(BLOCKS):
        pixel = block * BLOCK + within
        if BLOCKS > 1:  # larger views do not stay in registers until their mean is known
            red, green, blue = _bright(
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
            red, green, blue = _blended(red, green, blue, mean, contrast)
        if SATURATION:
            red, green, blue = _blended(red, green, blue, _luminance(red, green, blue, CHANNELS), saturation)
        if HUE:
            red, green, blue = _hue_turned(red, green, blue, shift)
        if GRAYSCALE:
            gray = _luminance(red, green, blue, CHANNELS)
            red, green = tl.where(gray_only, gray, red), tl.where(gray_only, gray, green)
            blue = tl.where(gray_only, gray, blue)
        inside = pixel < PIXELS
        _store(
            first + pixel * CHANNELS, inside, red, green, blue, threshold, means, stds, CHANNELS, SOLARIZE, NORMALIZE
        )


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
        near_red, near_green, near_blue = _read(sharp + first + source * CHANNELS, 1, CHANNELS)
        red += weight * near_red
        green += weight * near_green
        blue += weight * near_blue
    red, green, blue = _within_range(red / total), _within_range(green / total), _within_range(blue / total)
    place, inside = out + first + pixel * CHANNELS, pixel < PIXELS
    _store(place, inside, red, green, blue, threshold, means, stds, CHANNELS, SOLARIZE, NORMALIZE)
