"""What `fused_triton` runs on the device: one tile of scores at a time, in registers.

Embeddings arrive padded (`fused_triton.operand`), so tiles are read without masks, and as they came: what a row lacks
of unit length is a factor of its scores, since to round unit rows to half precision would blur the small differences
that a gradient is made of. Scores are in units of log 2, where exp2 is one instruction. LogSumExp goes one of two ways:

    fixed    exp(s - b) with one b for all pairs: cosines are bounded. One exponential serves both ends of a pair.
    online   a running maximum per row, for scores without bound and for temperatures too small for `fixed`

A phi is any device function (score, first, second) -> (value, slope); it lives beside its Python twin.

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
    return tl.load(x).to(tl.float32) if IS_TENSOR else tl.full((), x, tl.float32)


@triton.jit
def _other_way(scale, WAY: tl.constexpr, CHOOSE: tl.constexpr):
    """Whether the scale asks for the other way of LogSumExp; a NaN goes online."""
    fixed = tl.abs(scale) <= LARGEST_FIXED_SCALE
    return CHOOSE & (fixed != (WAY == "fixed"))


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
    tall,
    wide_transposed,
    tall_ptr,
    wide_ptr,
    tall0,
    wide0,
    CHUNKS: tl.constexpr,
    TALL: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """[TALL, WIDE] in float32; the tiles given hold the first BLOCK_D features, the other chunks are read here."""
    products = tl.dot(tall, wide_transposed, input_precision=PRECISION)
    if CHUNKS > 1:
        for chunk in range(1, CHUNKS):
            more_tall = _load_tile(tall_ptr, tall0, chunk * BLOCK_D, CHUNKS * BLOCK_D, TALL, BLOCK_D)
            more_wide = _load_tile(wide_ptr, wide0, chunk * BLOCK_D, CHUNKS * BLOCK_D, WIDE, BLOCK_D)
            products = tl.dot(more_tall, tl.trans(more_wide), products, input_precision=PRECISION)
    return products


@triton.jit
def _crosses(distance, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    return (distance > -BLOCK_M) & (distance < BLOCK_N)


@triton.jit
def _partly(row0, column0, row_count, column_count, offsets, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Whether some entries of a tile may not count: it leaves the block, or an excluded diagonal crosses it."""
    distance = row0 - column0
    return (
        (row0 + BLOCK_M > row_count)
        | (column0 + BLOCK_N > column_count)
        | _crosses(distance + offsets[1], BLOCK_M, BLOCK_N)
        | _crosses(distance + offsets[2], BLOCK_M, BLOCK_N)
        | _crosses(distance + offsets[3], BLOCK_M, BLOCK_N)
        | _crosses(distance + offsets[4], BLOCK_M, BLOCK_N)
    )


