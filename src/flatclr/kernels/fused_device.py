"""What `fused_triton` runs on the device: one tile of scores at a time, in registers.

Embeddings arrive padded (`fused_triton.operand`), so tiles are read without masks. Scores are in units of log 2, where
exp2 is one instruction. LogSumExp goes one of two ways:

    fixed    exp(s - b) with one b for all pairs: cosines are bounded. One exponential serves both ends of a pair.
    online   a running maximum per row, for scores without bound and for temperatures too small for `fixed`

Where the scale lives on the device both are launched, and the one whose turn it is not returns at once: nothing waits.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
LOWEST = tl.constexpr(-3.0e38)  # not -inf: differences of peaks must stay numbers

# b = |scale| - HEADROOM: a square of exp(s - b) is at most 2^104, and 2^20 of them do not overflow. Nor, up to this
# scale, does the square of a row's largest term underflow: (-2 * 32 * log2(e) + 52) * 2 > -126 + 24.
HEADROOM_LOG2 = tl.constexpr(52.0)
LARGEST_FIXED_SCALE = tl.constexpr(32.0)


@triton.jit
def _scalar(x, IS_TENSOR: tl.constexpr):
    if IS_TENSOR:
        return tl.load(x).to(tl.float32)
    else:
        return tl.full((), x, tl.float32)


@triton.jit
def _other_way(scale, WAY: tl.constexpr):
    """Whether the scale asks for the other way of LogSumExp; a NaN goes online."""
    bounded = tl.abs(scale) <= LARGEST_FIXED_SCALE
    if WAY == "fixed":
        return bounded == 0
    else:
        return bounded


@triton.jit
def _fixed_shift(scale):
    """b in units of log 2."""
    return tl.abs(scale) * LOG2E - HEADROOM_LOG2


@triton.jit
def _load_tile(base, first_row, first_feature, STRIDE: tl.constexpr, ROWS: tl.constexpr, FEATURES: tl.constexpr):
    within = tl.arange(0, ROWS)[:, None] * STRIDE + (first_feature + tl.arange(0, FEATURES))[None, :]
    return tl.load(base + tl.cast(first_row, tl.int64) * STRIDE + within)


@triton.jit
def _dot_products(
    row_tile,
    column_tile,
    rows_ptr,
    columns_ptr,
    row0,
    column0,
    CHUNKS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """[BLOCK_M, BLOCK_N] in float32; the tiles given hold the first BLOCK_D features, the other chunks are read here."""
    products = tl.dot(row_tile, tl.trans(column_tile), input_precision=PRECISION)
    if CHUNKS > 1:
        for chunk in range(1, CHUNKS):
            more_rows = _load_tile(rows_ptr, row0, chunk * BLOCK_D, CHUNKS * BLOCK_D, BLOCK_M, BLOCK_D)
            more_columns = _load_tile(columns_ptr, column0, chunk * BLOCK_D, CHUNKS * BLOCK_D, BLOCK_N, BLOCK_D)
            products = tl.dot(more_rows, tl.trans(more_columns), products, input_precision=PRECISION)
    return products


@triton.jit
def _crosses(distance, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    return (distance > -BLOCK_M) & (distance < BLOCK_N)


@triton.jit
def _has_excluded(row0, column0, offsets, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Whether an excluded diagonal may cross the tile."""
    distance = row0 - column0
    return (
        _crosses(distance + offsets[1], BLOCK_M, BLOCK_N)
        | _crosses(distance + offsets[2], BLOCK_M, BLOCK_N)
        | _crosses(distance + offsets[3], BLOCK_M, BLOCK_N)
        | _crosses(distance + offsets[4], BLOCK_M, BLOCK_N)
    )


