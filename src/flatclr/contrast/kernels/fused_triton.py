"""The streamed reductions as fused kernels for CUDA devices; what runs there is in `fused_device`.

Scores and pair weights live in registers only. Products are made in the type of the embeddings (bfloat16, float16, or
float32 as three tf32 products), sums in float32. No two programs write to one place and partial sums are added in a
fixed order, so results repeat bit by bit. Nothing waits for the device, so a CUDA graph can hold it.

Shape suffixes: R rows, C columns, d features, Q quantities.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor
from triton.runtime import JITFunction, driver

from flatclr.contrast.kernels import tiled_torch
from flatclr.contrast.kernels.fused_device import (
    LARGEST_FIXED_SCALE,
    anchor_weights_kernel,
    finish_kernel,
    gradients_kernel,
    merge_kernel,
    mirrored_sums_kernel,
    ready_kernel,
    sums_kernel,
    views_gradient_kernel,
)
from flatclr.contrast.kernels.reductions import (
    Block,
    Embeddings,
    LogSumExp,
    LogSumExpSums,
    MeanPhi,
    PhiSums,
    PlainSums,
    Ready,
    Reduction,
    Rows,
    Side,
    SideT,
    unit_of,
)
from flatclr.contrast.kernels.selected import AnyReduction, AnySums, SelectedPhi, SelectedPhiSums
from flatclr.contrast.phi import Phi
from flatclr.contrast.relation import Diagonal

BYTES_AT_ONCE = 512  # of a row: 256 features in half precision; more are multiplied chunk by chunk
CHUNK = 128
PADDING = 256  # rows that may be read behind the last: no tile is taller or wider
MIRRORED_BYTES = 2**28  # of partial sums, to visit each pair of a two-sided block once
FLOAT32_PRODUCTS = "tf32x3"  # three tf32 products: float32 accuracy on tensor cores
INTERPRETED = not isinstance(sums_kernel, JITFunction)  # by TRITON_INTERPRET=1, on the CPU
SMALL: dict[str, int] = {"num_warps": 4, "enable_fp_fusion": True}  # how kernels without products are run
FEWER_LAUNCHES = 2**33  # multiplications up to which launches take longer than kernels: 8,192^2 scores of 128 features
LOG_SUM_EXP_BITS, PHI_BITS = 13, 3  # of a unit in which weights of float16 neither overflow nor vanish
NO_PHI: dict[str, Any] = {"FIRST_IS_TENSOR": False, "SECOND_IS_TENSOR": False, "PHI": None}
NO_DIAGONAL = -(2**30)  # an offset that leads out of every block


SMALLEST_SHARED = 99 * 1024  # bytes of shared memory, of GPUs that Triton compiles for: RTX 30, 40 and 50, L4, L40S


@dataclass(frozen=True)
class Tiling:
    """How one program covers scores: tile height and width, and how it is run."""

    rows: int
    columns: int
    warps: int
    stages: int
    registers: int | None = None  # at most per thread, so that more programs share a multiprocessor
    shared: int = SMALLEST_SHARED  # bytes it takes at most; on Hopper some more, of which there is more


# by the bytes of a feature and the padded number of features; the first that fits the device, the last fits all
SUMS_TILING = {
    2: {
        64: (Tiling(128, 128, 8, 3),),
        128: (Tiling(128, 64, 4, 3),),
        256: (Tiling(128, 128, 8, 2, shared=132_096), Tiling(64, 64, 4, 2)),
    },
    4: {
        64: (Tiling(64, 64, 4, 2),),
        128: (Tiling(64, 32, 8, 2),),
        256: (Tiling(64, 32, 8, 2, shared=163_840), Tiling(32, 32, 4, 2)),
    },
}
MIRRORED_TILING = {
    2: {
        64: (Tiling(128, 64, 4, 3),),
        128: (Tiling(128, 64, 4, 3),),
        256: (Tiling(128, 64, 4, 3, shared=131_584), Tiling(64, 64, 4, 2)),
    },
    4: {
        64: (Tiling(64, 32, 4, 2),),
        128: (Tiling(64, 32, 8, 2),),
        256: (Tiling(64, 32, 8, 2, shared=132_096), Tiling(32, 32, 4, 2)),
    },
}
GRADIENTS_TILING = {
    2: {
        64: (Tiling(128, 128, 8, 3),),
        128: (Tiling(64, 128, 4, 2),),
        256: (Tiling(128, 64, 8, 3, shared=148_992), Tiling(64, 64, 4, 2)),
    },
    4: {
        64: (Tiling(64, 32, 4, 2),),
        128: (Tiling(64, 32, 8, 2),),
        256: (Tiling(64, 32, 8, 2, shared=196_992), Tiling(32, 32, 4, 1)),
    },
}


def sums_tiling(padded_features: int, itemsize: int, device: torch.device) -> Tiling:
    return _fitting(SUMS_TILING[itemsize], padded_features, device)


def mirrored_tiling(padded_features: int, itemsize: int, device: torch.device) -> Tiling:
    return _fitting(MIRRORED_TILING[itemsize], padded_features, device)


def gradients_tiling(padded_features: int, itemsize: int, device: torch.device) -> Tiling:
    return _fitting(GRADIENTS_TILING[itemsize], padded_features, device)


def _fitting(table: dict[int, tuple[Tiling, ...]], features: int, device: torch.device) -> Tiling:
    tilings = table[min((size for size in table if size >= features), default=max(table))]
    return next((tiling for tiling in tilings if tiling.shared <= shared_memory(device)), tilings[-1])


@cache
def shared_memory(device: torch.device) -> int:
    """Bytes that a program may share between its threads; the interpreter knows no limit."""
    if device.type != "cuda":
        return 2**31
    place = torch.cuda.current_device() if device.index is None else device.index
    return int(driver.active.utils.get_device_properties(place)["max_shared_mem"])


@cache
def programs_at_once(device: torch.device) -> int:
    """How many programs keep the device busy."""
    if device.type != "cuda":
        return 4
    return 2 * int(torch.cuda.get_device_properties(device).multi_processor_count)


@cache
def padded_features(d: int) -> int:
    """A power of two from 16 on, or a multiple of the chunk.

    >>> padded_features(3), padded_features(128), padded_features(200), padded_features(320)
    (16, 128, 256, 384)
    """
    if d > 2 * CHUNK:
        return -(-d // CHUNK) * CHUNK
    return max(16, 1 << (d - 1).bit_length())


def run(function: Callable[..., tuple[Tensor, ...]], z: Tensor, *arguments: object) -> tuple[Tensor, ...]:
    """function(*arguments), launching on the device of z; a backward pass runs on that of its tensors anyway."""
    if torch.compiler.is_compiling():
        results: tuple[Tensor, ...] = _run_outside_graphs(function, z, *arguments)
        return results
    with torch.cuda.device_of(z):
        return function(*arguments)


@torch.compiler.disable  # type: ignore[untyped-decorator]  # a graph can hold launches as operators only
def _run_outside_graphs(
    function: Callable[..., tuple[Tensor, ...]], z: Tensor, *arguments: object
) -> tuple[Tensor, ...]:
    with torch.cuda.device_of(z):
        return function(*arguments)


def try_launch(device: torch.device) -> None:
    """Raises whatever keeps a kernel from running there."""
    z = torch.ones(1, 2, device=device)
    with torch.cuda.device_of(z):
        ready((z, z), 1.0, None, normalize=True, anchor_groups=1, with_moment=False, with_ess=True)


def require_usable(embeddings: Tensor) -> None:
    """Refuse what the kernels cannot run on."""
    if embeddings.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        raise TypeError(
            f"backend='triton' must be given float32, bfloat16 or float16 embeddings, got {embeddings.dtype}; "
            "use backend='torch'."
        )
    if embeddings.device.type != "cuda" and not INTERPRETED:
        raise ValueError(
            f"backend='triton' must be given embeddings on a CUDA device, got {embeddings.device}; "
            "move them there, or use backend='torch'."
        )


def knows(phi: Phi) -> bool:
    """Whether it has device code."""
    return phi.device is not None


def require_known(phi: Phi) -> None:
    """Refuse a function without device code."""
    if not knows(phi):
        raise ValueError(
            f"phi must have device code for backend='triton', got {phi.name!r} without; pass Phi(..., device=), or use "
            "backend='torch', which calls its functions."
        )


def device_code(phi: Phi) -> Any:
    """The Triton function of a phi; one named "module:function" is imported when it is first asked for."""
    if not isinstance(phi.device, str):
        return phi.device
    module, _, function = phi.device.partition(":")
    return getattr(importlib.import_module(module), function)


def operand(embeddings: Embeddings, dtype: torch.dtype) -> Rows:
    """A copy in the type of the products, laid out."""
    rows = embeddings.exact(dtype)
    return Rows(laid_out(rows.values), rows.factors)


def laid_out(rows_Rd: Tensor) -> Tensor:
    """A copy [R, d] with zeros behind every row and behind the last row, to be read."""
    dtype = product_type(rows_Rd.dtype)
    rows, d = rows_Rd.shape
    padded = rows_Rd.new_empty(rows + PADDING, padded_features(d), dtype=dtype)
    padded[rows:].zero_()
    padded[:rows, d:].zero_()
    copy = padded[:rows, :d]
    copy.copy_(rows_Rd)
    return copy


def product_type(dtype: torch.dtype) -> torch.dtype:
    """The interpreter has no products of bfloat16."""
    return torch.float32 if INTERPRETED and dtype == torch.bfloat16 else dtype


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
    """Two views [n, d] made ready in one launch."""
    z_a, z_b = views
    (samples, d), dtype = z_a.shape, z_a.dtype
    padded = padded_features(d)
    unit = z_a.new_empty(2 * samples, d, dtype=torch.float32)
    inverse_norms = unit.new_empty(2 * samples, 1) if normalize else None
    factors = unit.new_empty(2 * samples) if normalize else None
    products = unit.new_empty(2 * samples + PADDING, padded, dtype=product_type(dtype))
    sums = (1 if phi is not None else 2 + with_ess) + with_moment
    positive, *others = unit.new_empty(1 + sums, anchor_groups * samples).unbind()
    at_once, block_d = rows_at_once(padded)
    ready_kernel[(_tiles(samples, at_once) + _tiles(PADDING, at_once),)](
        z_a.contiguous(),
        z_b.contiguous(),
        unit,
        unit if inverse_norms is None else inverse_norms,
        unit if factors is None else factors,
        positive,
        products,
        scale,
        samples,
        d,
        SCALE_IS_TENSOR=isinstance(scale, Tensor),
        NORMALIZE=normalize,
        BOTH_ANCHOR=anchor_groups == 2,
        SUMS=sums,
        WITH_PEAK=phi is None,
        PADDING=PADDING,
        PADDED=padded,
        ROWS=at_once,
        BLOCK_D=block_d,
        **SMALL,
    )
    operand_Rd = Rows(products[: 2 * samples, :d], factors)
    moment = others.pop() if with_moment else None
    if phi is not None:
        return Ready(unit, inverse_norms, positive, operand_Rd, PhiSums(phi, others[0], moment))
    peak, total, *squares = others
    sums_of_all = LogSumExpSums(peak, total, squares[0] if with_ess else None, moment)
    return Ready(unit, inverse_norms, positive, operand_Rd, sums_of_all)


def stacked(stack: Tensor, *, normalize: bool) -> tuple[Tensor, Tensor | None, Rows]:
    """(rows in float32, on the sphere if asked; inverse norms; the rows as products take them), in one launch."""
    if stack.shape[0] % 2:  # two views are read at once
        unit, inverse_norms = tiled_torch.on_sphere(stack, normalize=normalize)
        return unit, inverse_norms, operand(Embeddings(stack, unit, normalize), stack.dtype)
    halves = stack.chunk(2)
    found = ready(halves, 1.0, None, normalize=normalize, anchor_groups=1, with_moment=False, with_ess=False)
    return found.rows, found.inverse_norms, found.operand


def finish(sums: PlainSums, positive: Tensor, negatives: int) -> list[Tensor]:
    """[value] and, of a log-sum-exp, [its gap to the positive, ess]; with a moment, [scale * d value / d scale]"""
    if isinstance(sums, PhiSums):
        return sums.finish(negatives)
    anchors = positive.shape[0]
    value, gap, ess, slope = positive.new_empty(4, anchors).unbind()
    with_ess = sums.squares is not None
    finish_kernel[(_tiles(anchors, 256),)](
        sums.peak,
        sums.total,
        sums.total if sums.squares is None else sums.squares,
        sums.total if sums.moment is None else sums.moment,
        positive,
        value,
        anchors,
        float(negatives),
        WITH_SQUARES=with_ess,
        WITH_MOMENT=sums.moment is not None,
        ANCHORS=256,
        **SMALL,
    )
    return [value, gap, *([ess] if with_ess else []), *([] if sums.moment is None else [slope])]


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
    """Gradients of both views from what their rows get as negatives, perhaps in strips, and from their positives."""
    rows, d = unit.shape
    d_a, d_b = unit.new_empty(2, rows // 2, d, dtype=dtype).unbind()
    strips = 0
    if from_negatives is not None:
        strips = len(from_negatives) if from_negatives.dim() == 3 else 1
    at_once, block_d = rows_at_once(padded_features(d))
    views_gradient_kernel[(_tiles(rows // 2, at_once),)](
        unit if from_negatives is None else from_negatives,
        unit if pull is None else pull.contiguous(),
        unit,
        unit if inverse_norms is None else inverse_norms,
        unit,
        d_a,
        d_b,
        scale,
        rows // 2,
        d,
        strips,
        sign,
        factor,
        SCALE_IS_TENSOR=isinstance(scale, Tensor),
        FROM_POSITIVES=pull is not None,
        BOTH_ANCHOR=pull is not None and pull.shape[0] == rows,
        NORMALIZE=inverse_norms is not None,
        SCALED=False,
        ROWS=at_once,
        BLOCK_D=block_d,
        **SMALL,
    )
    return d_a, d_b


def rows_at_once(padded: int) -> tuple[int, int]:
    """Rows and features a program holds of a stack."""
    block_d = 1 << (padded - 1).bit_length()
    return max(1, 2048 // block_d), block_d


def reduce_block(block: Block, rows: AnySums, columns: AnySums | None = None) -> None:
    """Add every score of the block to the sums of the anchors in its rows and, where given, in its columns."""
    two_sided = block.symmetric or columns is not None
    for way, choose in ways(block, isinstance(rows, PhiSums)):
        if two_sided and way != "online" and _mirrored_bytes(block, rows) <= MIRRORED_BYTES:
            _reduce_mirrored(block, rows, columns, way, choose)
            continue
        _reduce(block, rows, way, choose)
        if columns is not None and not block.symmetric:
            _reduce(_transposed(block), columns, way, choose)


def block_gradients(
    block: Block,
    reduction: Reduction[SideT],
    rows: SideT | None,
    columns: SideT | None,
    *,
    need_rows: bool,
    need_columns: bool,
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of the block's rows and columns in strips [P, R, d] to be added; a symmetric block's are in the first.

    With upstream g:  d row_i = scale * sum_j (g_i D_ij + g_j D_ji) column_j
    """
    assert isinstance(reduction, LogSumExp | MeanPhi), "this route knows two views at one temperature"
    unit: float | Tensor = 1.0
    if block.rows_Rd.dtype == torch.float16:
        bits = PHI_BITS if isinstance(reduction, MeanPhi) else LOG_SUM_EXP_BITS
        unit = unit_of([side.gradient for side in (rows, columns) if side is not None], bits=bits)
        rows, columns = (None if s is None else replace(s, gradient=s.gradient / unit) for s in (rows, columns))
    sides = {}
    for way, _ in ways(block, isinstance(reduction, MeanPhi)):
        own = side_of(rows, way, block.scale, block.rows_Rd)
        sides[way] = own, own if block.symmetric else side_of(columns, way, block.scale, block.rows_Rd)
    d_rows = d_columns = None
    if need_rows:
        d_rows = _row_gradients(block, reduction, sides, unit, anchors=(rows is not None, columns is not None))
    if need_columns and not block.symmetric:
        turned = {way: (other, own) for way, (own, other) in sides.items()}
        anchors = (columns is not None, rows is not None)
        d_columns = _row_gradients(_transposed(block), reduction, turned, unit, anchors=anchors)
    return d_rows, d_columns


