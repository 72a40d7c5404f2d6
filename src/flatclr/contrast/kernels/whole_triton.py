"""Two views that meet in one block, on the sphere, at a temperature that is a number: nearly every call.

Up to some thousand rows the host is the limit, not the device. So what follows from the shapes is worked out once and
kept as a `Plan`, sums are finished where they are merged, and kernels are launched as they were compiled. The kernels,
and the order in which they add up, are those of `fused_triton` and `strips_triton`.

Shape suffixes: n samples, d features, A anchors, R rows, C columns.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from triton.compiler import CompiledKernel

from flatclr.contrast.kernels import ALIGNED, fused_triton, strips_triton
from flatclr.contrast.kernels.fused_device import (
    gradients_kernel,
    mirrored_sums_kernel,
    ready_kernel,
    views_gradient_kernel,
    whole_sums_kernel,
)
from flatclr.contrast.kernels.fused_triton import NO_PHI, PADDING, SMALL
from flatclr.contrast.kernels.reductions import unit_of
from flatclr.contrast.kernels.strips import LOG_SUM_EXP_BITS, strips_of
from flatclr.contrast.kernels.strips_device import strip_sums_kernel, strip_weights_kernel
from flatclr.contrast.numerics import product
from flatclr.contrast.relation import same_sample_pairs
from flatclr.distributed import ALONE

FIXED: dict[str, Any] = {"SCALE_IS_TENSOR": False, "WAY": "fixed", "CHOOSE": False, **NO_PHI}
TOTALS_ONLY = {"WITH_SQUARES": False, "WITH_MOMENT": False}


class Launch:
    """A kernel on a grid with its constants.

    Triton looks at every argument of every launch, which takes the host several times as long as the launch. From the
    second on this one is of the compiled kernel. So the types of its arguments, the alignment of its pointers and its
    whole numbers must be the same in every call.
    """

    __slots__ = ("constants", "grid", "kernel", "options", "runner", "values")

    def __init__(self, kernel: Any, *grid: int, **constants: Any) -> None:
        names = set(kernel.arg_names)
        self.kernel, self.grid = kernel, grid
        self.constants = {name: constants[name] for name in kernel.arg_names if name in constants}
        self.options = {name: value for name, value in constants.items() if name not in names}
        self.values = tuple(self.constants.values())
        self.runner: Any = None

    def __call__(self, *arguments: object) -> None:
        if self.runner is not None:
            self.runner(*arguments, *self.values)
            return
        compiled = self.kernel[self.grid](*arguments, **self.constants, **self.options)
        if isinstance(compiled, CompiledKernel):  # the interpreter has none
            width, height, depth = (*self.grid, 1, 1)[:3]
            self.runner = compiled[width, height, depth]


class Plan:
    """Everything about such a contrast that follows from shapes, types and device."""

    def __init__(self, pairing: str, samples: int, d: int, dtype: torch.dtype, device: torch.device) -> None:
        self.samples, self.d, self.dtype = samples, d, dtype
        self.symmetric = pairing == "views"
        self.rows = 2 * samples if self.symmetric else samples  # of the block, as many as columns
        self.padded = fused_triton.padded_features(d)
        self.product_type = fused_triton.product_type(dtype)
        at_once, block_d = fused_triton.rows_at_once(self.padded)
        whole = {"SCALE_IS_TENSOR": False, "NORMALIZE": True, "BOTH_ANCHOR": True, "ROWS": at_once, "BLOCK_D": block_d}
        tiles = -(-samples // at_once)
        self.ready = Launch(
            ready_kernel,
            tiles + -(-PADDING // at_once),
            SUMS=0,
            WITH_PEAK=False,
            PADDING=PADDING,
            PADDED=self.padded,
            **whole,
            **SMALL,
        )
        self.to_views = Launch(views_gradient_kernel, tiles, FROM_POSITIVES=True, SCALED=self.scaled, **whole, **SMALL)

    scaled: bool  # whether gradients of rows are yet to be multiplied with scale / factor
    bits: int  # of a unit in which weights of float16 neither overflow nor vanish
    row_slots: int  # of partial sums
    column_slots: int

    def finish(self, slots: int, anchors_at_once: int, triangle: int = 0) -> Launch:
        tiles = -(-self.rows // anchors_at_once)
        sides = 1 if self.symmetric else 2
        return Launch(whole_sums_kernel, tiles, sides, TRIANGLE=triangle, SLOTS=slots, ANCHORS=anchors_at_once, **SMALL)

    def reduced(self, z_a: Tensor, z_b: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
        """(unit rows, operand, per anchor: positive, log-sum-exp, gap, weight less g; inverse norms, factors)"""
        both = 2 * self.samples
        unit = z_a.new_empty(both, self.d, dtype=torch.float32)
        operand = z_a.new_empty(both + PADDING, self.padded, dtype=self.product_type)
        per_anchor = unit.new_empty(6, both)
        positive, _, _, _, inverse_norms, factors = per_anchor.unbind()
        self.ready(z_a, z_b, unit, inverse_norms, factors, positive, operand, scale, self.samples, self.d)
        self.add_up(operand, factors, per_anchor, scale)
        return unit, operand, per_anchor

    def add_up(self, operand: Tensor, factors: Tensor, per_anchor: Tensor, scale: float) -> None:
        """Log-sum-exp, gap and weight of every anchor."""
        raise NotImplementedError

    def to_rows(self, operand: Tensor, factors: Tensor, weights: Tensor, scale: float) -> Tensor:
        """What the negatives send to the rows of both views, perhaps in strips: [P, 2n, d] or [2n, d]."""
        raise NotImplementedError

    def gradients(
        self,
        unit: Tensor,
        operand: Tensor,
        per_anchor: Tensor,
        g_value: Tensor,
        pull: Tensor,
        sign: float,
        scale: float,
    ) -> tuple[Tensor, Tensor]:
        """Of both views, from the gradients that reached the log-sum-exp and, times sign, the positives."""
        _, _, _, less_g, inverse_norms, factors = per_anchor.unbind()
        if self.product_type == torch.float16:
            unit_g = unit_of([g_value], self.bits)
            from_negatives = self.to_rows(operand, factors, g_value / unit_g * less_g, scale).mul_(unit_g)
        else:
            from_negatives = self.to_rows(operand, factors, g_value * less_g, scale)
        pull = pull.contiguous()
        pull = pull.clone() if pull.data_ptr() % ALIGNED else pull
        d_a, d_b = unit.new_empty(2, self.samples, self.d, dtype=self.dtype).unbind()
        strips = from_negatives.shape[0] if from_negatives.dim() == 3 else 1
        self.to_views(
            from_negatives,
            pull,
            unit,
            inverse_norms,
            factors,
            d_a,
            d_b,
            scale,
            self.samples,
            self.d,
            strips,
            sign,
            1.0,
        )
        return d_a, d_b

    def halves(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Of rows and columns."""
        return (x, x) if self.symmetric else (x, x[self.samples :])

    def partial_sums(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Room for those of rows and columns."""
        of_rows = like.new_empty(self.row_slots, self.rows)
        return of_rows, of_rows if self.symmetric else like.new_empty(self.column_slots, self.rows)


class FusedPlan(Plan):
    """Scores and pair weights stay in registers."""

    scaled, bits = False, fused_triton.LOG_SUM_EXP_BITS

    def __init__(
        self,
        pairing: str,
        samples: int,
        d: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__(pairing, samples, d, dtype, device)
        kind = self.padded, self.product_type.itemsize, device
        blocks = fused_triton.chunks_of(self.padded, self.product_type)
        tiling = fused_triton.mirrored_tiling(*kind)
        views = (0, 1) if self.symmetric else (0,), (0, 1) if self.symmetric else (1,)
        self.offsets = fused_triton.offsets_of(same_sample_pairs(*views, samples, ALONE), self.rows)
        row_tiles, column_tiles = -(-self.rows // tiling.rows), -(-self.rows // tiling.columns)
        self.parts, self.tiles_per_part = fused_triton.parts_for(
            device, row_tiles, column_tiles, busy=2 if self.symmetric else 1
        )
        self.row_slots = self.parts + (row_tiles if self.symmetric else 0)
        self.column_slots = self.row_slots if self.symmetric else row_tiles
        self.sums = Launch(
            mirrored_sums_kernel,
            row_tiles,
            self.parts,
            SYMMETRIC=self.symmetric,
            FACTORS=True,
            **FIXED,
            **TOTALS_ONLY,
            **blocks,
            **fused_triton.tiling_constants(tiling),
        )
        triangle = tiling.rows if self.symmetric else 0
        self.finished = self.finish(32, min(32, triangle) if triangle else 32, triangle)
        tiling = fused_triton.gradients_tiling(*kind)
        row_tiles, column_tiles = -(-self.rows // tiling.rows), -(-self.rows // tiling.columns)
        self.strips, self.tiles_per_strip = fused_triton.parts_for(device, row_tiles, column_tiles, busy=1)
        block_out = fused_triton.features_out(blocks, self.product_type)
        self.to_side = Launch(
            gradients_kernel,
            row_tiles,
            self.strips,
            blocks["CHUNKS"] * blocks["BLOCK_D"] // block_out,
            UNIT_IS_TENSOR=False,
            ROW_ANCHORS=True,
            COLUMN_ANCHORS=True,
            BLOCK_OUT=block_out,
            FACTORS=True,
            **FIXED,
            **blocks,
            **fused_triton.tiling_constants(tiling),
        )

    def add_up(self, operand: Tensor, factors: Tensor, per_anchor: Tensor, scale: float) -> None:
        (rows, columns), (row_factors, column_factors) = self.halves(operand), self.halves(factors)
        row_partial, column_partial = self.partial_sums(factors)
        self.sums(
            rows,
            columns,
            row_factors,
            column_factors,
            scale,
            0.0,
            0.0,
            row_partial,
            column_partial,
            self.rows,
            self.rows,
            self.offsets,
            self.row_slots,
            self.column_slots,
            self.parts if self.symmetric else 0,
            self.tiles_per_part,
        )
        self.finished(
            row_partial,
            column_partial,
            per_anchor,
            scale,
            2 * self.samples,
            self.rows,
            self.rows,
            self.parts,
            self.column_slots,
        )

    def to_rows(self, operand: Tensor, factors: Tensor, weights: Tensor, scale: float) -> Tensor:
        row_end, column_end = zip(self.halves(operand), self.halves(factors), self.halves(weights), strict=True)
        from_columns = self._to_side(row_end, column_end, scale)
        return (
            from_columns if self.symmetric else torch.cat([from_columns, self._to_side(column_end, row_end, scale)], 1)
        )

    def _to_side(self, rows: tuple[Tensor, ...], columns: tuple[Tensor, ...], scale: float) -> Tensor:
        """What columns send to rows, [P, R, d]; of both sides: operand, factors, weights."""
        out = rows[1].new_empty(self.strips, self.rows, self.d)
        self.to_side(
            rows[0],
            columns[0],
            rows[1],
            columns[1],
            rows[2],  # in place of values, which are not read
            rows[2],
            columns[2],
            columns[2],
            out,
            scale,
            0.0,
            0.0,
            1.0,
            1.0,
            self.rows,
            self.rows,
            self.d,
            self.offsets,
            self.tiles_per_strip,
        )
        return out


class StripsPlan(Plan):
    """One strip: pair weights are stored, and multiplied by the library."""

    scaled, bits = True, LOG_SUM_EXP_BITS

    def __init__(self, pairing: str, samples: int, d: int, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(pairing, samples, d, dtype, device)
        itemsize = self.product_type.itemsize
        features = {
            "SAME_SAMPLE": True,
            "LABELS": "any",
            "IDS": False,
            "OWN_SCALE": False,
            "LIMIT": False,
            "SHIFTED": False,
            "FACTORS": True,
            "FEATURES": self.padded,
            "PRECISION": strips_triton.precision_of(self.product_type),
        }
        tiling = strips_triton.SUMS_TILING[itemsize]
        self.row_slots, self.column_slots = -(-self.rows // tiling.columns), -(-self.rows // tiling.rows)
        self.sums = Launch(
            strip_sums_kernel,
            self.row_slots * self.column_slots,
            WITH_COLUMNS=not self.symmetric,
            COUNTED=False,
            WITH_SLOPES=False,
            **FIXED,
            **TOTALS_ONLY,
            **features,
            **tiling.constants(self.padded),
        )
        self.finished = self.finish(32, 32)
        tiling = strips_triton.WEIGHTS_TILING[itemsize]
        self.row_tiles, self.column_tiles = -(-self.rows // tiling.rows), -(-self.rows // tiling.columns)
        self.height, self.stride = self.row_tiles * tiling.rows, self.column_tiles * tiling.columns
        self.weights = Launch(
            strip_weights_kernel,
            self.row_tiles * self.column_tiles,
            ROW_ANCHORS=True,
            COLUMN_ANCHORS=True,
            **FIXED,
            **features,
            **tiling.constants(self.padded),
        )

    def add_up(self, operand: Tensor, factors: Tensor, per_anchor: Tensor, scale: float) -> None:
        (rows, columns), (row_factors, column_factors) = self.halves(operand), self.halves(factors)
        row_partial, column_partial = self.partial_sums(factors)
        self.sums(
            rows,
            columns,
            (row_factors,),
            (column_factors,),
            scale,
            0.0,
            0.0,
            row_partial,
            column_partial,
            row_partial,  # in place of counts, which are not asked for
            column_partial,
            0,
            self.rows,
            self.rows,
            self.rows,
            self.column_slots,
            self.row_slots,
            (self.samples, 0, self.samples),
            (row_partial,),  # in place of a list of tiles: all are visited
        )
        self.finished(
            row_partial,
            column_partial,
            per_anchor,
            scale,
            2 * self.samples,
            self.rows,
            self.rows,
            self.row_slots,
            self.column_slots,
        )

    def to_rows(self, operand: Tensor, factors: Tensor, weights: Tensor, scale: float) -> Tensor:
        rows, columns = self.halves(operand)
        row_factors, column_factors = self.halves(factors)
        row_weights, column_weights = self.halves(weights)
        weights_RC = operand.new_empty(self.height, self.stride)
        self.weights(
            rows,
            columns,
            (row_factors,),
            (column_factors,),
            row_weights,  # in place of values, which are not read
            row_weights,
            column_weights,
            column_weights,
            weights_RC,
            scale,
            0.0,
            0.0,
            0,
            self.rows,
            self.rows,
            self.row_tiles,
            self.column_tiles,
            self.stride,
            (self.samples, 0, self.samples),
            (row_weights,),  # in place of a list of tiles: all are visited
        )
        if self.height != self.rows or self.stride != self.rows:
            weights_RC = weights_RC[: self.rows, : self.rows]
        if self.symmetric:
            return product(weights_RC, self._real(rows))
        return torch.cat([product(weights_RC, self._real(columns)), product(weights_RC.T, self._real(rows))])

    def _real(self, operand: Tensor) -> Tensor:
        """Without what it is padded with."""
        rows = operand[: self.rows]
        return rows if self.d == self.padded else rows[:, : self.d]


def plan_of(route: str, pairing: str, view: Tensor) -> Plan | None:
    """The plan of two views like this one [n, d], all against all ("views") or one against the other ("cross").

    They are such as `may_be_planned`. None for blocks too large for one visit.
    """
    return _plan(route, pairing, *view.shape, view.dtype, view.device)


@lru_cache(maxsize=256)
def _plan(route: str, pairing: str, samples: int, d: int, dtype: torch.dtype, device: torch.device) -> Plan | None:
    rows, itemsize = 2 * samples if pairing == "views" else samples, fused_triton.product_type(dtype).itemsize
    if route == "strips":
        sums, weights = strips_triton.SUMS_TILING[itemsize], strips_triton.WEIGHTS_TILING[itemsize]
        sums_fit = len(strips_of(rows, rows, strips_triton.bytes_per_pair(sums, 2, two_sided=True), sums.rows)) == 1
        stride = -(-rows // weights.columns) * weights.columns
        fits = sums_fit and len(strips_of(rows, stride, itemsize, weights.rows)) == 1
        return StripsPlan(pairing, samples, d, dtype, device) if fits else None
    tiles = -(-rows // fused_triton.mirrored_tiling(fused_triton.padded_features(d), itemsize, device).rows)
    if 4 * 2 * tiles * rows > fused_triton.MIRRORED_BYTES:
        return None
    return FusedPlan(pairing, samples, d, dtype, device)