@triton.jit
def _negatives(row0, column0, row_count, column_count, offsets, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Which entries of a tile are inside the block and pair different samples."""
    rows = row0 + tl.arange(0, BLOCK_M)
    columns = column0 + tl.arange(0, BLOCK_N)
    early = rows < offsets[0]
    one = rows + tl.where(early, offsets[1], offsets[3])
    two = rows + tl.where(early, offsets[2], offsets[4])
    excluded = (columns[None, :] == one[:, None]) | (columns[None, :] == two[:, None])
    return (rows < row_count)[:, None] & (columns < column_count)[None, :] & (excluded == 0)


@triton.jit
def _power(base, exponent):
    return tl.exp2(exponent * tl.log2(base))


@triton.jit
def _phi(s, first, second, PHI: tl.constexpr):
    """(phi(s), phi'(s)); the formulas are those of objectives/f_divergence.py and objectives/rpc.py."""
    if PHI == "rpc":
        value = s * (first + 0.5 * second * s)
        slope = first + second * s
    elif PHI == "kl_gaussian":
        value = tl.exp(s + first)
        slope = value
    elif PHI == "js_gaussian":
        v = s + first
        value = tl.maximum(v, 0.0) + tl.log(1 + tl.exp(-tl.abs(v))) - LN2
        slope = tl.sigmoid(v)
    elif PHI == "pearson_gaussian":
        square = tl.exp(2 * (s + first))
        value = square - 1
        slope = 2 * square
    elif PHI == "hellinger_gaussian":
        root = tl.exp(0.5 * (s + first))
        value = root - 1
        slope = 0.5 * root
    elif PHI == "vlc_gaussian":
        rest = tl.sigmoid(-(s + first))
        value = 3 - 8 * rest + 4 * rest * rest
        slope = 8 * rest * (1 - rest) * (1 - rest)
    elif PHI == "tsallis_gaussian":
        power = tl.exp(second * (s + first))
        value = power + 1 / (second - 1)
        slope = second * power
    elif PHI == "kl_cosine":
        value = tl.exp(s - 1)
        slope = value
    elif PHI == "js_cosine":
        e = tl.exp(0.5 * s)
        value = -tl.log(2 - e)
        slope = 0.5 * e / (2 - e)
    elif PHI == "pearson_cosine":
        value = tl.where(s >= -2, s * (0.25 * s + 1), -1.0)
        slope = tl.maximum(1 + 0.5 * s, 0.0)
    elif PHI == "hellinger_cosine":
        rest = 1 / (1 - 0.5 * s)
        value = 0.5 * s * rest
        slope = 0.5 * rest * rest
    elif PHI == "vlc_cosine":
        t = 0.5 * s
        root = tl.sqrt(1 - t)
        value = tl.where(t >= -3, 4 - t - 4 * root, -1.0)
        slope = tl.where(t >= -3, 1 / root - 0.5, 0.0)
    else:
        tl.static_assert(PHI == "tsallis_cosine", "this phi has no device code")
        rest = 1 / (first - 1)
        base = (s + tl.where(first > 1, 1.0, -2.0)) / (first * rest)
        base = tl.where(first > 1, tl.maximum(base, 0.0), base)
        value = _power(base, first * rest) + rest
        slope = _power(base, rest)
    return value, slope


@triton.jit(do_not_specialize=["row_slots", "column_slots", "first_column_slot", "tiles_per_program"])
def sums_kernel(
    rows_ptr,
    columns_ptr,
    scale,
    first,
    second,
    row_sums_ptr,
    column_sums_ptr,
    row_count,
    column_count,
    offsets,
    row_slots,
    column_slots,
    first_column_slot,
    tiles_per_program,
    SCALE_IS_TENSOR: tl.constexpr,
    FIRST_IS_TENSOR: tl.constexpr,
    SECOND_IS_TENSOR: tl.constexpr,
    WAY: tl.constexpr,
    CHOOSE: tl.constexpr,
    PHI: tl.constexpr,
    WITH_MOMENT: tl.constexpr,
    COLUMN_SUMS: tl.constexpr,
    SYMMETRIC: tl.constexpr,
    CHUNKS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Partial sums over a strip of tiles: [quantity, slot, anchor], each slot written by one program only.

    Quantities: total, squares (not of a phi), moment, and online the peak. The sums of a row tile's columns go to the
    slot `first_column_slot` + that tile; a symmetric block visits the tiles from its axis on.
    """
    scale = _scalar(scale, SCALE_IS_TENSOR)
    first = _scalar(first, FIRST_IS_TENSOR)
    second = _scalar(second, SECOND_IS_TENSOR)
    if CHOOSE:
        if _other_way(scale, WAY):
            return
    scale_log2 = scale * LOG2E
    shift = _fixed_shift(scale)
    tile = tl.program_id(0)
    part = tl.program_id(1)
    row0 = tile * BLOCK_M
    row_tile = _load_tile(rows_ptr, row0, 0, CHUNKS * BLOCK_D, BLOCK_M, BLOCK_D)
    total = tl.zeros([BLOCK_M], tl.float32)
    squares = tl.zeros([BLOCK_M], tl.float32)
    moment = tl.zeros([BLOCK_M], tl.float32)
    peak = tl.full([BLOCK_M], LOWEST, tl.float32)
    start = part * tiles_per_program
    stop = tl.minimum(start + tiles_per_program, tl.cdiv(column_count, BLOCK_N))
    first_mirrored = 0
    if SYMMETRIC:
        start = tl.maximum(start, tile * (BLOCK_M // BLOCK_N))
        # on the axis a tile holds both triangles, and its rows have seen everything
        first_mirrored = row0 + BLOCK_M
    for c in range(start, stop):
        column0 = c * BLOCK_N
        column_tile = _load_tile(columns_ptr, column0, 0, CHUNKS * BLOCK_D, BLOCK_N, BLOCK_D)
        products = _dot_products(
            row_tile,
            column_tile,
            rows_ptr,
            columns_ptr,
            row0,
            column0,
            CHUNKS,
            BLOCK_M,
            BLOCK_N,
            BLOCK_D,
            PRECISION,
        )
        partly = (
            (row0 + BLOCK_M > row_count)
            | (column0 + BLOCK_N > column_count)
            | _has_excluded(row0, column0, offsets, BLOCK_M, BLOCK_N)
        )
        if WAY == "phi":
            scores = products * scale
            terms, slopes = _phi(scores, first, second, PHI)
            slopes = slopes * scores
            if partly:
                counts = _negatives(row0, column0, row_count, column_count, offsets, BLOCK_M, BLOCK_N)
                terms = tl.where(counts, terms, 0.0)
                slopes = tl.where(counts, slopes, 0.0)
        elif WAY == "fixed":
            terms = tl.exp2(products * scale_log2 - shift)
            if partly:
                counts = _negatives(row0, column0, row_count, column_count, offsets, BLOCK_M, BLOCK_N)
                terms = tl.where(counts, terms, 0.0)
            slopes = products * scale * terms
        else:
            exponents = products * scale_log2
            if partly:
                counts = _negatives(row0, column0, row_count, column_count, offsets, BLOCK_M, BLOCK_N)
                exponents = tl.where(counts, exponents, float("-inf"))
            higher = tl.maximum(peak, tl.max(exponents, 1))
            decay = tl.exp2(peak - higher)
            peak = higher
            terms = tl.exp2(exponents - peak[:, None])
            slopes = products * scale * terms
            total *= decay
            squares *= decay * decay
            moment *= decay
        total += tl.sum(terms, 1)
        if WAY != "phi":
            squares += tl.sum(terms * terms, 1)
        if WITH_MOMENT:
            moment += tl.sum(slopes, 1)
        if COLUMN_SUMS:
            if column0 >= first_mirrored:
                columns = column0 + tl.arange(0, BLOCK_N)
                inside = columns < column_count
                slot = tl.cast(first_column_slot + tile, tl.int64)
                quantity = tl.cast(column_slots, tl.int64) * column_count
                at = column_sums_ptr + slot * column_count + columns
                tl.store(at, tl.sum(terms, 0), mask=inside)
                if WAY != "phi":
                    tl.store(at + quantity, tl.sum(terms * terms, 0), mask=inside)
                    if WITH_MOMENT:
                        tl.store(at + 2 * quantity, tl.sum(slopes, 0), mask=inside)
                elif WITH_MOMENT:
                    tl.store(at + quantity, tl.sum(slopes, 0), mask=inside)
    rows = row0 + tl.arange(0, BLOCK_M)
    inside = rows < row_count
    quantity = tl.cast(row_slots, tl.int64) * row_count
    at = row_sums_ptr + tl.cast(part, tl.int64) * row_count + rows
    tl.store(at, total, mask=inside)
    if WAY == "phi":
        if WITH_MOMENT:
            tl.store(at + quantity, moment, mask=inside)
    else:
        tl.store(at + quantity, squares, mask=inside)
        if WITH_MOMENT:
            tl.store(at + 2 * quantity, moment, mask=inside)
        if WAY == "online":
            tl.store(at + 3 * quantity, peak, mask=inside)


@triton.jit
def _sum_of_slots(at, slots, anchors, anchor0, quantity, SLOTS: tl.constexpr, ANCHORS: tl.constexpr):
    """Sum over the slots of one quantity, in a fixed order."""
    columns = anchor0 + tl.arange(0, ANCHORS)
    total = tl.zeros([ANCHORS], tl.float32)
    for slot0 in range(0, slots, SLOTS):
        rows = slot0 + tl.arange(0, SLOTS)
        inside = (rows < slots)[:, None] & (columns < anchors)[None, :]
        where = (quantity + rows).to(tl.int64)[:, None] * anchors + columns[None, :]
        total += tl.sum(tl.load(at + where, mask=inside, other=0.0), 0)
    return total


@triton.jit(do_not_specialize=["slots", "slot_stride"])
def merge_kernel(
    partial_ptr,
    total_ptr,
    squares_ptr,
    moment_ptr,
    peak_ptr,
    scale,
    anchors,
    slots,
    slot_stride,
    SCALE_IS_TENSOR: tl.constexpr,
    WAY: tl.constexpr,
    CHOOSE: tl.constexpr,
    WITH_MOMENT: tl.constexpr,
    TRIANGLE: tl.constexpr,
    SLOTS: tl.constexpr,
    ANCHORS: tl.constexpr,
):
    """Add the partial sums of `sums_kernel` to the running sums, slot after slot.

    With TRIANGLE = BLOCK_M of a symmetric block, an anchor also has the column slots of the tiles above its own.
    """
    scale = _scalar(scale, SCALE_IS_TENSOR)
    if CHOOSE:
        if _other_way(scale, WAY):
            return
    anchor0 = tl.program_id(0) * ANCHORS
    columns = anchor0 + tl.arange(0, ANCHORS)
    inside = columns < anchors
    if TRIANGLE > 0:
        slots = slots + anchor0 // TRIANGLE
    moment = tl.zeros([ANCHORS], tl.float32)
    if WAY == "phi":
        total = _sum_of_slots(partial_ptr, slots, anchors, anchor0, 0, SLOTS, ANCHORS)
        tl.store(total_ptr + columns, total + tl.load(total_ptr + columns, mask=inside), mask=inside)
        if WITH_MOMENT:
            moment = _sum_of_slots(partial_ptr, slots, anchors, anchor0, slot_stride, SLOTS, ANCHORS)
            tl.store(moment_ptr + columns, moment + tl.load(moment_ptr + columns, mask=inside), mask=inside)
    else:
        if WAY == "fixed":
            total = _sum_of_slots(partial_ptr, slots, anchors, anchor0, 0, SLOTS, ANCHORS)
            squares = _sum_of_slots(partial_ptr, slots, anchors, anchor0, slot_stride, SLOTS, ANCHORS)
            if WITH_MOMENT:
                moment = _sum_of_slots(partial_ptr, slots, anchors, anchor0, 2 * slot_stride, SLOTS, ANCHORS)
            peak = tl.full([ANCHORS], 0.0, tl.float32) + _fixed_shift(scale)
        else:
            total = tl.zeros([ANCHORS], tl.float32)
            squares = tl.zeros([ANCHORS], tl.float32)
            peak = tl.full([ANCHORS], LOWEST, tl.float32)
            for slot in range(0, slots):
                at = partial_ptr + tl.cast(slot, tl.int64) * anchors + columns
                quantity = tl.cast(slot_stride, tl.int64) * anchors
                other = tl.load(at + 3 * quantity, mask=inside, other=LOWEST)
                higher = tl.maximum(peak, other)
                mine = tl.exp2(peak - higher)
                theirs = tl.exp2(other - higher)
                total = total * mine + theirs * tl.load(at, mask=inside, other=0.0)
                more = tl.load(at + quantity, mask=inside, other=0.0)
                squares = squares * mine * mine + theirs * theirs * more
                if WITH_MOMENT:
                    moment = moment * mine + theirs * tl.load(at + 2 * quantity, mask=inside, other=0.0)
                peak = higher
        peak = tl.maximum(peak * LN2, LOWEST)
        before = tl.load(peak_ptr + columns, mask=inside, other=LOWEST)
        higher = tl.maximum(peak, before)
        new = tl.exp(peak - higher)
        old = tl.exp(before - higher)
        total = new * total + old * tl.load(total_ptr + columns, mask=inside, other=0.0)
        squares = new * new * squares + old * old * tl.load(squares_ptr + columns, mask=inside, other=0.0)
        tl.store(peak_ptr + columns, higher, mask=inside)
        tl.store(total_ptr + columns, total, mask=inside)
        tl.store(squares_ptr + columns, squares, mask=inside)
        if WITH_MOMENT:
            moment = new * moment + old * tl.load(moment_ptr + columns, mask=inside, other=0.0)
            tl.store(moment_ptr + columns, moment, mask=inside)


@triton.jit
def anchor_weights_kernel(
    value_ptr, gradient_ptr, weight_ptr, scale, anchors, SCALE_IS_TENSOR: tl.constexpr, ANCHORS: tl.constexpr
):
    """weight_i = g_i exp(b - value_i): what a fixed-shift exponential is multiplied with."""
    shift = _fixed_shift(_scalar(scale, SCALE_IS_TENSOR))
    columns = tl.program_id(0) * ANCHORS + tl.arange(0, ANCHORS)
    inside = columns < anchors
    value = tl.load(value_ptr + columns, mask=inside, other=0.0)
    gradient = tl.load(gradient_ptr + columns, mask=inside, other=0.0)
    tl.store(weight_ptr + columns, gradient * tl.exp2(shift - value * LOG2E), mask=inside)


@triton.jit(do_not_specialize=["tiles_per_program"])
def gradients_kernel(
    rows_ptr,
    columns_ptr,
    row_value_ptr,
    row_weight_ptr,
    column_value_ptr,
    column_weight_ptr,
    out_ptr,
    scale,
    first,
    second,
    unit,
    factor,
    row_count,
    column_count,
    features,
    offsets,
    tiles_per_program,
    SCALE_IS_TENSOR: tl.constexpr,
    FIRST_IS_TENSOR: tl.constexpr,
    SECOND_IS_TENSOR: tl.constexpr,
    UNIT_IS_TENSOR: tl.constexpr,
    WAY: tl.constexpr,
    CHOOSE: tl.constexpr,
    PHI: tl.constexpr,
    ROW_ANCHORS: tl.constexpr,
    COLUMN_ANCHORS: tl.constexpr,
    CHUNKS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """d row_i = scale * factor * unit * sum_j (w_i D_ij + w_j D_ji) column_j over a strip of tiles: [part, row, d].

    The weights of both ends are known, so the rows' gradient is complete and no other program adds to it.
    """
    scale = _scalar(scale, SCALE_IS_TENSOR)
    first = _scalar(first, FIRST_IS_TENSOR)
    second = _scalar(second, SECOND_IS_TENSOR)
    if CHOOSE:
        if _other_way(scale, WAY):
            return
    scale_log2 = scale * LOG2E
    shift = _fixed_shift(scale)
    part = tl.program_id(1)
    out0 = tl.program_id(2) * BLOCK_OUT
    row0 = tl.program_id(0) * BLOCK_M
    rows = row0 + tl.arange(0, BLOCK_M)
    row_tile = _load_tile(rows_ptr, row0, 0, CHUNKS * BLOCK_D, BLOCK_M, BLOCK_D)
    row_weight = tl.zeros([BLOCK_M], tl.float32)
    row_value = tl.zeros([BLOCK_M], tl.float32)
    if ROW_ANCHORS:
        row_weight = tl.load(row_weight_ptr + rows, mask=rows < row_count, other=0.0)
        if WAY == "online":
            row_value = tl.load(row_value_ptr + rows, mask=rows < row_count, other=0.0) * LOG2E
    gradient = tl.zeros([BLOCK_M, BLOCK_OUT], tl.float32)
    start = part * tiles_per_program
    stop = tl.minimum(start + tiles_per_program, tl.cdiv(column_count, BLOCK_N))
    for c in range(start, stop):
        column0 = c * BLOCK_N
        columns = column0 + tl.arange(0, BLOCK_N)
        column_tile = _load_tile(columns_ptr, column0, 0, CHUNKS * BLOCK_D, BLOCK_N, BLOCK_D)
        products = _dot_products(
            row_tile,
            column_tile,
            rows_ptr,
            columns_ptr,
            row0,
            column0,
            CHUNKS,
            BLOCK_M,
            BLOCK_N,
            BLOCK_D,
            PRECISION,
        )
        column_weight = tl.zeros([BLOCK_N], tl.float32)
        if COLUMN_ANCHORS:
            column_weight = tl.load(column_weight_ptr + columns, mask=columns < column_count, other=0.0)
        if WAY == "online":
            exponents = products * scale_log2
            weights = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
            if ROW_ANCHORS:
                weights += tl.exp2(exponents - row_value[:, None]) * row_weight[:, None]
            if COLUMN_ANCHORS:
                column_value = tl.load(column_value_ptr + columns, mask=columns < column_count, other=0.0) * LOG2E
                weights += tl.exp2(exponents - column_value[None, :]) * column_weight[None, :]
        else:
            if WAY == "fixed":
                slopes = tl.exp2(products * scale_log2 - shift)
            else:
                _, slopes = _phi(products * scale, first, second, PHI)
            if ROW_ANCHORS and COLUMN_ANCHORS:
                weights = slopes * (row_weight[:, None] + column_weight[None, :])
            elif ROW_ANCHORS:
                weights = slopes * row_weight[:, None]
            else:
                weights = slopes * column_weight[None, :]
        if (column0 + BLOCK_N > column_count) | _has_excluded(row0, column0, offsets, BLOCK_M, BLOCK_N):
            counts = _negatives(row0, column0, row_count, column_count, offsets, BLOCK_M, BLOCK_N)
            weights = tl.where(counts, weights, 0.0)
        if CHUNKS == 1:
            out_tile = column_tile
        else:
            out_tile = _load_tile(columns_ptr, column0, out0, CHUNKS * BLOCK_D, BLOCK_N, BLOCK_OUT)
        gradient = tl.dot(weights.to(out_tile.dtype), out_tile, gradient, input_precision=PRECISION)
    gradient *= scale * factor * _scalar(unit, UNIT_IS_TENSOR)
    places = out0 + tl.arange(0, BLOCK_OUT)
    at = (tl.cast(part, tl.int64) * row_count + rows)[:, None] * features + places[None, :]
    tl.store(out_ptr + at, gradient, mask=(rows < row_count)[:, None] & (places < features)[None, :])