@triton.jit
def _count(
    row0,
    column0,
    row_count,
    column_count,
    offsets,
    ROW_AXIS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Which pairs of a tile are inside the block and of different samples."""
    # always row0, but a compiler that knew it would keep indices of the rows in registers over the whole strip of tiles
    row0 = tl.where(column0 >= 0, row0, -1)
    rows = tl.expand_dims(row0 + tl.arange(0, BLOCK_M), 1 - ROW_AXIS)
    columns = tl.expand_dims(column0 + tl.arange(0, BLOCK_N), ROW_AXIS)
    early = rows < offsets[0]
    one = rows + tl.where(early, offsets[1], offsets[3])
    two = rows + tl.where(early, offsets[2], offsets[4])
    return (rows < row_count) & (columns < column_count) & (columns != one) & (columns != two)


@triton.jit
def _unit_scale(scale, WAY: tl.constexpr):
    """What turns a product into a score: in units of log 2, where exp2 is one instruction, but for a phi."""
    return scale if WAY == "phi" else scale * LOG2E


@triton.jit
def _row_scale(unit_scale, factors_ptr, rows, row_count, FACTORS: tl.constexpr):
    """What the products of rows are multiplied with: one number, or one per row that holds its factor too."""
    row_scale = unit_scale
    if FACTORS:
        row_scale = tl.load(factors_ptr + rows, mask=rows < row_count, other=0.0) * unit_scale
    return row_scale


@triton.jit
def _scores(products, row_scale, factors_ptr, columns, column_count, ROW_AXIS: tl.constexpr, FACTORS: tl.constexpr):
    """Scores in the unit of `row_scale`."""
    if FACTORS:
        column_factors = tl.load(factors_ptr + columns, mask=columns < column_count, other=0.0)
        scores = products * tl.expand_dims(row_scale, 1 - ROW_AXIS) * tl.expand_dims(column_factors, ROW_AXIS)
    else:
        scores = products * row_scale
    return scores


@triton.jit
def _terms(
    scores,
    row0,
    column0,
    row_count,
    column_count,
    offsets,
    shift,
    first,
    second,
    WAY: tl.constexpr,
    PHI: tl.constexpr,
    ROW_AXIS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """What every pair adds to the total and to the moment; 0 for the pairs that do not count."""
    if WAY == "phi":
        terms, slopes = PHI(scores, first, second)
        moments = slopes * scores
    else:
        terms = tl.exp2(scores - shift)
        moments = terms * (scores * LN2)
    if _partly(row0, column0, row_count, column_count, offsets, BLOCK_M, BLOCK_N):
        counts = _count(row0, column0, row_count, column_count, offsets, ROW_AXIS, BLOCK_M, BLOCK_N)
        terms = tl.where(counts, terms, 0.0)
        moments = tl.where(counts, moments, 0.0)
    return terms, moments


@triton.jit
def _store_sums(
    at,
    quantity,
    inside,
    total,
    squares,
    moment,
    peak,
    WAY: tl.constexpr,
    WITH_SQUARES: tl.constexpr,
    WITH_MOMENT: tl.constexpr,
):
    """One slot of every quantity: total, squares (not of a phi), moment and, online, the peak."""
    tl.store(at, total, mask=inside)
    if WAY == "phi":
        if WITH_MOMENT:
            tl.store(at + quantity, moment, mask=inside)
    else:
        if WITH_SQUARES:
            tl.store(at + quantity, squares, mask=inside)
        if WITH_MOMENT:
            tl.store(at + 2 * quantity, moment, mask=inside)
        if WAY == "online":
            tl.store(at + 3 * quantity, peak, mask=inside)


@triton.jit(do_not_specialize=["row_count", "column_count", "slots", "tiles_per_program"])
def sums_kernel(
    rows_ptr,
    columns_ptr,
    row_factors_ptr,
    column_factors_ptr,
    scale,
    first,
    second,
    sums_ptr,
    row_count,
    column_count,
    offsets,
    slots,
    tiles_per_program,
    SCALE_IS_TENSOR: tl.constexpr,
    FIRST_IS_TENSOR: tl.constexpr,
    SECOND_IS_TENSOR: tl.constexpr,
    WAY: tl.constexpr,
    CHOOSE: tl.constexpr,
    PHI: tl.constexpr,
    WITH_SQUARES: tl.constexpr,
    WITH_MOMENT: tl.constexpr,
    FACTORS: tl.constexpr,
    CHUNKS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Sums of a row tile over a strip of columns: [quantity, slot, row], a slot per strip."""
    scale = _scalar(scale, SCALE_IS_TENSOR)
    first = _scalar(first, FIRST_IS_TENSOR)
    second = _scalar(second, SECOND_IS_TENSOR)
    if _other_way(scale, WAY, CHOOSE):
        return
    part = tl.program_id(1)
    row0 = tl.program_id(0) * BLOCK_M
    rows = row0 + tl.arange(0, BLOCK_M)
    row_tile = _load_tile(rows_ptr, row0, 0, CHUNKS * BLOCK_D, BLOCK_M, BLOCK_D)
    row_scale = _row_scale(_unit_scale(scale, WAY), row_factors_ptr, rows, row_count, FACTORS)
    shift = _fixed_shift(scale)
    total = tl.zeros([BLOCK_M], tl.float32)
    squares = tl.zeros([BLOCK_M], tl.float32)
    moment = tl.zeros([BLOCK_M], tl.float32)
    peak = tl.full([BLOCK_M], LOWEST, tl.float32)
    start = part * tiles_per_program
    stop = tl.minimum(start + tiles_per_program, tl.cdiv(column_count, BLOCK_N))
    for c in range(start, stop):
        column0 = c * BLOCK_N
        column_tile = _load_tile(columns_ptr, column0, 0, CHUNKS * BLOCK_D, BLOCK_N, BLOCK_D)
        products = _dot_products(
            row_tile,
            tl.trans(column_tile),
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
        columns = column0 + tl.arange(0, BLOCK_N)
        scores = _scores(products, row_scale, column_factors_ptr, columns, column_count, 0, FACTORS)
        if WAY == "online":
            exponents = scores
            if _partly(row0, column0, row_count, column_count, offsets, BLOCK_M, BLOCK_N):
                counts = _count(row0, column0, row_count, column_count, offsets, 0, BLOCK_M, BLOCK_N)
                exponents = tl.where(counts, exponents, float("-inf"))
            higher = tl.maximum(peak, tl.max(exponents, 1))
            decay = tl.exp2(peak - higher)
            peak = higher
            terms = tl.exp2(exponents - peak[:, None])
            moments = terms * (scores * LN2)
            total *= decay
            squares *= decay * decay
            moment *= decay
        else:
            terms, moments = _terms(
                scores,
                row0,
                column0,
                row_count,
                column_count,
                offsets,
                shift,
                first,
                second,
                WAY,
                PHI,
                0,
                BLOCK_M,
                BLOCK_N,
            )
        total += tl.sum(terms, 1)
        if WITH_SQUARES:
            squares += tl.sum(terms * terms, 1)
        if WITH_MOMENT:
            moment += tl.sum(moments, 1)
    at = sums_ptr + tl.cast(part, tl.int64) * row_count + rows
    quantity = tl.cast(slots, tl.int64) * row_count
    _store_sums(at, quantity, rows < row_count, total, squares, moment, peak, WAY, WITH_SQUARES, WITH_MOMENT)


@triton.jit(
    do_not_specialize=[
        "row_count",
        "column_count",
        "row_slots",
        "column_slots",
        "first_column_slot",
        "tiles_per_program",
    ]
)
def mirrored_sums_kernel(
    rows_ptr,
    columns_ptr,
    row_factors_ptr,
    column_factors_ptr,
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
    WITH_SQUARES: tl.constexpr,
    WITH_MOMENT: tl.constexpr,
    SYMMETRIC: tl.constexpr,
    FACTORS: tl.constexpr,
    CHUNKS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Sums of both sides from one visit: a tile's columns get the slot `first_column_slot` + that row tile.

    Tiles are [columns, rows]: the sums of the rows stay spread over the tile until the strip ends, because to add up
    along the first axis takes many exchanges between threads, along the second few. A symmetric block visits the
    tiles from its axis on.
    """
    scale = _scalar(scale, SCALE_IS_TENSOR)
    first = _scalar(first, FIRST_IS_TENSOR)
    second = _scalar(second, SECOND_IS_TENSOR)
    if _other_way(scale, WAY, CHOOSE):
        return
    tile = tl.program_id(0)
    part = tl.program_id(1)
    row0 = tile * BLOCK_M
    rows = row0 + tl.arange(0, BLOCK_M)
    row_tile = tl.trans(_load_tile(rows_ptr, row0, 0, CHUNKS * BLOCK_D, BLOCK_M, BLOCK_D))
    row_scale = _row_scale(_unit_scale(scale, WAY), row_factors_ptr, rows, row_count, FACTORS)
    shift = _fixed_shift(scale)
    total = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    squares = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    moment = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    column_at = column_sums_ptr + tl.cast(first_column_slot + tile, tl.int64) * column_count
    column_quantity = tl.cast(column_slots, tl.int64) * column_count
    start = part * tiles_per_program
    stop = tl.minimum(start + tiles_per_program, tl.cdiv(column_count, BLOCK_N))
    first_mirrored = 0
    if SYMMETRIC:
        start = tl.maximum(start, tile * (BLOCK_M // BLOCK_N))
        # on the axis a tile holds both triangles, and its rows have seen everything
        first_mirrored = row0 + BLOCK_M
    for c in range(start, stop):
        column0 = c * BLOCK_N
        columns = column0 + tl.arange(0, BLOCK_N)
        column_tile = _load_tile(columns_ptr, column0, 0, CHUNKS * BLOCK_D, BLOCK_N, BLOCK_D)
        products = _dot_products(
            column_tile, row_tile, columns_ptr, rows_ptr, column0, row0, CHUNKS, BLOCK_N, BLOCK_M, BLOCK_D, PRECISION
        )
        scores = _scores(products, row_scale, column_factors_ptr, columns, column_count, 1, FACTORS)
        terms, moments = _terms(
            scores,
            row0,
            column0,
            row_count,
            column_count,
            offsets,
            shift,
            first,
            second,
            WAY,
            PHI,
            1,
            BLOCK_M,
            BLOCK_N,
        )
        column_total = tl.sum(terms, 1)
        column_squares = column_total
        column_moment = column_total
        total += terms
        if WITH_SQUARES:
            column_squares = tl.sum(terms * terms, 1)
            squares += terms * terms
        if WITH_MOMENT:
            column_moment = tl.sum(moments, 1)
            moment += moments
        inside = (columns < column_count) & (columns >= first_mirrored)
        _store_sums(
            column_at + columns,
            column_quantity,
            inside,
            column_total,
            column_squares,
            column_moment,
            column_total,
            WAY,
            WITH_SQUARES,
            WITH_MOMENT,
        )
    row_at = row_sums_ptr + tl.cast(part, tl.int64) * row_count + rows
    row_quantity = tl.cast(row_slots, tl.int64) * row_count
    row_total = tl.sum(total, 0)
    row_squares = row_total
    row_moment = row_total
    if WITH_SQUARES:
        row_squares = tl.sum(squares, 0)
    if WITH_MOMENT:
        row_moment = tl.sum(moment, 0)
    _store_sums(
        row_at,
        row_quantity,
        rows < row_count,
        row_total,
        row_squares,
        row_moment,
        row_total,
        WAY,
        WITH_SQUARES,
        WITH_MOMENT,
    )


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


@triton.jit(do_not_specialize=["anchors", "slots", "slot_stride"])
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
    WITH_SQUARES: tl.constexpr,
    WITH_MOMENT: tl.constexpr,
    TRIANGLE: tl.constexpr,
    SLOTS: tl.constexpr,
    ANCHORS: tl.constexpr,
):
    """Add the partial sums of `sums_kernel` to the running sums, slot after slot.

    With TRIANGLE = BLOCK_M of a symmetric block, an anchor also has the column slots of the tiles above its own.
    """
    scale = _scalar(scale, SCALE_IS_TENSOR)
    if _other_way(scale, WAY, CHOOSE):
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
            squares = total
            if WITH_SQUARES:
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
                if WITH_SQUARES:
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
        tl.store(peak_ptr + columns, higher, mask=inside)
        tl.store(total_ptr + columns, total, mask=inside)
        if WITH_SQUARES:
            squares = new * new * squares + old * old * tl.load(squares_ptr + columns, mask=inside, other=0.0)
            tl.store(squares_ptr + columns, squares, mask=inside)
        if WITH_MOMENT:
            moment = new * moment + old * tl.load(moment_ptr + columns, mask=inside, other=0.0)
            tl.store(moment_ptr + columns, moment, mask=inside)


@triton.jit(do_not_specialize=["anchors"])
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


@triton.jit(do_not_specialize=["row_count", "column_count", "tiles_per_program"])
def gradients_kernel(
    rows_ptr,
    columns_ptr,
    row_factors_ptr,
    column_factors_ptr,
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
    FACTORS: tl.constexpr,
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
    if _other_way(scale, WAY, CHOOSE):
        return
    shift = _fixed_shift(scale)
    part = tl.program_id(1)
    out0 = tl.program_id(2) * BLOCK_OUT
    row0 = tl.program_id(0) * BLOCK_M
    rows = row0 + tl.arange(0, BLOCK_M)
    row_tile = _load_tile(rows_ptr, row0, 0, CHUNKS * BLOCK_D, BLOCK_M, BLOCK_D)
    row_scale = _row_scale(_unit_scale(scale, WAY), row_factors_ptr, rows, row_count, FACTORS)
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
            tl.trans(column_tile),
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
        scores = _scores(products, row_scale, column_factors_ptr, columns, column_count, 0, FACTORS)
        # a weight also takes the factor of the column that it multiplies
        row_share = row_weight[:, None]
        if FACTORS:
            column_factors = tl.load(column_factors_ptr + columns, mask=columns < column_count, other=0.0)
            row_share = row_share * column_factors[None, :]
            column_weight *= column_factors
        if WAY == "online":
            weights = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
            if ROW_ANCHORS:
                weights += tl.exp2(scores - row_value[:, None]) * row_share
            if COLUMN_ANCHORS:
                column_value = tl.load(column_value_ptr + columns, mask=columns < column_count, other=0.0) * LOG2E
                weights += tl.exp2(scores - column_value[None, :]) * column_weight[None, :]
        else:
            if WAY == "fixed":
                slopes = tl.exp2(scores - shift)
            else:
                _, slopes = PHI(scores, first, second)
            if ROW_ANCHORS and COLUMN_ANCHORS:
                weights = slopes * (row_share + column_weight[None, :])
            elif ROW_ANCHORS:
                weights = slopes * row_share
            else:
                weights = slopes * column_weight[None, :]
        if _partly(row0, column0, row_count, column_count, offsets, BLOCK_M, BLOCK_N):
            counts = _count(row0, column0, row_count, column_count, offsets, 0, BLOCK_M, BLOCK_N)
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


@triton.jit
def _inverse_norms(rows):
    """Of rows of any length whose inverse float32 can hold; 0 for shorter ones."""
    largest = tl.max(tl.abs(rows), 1)
    short = largest < 1.0e-37
    largest = tl.where(short, 1.0, largest)
    shrunk = rows / largest[:, None]
    norms = tl.sqrt(tl.sum(shrunk * shrunk, 1))
    return tl.where(short, 0.0, 1 / (tl.where(short, 1.0, norms) * largest))


@triton.jit
def _power_of_two(inverse_norms):
    """The largest not above; the least normal number where there is none. Rows times it are exact."""
    bits = inverse_norms.to(tl.int32, bitcast=True) & 0x7F800000
    power = tl.maximum(bits, 0x00800000).to(tl.float32, bitcast=True)
    return tl.where(inverse_norms == inverse_norms, power, 1.0)  # a NaN stays in the factor


@triton.jit(do_not_specialize=["samples"])
def ready_kernel(
    view_a_ptr,
    view_b_ptr,
    unit_ptr,
    inverse_norms_ptr,
    factors_ptr,
    per_anchor_ptr,
    operand_ptr,
    scale,
    samples,
    features,
    SCALE_IS_TENSOR: tl.constexpr,
    NORMALIZE: tl.constexpr,
    BOTH_ANCHOR: tl.constexpr,
    SUMS: tl.constexpr,
    WITH_PEAK: tl.constexpr,
    PADDING: tl.constexpr,
    PADDED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Both views in float32, unit rows and inverse norms if asked, and the padded operand.

    The operand of normalised rows is the rows as they came times a power of two: exact, and no longer than 1. What is
    left to their unit length is their factor, between 1 and 2.

    Per anchor, [1 + SUMS, anchors]: the score of its positive, and sums with nothing in them yet, the peak first.
    """
    scale = _scalar(scale, SCALE_IS_TENSOR)
    places = tl.arange(0, BLOCK_D)[None, :]
    sample_tiles = tl.cdiv(samples, ROWS)
    tile = tl.program_id(0)
    if tile < sample_tiles:
        at = tile * ROWS + tl.arange(0, ROWS)
        inside = at < samples
        real = inside[:, None] & (places < features)
        stored = inside[:, None] & (places < PADDED)
        rows_a = at.to(tl.int64)[:, None]
        rows_b = rows_a + samples
        a = tl.load(view_a_ptr + rows_a * features + places, mask=real, other=0.0).to(tl.float32)
        b = tl.load(view_b_ptr + rows_a * features + places, mask=real, other=0.0).to(tl.float32)
        operand_a = a
        operand_b = b
        if NORMALIZE:
            inverse_a = _inverse_norms(a)
            inverse_b = _inverse_norms(b)
            power_a = _power_of_two(inverse_a)
            power_b = _power_of_two(inverse_b)
            operand_a = a * power_a[:, None]
            operand_b = b * power_b[:, None]
            a = a * inverse_a[:, None]
            b = b * inverse_b[:, None]
            tl.store(inverse_norms_ptr + at, inverse_a, mask=inside)
            tl.store(inverse_norms_ptr + samples + at, inverse_b, mask=inside)
            # a row of zeros is one without a factor
            tl.store(factors_ptr + at, tl.where(inverse_a == 0, 1.0, inverse_a / power_a), mask=inside)
            tl.store(factors_ptr + samples + at, tl.where(inverse_b == 0, 1.0, inverse_b / power_b), mask=inside)
        tl.store(unit_ptr + rows_a * features + places, a, mask=real)
        tl.store(unit_ptr + rows_b * features + places, b, mask=real)
        tl.store(operand_ptr + rows_a * PADDED + places, operand_a.to(operand_ptr.dtype.element_ty), mask=stored)
        tl.store(operand_ptr + rows_b * PADDED + places, operand_b.to(operand_ptr.dtype.element_ty), mask=stored)
        positive = tl.sum(a * b, 1) * scale
        for view in tl.static_range(2 if BOTH_ANCHOR else 1):
            anchor = per_anchor_ptr + view * samples + at
            tl.store(anchor, positive, mask=inside)
            for quantity in tl.static_range(SUMS):
                nothing = LOWEST if WITH_PEAK and quantity == 0 else 0.0
                row = (quantity + 1) * (2 if BOTH_ANCHOR else 1)
                tl.store(anchor + tl.cast(row, tl.int64) * samples, tl.full([ROWS], nothing, tl.float32), mask=inside)
    else:
        behind = (tile - sample_tiles) * ROWS + tl.arange(0, ROWS)[:, None]
        rows = behind.to(tl.int64) + 2 * samples
        zeros = tl.zeros([ROWS, BLOCK_D], tl.float32).to(operand_ptr.dtype.element_ty)
        tl.store(operand_ptr + rows * PADDED + places, zeros, mask=(behind < PADDING) & (places < PADDED))


@triton.jit(do_not_specialize=["anchors"])
def finish_kernel(
    peak_ptr,
    total_ptr,
    squares_ptr,
    moment_ptr,
    positive_ptr,
    out_ptr,
    anchors,
    negatives,
    WITH_SQUARES: tl.constexpr,
    WITH_MOMENT: tl.constexpr,
    ANCHORS: tl.constexpr,
):
    """[4, anchors]: log-sum-exp, its gap to the positive, ess in [1 / negatives, 1], scale * d value / d scale."""
    at = tl.program_id(0) * ANCHORS + tl.arange(0, ANCHORS)
    inside = at < anchors
    out = out_ptr + at
    quantity = tl.cast(anchors, tl.int64)
    total = tl.load(total_ptr + at, mask=inside, other=1.0)
    value = tl.load(peak_ptr + at, mask=inside, other=0.0) + tl.log(total)
    tl.store(out, value, mask=inside)
    tl.store(out + quantity, value - tl.load(positive_ptr + at, mask=inside, other=0.0), mask=inside)
    if WITH_SQUARES:
        share = total / tl.sqrt(tl.load(squares_ptr + at, mask=inside, other=1.0))
        ess = share * share / negatives
        ess = tl.where(ess < 1, ess, tl.where(ess >= 1, 1.0, ess))  # a NaN stays one
        tl.store(out + 2 * quantity, tl.where(ess < 1 / negatives, 1 / negatives, ess), mask=inside)
    if WITH_MOMENT:
        tl.store(out + 3 * quantity, tl.load(moment_ptr + at, mask=inside, other=0.0) / total, mask=inside)


@triton.jit(do_not_specialize=["anchors", "rows", "columns", "row_slots", "column_slots"])
def whole_sums_kernel(
    row_partial_ptr,
    column_partial_ptr,
    per_anchor_ptr,
    scale,
    anchors,
    rows,
    columns,
    row_slots,
    column_slots,
    TRIANGLE: tl.constexpr,
    SLOTS: tl.constexpr,
    ANCHORS: tl.constexpr,
):
    """What `merge_kernel` and `finish_kernel` make of partial sums that are all there is, `fixed`.

    Per anchor, those of the rows and then those of the columns (none if they are the rows): the score of its positive
    is read; its log-sum-exp, the gap between them and exp(b - log-sum-exp), its weight less g, are written behind it.
    """
    shift = _fixed_shift(_scalar(scale, False))
    anchor0 = tl.program_id(0) * ANCHORS
    within = anchor0 + tl.arange(0, ANCHORS)
    partial_ptr = row_partial_ptr
    count = rows
    slots = row_slots
    first = 0
    if tl.program_id(1) == 1:
        partial_ptr = column_partial_ptr
        count = columns
        slots = column_slots
        first = rows
    if TRIANGLE > 0:
        slots = slots + anchor0 // TRIANGLE
    total = _sum_of_slots(partial_ptr, slots, count, anchor0, 0, SLOTS, ANCHORS)
    inside = within < count
    total = tl.where(inside, total, 1.0)
    at = per_anchor_ptr + first + within
    quantity = tl.cast(anchors, tl.int64)
    value = tl.maximum(shift * LN2, LOWEST) + tl.log(total)
    tl.store(at + quantity, value, mask=inside)
    tl.store(at + 2 * quantity, value - tl.load(at, mask=inside, other=0.0), mask=inside)
    tl.store(at + 3 * quantity, tl.exp2(shift - value * LOG2E), mask=inside)


@triton.jit(do_not_specialize=["samples", "strips", "sign", "factor"])
def views_gradient_kernel(
    negatives_ptr,
    pull_ptr,
    unit_ptr,
    inverse_norms_ptr,
    factors_ptr,
    d_a_ptr,
    d_b_ptr,
    scale,
    samples,
    features,
    strips,
    sign,
    factor,
    SCALE_IS_TENSOR: tl.constexpr,
    FROM_POSITIVES: tl.constexpr,
    BOTH_ANCHOR: tl.constexpr,
    NORMALIZE: tl.constexpr,
    SCALED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """What negatives and positives send to both views, taken back through the sphere.

    SCALED: what negatives send is yet to be multiplied with scale / factor of the row.
    """
    scale = _scalar(scale, SCALE_IS_TENSOR)
    places = tl.arange(0, BLOCK_D)[None, :]
    at = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = at < samples
    real = inside[:, None] & (places < features)
    in_a = at.to(tl.int64)[:, None] * features + places
    in_b = (at.to(tl.int64) + samples)[:, None] * features + places
    a = tl.load(unit_ptr + in_a, mask=real, other=0.0)
    b = tl.load(unit_ptr + in_b, mask=real, other=0.0)
    d_a = tl.zeros([ROWS, BLOCK_D], tl.float32)
    d_b = tl.zeros([ROWS, BLOCK_D], tl.float32)
    for strip in range(0, strips):
        from_strip = negatives_ptr + tl.cast(strip, tl.int64) * (2 * samples) * features
        d_a += tl.load(from_strip + in_a, mask=real, other=0.0)
        d_b += tl.load(from_strip + in_b, mask=real, other=0.0)
    if SCALED:
        d_a *= (scale / tl.load(factors_ptr + at, mask=inside, other=1.0))[:, None]
        d_b *= (scale / tl.load(factors_ptr + samples + at, mask=inside, other=1.0))[:, None]
    if FROM_POSITIVES:
        pull = tl.load(pull_ptr + at, mask=inside, other=0.0)
        if BOTH_ANCHOR:
            pull += tl.load(pull_ptr + samples + at, mask=inside, other=0.0)
        pull *= sign * scale
        d_a += pull[:, None] * b
        d_b += pull[:, None] * a
    if NORMALIZE:
        inverse_a = tl.load(inverse_norms_ptr + at, mask=inside, other=0.0)
        inverse_b = tl.load(inverse_norms_ptr + samples + at, mask=inside, other=0.0)
        d_a = (d_a - a * tl.sum(a * d_a, 1)[:, None]) * inverse_a[:, None]
        d_b = (d_b - b * tl.sum(b * d_b, 1)[:, None]) * inverse_b[:, None]
    tl.store(d_a_ptr + in_a, (d_a * factor).to(d_a_ptr.dtype.element_ty), mask=real)
    tl.store(d_b_ptr + in_a, (d_b * factor).to(d_b_ptr.dtype.element_ty), mask=real)
