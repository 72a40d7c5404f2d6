"""Strips in PyTorch's own operations: on any device, of any relation, with any phi.

Shape suffixes: R rows, C columns, d features.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from flatclr.contrast.kernels import tiled_torch
from flatclr.contrast.kernels.reductions import Block, Embeddings, MeanPhi, Ready, Reduction, Rows, SideT, SumsT, Tile
from flatclr.contrast.kernels.selected import (
    SelectedLogSumExp,
    SelectedLogSumExpSums,
    SelectedPhi,
    SelectedPhiSums,
)
from flatclr.contrast.kernels.strips import gradients_from_weights, in_product_type, in_units, strips_of
from flatclr.contrast.kernels.tiled_torch import (
    finish,
    knows,
    laid_out,
    require_known,
    require_usable,
    run,
    try_launch,
    views_gradient,
)
from flatclr.contrast.numerics import product
from flatclr.contrast.phi import Phi

__all__ = [
    "block_gradients",
    "finish",
    "knows",
    "laid_out",
    "operand",
    "ready",
    "reduce_block",
    "require_known",
    "require_usable",
    "run",
    "stacked",
    "try_launch",
    "views_gradient",
]

NUMBERS_PER_PAIR = 4  # scores, weights and what is made of them on the way
NUMBERS_PER_SELECTED_PAIR = 9  # and which pairs are meant


def operand(embeddings: Embeddings, dtype: torch.dtype) -> Rows:
    """Embeddings in the type of the views."""
    return embeddings.exact(dtype)


def stacked(stack: Tensor, *, normalize: bool) -> tuple[Tensor, Tensor | None, Rows]:
    """(rows in accumulation precision, on the sphere if asked; inverse norms; the rows as products take them)"""
    unit, inverse_norms = tiled_torch.on_sphere(stack, normalize=normalize)
    return unit, inverse_norms, operand(Embeddings(stack, unit, normalize), stack.dtype)


def ready(
    views: tuple[Tensor, ...],
    scale: float | Tensor,
    phi: Phi | None,
    *,
    normalize: bool,
    anchor_groups: int,
    with_moment: bool,
    with_ess: bool,
) -> Ready:
    """Views [n, d] on the sphere if asked, with the positive scores of two, and sums that hold nothing yet."""
    found = tiled_torch.ready(
        views, scale, phi, normalize=normalize, anchor_groups=anchor_groups, with_moment=with_moment, with_ess=with_ess
    )
    stack = Embeddings(torch.cat(views), found.rows, normalize)
    return Ready(found.rows, found.inverse_norms, found.positive, operand(stack, views[0].dtype), found.sums)


def reduce_block(block: Block, rows: SumsT, columns: SumsT | None = None) -> None:
    """Add every score of the block to the sums of the anchors in its rows and, where given, in its columns."""
    others = None if block.symmetric else columns  # rows of a symmetric block have seen everything
    for strip in _strips(block, selects=isinstance(rows, SelectedLogSumExpSums | SelectedPhiSums)):
        rows.part(strip).add_tile(_scores(block, strip), _tile(block, strip), others)


def block_gradients(
    block: Block,
    reduction: Reduction[SideT],
    rows: SideT | None,
    columns: SideT | None,
    *,
    need_rows: bool,
    need_columns: bool,
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of the block's rows and columns; a symmetric block's are in the first.

    With upstream g:  d row_i = scale * sum_j (g_i D_ij + g_j D_ji) column_j
    """
    unit, rows, columns = in_units(rows, columns, block.rows_Rd.dtype, reduction)
    if isinstance(reduction, MeanPhi):
        reduction = replace(reduction, negatives=1)  # their share is in the unit

    def weigh(strip: slice) -> Tensor:
        own = None if rows is None else rows.part(strip)
        weights = reduction.pair_weights(_scores(block, strip), _tile(block, strip), own, columns)
        return in_product_type(_with_factors(weights, block, strip), strip, block)

    strips = _strips(block, selects=isinstance(reduction, SelectedLogSumExp | SelectedPhi))
    return gradients_from_weights(
        block, strips, weigh, block.scale * unit, need_rows=need_rows, need_columns=need_columns
    )


def _strips(block: Block, *, selects: bool) -> list[slice]:
    numbers = NUMBERS_PER_SELECTED_PAIR if selects else NUMBERS_PER_PAIR
    itemsize = max(4, block.rows_Rd.dtype.itemsize)  # scores are added up in float32 at least
    return strips_of(len(block.rows_Rd), len(block.columns_Cd), numbers * itemsize)


def _scores(block: Block, strip: slice) -> Tensor:
    scores = product(block.rows_Rd[strip], block.columns_Cd.T)
    return _with_factors(scores, block, strip).mul_(block.scale)


def _with_factors(pairs: Tensor, block: Block, strip: slice) -> Tensor:
    """Times the factors of both ends, in place."""
    rows, columns = block.rows.factors, block.columns.factors
    if rows is not None and columns is not None:
        pairs.mul_(rows[strip].unsqueeze(1)).mul_(columns)
    return pairs


def _tile(block: Block, strip: slice) -> Tile:
    return Tile(strip, slice(0, len(block.columns_Cd)), block.excluded, False, block.codes)
