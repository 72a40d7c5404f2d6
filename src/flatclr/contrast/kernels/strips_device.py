"""What `strips` runs on the device: tiles of scores of wide embeddings, multiplied chunk by chunk.

A program makes one tile. Its sums, or its pair weights in the type of the embeddings, are all that leaves it.
"""

import triton
import triton.language as tl

from flatclr.contrast.kernels.fused_device import (
    LOG2E,
    _count,
    _fixed_shift,
    _other_way,
    _partly,
    _scalar,
    _store_sums,
    _terms,
)


@triton.jit
def _tile_of(row_tiles, column_tiles, GROUP: tl.constexpr):
    """(row tile, column tile) of this program: GROUP row tiles at a time, so that their operands stay in the cache."""
    program = tl.program_id(0)
    per_group = GROUP * column_tiles
    first = (program // per_group) * GROUP
    height = tl.minimum(row_tiles - first, GROUP)
    return first + (program % per_group) % height, (program % per_group) // height


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


@triton.jit(do_not_specialize=["row_first", "row_count", "column_count", "strip_rows", "row_tiles", "column_tiles"])
def strip_sums_kernel(
    rows_ptr,
    columns_ptr,
    scale,
    first,
    second,
    row_sums_ptr,
    column_sums_ptr,
    row_first,
    row_count,
    column_count,
    strip_rows,
    row_tiles,
    column_tiles,
    offsets,
    SCALE_IS_TENSOR: tl.constexpr,
    FIRST_IS_TENSOR: tl.constexpr,
    SECOND_IS_TENSOR: tl.constexpr,
    WAY: tl.constexpr,
    CHOOSE: tl.constexpr,
    PHI: tl.constexpr,
    WITH_MOMENT: tl.constexpr,
    WITH_COLUMNS: tl.constexpr,
    FEATURES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Sums of a tile's rows [quantity, column tile, row of strip] and of its columns [quantity, row tile, column]."""
    scale = _scalar(scale, SCALE_IS_TENSOR)
    first = _scalar(first, FIRST_IS_TENSOR)
    second = _scalar(second, SECOND_IS_TENSOR)
    if _other_way(scale, WAY, CHOOSE):
        return
    row_tile, column_tile = _tile_of(row_tiles, column_tiles, GROUP)
    row0 = row_first + row_tile * BLOCK_M
    column0 = column_tile * BLOCK_N
    products = _wide_products(rows_ptr, columns_ptr, row0, column0, FEATURES, BLOCK_M, BLOCK_N, BLOCK_K, PRECISION)
    within = row_tile * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = column0 + tl.arange(0, BLOCK_N)
    row_at = row_sums_ptr + tl.cast(column_tile, tl.int64) * strip_rows + within
    row_quantity = tl.cast(column_tiles, tl.int64) * strip_rows
    column_at = column_sums_ptr + tl.cast(row_tile, tl.int64) * column_count + columns
    column_quantity = tl.cast(row_tiles, tl.int64) * column_count
    if WAY == "online":
        exponents = products * (scale * LOG2E)
        if _partly(row0, column0, row_count, column_count, offsets, BLOCK_M, BLOCK_N):
            counts = _count(row0, column0, row_count, column_count, offsets, 0, BLOCK_M, BLOCK_N)
            exponents = tl.where(counts, exponents, float("-inf"))
        peak = tl.maximum(tl.max(exponents, 1), -3.0e38)
        terms = tl.exp2(exponents - peak[:, None])
        moments = tl.where(terms > 0, terms * products * scale, 0.0)
        _store_sums(
            row_at,
            row_quantity,
            within < strip_rows,
            tl.sum(terms, 1),
            tl.sum(terms * terms, 1),
            tl.sum(moments, 1),
            peak,
            WAY,
            WITH_MOMENT,
        )
        if WITH_COLUMNS:
            peak = tl.maximum(tl.max(exponents, 0), -3.0e38)
            terms = tl.exp2(exponents - peak[None, :])
            moments = tl.where(terms > 0, terms * products * scale, 0.0)
            _store_sums(
                column_at,
                column_quantity,
                columns < column_count,
                tl.sum(terms, 0),
                tl.sum(terms * terms, 0),
                tl.sum(moments, 0),
                peak,
                WAY,
                WITH_MOMENT,
            )
    else:
        terms, moments = _terms(
            products,
            row0,
            column0,
            row_count,
            column_count,
            offsets,
            scale,
            first,
            second,
            WAY,
            PHI,
            0,
            BLOCK_M,
            BLOCK_N,
        )
        total = tl.sum(terms, 1)
        squares = total
        moment = total
        if WAY != "phi":
            squares = tl.sum(terms * terms, 1)
        if WITH_MOMENT:
            moment = tl.sum(moments, 1)
        _store_sums(row_at, row_quantity, within < strip_rows, total, squares, moment, total, WAY, WITH_MOMENT)
        if WITH_COLUMNS:
            total = tl.sum(terms, 0)
            squares = total
            moment = total
            if WAY != "phi":
                squares = tl.sum(terms * terms, 0)
            if WITH_MOMENT:
                moment = tl.sum(moments, 0)
            _store_sums(
                column_at, column_quantity, columns < column_count, total, squares, moment, total, WAY, WITH_MOMENT
            )


@triton.jit(do_not_specialize=["row_first", "row_count", "column_count", "row_tiles", "column_tiles"])
def strip_weights_kernel(
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
    row_first,
    row_count,
    column_count,
    row_tiles,
    column_tiles,
    out_stride,
    offsets,
    SCALE_IS_TENSOR: tl.constexpr,
    FIRST_IS_TENSOR: tl.constexpr,
    SECOND_IS_TENSOR: tl.constexpr,
    WAY: tl.constexpr,
    CHOOSE: tl.constexpr,
    PHI: tl.constexpr,
    ROW_ANCHORS: tl.constexpr,
    COLUMN_ANCHORS: tl.constexpr,
    FEATURES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """w_i D_ij + w_j D_ji of every pair of the strip, in the type of the embeddings: [row of strip, column]."""
    scale = _scalar(scale, SCALE_IS_TENSOR)
    first = _scalar(first, FIRST_IS_TENSOR)
    second = _scalar(second, SECOND_IS_TENSOR)
    if _other_way(scale, WAY, CHOOSE):
        return
    row_tile, column_tile = _tile_of(row_tiles, column_tiles, GROUP)
    row0 = row_first + row_tile * BLOCK_M
    column0 = column_tile * BLOCK_N
    products = _wide_products(rows_ptr, columns_ptr, row0, column0, FEATURES, BLOCK_M, BLOCK_N, BLOCK_K, PRECISION)
    rows = row0 + tl.arange(0, BLOCK_M)
    columns = column0 + tl.arange(0, BLOCK_N)
    row_weight = tl.zeros([BLOCK_M], tl.float32)
    column_weight = tl.zeros([BLOCK_N], tl.float32)
    if ROW_ANCHORS:
        row_weight = tl.load(row_weight_ptr + rows, mask=rows < row_count, other=0.0)
    if COLUMN_ANCHORS:
        column_weight = tl.load(column_weight_ptr + columns, mask=columns < column_count, other=0.0)
    if WAY == "online":
        exponents = products * (scale * LOG2E)
        weights = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        if ROW_ANCHORS:
            row_value = tl.load(row_value_ptr + rows, mask=rows < row_count, other=0.0) * LOG2E
            weights += tl.exp2(exponents - row_value[:, None]) * row_weight[:, None]
        if COLUMN_ANCHORS:
            column_value = tl.load(column_value_ptr + columns, mask=columns < column_count, other=0.0) * LOG2E
            weights += tl.exp2(exponents - column_value[None, :]) * column_weight[None, :]
    else:
        if WAY == "fixed":
            slopes = tl.exp2(products * (scale * LOG2E) - _fixed_shift(scale))
        else:
            _, slopes = PHI(products * scale, first, second)
        if ROW_ANCHORS and COLUMN_ANCHORS:
            weights = slopes * (row_weight[:, None] + column_weight[None, :])
        elif ROW_ANCHORS:
            weights = slopes * row_weight[:, None]
        else:
            weights = slopes * column_weight[None, :]
    if _partly(row0, column0, row_count, column_count, offsets, BLOCK_M, BLOCK_N):
        counts = _count(row0, column0, row_count, column_count, offsets, 0, BLOCK_M, BLOCK_N)
        weights = tl.where(counts, weights, 0.0)
    # the strip is padded to whole tiles, so nothing is masked; places in a tile fit 32 bits, which spares registers
    corner = out_ptr + tl.cast(row_tile * BLOCK_M, tl.int64) * out_stride + column0
    places = tl.arange(0, BLOCK_M)[:, None] * out_stride + tl.arange(0, BLOCK_N)[None, :]
    tl.store(corner + places, weights.to(out_ptr.dtype.element_ty))
