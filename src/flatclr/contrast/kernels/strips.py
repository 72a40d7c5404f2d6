"""What both makers of strips share: how tall a strip is, and gradients by the library's matrix products.

With hundreds of features a tile of scores costs more to multiply than to reduce, and registers cannot hold the features
of its rows. So a strip of rows is visited at a time: forward it leaves sums only; backward it leaves its pair weights
in the type of the embeddings, [strip, columns], which two library products turn into gradients. The strip is sized to
a budget of memory, so no scores are held that grow with the square of the batch.

Products are made in the type of the embeddings, sums in float32. A row stands for its factor times its values, and a
weight carries the factors of both of its ends: d row_i = sum_j (w_ij f_i f_j) values_j / f_i.

Rows of one label have many positives. In a nearly collapsed batch these all but cancel the negatives, while the weights
of a row are nearly alike. Rounded to bfloat16 they would all move the same way, by up to 0.2 %, and what is left of a
gradient by percents. So with labels a weight is rounded up or down by its place in a lattice, and the sums stay.

Shape suffixes: R rows, C columns, d features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from flatclr.contrast.kernels.reductions import Block, LogSumExp, MeanPhi, SideT, unit_of
from flatclr.contrast.kernels.selected import SelectedLogSumExp
from flatclr.contrast.numerics import product

STRIP_BYTES = 2**29  # of pair weights at once
# weights of float16 in these units stay below 2^16: two ends, factors of both, and slopes of a phi up to 2^12
LOG_SUM_EXP_BITS, PHI_BITS = 12, 1
# 2^32 over the plastic number and its square: the places of a lattice that fills squares evenly, row and column
ROW_STEP, COLUMN_STEP = 3242174889 - 2**32, 2447445414 - 2**32


def strips_of(rows: int, columns: int, bytes_per_pair: float, whole: int = 1) -> list[slice]:
    """Strips of rows, in multiples of `whole`, whose pairs take no more than the budget.

    >>> strips_of(10, 2**27, 1.0, whole=2)
    [slice(0, 4, None), slice(4, 8, None), slice(8, 10, None)]
    """
    at_once = max(1, int(STRIP_BYTES / (bytes_per_pair * columns)) // whole) * whole
    return [slice(first, min(first + at_once, rows)) for first in range(0, rows, at_once)]


def in_units(
    rows: SideT | None, columns: SideT | None, dtype: torch.dtype, reduction: object
) -> tuple[float | Tensor, SideT | None, SideT | None]:
    """(unit, sides whose upstream gradients count in it), so that float16 weights neither overflow nor vanish."""
    share = 1 / reduction.negatives if isinstance(reduction, MeanPhi) else 1.0
    if dtype != torch.float16:
        return share, rows, columns
    bits = LOG_SUM_EXP_BITS if isinstance(reduction, LogSumExp | SelectedLogSumExp) else PHI_BITS
    unit = unit_of([side.reach for side in (rows, columns) if side is not None], bits)
    rows, columns = (None if side is None else replace(side, gradient=side.gradient / unit) for side in (rows, columns))
    return unit * share, rows, columns


def in_product_type(weights: Tensor, strip: slice, block: Block) -> Tensor:
    """The weights of a strip as products take them; may overwrite them."""
    dtype = block.rows_Rd.dtype
    if dtype != torch.bfloat16 or not has_labels(block):
        return weights.to(dtype)
    rows, columns = (
        torch.arange(first, first + count, dtype=torch.int32, device=weights.device) * step
        for first, count, step in ((strip.start, weights.shape[0], ROW_STEP), (0, weights.shape[1], COLUMN_STEP))
    )
    without_value = weights.isnan()
    places = (rows.unsqueeze(1) + columns).bitwise_right_shift_(16).bitwise_and_(0xFFFF)
    bits = weights.view(torch.int32).add_(places).bitwise_right_shift_(16)
    return bits.to(torch.int16).view(torch.bfloat16).masked_fill_(without_value, torch.nan)


def has_labels(block: Block) -> bool:
    """Whether labels choose its pairs."""
    codes = block.codes
    return codes is not None and codes.row_labels is not None and codes.column_labels is not None


class Products(Protocol):
    """How the weights of a strip [strip, C] become gradients."""

    def to_rows(self, strip: slice, weights: Tensor) -> Tensor:
        """Of the rows of the strip: weights @ columns."""

    def to_columns(self, strip: slice, weights: Tensor, total: Tensor | None) -> Tensor:
        """total + weights^T @ rows of the strip, in the memory of total."""


@dataclass(frozen=True)
class LibraryProducts:
    """Of all pairs."""

    block: Block

    def to_rows(self, strip: slice, weights: Tensor) -> Tensor:
        return product(weights, self.block.columns_Cd)

    def to_columns(self, strip: slice, weights: Tensor, total: Tensor | None) -> Tensor:
        return _add_products(total, weights.T, self.block.rows_Rd[strip])


def gradients_from_weights(
    block: Block,
    strips: Iterable[slice],
    weigh: Callable[[slice], Tensor],
    factor: float | Tensor,
    *,
    need_rows: bool,
    need_columns: bool,
    products: Products | None = None,
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of the block's rows and columns, times `factor`; a symmetric block's are in the first.

    `weigh` gives the weights of a strip [strip, C]: of both sides of its pairs, times both factors.
    """
    products = LibraryProducts(block) if products is None else products
    need_columns = need_columns and not block.symmetric
    row_count, d = block.rows_Rd.shape
    d_rows = d_columns = None
    for strip in strips:
        weights = weigh(strip)
        if need_rows:
            from_strip = products.to_rows(strip, weights)
            if strip.stop - strip.start == row_count:
                d_rows = from_strip
            else:
                d_rows = from_strip.new_empty(row_count, d) if d_rows is None else d_rows
                d_rows[strip] = from_strip
        if need_columns:
            d_columns = products.to_columns(strip, weights, d_columns)
    for gradient, rows in ((d_rows, block.rows), (d_columns, block.columns)):
        if gradient is not None:
            gradient.mul_(factor if rows.factors is None else (factor / rows.factors).unsqueeze(1))
    return d_rows, d_columns


def _add_products(total: Tensor | None, left: Tensor, right: Tensor) -> Tensor:
    """total + left @ right, in the memory of total."""
    if total is None:
        return product(left, right)
    if left.is_cuda and left.dtype in (torch.bfloat16, torch.float16):
        torch.addmm(total, left, right, out_dtype=torch.float32, out=total)
        return total
    return total.add_(product(left, right))
