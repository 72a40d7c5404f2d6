"""Strips whose tiles are made by Triton kernels, on CUDA devices; what runs there is in `strips_device`.

Partial sums are added in a fixed order, so results repeat bit by bit. Nothing waits for the device.

Shape suffixes: R rows, C columns, d features, Q quantities, S slots.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from flatclr.contrast.kernels import fused_triton
from flatclr.contrast.kernels.fused_device import LOWEST
from flatclr.contrast.kernels.fused_triton import (
    FLOAT32_PRODUCTS,
    finish,
    knows,
    laid_out,
    operand,
    ready,
    require_known,
    require_usable,
    run,
    stacked,
    try_launch,
    views_gradient,
)
from flatclr.contrast.kernels.reductions import (
    Block,
    LogSumExp,
    MeanPhi,
    PhiSums,
    Reduction,
    Rows,
    Side,
    SideT,
)
from flatclr.contrast.kernels.selected import (
    AnyReduction,
    AnySums,
    Lens,
    SelectedLogSumExp,
    SelectedLogSumExpSums,
    SelectedPhi,
    SelectedPhiSums,
    SelectedSide,
)
from flatclr.contrast.kernels.strips import gradients_from_weights, has_labels, in_units, strips_of
from flatclr.contrast.kernels.strips_device import banded_product_kernel, strip_sums_kernel, strip_weights_kernel
from flatclr.contrast.known import Codes

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


@dataclass(frozen=True)
class Tiling:
    """One tile per program, and how it is run."""

    rows: int
    columns: int
    features: int
    warps: int
    stages: int
    group: int = 8

    def constants(self, features: int) -> dict[str, int | bool]:
        """For rows padded to so many features, of which a step must not read more."""
        return {
            "BLOCK_M": self.rows,
            "BLOCK_N": self.columns,
            "BLOCK_K": min(self.features, features),
            "GROUP": self.group,
            "num_warps": self.warps,
            "num_stages": self.stages,
            "enable_fp_fusion": True,
        }


NO_LENS = Lens()
SUMS_TILING = {2: Tiling(128, 128, 64, 4, 3, group=32), 4: Tiling(64, 64, 32, 4, 2)}  # by the bytes of a feature
WEIGHTS_TILING = {2: Tiling(128, 128, 64, 4, 3, group=32), 4: Tiling(64, 64, 32, 4, 2)}
PEAK = 3  # of the quantities of an online sum
# where the anchors of a pair shift its score, each by its own, registers do not hold a large tile twice
SHIFTED_COLUMNS = 64  # of a tile of sums
SHIFTED_WARPS = 8  # of a tile of weights
PRODUCT_ROWS = 64  # of an operand that a program takes at a time
PRODUCT_FEATURES = {2: 128, 4: 64}  # of a gradient that a program makes, by the bytes of a feature


def reduce_block(block: Block, rows: AnySums, columns: AnySums | None = None) -> None:
    """Add every score of the block to the sums of the anchors in its rows and, where given, in its columns."""
    others = None if block.symmetric else columns
    shifted = getattr(rows, "shift", None) is not None
    tiling = SUMS_TILING[block.rows_Rd.dtype.itemsize]
    if shifted:
        tiling = replace(tiling, columns=min(tiling.columns, SHIFTED_COLUMNS))
    row_count, column_count = len(block.rows), len(block.columns)
    column_tiles = -(-column_count // tiling.columns)
    sides = _sides(block, rows, others)
    meeting = _Meeting.of(block, sides, tiling)
    counted, with_slopes = _counts(rows), isinstance(rows, SelectedPhiSums) and rows.slopes is not None
    extras = counted + with_slopes
    is_phi = isinstance(rows, PhiSums | SelectedPhiSums)
    for way, choose in fused_triton.ways(block, is_phi, own_scale=_lens(rows).scale is not None):
        quantities = fused_triton.quantities_of(rows, way)
        per_pair = bytes_per_pair(tiling, quantities + extras, two_sided=others is not None)
        for strip in strips_of(row_count, column_count, per_pair, whole=tiling.rows):
            height = strip.stop - strip.start
            row_tiles = -(-height // tiling.rows)
            new_sums = partial(block.rows_Rd.new_empty, dtype=torch.float32)
            row_partial = new_sums(quantities + extras, column_tiles, height)
            column_partial = row_partial if others is None else new_sums(quantities + extras, row_tiles, column_count)
            for partial_sums in (row_partial,) if others is None else (row_partial, column_partial):
                if meeting is not None:  # other tiles are not visited
                    _fill_with_nothing(partial_sums, way)
                elif choose and extras:  # the launch whose turn it is not writes none
                    partial_sums[quantities:].zero_()
            strip_sums_kernel[(row_tiles * column_tiles,)](
                block.rows_Rd,
                block.columns_Cd,
                *sides,
                block.scale,
                *fused_triton.parameters(rows, block.rows_Rd.device),
                row_partial,
                column_partial,
                row_partial[quantities:],
                column_partial[quantities:],
                strip.start,
                row_count,
                column_count,
                height,
                row_tiles,
                column_tiles,
                _samples(block),
                (row_partial,) if meeting is None else (meeting.listed, meeting.until),
                WAY=way,
                CHOOSE=choose,
                WITH_SQUARES=fused_triton.with_squares(rows),
                WITH_MOMENT=rows.moment is not None,
                WITH_COLUMNS=others is not None,
                COUNTED=counted,
                WITH_SLOPES=with_slopes,
                **_constants(block, rows, _lens(rows), shifted=shifted),
                **tiling.constants(fused_triton.padded_features(block.rows_Rd.shape[1])),
            )
            _merge(rows.part(strip), row_partial, quantities, block.scale, way, choose)
            if others is not None:
                _merge(others, column_partial, quantities, block.scale, way, choose)


def bytes_per_pair(tiling: Tiling, quantities: int, *, two_sided: bool) -> float:
    """Of partial sums."""
    return 4 * quantities * (1 / tiling.columns + (1 / tiling.rows if two_sided else 0))


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
    assert isinstance(reduction, LogSumExp | MeanPhi | SelectedLogSumExp | SelectedPhi), "kernels are written for these"
    unit, rows, columns = in_units(rows, columns, block.rows_Rd.dtype, reduction)
    weigh = _Weights.of(block, reduction, rows, columns)
    return gradients_from_weights(
        block,
        weigh.strips(),
        weigh,
        block.scale * unit,
        need_rows=need_rows,
        need_columns=need_columns,
        products=_Banded.of(block, weigh.meeting) if weigh.meeting is not None and _in_order(block) else None,
    )


@dataclass
class _Weights:
    """The pair weights of a strip, in memory that the next strip takes over."""

    block: Block
    reduction: AnyReduction
    rows: Side | None
    columns: Side | None
    ways: list[tuple[str, bool]]
    sides: tuple[tuple[Tensor, ...], ...]
    values: dict[str, tuple[Tensor, ...]]  # (value, weight) of the rows' anchors and of the columns', by way
    tiling: Tiling
    meeting: _Meeting | None  # the only tiles that have any; None: all may
    weights_RC: Tensor | None = None

    @classmethod
    def of(cls, block: Block, reduction: AnyReduction, rows: Side | None, columns: Side | None) -> _Weights:
        is_phi = isinstance(reduction, MeanPhi | SelectedPhi)
        own_scale = any(_lens(side).scale is not None for side in (rows, columns))
        ways = fused_triton.ways(block, is_phi, own_scale=own_scale)
        values = {way: _values_and_weights(block, rows, columns, way) for way, _ in ways}
        sides = _sides(block, rows, columns)
        tiling = WEIGHTS_TILING[block.rows_Rd.dtype.itemsize]
        if isinstance(reduction, SelectedPhi):
            tiling = replace(tiling, warps=SHIFTED_WARPS)
        meeting = _Meeting.of(block, sides, tiling)
        return cls(block, reduction, rows, columns, ways, sides, values, tiling, meeting)

    def strips(self) -> list[slice]:
        rows, dtype = self.block.rows_Rd.shape[0], self.block.rows_Rd.dtype
        return strips_of(rows, self._stride, dtype.itemsize, whole=self.tiling.rows)

    @property
    def _stride(self) -> int:
        return self._column_tiles * self.tiling.columns

    @property
    def _column_tiles(self) -> int:
        return -(-len(self.block.columns) // self.tiling.columns)

    def __call__(self, strip: slice) -> Tensor:
        block, tiling = self.block, self.tiling
        height, column_count = strip.stop - strip.start, len(block.columns)
        row_tiles = -(-height // tiling.rows)
        if self.weights_RC is None:
            self.weights_RC = block.rows_Rd.new_empty(row_tiles * tiling.rows, self._stride)
        lens = _lens(self.columns if self.rows is None else self.rows)
        constants = _constants(block, self.reduction, lens, shifted=isinstance(self.reduction, SelectedPhi))
        if self.meeting is not None and not _in_order(block):
            self.weights_RC.zero_()  # products are of all tiles, also of those that are not visited
        for way, choose in self.ways:
            strip_weights_kernel[(row_tiles * self._column_tiles,)](
                block.rows_Rd,
                block.columns_Cd,
                *self.sides,
                *self.values[way],
                self.weights_RC,
                block.scale,
                *fused_triton.parameters(self.reduction, block.rows_Rd.device),
                strip.start,
                len(block.rows),
                column_count,
                row_tiles,
                self._column_tiles,
                self._stride,
                _samples(block),
                (self.weights_RC,) if self.meeting is None else (self.meeting.listed, self.meeting.until),
                WAY=way,
                CHOOSE=choose,
                ROW_ANCHORS=self.rows is not None,
                COLUMN_ANCHORS=self.columns is not None,
                **constants,
                **tiling.constants(fused_triton.padded_features(block.rows_Rd.shape[1])),
            )
        return self.weights_RC[:height, :column_count]


@dataclass(frozen=True)
class _Meeting:
    """Tiles that may hold a pair of one label, as far as the ranges of their labels tell: few, where they are sorted.

    Shapes do not depend on the labels, so nothing waits for the device.
    """

    tiling: Tiling
    meet_TU: Tensor  # whether it is one, by row tile and column tile
    listed: Tensor  # [T U]: their numbers, row tile by row tile; what is behind them is never read
    until: Tensor  # [T + 1]: how many of them are in the first 0, 1, ... T row tiles

    @classmethod
    def of(cls, block: Block, sides: tuple[tuple[Tensor, ...], ...], tiling: Tiling) -> _Meeting | None:
        """None where other pairs than those of one label are meant."""
        if block.codes is None or not block.codes.positives:
            return None
        (_, row_labels, *_), (_, column_labels, *_) = sides
        row_low, row_high = _ranges(row_labels, tiling.rows)
        column_low, column_high = _ranges(column_labels, tiling.columns)
        meet_TU = (row_high.unsqueeze(1) >= column_low) & (column_high >= row_low.unsqueeze(1))
        numbers = torch.arange(meet_TU.numel(), dtype=torch.int32, device=meet_TU.device)
        meets = meet_TU.flatten()
        place = torch.where(meets, meets.cumsum(0) - 1, meets.sum() + meets.logical_not().cumsum(0) - 1)
        per_row_tile = meet_TU.sum(1, dtype=torch.int32)
        until = torch.cat([per_row_tile.new_zeros(1), per_row_tile.cumsum(0, dtype=torch.int32)])
        return cls(tiling, meet_TU, torch.empty_like(numbers).scatter_(0, place, numbers), until)


def _fill_with_nothing(partial_QSA: Tensor, way: str) -> None:
    """What a tile without pairs would leave."""
    partial_QSA.zero_()
    if way == "online":
        partial_QSA[PEAK].fill_(LOWEST.value)


@dataclass(frozen=True)
class _Banded:
    """Products over the tiles that hold a pair of one label: few, where labels are many and in order.

    With what `_Meeting` holds, lists take 17 bytes for every pair of tiles: 18 MB at 131,072 rows.
    """

    block: Block
    tiling: Tiling
    of_row_tiles: Tensor  # [T, U]: the column tiles of each row tile, those with a pair first
    of_column_tiles: Tensor  # [U, T]: likewise
    per_row_tile: Tensor  # [T], how many of them have a pair
    until: Tensor  # [T + 1, U]: of each column tile, how many have one among the first 0, 1, ... T row tiles

    @classmethod
    def of(cls, block: Block, meeting: _Meeting) -> _Banded:
        meet_TU = meeting.meet_TU
        until = torch.cat([meet_TU.new_zeros(1, meet_TU.shape[1]), meet_TU]).cumsum(0, dtype=torch.int32)
        per_row_tile = meet_TU.sum(1, dtype=torch.int32)
        return cls(block, meeting.tiling, _first_of(meet_TU), _first_of(meet_TU.T), per_row_tile, until)

    def to_rows(self, strip: slice, weights: Tensor) -> Tensor:
        nothing = torch.zeros_like(self.per_row_tile)
        rows, d = weights.shape[0], self.block.rows_Rd.shape[1]
        edges, inner = (self.tiling.rows, self.tiling.columns), self.block.columns_Cd
        # a strip has few row tiles, each of which may have many tiles to add up
        programs = -(-rows // edges[0]) * -(-d // self._features_at_once(weights, d))
        shares = max(1, fused_triton.programs_at_once(weights.device) // programs)
        out = weights.new_empty(shares, rows, d, dtype=torch.float32)
        places = self.of_row_tiles, nothing, self.per_row_tile
        self._multiply(weights, inner, out, places, (strip.start // edges[0], 0), edges, transposed=False, add=False)
        return out[0] if shares == 1 else out.sum(0)

    def to_columns(self, strip: slice, weights: Tensor, total: Tensor | None) -> Tensor:
        add, (columns, d) = total is not None, self.block.columns_Cd.shape
        out = weights.new_empty(columns, d, dtype=torch.float32) if total is None else total
        first, stop = strip.start // self.tiling.rows, -(-strip.stop // self.tiling.rows)
        edges, inner = (self.tiling.columns, self.tiling.rows), self.block.rows_Rd
        places = self.of_column_tiles, self.until[first], self.until[stop]
        self._multiply(weights, inner, out.unsqueeze(0), places, (0, first), edges, transposed=True, add=add)
        return out

    @staticmethod
    def _features_at_once(weights: Tensor, d: int) -> int:
        return min(PRODUCT_FEATURES[weights.dtype.itemsize], fused_triton.padded_features(d))

    def _multiply(
        self,
        weights: Tensor,
        operand_Kd: Tensor,
        out_Prd: Tensor,
        places: tuple[Tensor, Tensor, Tensor],
        firsts: tuple[int, int],
        edges: tuple[int, int],
        *,
        transposed: bool,
        add: bool,
    ) -> None:
        """`places`: lists of tiles, from which entry, to which; `firsts`: tiles of the output and of the operand."""
        shares, rows, d = out_Prd.shape
        at_once = self._features_at_once(weights, d)
        banded_product_kernel[(-(-rows // edges[0]), -(-d // at_once), shares)](
            weights,
            operand_Kd,
            out_Prd,
            *places,
            *firsts,
            rows,
            operand_Kd.shape[0],
            d,
            weights.stride(0),
            places[0].shape[1],
            TRANSPOSED=transposed,
            ADD=add,
            FEATURES=fused_triton.padded_features(d),
            BLOCK_M=edges[0],
            EDGE=edges[1],
            BLOCK_K=min(PRODUCT_ROWS, edges[1]),
            BLOCK_N=at_once,
            PRECISION=precision_of(weights.dtype),
            num_warps=8,
            num_stages=5 if weights.dtype.itemsize == 2 else 2,  # of which two find out where the next tile is
            enable_fp_fusion=True,
        )


def _in_order(block: Block) -> bool:
    """Whether pairs of one label are looked for, and samples are sorted by it."""
    return block.codes is not None and block.codes.positives and block.codes.in_order


def _ranges(labels: Tensor, edge: int) -> tuple[Tensor, Tensor]:
    """Smallest and largest label of every tile."""
    tiles = -(-len(labels) // edge)
    places = torch.arange(tiles * edge, device=labels.device).clamp_max_(len(labels) - 1)
    low, high = labels[places].view(tiles, edge).aminmax(dim=1)
    return low, high


def _first_of(meet_TU: Tensor) -> Tensor:
    """For every row, where it is true, in order; then where it is not."""
    return meet_TU.to(torch.int8).argsort(stable=True, dim=1, descending=True).int().contiguous()


def _merge(sums: AnySums, partial_QSA: Tensor, quantities: int, scale: float | Tensor, way: str, choose: bool) -> None:
    """Add the sums of all tiles; how many pairs there are and their slopes are behind the quantities."""
    fused_triton.merge(sums, partial_QSA[:quantities], partial_QSA.shape[1], scale, way, choose)
    if isinstance(sums, SelectedLogSumExpSums | SelectedPhiSums) and sums.count is not None:
        sums.count.add_(partial_QSA[quantities].sum(0).long())
    if isinstance(sums, SelectedPhiSums) and sums.slopes is not None:
        sums.slopes.add_(partial_QSA[-1].sum(0))


def _counts(sums: AnySums) -> bool:
    """Whether pairs are counted."""
    return isinstance(sums, SelectedLogSumExpSums | SelectedPhiSums) and sums.count is not None


def _lens(of: object) -> Lens:
    """How anchors see their scores."""
    if isinstance(of, SelectedLogSumExpSums | SelectedPhiSums | SelectedSide):
        return of.lens
    return NO_LENS


def _sides(block: Block, rows: AnySums | Side | None, columns: AnySums | Side | None) -> tuple[tuple[Tensor, ...], ...]:
    """(factors, labels, ids, own scales, limits, shifts) of rows and of columns; of plain ones the factors alone."""
    codes = Codes(None, None, None, None) if block.codes is None else block.codes
    return (
        _side(block.rows, codes.row_labels, codes.row_ids, rows),
        _side(block.columns, codes.column_labels, codes.column_ids, columns),
    )


def _side(rows: Rows, labels: Tensor | None, ids: Tensor | None, anchors: AnySums | Side | None) -> tuple[Tensor, ...]:
    factors, lens = rows.values if rows.factors is None else rows.factors, _lens(anchors)
    shift = anchors.shift if isinstance(anchors, SelectedPhiSums) else None
    if isinstance(anchors, SelectedSide):
        shift = anchors.value  # of a log-sum-exp it is not read
    if labels is None and ids is None and lens.scale is None and lens.limit is None and shift is None:
        return (factors,)
    others = (labels, ids, lens.scale, lens.limit, shift)
    return factors, *(factors if x is None else x.contiguous() for x in others)


def _values_and_weights(block: Block, rows: Side | None, columns: Side | None, way: str) -> tuple[Tensor, ...]:
    """Of the rows' anchors and of the columns'; an own scale is a slope of what an anchor sees, and so a weight."""
    own = _value_and_weight(block, rows, way)
    return *own, *(own if block.symmetric else _value_and_weight(block, columns, way))


def _value_and_weight(block: Block, side: Side | None, way: str) -> tuple[Tensor, Tensor]:
    seen = None if side is None else Side(side.value, side.reach)
    return fused_triton.side_of(seen, way, block.scale, block.rows_Rd)


def _samples(block: Block) -> tuple[int, int, int]:
    """(samples of these rows, place of their first among all, samples of all), view after view on both sides."""
    if not block.excluded:
        return 1, 0, 1
    first = block.excluded[0]
    offsets = [diagonal.offset for diagonal in block.excluded if diagonal.row_start == first.row_start]
    everyone = offsets[1] - offsets[0] if len(offsets) > 1 else len(block.columns)
    return first.row_stop - first.row_start, offsets[0], everyone


def _constants(block: Block, of: AnySums | AnyReduction, lens: Lens, *, shifted: bool) -> dict[str, Any]:
    rows, columns, codes, labels = block.rows_Rd, block.columns_Cd, block.codes, "any"
    features = fused_triton.padded_features(rows.shape[1])
    assert rows.stride() == columns.stride() == (features, 1), "embeddings come from `operand`"
    if codes is not None and has_labels(block):
        labels = "together" if codes.positives else "apart"
    return {
        "SCALE_IS_TENSOR": isinstance(block.scale, Tensor),
        **fused_triton.parameter_constants(of),
        "SAME_SAMPLE": bool(block.excluded),
        "LABELS": labels,
        "IDS": codes is not None and codes.row_ids is not None and codes.column_ids is not None,
        "OWN_SCALE": lens.scale is not None,
        "LIMIT": lens.limit is not None,
        "SHIFTED": shifted,
        "FACTORS": block.rows.factors is not None,
        "FEATURES": features,
        "PRECISION": precision_of(rows.dtype),
    }


def precision_of(dtype: torch.dtype) -> str | None:
    """Of products of operands of a type."""
    return FLOAT32_PRODUCTS if dtype == torch.float32 else None
