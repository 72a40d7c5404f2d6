"""Batch normalisation of rows [M, C] with what follows it: a shortcut is added, negative values become 0.

Two passes over the values each way. The first leaves sums of parts of the rows, the second reads them. Where parts are
few, every program of the second pass adds them up for itself (FOLDED), and the first program keeps the result; else a
kernel in between does. Squares are of deviations from the mean of a part's first rows, and parts are put together by
their means, so that a large mean costs no precision. There is no atomic operation, so that results repeat bit by bit.

Shape suffixes: M rows (images times pixels), C channels, P parts.
"""

import triton
import triton.language as tl


@triton.jit
def _columns(BLOCK_C: tl.constexpr):
    return tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)


@triton.jit
def _of_tile(start, sub, end, cols, C, SUB: tl.constexpr):
    """Where the values of a tile are, and which of them are there."""
    rows = start + sub * SUB + tl.arange(0, SUB)
    places = rows.to(tl.int64)[:, None] * C + cols[None, :]
    return places, (rows < end)[:, None] & (cols < C)[None, :]


@triton.jit
def _keep(sums, total, other, cols, C):
    """The two sums of this part."""
    place = sums + tl.program_id(0) * 2 * C + cols
    tl.store(place, total, mask=cols < C)
    tl.store(place + C, other, mask=cols < C)


@triton.jit
def _added(sums, parts, cols, C, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr):
    """Both sums of all parts."""
    total = tl.zeros([BLOCK_P, BLOCK_C], tl.float32)
    other = tl.zeros([BLOCK_P, BLOCK_C], tl.float32)
    for start in range(0, parts, BLOCK_P):
        part = start + tl.arange(0, BLOCK_P)
        places = sums + part[:, None] * 2 * C + cols[None, :]
        inside = (part < parts)[:, None] & (cols < C)[None, :]
        total += tl.load(places, mask=inside, other=0.0)
        other += tl.load(places + C, mask=inside, other=0.0)
    return tl.sum(total, 0), tl.sum(other, 0)


@triton.jit
def _of_parts(sums, start, rows_each, M, cols, C, BLOCK_P: tl.constexpr):
    """How many rows some parts have, their means, and the sums of squares of their deviations from these."""
    part = start + tl.arange(0, BLOCK_P)
    rows = tl.minimum(tl.maximum(M - part * rows_each, 0), rows_each).to(tl.float32)
    places = sums + part[:, None] * 2 * C + cols[None, :]
    inside = (rows > 0)[:, None] & (cols < C)[None, :]
    return rows[:, None], tl.load(places, mask=inside, other=0.0), tl.load(places + C, mask=inside, other=0.0)