def ways(block: Block, phi: bool, *, own_scale: bool = False) -> list[tuple[str, bool]]:
    """The launches a block needs, and whether the device chooses among them by the scale only it knows."""
    if phi:
        return [("phi", False)]
    if not block.bounded or own_scale:
        return [("online", False)]
    if isinstance(block.scale, Tensor):
        if block.rows_Rd.numel() * len(block.columns) <= FEWER_LAUNCHES:
            return [("online", False)]
        return [("fixed", True), ("online", True)]
    return [("fixed" if abs(block.scale) <= LARGEST_FIXED_SCALE.value else "online", False)]


def _transposed(block: Block) -> Block:
    """Rows for columns."""
    excluded = tuple(Diagonal(e.row_start + e.offset, e.row_stop + e.offset, -e.offset) for e in block.excluded)
    return replace(block, rows=block.columns, columns=block.rows, excluded=excluded)


def _reduce(block: Block, sums: AnySums, way: str, choose: bool) -> None:
    """Add the block's scores to the sums of its rows."""
    tiling = sums_tiling(*_feature_kind(block))
    row_count, column_count = len(block.rows), len(block.columns)
    row_tiles, column_tiles = _tiles(row_count, tiling.rows), _tiles(column_count, tiling.columns)
    parts, tiles_per_program = parts_for(block.rows_Rd.device, row_tiles, column_tiles, busy=1)
    partial = block.rows_Rd.new_empty(quantities_of(sums, way), parts, row_count, dtype=torch.float32)
    sums_kernel[(row_tiles, parts)](
        block.rows_Rd,
        block.columns_Cd,
        *factors_of(block),
        block.scale,
        *parameters(sums, block.rows_Rd.device),
        partial,
        row_count,
        column_count,
        offsets(block),
        parts,
        tiles_per_program,
        **_sums_constants(block, sums, way, choose, tiling),
    )
    merge(sums, partial, parts, block.scale, way, choose)


