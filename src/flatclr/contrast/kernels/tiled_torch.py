"""The streamed reductions in PyTorch's own operations, on any device: a tile is computed, added to sums, and dropped.

Shape suffixes: R rows, C columns, d features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from flatclr.contrast.kernels.reductions import (
    Block,
    Embeddings,
    PhiSums,
    PlainSums,
    Ready,
    Reduction,
    Rows,
    SideT,
    SumsT,
    Tile,
    start_sums,
)
from flatclr.contrast.numerics import accumulation_type, gradient_before_sphere, to_sphere
from flatclr.contrast.phi import Phi


def tile_edge(device: torch.device) -> int:
    # 512 x 512 floats stay in a CPU core's cache; a GPU wants fewer, larger launches
    return 512 if device.type == "cpu" else 4096


def try_launch(device: torch.device) -> None:
    """Runs everywhere."""


def run(function: Callable[..., tuple[Tensor, ...]], z: Tensor, *arguments: object) -> tuple[Tensor, ...]:
    """function(*arguments): PyTorch finds the device."""
    return function(*arguments)


def require_usable(embeddings: Tensor) -> None:
    """Every floating-point tensor is."""


def knows(phi: Phi) -> bool:
    """Every phi: its functions are called."""
    return True


def require_known(phi: Phi) -> None:
    """Nothing to refuse."""


def operand(embeddings: Embeddings, dtype: torch.dtype) -> Rows:
    """Embeddings as the products take them: here in accumulation precision, whatever type they came in."""
    return Rows(embeddings.ready)


def laid_out(rows_Rd: Tensor) -> Tensor:
    """As they are."""
    return rows_Rd


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
    """Views [n, d] on the sphere if asked, positive scores of two, and empty sums, of squares too: they cost little."""
    unit, inverse_norms = on_sphere(torch.cat(views), normalize=normalize)
    view_a, view_b = unit.chunk(2)
    positive = ((view_a * view_b).sum(1) * scale).repeat(anchor_groups)
    return Ready(
        unit, inverse_norms, positive, Rows(unit), start_sums(phi, len(positive), unit, with_moment=with_moment)
    )


def stacked(stack: Tensor, *, normalize: bool) -> tuple[Tensor, Tensor | None, Rows]:
    """(rows in accumulation precision, on the sphere if asked; inverse norms; the rows as products take them)"""
    unit, inverse_norms = on_sphere(stack, normalize=normalize)
    return unit, inverse_norms, Rows(unit)


def on_sphere(stack: Tensor, *, normalize: bool) -> tuple[Tensor, Tensor | None]:
    """(rows in accumulation precision, on the sphere if asked; inverse norms)"""
    stack = stack.to(accumulation_type(stack))
    return to_sphere(stack) if normalize else (stack, None)


def finish(sums: PlainSums, positive: Tensor, negatives: int) -> list[Tensor]:
    """[value] and, of a log-sum-exp, [its gap to the positive, ess]; with a moment, [scale * d value / d scale]"""
    value, *others = sums.finish(negatives)
    return [value, *([] if isinstance(sums, PhiSums) else [value - positive]), *others]


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
    """Gradients of the views [n, d] from what their rows get as negatives and from their anchors' positive scores."""
    d_stack = torch.zeros_like(unit) if from_negatives is None else from_negatives
    if pull is not None:
        d_stack_Vnd, unit_Vnd = (x.view(2, len(unit) // 2, -1) for x in (d_stack, unit))
        pull_n = pull.view(-1, len(unit) // 2).sum(0) * (sign * scale)
        d_stack_Vnd.addcmul_(pull_n.unsqueeze(1), unit_Vnd.flip(0))
    if inverse_norms is not None:
        d_stack = gradient_before_sphere(d_stack, unit, inverse_norms)
    return (d_stack if factor == 1 else d_stack.mul_(factor)).to(dtype).chunk(views)


def reduce_block(block: Block, rows: SumsT, columns: SumsT | None = None) -> None:
    """Add every score of the block to the sums of the anchors in its rows and, where given, in its columns."""
    for tile, scores in _visit(block):
        # a tile on the axis of symmetry holds both triangles, so its rows have seen everything
        others = None if columns is None or tile.on_axis else columns.part(tile.columns)
        rows.part(tile.rows).add_tile(scores, tile, others)


def block_gradients(
    block: Block,
    reduction: Reduction[SideT],
    rows: SideT | None,
    columns: SideT | None,
    *,
    need_rows: bool,
    need_columns: bool,
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of the block's rows and columns; a symmetric block puts both into the first.

    With upstream g:  d row_i = scale * sum_j (g_i D_ij + g_j D_ji) column_j
    """
    d_rows = torch.zeros_like(block.rows_Rd) if need_rows else None
    d_columns = torch.zeros_like(block.columns_Cd) if need_columns and not block.symmetric else None
    for tile, scores in _visit(block):
        weights = reduction.pair_weights(
            scores,
            tile,
            None if rows is None else rows.part(tile.rows),
            None if columns is None else columns.part(tile.columns),
        )
        if d_rows is not None:
            d_rows[tile.rows].addmm_(weights, block.columns_Cd[tile.columns])
        mirrored = d_rows if block.symmetric else d_columns
        if mirrored is not None and not tile.on_axis:
            mirrored[tile.columns].addmm_(weights.T, block.rows_Rd[tile.rows])
    for gradient in (d_rows, d_columns):
        if gradient is not None:
            gradient.mul_(block.scale)
    return d_rows, d_columns


def _visit(block: Block) -> Iterator[tuple[Tile, Tensor]]:
    """Tiles with their scores; of a symmetric block only those on and above the axis."""
    rows_Rd, columns_dC = block.rows_Rd * block.scale, block.columns_Cd.T
    edge = tile_edge(rows_Rd.device)
    for r in range(0, len(rows_Rd), edge):
        rows = slice(r, min(r + edge, len(rows_Rd)))
        for c in range(r if block.symmetric else 0, columns_dC.shape[1], edge):
            columns = slice(c, min(c + edge, columns_dC.shape[1]))
            tile = Tile(rows, columns, block.excluded, block.symmetric and r == c, block.codes)
            yield tile, rows_Rd[rows] @ columns_dC[:, columns]