@triton.jit
def _statistics(
    sums, kept, running_mean, running_variance, parts, rows_each, M, momentum, eps, cols, C,
    TRACKED: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Mean and 1 / standard deviation of all rows, biased; the first program keeps them and moves the running ones."""
    inside = cols < C
    count = M.to(tl.float32)
    total = tl.zeros([BLOCK_P, BLOCK_C], tl.float32)
    for start in range(0, parts, BLOCK_P):
        rows, means, squares = _of_parts(sums, start, rows_each, M, cols, C, BLOCK_P)
        total += means * (rows / count)
    mean = tl.sum(total, 0)
    total = tl.zeros([BLOCK_P, BLOCK_C], tl.float32)
    for start in range(0, parts, BLOCK_P):
        rows, means, squares = _of_parts(sums, start, rows_each, M, cols, C, BLOCK_P)
        off = means - mean[None, :]
        total += squares + rows * off * off
    variance = tl.sum(total, 0) / count
    rstd = 1.0 / tl.sqrt(variance + eps)
    if tl.program_id(0) == 0:
        tl.store(kept + cols, mean, mask=inside)
        tl.store(kept + C + cols, rstd, mask=inside)
        if TRACKED:
            old = tl.load(running_mean + cols, mask=inside, other=0.0)
            tl.store(running_mean + cols, old + momentum * (mean - old), mask=inside)
            old = tl.load(running_variance + cols, mask=inside, other=0.0)
            unbiased = variance * (count / (count - 1.0))
            tl.store(running_variance + cols, old + momentum * (unbiased - old), mask=inside)
    return mean, rstd


@triton.jit
def _gradients(sums, gradients, parts, rstd, cols, C, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr):
    """Of the weight and of the bias; the first program keeps them."""
    of_bias, against = _added(sums, parts, cols, C, BLOCK_P, BLOCK_C)
    of_weight = against * rstd
    if tl.program_id(0) == 0:
        tl.store(gradients + cols, of_weight, mask=cols < C)
        tl.store(gradients + C + cols, of_bias, mask=cols < C)
    return of_weight, of_bias


@triton.jit
def sums_kernel(x, sums, M, C, rows_each, UNROLL: tl.constexpr, SUB: tl.constexpr, BLOCK_C: tl.constexpr):
    """Of each part, the mean of its values and the sum of squares of their deviations from it."""
    cols = _columns(BLOCK_C)
    begin = tl.program_id(0) * rows_each
    end = tl.minimum(begin + rows_each, M)
    places, inside = _of_tile(begin, 0, end, cols, C, SUB)
    first = tl.sum(tl.load(x + places, mask=inside, other=0.0).to(tl.float32), 0)
    first = first / tl.minimum(end - begin, SUB).to(tl.float32)
    total = tl.zeros([SUB, BLOCK_C], tl.float32)
    squares = tl.zeros([SUB, BLOCK_C], tl.float32)
    for start in range(begin, end, UNROLL * SUB):
        for sub in tl.static_range(UNROLL):  # loads of all of them are on their way before the first is needed
            places, inside = _of_tile(start, sub, end, cols, C, SUB)
            value = tl.load(x + places, mask=inside, other=0.0).to(tl.float32)
            value = tl.where(inside, value - first[None, :], 0.0)
            total += value
            squares += value * value
    off = tl.sum(total, 0) / (end - begin).to(tl.float32)
    around = tl.sum(squares, 0) - (end - begin).to(tl.float32) * off * off
    _keep(sums, first + off, tl.where(around < 0, 0.0, around), cols, C)


@triton.jit
def statistics_kernel(
    sums, kept, running_mean, running_variance, parts, rows_each, M, momentum, eps, C,
    TRACKED: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    _statistics(
        sums, kept, running_mean, running_variance, parts, rows_each, M, momentum, eps, _columns(BLOCK_C), C,
        TRACKED, BLOCK_P, BLOCK_C,
    )  # fmt: skip


@triton.jit
def apply_kernel(
    x,
    shortcut,
    out,
    weight,
    bias,
    sums,
    kept,
    running_mean,
    running_variance,
    parts,
    momentum,
    eps,
    M,
    C,
    rows_each,
    FOLDED: tl.constexpr,
    TRACKED: tl.constexpr,
    SHORTCUT: tl.constexpr,
    RELU: tl.constexpr,
    UNROLL: tl.constexpr,
    SUB: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """out = relu((x - mean) rstd weight + bias + shortcut)"""
    cols = _columns(BLOCK_C)
    inside_C = cols < C
    if FOLDED:
        mean, rstd = _statistics(
            sums, kept, running_mean, running_variance, parts, rows_each, M, momentum, eps, cols, C,
            TRACKED, BLOCK_P, BLOCK_C,
        )  # fmt: skip
    else:
        mean = tl.load(kept + cols, mask=inside_C, other=0.0)
        rstd = tl.load(kept + C + cols, mask=inside_C, other=0.0)
    scale = tl.load(weight + cols, mask=inside_C, other=0.0) * rstd
    offset = tl.load(bias + cols, mask=inside_C, other=0.0)
    begin = tl.program_id(0) * rows_each
    end = tl.minimum(begin + rows_each, M)
    for start in range(begin, end, UNROLL * SUB):
        for sub in tl.static_range(UNROLL):
            places, inside = _of_tile(start, sub, end, cols, C, SUB)
            value = tl.load(x + places, mask=inside, other=0.0).to(tl.float32)
            value = (value - mean[None, :]) * scale[None, :] + offset[None, :]
            if SHORTCUT:
                value += tl.load(shortcut + places, mask=inside, other=0.0).to(tl.float32)
            if RELU:
                value = tl.where(value > 0, value, tl.where(value == value, 0.0, value))  # NaN stays visible
            tl.store(out + places, value.to(out.dtype.element_ty), mask=inside)


@triton.jit
def gradient_sums_kernel(
    gradient,
    x,
    out,
    of_shortcut,
    weight,
    bias,
    kept,
    sums,
    M,
    C,
    rows_each,
    SHORTCUT: tl.constexpr,
    RELU: tl.constexpr,
    UNROLL: tl.constexpr,
    SUB: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Of each part, the sum of the gradient and of its product with x - mean; that of the shortcut is written."""
    cols = _columns(BLOCK_C)
    inside_C = cols < C
    mean = tl.load(kept + cols, mask=inside_C, other=0.0)
    scale = tl.load(weight + cols, mask=inside_C, other=0.0) * tl.load(kept + C + cols, mask=inside_C, other=0.0)
    offset = tl.load(bias + cols, mask=inside_C, other=0.0)
    total = tl.zeros([SUB, BLOCK_C], tl.float32)
    against = tl.zeros([SUB, BLOCK_C], tl.float32)
    begin = tl.program_id(0) * rows_each
    end = tl.minimum(begin + rows_each, M)
    for start in range(begin, end, UNROLL * SUB):
        for sub in tl.static_range(UNROLL):
            places, inside = _of_tile(start, sub, end, cols, C, SUB)
            back = tl.load(gradient + places, mask=inside, other=0.0)
            centred = tl.load(x + places, mask=inside, other=0.0).to(tl.float32) - mean[None, :]
            if RELU and SHORTCUT:
                back = tl.where(tl.load(out + places, mask=inside, other=0.0) > 0, back, 0.0)
                tl.store(of_shortcut + places, back, mask=inside)
            elif RELU:
                back = tl.where(centred * scale[None, :] + offset[None, :] > 0, back, 0.0)
            back = tl.where(inside, back.to(tl.float32), 0.0)
            total += back
            against += back * tl.where(inside, centred, 0.0)
    _keep(sums, tl.sum(total, 0), tl.sum(against, 0), cols, C)


@triton.jit
def gradient_statistics_kernel(sums, kept, gradients, parts, C, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr):
    cols = _columns(BLOCK_C)
    rstd = tl.load(kept + C + cols, mask=cols < C, other=0.0)
    _gradients(sums, gradients, parts, rstd, cols, C, BLOCK_P, BLOCK_C)


@triton.jit
def gradient_apply_kernel(
    gradient,
    x,
    of_x,
    weight,
    bias,
    kept,
    sums,
    gradients,
    count,
    parts,
    M,
    C,
    rows_each,
    FOLDED: tl.constexpr,
    MASKED: tl.constexpr,
    UNROLL: tl.constexpr,
    SUB: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """of_x = weight rstd (g - mean of g - (x - mean) rstd mean of g (x - mean) rstd), g the gradient before ReLU."""
    cols = _columns(BLOCK_C)
    inside_C = cols < C
    mean = tl.load(kept + cols, mask=inside_C, other=0.0)
    rstd = tl.load(kept + C + cols, mask=inside_C, other=0.0)
    if FOLDED:
        of_weight, of_bias = _gradients(sums, gradients, parts, rstd, cols, C, BLOCK_P, BLOCK_C)
    else:
        of_weight = tl.load(gradients + cols, mask=inside_C, other=0.0)
        of_bias = tl.load(gradients + C + cols, mask=inside_C, other=0.0)
    scale = tl.load(weight + cols, mask=inside_C, other=0.0) * rstd
    offset = tl.load(bias + cols, mask=inside_C, other=0.0)
    level = of_bias / count
    slope = of_weight * rstd / count
    begin = tl.program_id(0) * rows_each
    end = tl.minimum(begin + rows_each, M)
    for start in range(begin, end, UNROLL * SUB):
        for sub in tl.static_range(UNROLL):
            places, inside = _of_tile(start, sub, end, cols, C, SUB)
            back = tl.load(gradient + places, mask=inside, other=0.0).to(tl.float32)
            centred = tl.load(x + places, mask=inside, other=0.0).to(tl.float32) - mean[None, :]
            if MASKED:
                back = tl.where(centred * scale[None, :] + offset[None, :] > 0, back, 0.0)
            back = scale[None, :] * (back - level[None, :] - centred * slope[None, :])
            tl.store(of_x + places, back.to(of_x.dtype.element_ty), mask=inside)
