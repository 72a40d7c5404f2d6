"""Wide embeddings on CUDA devices: scores in tiles, gradients through the library's matrix products.

With hundreds of features a tile of scores costs more to multiply than to reduce, and registers cannot hold the features
of its rows. So a strip of rows is visited at a time: forward its tiles leave sums only; backward they leave their pair
weights in the type of the embeddings, [strip, columns], which two library products turn into gradients. The strip is
sized to a budget of memory, so nothing grows with the square of the batch.

Products are made in the type of the embeddings, sums in float32, partial sums are added in a fixed order.

Shape suffixes: R rows, C columns, d features, Q quantities.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from flatclr.contrast.kernels import fused_triton, tiled_torch
from flatclr.contrast.kernels.fused_triton import (
    FLOAT32_PRODUCTS,
    finish,
    knows,
    operand,
    require_known,
    require_usable,
    run,
    try_launch,
)
from flatclr.contrast.kernels.reductions import AnySums, Block, LogSumExp, MeanPhi, PhiSums, Ready, Side
from flatclr.contrast.kernels.strips_device import strip_sums_kernel, strip_weights_kernel
from flatclr.contrast.phi import Phi

__all__ = ["finish", "knows", "operand", "require_known", "require_usable", "run", "try_launch"]

STRIP_BYTES = 2**29  # of pair weights at once


@dataclass(frozen=True)
class Tiling:
    """One tile per program, and how it is run."""

    rows: int
    columns: int
    features: int
    warps: int
    stages: int
    group: int = 8

    def constants(self, features: int) -> dict[str, int]:
        """For rows padded to so many features, of which a step must not read more."""
        return {
            "BLOCK_M": self.rows,
            "BLOCK_N": self.columns,
            "BLOCK_K": min(self.features, features),
            "GROUP": self.group,
            "num_warps": self.warps,
            "num_stages": self.stages,
        }


SUMS_TILING = {2: Tiling(256, 128, 64, 8, 3, group=16), 4: Tiling(64, 64, 32, 4, 2)}  # by the bytes of a feature
WEIGHTS_TILING = {2: Tiling(256, 128, 64, 8, 3, group=16), 4: Tiling(64, 64, 32, 4, 2)}


def ready(
    views: tuple[Tensor, ...],
    scale: float | Tensor,
    phi: Phi | None,
    *,
    normalize: bool,
    anchor_groups: int,
    with_moment: bool,
) -> Ready:
    """Views [n, d] on the sphere if asked, with the positive scores of two, and sums that hold nothing yet."""
    if len(views) == 2:
        return fused_triton.ready(
            views, scale, phi, normalize=normalize, anchor_groups=anchor_groups, with_moment=with_moment
        )
    found = tiled_torch.ready(
        views, scale, phi, normalize=normalize, anchor_groups=anchor_groups, with_moment=with_moment
    )
    return replace(found, operand=operand(found.rows, views[0].dtype))


def views_gradient(
    from_negatives: Tensor | None,
    pull: Tensor | None,
    unit: Tensor,
    inverse_norms: Tensor | None,
    scale: float | Tensor,
    *,
    views: int,
    sign: float,
    factor: float,
    dtype: torch.dtype,
) -> tuple[Tensor, ...]:
    """Gradients of the views from what their rows get as negatives and from their positive scores."""
    gradient = fused_triton.views_gradient if views == 2 else tiled_torch.views_gradient
    return gradient(
        from_negatives, pull, unit, inverse_norms, scale, views=views, sign=sign, factor=factor, dtype=dtype
    )


def reduce_block(block: Block, rows: AnySums, columns: AnySums | None = None) -> None:
    """Add every score of the block to the sums of the anchors in its rows and, where given, in its columns."""
    both = columns is not None and not block.symmetric
    tiling = SUMS_TILING[block.rows_Rd.dtype.itemsize]
    row_count, column_count = len(block.rows_Rd), len(block.columns_Cd)
    column_tiles = -(-column_count // tiling.columns)
    for way, choose in fused_triton.ways(block, isinstance(rows, PhiSums)):
        quantities = fused_triton.quantities_of(rows, way)
        bytes_per_pair = 4 * quantities * (1 / tiling.columns + (1 / tiling.rows if both else 0))
        for strip in _strips(row_count, column_count, tiling.rows, bytes_per_pair):
            height = strip.stop - strip.start
            row_tiles = -(-height // tiling.rows)
            row_partial = block.rows_Rd.new_empty(quantities, column_tiles, height, dtype=torch.float32)
            column_partial = row_partial
            if both:
                column_partial = row_partial.new_empty(quantities, row_tiles, column_count)
            strip_sums_kernel[(row_tiles * column_tiles,)](
                block.rows_Rd,
                block.columns_Cd,
                block.scale,
                *fused_triton.parameters(rows, block.rows_Rd.device),
                row_partial,
                column_partial,
                strip.start,
                row_count,
                column_count,
                height,
                row_tiles,
                column_tiles,
                fused_triton.offsets(block),
                WAY=way,
                CHOOSE=choose,
                WITH_MOMENT=rows.moment is not None,
                WITH_COLUMNS=both,
                **_constants(block, rows),
                **tiling.constants(fused_triton.padded_features(block.rows_Rd.shape[1])),
            )
            fused_triton.merge(rows.part(strip), row_partial, column_tiles, block.scale, way, choose)
            if both:
                assert columns is not None
                fused_triton.merge(columns, column_partial, row_tiles, block.scale, way, choose)


def block_gradients(
    block: Block,
    reduction: LogSumExp | MeanPhi,
    rows: Side | None,
    columns: Side | None,
    *,
    need_rows: bool,
    need_columns: bool,
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of the block's rows and columns; a symmetric block's are in the first.

    With upstream g:  d row_i = scale * sum_j (g_i D_ij + g_j D_ji) column_j
    """
    is_phi, unit = isinstance(reduction, MeanPhi), None
    if block.rows_Rd.dtype == torch.float16:
        unit = fused_triton.unit_of([s.gradient for s in (rows, columns) if s is not None], bits=4 if is_phi else 14)
        rows, columns = (None if s is None else replace(s, gradient=s.gradient / unit) for s in (rows, columns))
    need_columns = need_columns and not block.symmetric
    (row_count, d), column_count = block.rows_Rd.shape, len(block.columns_Cd)
    d_rows = block.rows_Rd.new_empty(row_count, d, dtype=torch.float32) if need_rows else None
    d_columns = None
    tiling = WEIGHTS_TILING[block.rows_Rd.dtype.itemsize]
    stride = -(-column_count // tiling.columns) * tiling.columns
    ways = fused_triton.ways(block, is_phi)
    sides = {way: _sides(block, rows, columns, way) for way, _ in ways}
    weights_RC = None
    for strip in _strips(row_count, stride, tiling.rows, block.rows_Rd.dtype.itemsize):
        height = strip.stop - strip.start
        row_tiles, column_tiles = -(-height // tiling.rows), -(-column_count // tiling.columns)
        if weights_RC is None:
            weights_RC = block.rows_Rd.new_empty(row_tiles * tiling.rows, stride)
        for way, choose in ways:
            strip_weights_kernel[(row_tiles * column_tiles,)](
                block.rows_Rd,
                block.columns_Cd,
                *sides[way],
                weights_RC,
                block.scale,
                *fused_triton.parameters(reduction, block.rows_Rd.device),
                strip.start,
                row_count,
                column_count,
                row_tiles,
                column_tiles,
                stride,
                fused_triton.offsets(block),
                WAY=way,
                CHOOSE=choose,
                ROW_ANCHORS=rows is not None,
                COLUMN_ANCHORS=columns is not None,
                **_constants(block, reduction),
                **tiling.constants(fused_triton.padded_features(block.rows_Rd.shape[1])),
            )
        weights = weights_RC[:height, :column_count]
        if d_rows is not None:
            d_rows[strip] = _product(weights, block.columns_Cd)
        if need_columns:
            d_columns = _add_product(d_columns, weights.T, block.rows_Rd[strip])
    factor = block.scale * (1 / reduction.negatives if isinstance(reduction, MeanPhi) else 1.0)
    for gradient in (d_rows, d_columns):
        if gradient is not None:
            gradient.mul_(factor if unit is None else factor * unit)
    return d_rows, d_columns


def _product(left: Tensor, right: Tensor) -> Tensor:
    """In float32 from operands in the type they have."""
    if left.dtype == torch.float32:
        return left @ right
    if left.is_cuda:
        return torch.mm(left, right, out_dtype=torch.float32)
    return left.float() @ right.float()


def _add_product(total: Tensor | None, left: Tensor, right: Tensor) -> Tensor:
    """total + left @ right, in the memory of total."""
    if total is None:
        return _product(left, right)
    if left.is_cuda and left.dtype != torch.float32:
        torch.addmm(total, left, right, out_dtype=torch.float32, out=total)
        return total
    return total.add_(_product(left, right))


def _strips(rows: int, columns: int, tile_rows: int, bytes_per_pair: float) -> list[slice]:
    """Strips of rows, in whole tiles, whose pairs take no more than the budget."""
    at_once = max(1, int(STRIP_BYTES / (bytes_per_pair * columns)) // tile_rows) * tile_rows
    return [slice(first, min(first + at_once, rows)) for first in range(0, rows, at_once)]


def _sides(block: Block, rows: Side | None, columns: Side | None, way: str) -> tuple[Tensor, ...]:
    """(value, weight) of the rows' anchors and of the columns'."""
    own = fused_triton.side_of(rows, way, block.scale, block.rows_Rd)
    other = own if block.symmetric else fused_triton.side_of(columns, way, block.scale, block.rows_Rd)
    return *own, *other


def _constants(block: Block, of: AnySums | LogSumExp | MeanPhi) -> dict[str, Any]:
    features, dtype = fused_triton.padded_features(block.rows_Rd.shape[1]), block.rows_Rd.dtype
    assert block.rows_Rd.stride() == block.columns_Cd.stride() == (features, 1), "embeddings come from `operand`"
    return {
        "SCALE_IS_TENSOR": isinstance(block.scale, Tensor),
        **fused_triton.parameter_constants(of),
        "FEATURES": features,
        "PRECISION": FLOAT32_PRODUCTS if dtype == torch.float32 else None,
    }