def _reduce_mirrored(block: Block, rows: AnySums, columns: AnySums | None, way: str, choose: bool) -> None:
    """Add the block's scores to the sums of its rows and of its columns; those of a symmetric block are its rows."""
    tiling = _mirrored_tiling_of(block, rows)
    row_count, column_count = len(block.rows), len(block.columns)
    row_tiles, column_tiles = _tiles(row_count, tiling.rows), _tiles(column_count, tiling.columns)
    parts, tiles_per_program = parts_for(
        block.rows_Rd.device, row_tiles, column_tiles, busy=2 if block.symmetric else 1
    )
    quantities = quantities_of(rows, way)
    row_slots = parts + (row_tiles if block.symmetric else 0)  # one buffer for both, column slots behind row slots
    row_partial = block.rows_Rd.new_empty(quantities, row_slots, row_count, dtype=torch.float32)
    column_partial = row_partial if block.symmetric else row_partial.new_empty(quantities, row_tiles, column_count)
    mirrored_sums_kernel[(row_tiles, parts)](
        block.rows_Rd,
        block.columns_Cd,
        *factors_of(block),
        block.scale,
        *parameters(rows, block.rows_Rd.device),
        row_partial,
        column_partial,
        row_count,
        column_count,
        offsets(block),
        row_slots,
        column_partial.shape[1],
        parts if block.symmetric else 0,
        tiles_per_program,
        SYMMETRIC=block.symmetric,
        **_sums_constants(block, rows, way, choose, tiling),
    )
    merge(rows, row_partial, parts, block.scale, way, choose, triangle=tiling.rows if block.symmetric else 0)
    if columns is not None and not block.symmetric:
        merge(columns, column_partial, row_tiles, block.scale, way, choose)


