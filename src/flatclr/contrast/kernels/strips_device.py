"""What `strips_triton` runs on the device: tiles of scores of wide embeddings, multiplied chunk by chunk.

A program makes one tile. Its sums, or its pair weights in the type of the embeddings, are all that leaves it. A pair
that is not meant has the score -inf. What belongs to one side of a tile comes as a tuple of pointers, one entry per
row or column; those that a launch does not need are never read:

    (factors, labels, ids, own scales, limits, shifts)
"""

import triton
import triton.language as tl

from flatclr.contrast.kernels.fused_device import (
    LN2,
    LOG2E,
    LOWEST,
    _fixed_shift,
    _other_way,
    _row_scale,
    _scalar,
    _scores,
    _store_sums,
    _unit_scale,
)
from flatclr.contrast.kernels.strips import COLUMN_STEP, ROW_STEP

ROW_PLACES = tl.constexpr(ROW_STEP)
COLUMN_PLACES = tl.constexpr(COLUMN_STEP)
NOT_MEANT = tl.constexpr(float("-inf"))


@triton.jit
def _tile_of(row_tiles, column_tiles, GROUP: tl.constexpr):
    """(row tile, column tile) of this program: GROUP row tiles at a time, so that their operands stay in the cache."""
    program = tl.program_id(0)
    per_group = GROUP * column_tiles
    first = (program // per_group) * GROUP
    height = tl.minimum(row_tiles - first, GROUP)
    return first + (program % per_group) % height, (program % per_group) // height


@triton.jit
def _listed_tile(listed, row_first, row_tiles, column_tiles, BLOCK_M: tl.constexpr):
    """(whether there is one for this program, its row tile in the strip, its column tile); see `_Meeting`."""
    first_tile = row_first // BLOCK_M
    entry = tl.load(listed[1] + first_tile) + tl.program_id(0)
    is_one = entry < tl.load(listed[1] + first_tile + row_tiles)
    tile = tl.load(listed[0] + entry, mask=is_one, other=0)
    return is_one, tile // column_tiles - first_tile, tile % column_tiles


@triton.jit
def _wide_products(
    rows_ptr,
    columns_ptr,
    row0,
    column0,
    FEATURES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """[BLOCK_M, BLOCK_N] dot products in float32; operands are padded, so nothing is masked."""
    places = tl.arange(0, BLOCK_K)
    row_at = rows_ptr + (row0.to(tl.int64) + tl.arange(0, BLOCK_M))[:, None] * FEATURES + places[None, :]
    column_at = columns_ptr + (column0.to(tl.int64) + tl.arange(0, BLOCK_N))[None, :] * FEATURES + places[:, None]
    products = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for _ in range(0, FEATURES, BLOCK_K):
        products = tl.dot(tl.load(row_at), tl.load(column_at), products, input_precision=PRECISION)
        row_at += BLOCK_K
        column_at += BLOCK_K
    return products


@triton.jit
def _meets_itself(row0, column0, samples, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Whether a tile may hold two embeddings of one sample: (samples of these rows, the first's place, of all)."""
    row = row0 % samples[0]
    column = column0 % samples[2]
    turns = (row + BLOCK_M > samples[0]) | (column + BLOCK_N > samples[2])
    row += samples[1]
    return turns | ((row < column + BLOCK_N) & (column < row + BLOCK_M))


@triton.jit
def _ranges_meet(labels, others):
    """Whether two lists may have a label in common; what a tile lacks at its edge counts as label 0, which is safe."""
    return (tl.max(labels, 0) >= tl.min(others, 0)) & (tl.max(others, 0) >= tl.min(labels, 0))


@triton.jit
def _strip_scores(
    rows_ptr,
    columns_ptr,
    row_side,
    column_side,
    row0,
    column0,
    row_count,
    column_count,
    samples,
    scale,
    WAY: tl.constexpr,
    SAME_SAMPLE: tl.constexpr,
    LABELS: tl.constexpr,
    IDS: tl.constexpr,
    FACTORS: tl.constexpr,
    FEATURES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Scores of a tile in the unit of its way, -inf where a pair is not meant.

    LABELS: "apart" leaves out pairs of one label, "together" leaves out all others.
    """
    products = _wide_products(rows_ptr, columns_ptr, row0, column0, FEATURES, BLOCK_M, BLOCK_N, BLOCK_K, PRECISION)
    rows = row0 + tl.arange(0, BLOCK_M)
    columns = column0 + tl.arange(0, BLOCK_N)
    row_scale = _row_scale(_unit_scale(scale, WAY), row_side[0], rows, row_count, FACTORS)
    scores = _scores(products, row_scale, column_side[0], columns, column_count, 0, FACTORS)
    touched = (row0 + BLOCK_M > row_count) | (column0 + BLOCK_N > column_count)
    if SAME_SAMPLE:
        touched = touched | _meets_itself(row0, column0, samples, BLOCK_M, BLOCK_N)
    if touched:
        meant = (rows < row_count)[:, None] & (columns < column_count)[None, :]
        if SAME_SAMPLE:
            meant = meant & ((rows % samples[0] + samples[1])[:, None] != (columns % samples[2])[None, :])
        scores = tl.where(meant, scores, NOT_MEANT)
    if LABELS != "any":
        row_label = tl.load(row_side[1] + rows, mask=rows < row_count, other=0)
        column_label = tl.load(column_side[1] + columns, mask=columns < column_count, other=0)
        if LABELS == "together":
            scores = tl.where(row_label[:, None] == column_label[None, :], scores, NOT_MEANT)
        elif _ranges_meet(row_label, column_label):  # where samples are in the order of their labels, few tiles' do
            scores = tl.where(row_label[:, None] == column_label[None, :], NOT_MEANT, scores)
    if IDS:
        row_id = tl.load(row_side[2] + rows, mask=rows < row_count, other=0)
        column_id = tl.load(column_side[2] + columns, mask=columns < column_count, other=0)
        scores = tl.where(row_id[:, None] == column_id[None, :], NOT_MEANT, scores)
    return scores


@triton.jit
def _seen(
    scores, scale, side, at, count, WAY: tl.constexpr, AXIS: tl.constexpr, OWN_SCALE: tl.constexpr, LIMIT: tl.constexpr
):
    """The scores as the anchors on one side see them, who are added up along AXIS."""
    if OWN_SCALE:
        scale = tl.load(side[3] + at, mask=at < count, other=0.0)
        scores = tl.where(scores == NOT_MEANT, NOT_MEANT, scores * tl.expand_dims(scale, AXIS))
    if LIMIT:
        limit = tl.load(side[4] + at, mask=at < count, other=0.0) * _unit_scale(1.0, WAY)
        sign = tl.where(scale < 0, -1.0, 1.0)
        if OWN_SCALE:
            sign = tl.expand_dims(sign, AXIS)
        scores = tl.where(scores * sign > tl.expand_dims(limit, AXIS), NOT_MEANT, scores)
    return scores


@triton.jit
def _add_up(
    scores,
    scale,
    side,
    at,
    count,
    first,
    second,
    sums_at,
    quantity,
    counts_at,
    slopes_at,
    WAY: tl.constexpr,
    PHI: tl.constexpr,
    AXIS: tl.constexpr,
    WITH_SQUARES: tl.constexpr,
    WITH_MOMENT: tl.constexpr,
    OWN_SCALE: tl.constexpr,
    LIMIT: tl.constexpr,
    SHIFTED: tl.constexpr,
    COUNTED: tl.constexpr,
    WITH_SLOPES: tl.constexpr,
):
    """The sums of the anchors on one side of a tile, stored."""
    inside = at < count
    seen = _seen(scores, scale, side, at, count, WAY, AXIS, OWN_SCALE, LIMIT)
    peak = tl.zeros(at.shape, tl.float32)
    if WAY == "phi":
        values = tl.where(seen == NOT_MEANT, 0.0, seen)
        if SHIFTED:
            values -= tl.expand_dims(tl.load(side[5] + at, mask=inside, other=0.0), AXIS)
        terms, slopes = PHI(values, first, second)
        terms = tl.where(seen == NOT_MEANT, 0.0, terms)
        slopes = tl.where(seen == NOT_MEANT, 0.0, slopes)
        squares = peak
        if WITH_SLOPES:
            tl.store(slopes_at, tl.sum(slopes, AXIS), mask=inside)
        if WITH_MOMENT:
            moments = tl.where(seen == NOT_MEANT, 0.0, slopes * seen)
    else:
        if WAY == "online":
            peak = tl.maximum(tl.max(seen, AXIS), LOWEST)
            terms = tl.exp2(seen - tl.expand_dims(peak, AXIS))
        else:
            terms = tl.exp2(seen - _fixed_shift(scale))
        squares = peak
        if WITH_SQUARES:
            squares = tl.sum(terms * terms, AXIS)
        if WITH_MOMENT:
            moments = tl.where(seen == NOT_MEANT, 0.0, terms * (seen * LN2))
    if COUNTED:
        tl.store(counts_at, tl.sum((seen != NOT_MEANT).to(tl.float32), AXIS), mask=inside)
    total = tl.sum(terms, AXIS)
    moment = total
    if WITH_MOMENT:
        moment = tl.sum(moments, AXIS)
    _store_sums(sums_at, quantity, inside, total, squares, moment, peak, WAY, WITH_SQUARES, WITH_MOMENT)


@triton.jit(do_not_specialize=["row_first", "row_count", "column_count", "strip_rows", "row_tiles", "column_tiles"])
def strip_sums_kernel(
    rows_ptr,
    columns_ptr,
    row_side,
    column_side,
    scale,
    first,
    second,
    row_sums_ptr,
    column_sums_ptr,
    row_extras_ptr,
    column_extras_ptr,
    row_first,
    row_count,
    column_count,
    strip_rows,
    row_tiles,
    column_tiles,
    samples,
    listed,
    SCALE_IS_TENSOR: tl.constexpr,
    FIRST_IS_TENSOR: tl.constexpr,
    SECOND_IS_TENSOR: tl.constexpr,
    WAY: tl.constexpr,
    CHOOSE: tl.constexpr,
    PHI: tl.constexpr,
    WITH_SQUARES: tl.constexpr,
    WITH_MOMENT: tl.constexpr,
    WITH_COLUMNS: tl.constexpr,
    SAME_SAMPLE: tl.constexpr,
    LABELS: tl.constexpr,
    IDS: tl.constexpr,
    OWN_SCALE: tl.constexpr,
    LIMIT: tl.constexpr,
    SHIFTED: tl.constexpr,
    COUNTED: tl.constexpr,
    WITH_SLOPES: tl.constexpr,
    FACTORS: tl.constexpr,
    FEATURES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Sums of a tile's rows [quantity, column tile, row of strip] and of its columns [quantity, row tile, column].

    The extras are, COUNTED, how many pairs were added up and then, WITH_SLOPES, the sum of the slopes of a phi.
    LABELS "together": only tiles that hold a pair of one label are visited, those of the list; the others' sums are
    there already.
    """
    scale = _scalar(scale, SCALE_IS_TENSOR)
    first = _scalar(first, FIRST_IS_TENSOR)
    second = _scalar(second, SECOND_IS_TENSOR)
    if _other_way(scale, WAY, CHOOSE):
        return
    if LABELS == "together":
        is_one, row_tile, column_tile = _listed_tile(listed, row_first, row_tiles, column_tiles, BLOCK_M)
        if is_one == 0:
            return
    else:
        row_tile, column_tile = _tile_of(row_tiles, column_tiles, GROUP)
    row0 = row_first + row_tile * BLOCK_M
    column0 = column_tile * BLOCK_N
    rows = row0 + tl.arange(0, BLOCK_M)
    row_at = tl.cast(column_tile, tl.int64) * strip_rows + row_tile * BLOCK_M + tl.arange(0, BLOCK_M)
    row_quantity = tl.cast(column_tiles, tl.int64) * strip_rows
    columns = column0 + tl.arange(0, BLOCK_N)
    column_at = tl.cast(row_tile, tl.int64) * column_count + columns
    column_quantity = tl.cast(row_tiles, tl.int64) * column_count
    scores = _strip_scores(
        rows_ptr,
        columns_ptr,
        row_side,
        column_side,
        row0,
        column0,
        row_count,
        column_count,
        samples,
        scale,
        WAY,
        SAME_SAMPLE,
        LABELS,
        IDS,
        FACTORS,
        FEATURES,
        BLOCK_M,
        BLOCK_N,
        BLOCK_K,
        PRECISION,
    )
    _add_up(
        scores,
        scale,
        row_side,
        rows,
        row_count,
        first,
        second,
        row_sums_ptr + row_at,
        row_quantity,
        row_extras_ptr + row_at,
        row_extras_ptr + row_quantity * COUNTED + row_at,
        WAY,
        PHI,
        1,
        WITH_SQUARES,
        WITH_MOMENT,
        OWN_SCALE,
        LIMIT,
        SHIFTED,
        COUNTED,
        WITH_SLOPES,
    )
    if WITH_COLUMNS:
        _add_up(
            scores,
            scale,
            column_side,
            columns,
            column_count,
            first,
            second,
            column_sums_ptr + column_at,
            column_quantity,
            column_extras_ptr + column_at,
            column_extras_ptr + column_quantity * COUNTED + column_at,
            WAY,
            PHI,
            0,
            WITH_SQUARES,
            WITH_MOMENT,
            OWN_SCALE,
            LIMIT,
            SHIFTED,
            COUNTED,
            WITH_SLOPES,
        )


@triton.jit
def _slopes(
    scores,
    scale,
    side,
    at,
    count,
    value_ptr,
    first,
    second,
    WAY: tl.constexpr,
    PHI: tl.constexpr,
    AXIS: tl.constexpr,
    OWN_SCALE: tl.constexpr,
    LIMIT: tl.constexpr,
    SHIFTED: tl.constexpr,
):
    """d value / d score for the anchors on one side of a tile; `fixed`, what is left of it is in their weight."""
    seen = _seen(scores, scale, side, at, count, WAY, AXIS, OWN_SCALE, LIMIT)
    if WAY == "phi":
        values = tl.where(seen == NOT_MEANT, 0.0, seen)
        if SHIFTED:
            values -= tl.expand_dims(tl.load(side[5] + at, mask=at < count, other=0.0), AXIS)
        _, slopes = PHI(values, first, second)
        slopes = tl.where(seen == NOT_MEANT, 0.0, slopes)
    elif WAY == "online":
        value = tl.load(value_ptr + at, mask=at < count, other=0.0) * LOG2E
        slopes = tl.exp2(seen - tl.expand_dims(value, AXIS))
    else:
        slopes = tl.exp2(seen - _fixed_shift(scale))
    return slopes


@triton.jit
def _rounded_by_place(weights, rows, columns):
    """In bfloat16, up or down by the place of a pair: see `strips.in_product_type`."""
    places = ((rows * ROW_PLACES)[:, None] + (columns * COLUMN_PLACES)[None, :]) >> 16
    bits = weights.to(tl.int32, bitcast=True) + (places & 0xFFFF)
    rounded = (bits >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True)
    return tl.where(weights == weights, rounded, weights.to(tl.bfloat16))  # more than a NaN would be a number


@triton.jit(do_not_specialize=["row_first", "row_count", "column_count", "row_tiles", "column_tiles"])
def strip_weights_kernel(
    rows_ptr,
    columns_ptr,
    row_side,
    column_side,
    row_value_ptr,
    row_weight_ptr,
    column_value_ptr,
    column_weight_ptr,
    out_ptr,
    scale,
    first,
    second,
    row_first,
    row_count,
    column_count,
    row_tiles,
    column_tiles,
    out_stride,
    samples,
    listed,
    SCALE_IS_TENSOR: tl.constexpr,
    FIRST_IS_TENSOR: tl.constexpr,
    SECOND_IS_TENSOR: tl.constexpr,
    WAY: tl.constexpr,
    CHOOSE: tl.constexpr,
    PHI: tl.constexpr,
    ROW_ANCHORS: tl.constexpr,
    COLUMN_ANCHORS: tl.constexpr,
    SAME_SAMPLE: tl.constexpr,
    LABELS: tl.constexpr,
    IDS: tl.constexpr,
    OWN_SCALE: tl.constexpr,
    LIMIT: tl.constexpr,
    SHIFTED: tl.constexpr,
    FACTORS: tl.constexpr,
    FEATURES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """w_i D_ij + w_j D_ji of every pair of the strip times its factors, in the type of the embeddings.

    LABELS "together": only tiles that may hold a pair of one label are written, those of the list.
    """
    scale = _scalar(scale, SCALE_IS_TENSOR)
    first = _scalar(first, FIRST_IS_TENSOR)
    second = _scalar(second, SECOND_IS_TENSOR)
    if _other_way(scale, WAY, CHOOSE):
        return
    if LABELS == "together":
        is_one, row_tile, column_tile = _listed_tile(listed, row_first, row_tiles, column_tiles, BLOCK_M)
        if is_one == 0:
            return
    else:
        row_tile, column_tile = _tile_of(row_tiles, column_tiles, GROUP)
    row0 = row_first + row_tile * BLOCK_M
    column0 = column_tile * BLOCK_N
    # the strip is padded to whole tiles, so nothing is masked; places in a tile fit 32 bits, which spares registers
    corner = out_ptr + tl.cast(row_tile * BLOCK_M, tl.int64) * out_stride + column0
    places = tl.arange(0, BLOCK_M)[:, None] * out_stride + tl.arange(0, BLOCK_N)[None, :]
    scores = _strip_scores(
        rows_ptr,
        columns_ptr,
        row_side,
        column_side,
        row0,
        column0,
        row_count,
        column_count,
        samples,
        scale,
        WAY,
        SAME_SAMPLE,
        LABELS,
        IDS,
        FACTORS,
        FEATURES,
        BLOCK_M,
        BLOCK_N,
        BLOCK_K,
        PRECISION,
    )
    rows = row0 + tl.arange(0, BLOCK_M)
    columns = column0 + tl.arange(0, BLOCK_N)
    weights = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    if ROW_ANCHORS:
        weight = tl.load(row_weight_ptr + rows, mask=rows < row_count, other=0.0)
        slopes = _slopes(
            scores,
            scale,
            row_side,
            rows,
            row_count,
            row_value_ptr,
            first,
            second,
            WAY,
            PHI,
            1,
            OWN_SCALE,
            LIMIT,
            SHIFTED,
        )
        weights = slopes * weight[:, None]
    if COLUMN_ANCHORS:
        weight = tl.load(column_weight_ptr + columns, mask=columns < column_count, other=0.0)
        slopes = _slopes(
            scores,
            scale,
            column_side,
            columns,
            column_count,
            column_value_ptr,
            first,
            second,
            WAY,
            PHI,
            0,
            OWN_SCALE,
            LIMIT,
            SHIFTED,
        )
        weights += slopes * weight[None, :]
    if FACTORS:
        weights *= tl.load(row_side[0] + rows, mask=rows < row_count, other=0.0)[:, None]
        weights *= tl.load(column_side[0] + columns, mask=columns < column_count, other=0.0)[None, :]
    if LABELS != "any" and out_ptr.dtype.element_ty == tl.bfloat16:
        tl.store(corner + places, _rounded_by_place(weights, rows, columns))
    else:
        tl.store(corner + places, weights.to(out_ptr.dtype.element_ty))


@triton.jit(do_not_specialize=["out_first", "inner_first", "rows", "inner", "list_stride"])
def banded_product_kernel(
    weights_ptr,
    operand_ptr,
    out_ptr,
    tiles_ptr,
    first_ptr,
    stop_ptr,
    out_first,
    inner_first,
    rows,
    inner,
    features,
    weight_stride,
    list_stride,
    TRANSPOSED: tl.constexpr,
    ADD: tl.constexpr,
    FEATURES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    EDGE: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Pair weights of a strip @ embeddings, over the tiles that hold a pair: out [rows of the strip or columns, d].

    Tile t of the output takes entries first[t] to stop[t] of its list of tiles on the other side. The strip is the
    tiles from `out_first` of the output or, TRANSPOSED, from `inner_first` of the other side. ADD: to what is there.
    A tile of EDGE is taken BLOCK_K at a time, so that the next ones are on their way. The list of an output tile may be
    shared out to programs along the third axis, which leave a sum each: out [programs, rows, d].
    """
    tile = tl.program_id(0)
    here = tile + out_first
    first = tl.load(first_ptr + here)
    stop = tl.load(stop_ptr + here)
    if ADD:  # noqa: SIM102  known when it is compiled
        if first == stop:
            return
    share = tl.cdiv(stop - first, tl.num_programs(2))
    first += tl.program_id(2) * share
    stop = tl.minimum(first + share, stop)
    places = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    along_m = tl.arange(0, BLOCK_M)
    along_k = tl.arange(0, BLOCK_K)
    tiles = tiles_ptr + tl.cast(here, tl.int64) * list_stride
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for step in range(first * (EDGE // BLOCK_K), stop * (EDGE // BLOCK_K)):
        other = tl.load(tiles + step // (EDGE // BLOCK_K))
        within = step % (EDGE // BLOCK_K) * BLOCK_K
        at = other * EDGE + within + along_k
        real = (at < inner)[:, None] & (places < FEATURES)[None, :]
        values = tl.load(operand_ptr + at.to(tl.int64)[:, None] * FEATURES + places[None, :], mask=real, other=0.0)
        k0 = tl.cast((other - inner_first) * EDGE + within, tl.int64)
        m0 = tl.cast(tile * BLOCK_M, tl.int64)
        if TRANSPOSED:
            corner = weights_ptr + k0 * weight_stride + m0
            weights = tl.trans(tl.load(corner + along_k[:, None] * weight_stride + along_m[None, :]))
        else:
            corner = weights_ptr + m0 * weight_stride + k0
            weights = tl.load(corner + along_m[:, None] * weight_stride + along_k[None, :])
        total = tl.dot(weights, values, total, input_precision=PRECISION)
    at = here * BLOCK_M + along_m
    if not TRANSPOSED:
        at = tile * BLOCK_M + along_m
    real = (at < rows)[:, None] & (places < features)[None, :]
    where = out_ptr + (tl.program_id(2).to(tl.int64) * rows + at)[:, None] * features + places[None, :]
    if ADD:
        total += tl.load(where, mask=real, other=0.0)
    tl.store(where, total, mask=real)