def _sums_constants(block: Block, sums: AnySums, way: str, choose: bool, tiling: Tiling) -> dict[str, Any]:
    return {
        "SCALE_IS_TENSOR": isinstance(block.scale, Tensor),
        "WAY": way,
        "CHOOSE": choose,
        "WITH_SQUARES": with_squares(sums),
        "WITH_MOMENT": sums.moment is not None,
        **parameter_constants(sums),
        **_feature_constants(block),
        **tiling_constants(tiling),
    }


def tiling_constants(tiling: Tiling) -> dict[str, int]:
    limit = {} if tiling.registers is None else {"maxnreg": tiling.registers}
    return {
        "BLOCK_M": tiling.rows,
        "BLOCK_N": tiling.columns,
        "num_warps": tiling.warps,
        "num_stages": tiling.stages,
        "enable_fp_fusion": True,
        **limit,
    }


def merge(
    sums: AnySums,
    partial_QSA: Tensor,
    slots: int,
    scale: float | Tensor,
    way: str,
    choose: bool,
    *,
    triangle: int = 0,
) -> None:
    anchors = partial_QSA.shape[2]
    at_once = min(32, triangle) if triangle else 32
    total = sums.total
    merge_kernel[(_tiles(anchors, at_once),)](
        partial_QSA,
        total,
        sums.squares if isinstance(sums, LogSumExpSums) and sums.squares is not None else total,
        total if sums.moment is None else sums.moment,
        sums.peak if isinstance(sums, LogSumExpSums) else total,
        scale,
        anchors,
        slots,
        partial_QSA.shape[1],
        SCALE_IS_TENSOR=isinstance(scale, Tensor),
        WAY=way,
        CHOOSE=choose,
        WITH_SQUARES=with_squares(sums),
        WITH_MOMENT=sums.moment is not None,
        TRIANGLE=triangle,
        SLOTS=32,
        ANCHORS=at_once,
        **SMALL,
    )


def _row_gradients(
    block: Block,
    reduction: LogSumExp | MeanPhi,
    sides: dict[str, tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]],
    unit: float | Tensor,
    *,
    anchors: tuple[bool, bool],
) -> Tensor:
    """`sides`: by way, (value, weight) of the rows and of the columns; `anchors`: which of them are."""
    is_phi, dtype = isinstance(reduction, MeanPhi), block.rows_Rd.dtype
    tiling = gradients_tiling(*_feature_kind(block))
    (row_count, d), column_count = block.rows_Rd.shape, len(block.columns)
    row_tiles, column_tiles = _tiles(row_count, tiling.rows), _tiles(column_count, tiling.columns)
    parts, tiles_per_program = parts_for(block.rows_Rd.device, row_tiles, column_tiles, busy=1)
    out = block.rows_Rd.new_empty(parts, row_count, d, dtype=torch.float32)
    blocks = _feature_constants(block)
    block_out = features_out(blocks, dtype)
    for way, choose in ways(block, is_phi):
        own, other = sides[way]
        gradients_kernel[(row_tiles, parts, blocks["CHUNKS"] * blocks["BLOCK_D"] // block_out)](
            block.rows_Rd,
            block.columns_Cd,
            *factors_of(block),
            *own,
            *other,
            out,
            block.scale,
            *parameters(reduction, block.rows_Rd.device),
            unit,
            1 / reduction.negatives if isinstance(reduction, MeanPhi) else 1.0,
            row_count,
            column_count,
            d,
            offsets(block),
            tiles_per_program,
            SCALE_IS_TENSOR=isinstance(block.scale, Tensor),
            **parameter_constants(reduction),
            UNIT_IS_TENSOR=isinstance(unit, Tensor),
            WAY=way,
            CHOOSE=choose,
            ROW_ANCHORS=anchors[0],
            COLUMN_ANCHORS=anchors[1],
            BLOCK_OUT=block_out,
            **blocks,
            **tiling_constants(tiling),
        )
    return out


def side_of(side: Side | None, way: str, scale: float | Tensor, unused: Tensor) -> tuple[Tensor, Tensor]:
    """(value, weight) of a side's anchors as the kernel takes them that way."""
    if side is None:
        return unused, unused
    value, gradient = side.value.contiguous(), side.gradient.contiguous()
    if way != "fixed":
        return value, gradient
    weights = torch.empty_like(value)
    anchors = weights.shape[0]
    anchor_weights_kernel[(_tiles(anchors, 256),)](
        value,
        gradient,
        weights,
        scale,
        anchors,
        SCALE_IS_TENSOR=isinstance(scale, Tensor),
        ANCHORS=256,
        **SMALL,
    )
    return value, weights


def _feature_kind(block: Block) -> tuple[int, int, torch.device]:
    """Padded number of features, bytes of each, and where they are."""
    return padded_features(block.rows_Rd.shape[1]), block.rows_Rd.dtype.itemsize, block.rows_Rd.device


def _mirrored_tiling_of(block: Block, sums: AnySums) -> Tiling:
    tiling = mirrored_tiling(*_feature_kind(block))
    if sums.moment is not None:  # one more tile of registers
        tiling = replace(tiling, rows=max(tiling.rows // 2, tiling.columns))
    assert tiling.rows % tiling.columns == 0, "the triangle of a symmetric block begins at a whole tile"
    return tiling


def _mirrored_bytes(block: Block, sums: AnySums) -> int:
    tiles = _tiles(len(block.rows), _mirrored_tiling_of(block, sums).rows)
    return 4 * quantities_of(sums, "phi" if isinstance(sums, PhiSums) else "fixed") * tiles * len(block.columns)


def with_squares(sums: AnySums) -> bool:
    return isinstance(sums, LogSumExpSums) and sums.squares is not None


def quantities_of(sums: AnySums, way: str) -> int:
    if way == "online":
        return 4
    return (1 if way == "phi" else 2) + (sums.moment is not None)


def parts_for(device: torch.device, row_tiles: int, column_tiles: int, *, busy: int) -> tuple[int, int]:
    """Into how many strips the columns are cut so that the device is busy, and the tiles in each."""
    wanted = -(-busy * programs_at_once(device) // row_tiles)
    per_program = -(-column_tiles // min(wanted, column_tiles))
    return -(-column_tiles // per_program), per_program


def offsets(block: Block) -> tuple[int, int, int, int, int]:
    """(s, a, b, c, d): row i < s meets its own sample in columns i + a and i + b, the others in i + c and i + d."""
    return offsets_of(block.excluded, len(block.rows))


@lru_cache(maxsize=1024)
def offsets_of(excluded: tuple[Diagonal, ...], row_count: int) -> tuple[int, int, int, int, int]:
    starts = sorted({e.row_start for e in excluded})
    by_start = [[e.offset for e in excluded if e.row_start == start] for start in starts]
    assert len(starts) <= 2, "rows come from one view or two"
    assert all(len(found) <= 2 for found in by_start), "columns come from one view or two"
    early, late = ([*found, NO_DIAGONAL, NO_DIAGONAL][:2] for found in [*by_start, [], []][:2])
    split = starts[1] if len(starts) == 2 else row_count
    return split, early[0], early[1], late[0], late[1]


def factors_of(block: Block) -> tuple[Tensor, Tensor]:
    """Of rows and columns, as the kernels take them."""
    rows, columns = block.rows.factors, block.columns.factors
    return block.rows_Rd if rows is None else rows, block.columns_Cd if columns is None else columns


def _feature_constants(block: Block) -> dict[str, Any]:
    padded, dtype = padded_features(block.rows_Rd.shape[1]), block.rows_Rd.dtype
    assert block.rows_Rd.stride() == block.columns_Cd.stride() == (padded, 1), "embeddings come from `operand`"
    return {"FACTORS": block.rows.factors is not None, **chunks_of(padded, dtype)}


def chunks_of(padded: int, dtype: torch.dtype) -> dict[str, Any]:
    """How the features of a row are multiplied."""
    chunks = 1 if padded * dtype.itemsize <= BYTES_AT_ONCE else padded // CHUNK
    precision = FLOAT32_PRODUCTS if dtype == torch.float32 else None
    return {"CHUNKS": chunks, "BLOCK_D": padded // chunks, "PRECISION": precision}


def features_out(chunks: dict[str, Any], dtype: torch.dtype) -> int:
    """How many features of a gradient a program makes."""
    block_d: int = chunks["BLOCK_D"]
    return 2 * block_d if chunks["CHUNKS"] % 2 == 0 and 2 * block_d * dtype.itemsize <= BYTES_AT_ONCE else block_d


def parameters(of: AnySums | AnyReduction, device: torch.device) -> tuple[float | Tensor, float | Tensor]:
    """The numbers a phi closes over, those that are tensors on the device."""
    phi = _phi_of(of)
    if phi is None:
        return 0.0, 0.0
    known = phi.parameters or ()
    first, second, *_ = (*(p.to(device) if isinstance(p, Tensor) else float(p) for p in known), 0.0, 0.0)
    return first, second


def parameter_constants(of: AnySums | AnyReduction) -> dict[str, Any]:
    phi = _phi_of(of)
    if phi is None:
        return NO_PHI
    first, second, *_ = (*(phi.parameters or ()), 0.0, 0.0)
    return {
        "FIRST_IS_TENSOR": isinstance(first, Tensor),
        "SECOND_IS_TENSOR": isinstance(second, Tensor),
        "PHI": device_code(phi),
    }


def _phi_of(of: AnySums | AnyReduction) -> Phi | None:
    """A log-sum-exp has none."""
    return of.phi if isinstance(of, PhiSums | MeanPhi | SelectedPhiSums | SelectedPhi) else None


def _tiles(count: int, edge: int) -> int:
    return -(-count // edge)
