"""Batch normalisation, a shortcut and ReLU together, in as few passes as there can be. Needs Triton.

PyTorch reads and writes every activation once for each of the three, each way; half of the time of a step of ResNet-18
on small views went there. What runs on the device is in `kernels.batch_norm`.

Shape suffixes: N images, C channels, H and W pixels, P parts.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from triton.runtime import JITFunction

from flatclr.checks import refuse_double_backward
from flatclr.models.kernels.batch_norm import (
    apply_kernel,
    gradient_apply_kernel,
    gradient_statistics_kernel,
    gradient_sums_kernel,
    statistics_kernel,
    sums_kernel,
)

INTERPRETED = not isinstance(sums_kernel, JITFunction)  # by TRITON_INTERPRET=1, on the CPU
WARPS = 8
MOST_CHANNELS = 64  # of a tile
VALUES = 8 * 32 * WARPS  # of a piece of a tile: one load of 16 bytes by each thread in half precision
PIECES = 8  # of a tile: so much must be on its way to keep the memory busy
TOGETHER = 4  # pieces that the second pass reads before it writes any: no read is moved before a write
MOST_FOLDED = 64  # parts that are cheaper to add up again in every program than by a kernel of their own
PROGRAMS_PER_PROCESSOR = 2
PROCESSORS_INTERPRETED = 2
PARTS_AT_ONCE = 64


class Grid(NamedTuple):
    """How rows and channels are shared out.

    Args:
        parts: of the rows, each summed by a program.
        columns: blocks of channels.
        rows_each: of a part.
        options: what the kernels of the first pass are compiled for.
    """

    parts: int
    columns: int
    rows_each: int
    options: dict[str, Any]

    @property
    def folded(self) -> bool:
        return self.parts <= MOST_FOLDED

    @property
    def second_options(self) -> dict[str, Any]:
        """What the kernels of the second pass are compiled for: tiles as large, in fewer pieces."""
        together = min(TOGETHER, self.options["UNROLL"])
        pieces = {"UNROLL": self.options["UNROLL"] // together, "SUB": self.options["SUB"] * together}
        return {**self.options, **pieces}

    @property
    def adding_options(self) -> dict[str, Any]:
        """What the kernels between both passes are compiled for."""
        return {"BLOCK_P": PARTS_AT_ONCE, "BLOCK_C": self.options["BLOCK_C"], "num_warps": WARPS}

    def second_pass(self, rows: int) -> tuple[tuple[int, int], int]:
        """Programs and rows of each. Where each adds up the parts for itself, there are as few as in the first."""
        if self.folded:
            return (self.parts, self.columns), self.rows_each
        tile = self.options["UNROLL"] * self.options["SUB"]
        return (-(-rows // tile), self.columns), tile


@cache
def grid_of(rows: int, channels: int, device: torch.device) -> Grid:
    """As many parts as keep the device busy, but not more than there are tiles."""
    block = min(MOST_CHANNELS, 1 << (channels - 1).bit_length())
    columns, sub = -(-channels // block), max(1, VALUES // block)
    tiles = -(-rows // (PIECES * sub))
    processors = (
        torch.cuda.get_device_properties(device).multi_processor_count
        if device.type == "cuda"
        else PROCESSORS_INTERPRETED
    )
    each = -(-tiles // max(1, PROGRAMS_PER_PROCESSOR * processors // columns))
    options = {"UNROLL": PIECES, "SUB": sub, "BLOCK_C": block, "num_warps": WARPS}
    return Grid(-(-tiles // each), columns, each * PIECES * sub, options)


def try_launch(device: torch.device) -> None:
    """Raises whatever keeps a kernel from running there."""
    grid = grid_of(1, 1, device)
    x, sums = torch.zeros(1, 1, device=device), torch.zeros(1, 2, 1, device=device)
    with torch.cuda.device_of(x):
        sums_kernel[grid.parts, grid.columns](x, sums, 1, 1, grid.rows_each, **grid.options)


def batch_norm(norm: nn.BatchNorm2d, x_NCHW: Tensor, shortcut_NCHW: Tensor | None, *, relu: bool) -> Tensor:
    """relu(norm(x) + shortcut), by the statistics of the batch; running ones are moved as the layer would.

    Args:
        norm: in training, with weight and bias in float32.
        x_NCHW: channels last, more than one value per channel.
        shortcut_NCHW: of the same shape, type and order, or None.
        relu: whether negative values become 0.
    """
    if norm.track_running_stats and norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(1)
    running = (norm.running_mean, norm.running_var) if norm.track_running_stats else (None, None)
    out: Tensor = _BatchNorm.apply(
        x_NCHW, shortcut_NCHW, norm.weight, norm.bias, *running, float(norm.momentum or 0.0), norm.eps, relu
    )
    return out


class _BatchNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        shortcut: Tensor | None,
        weight: Tensor,
        bias: Tensor,
        running_mean: Tensor | None,
        running_variance: Tensor | None,
        momentum: float,
        eps: float,
        relu: bool,
    ) -> Tensor:
        rows, channels = x.numel() // x.shape[1], x.shape[1]
        grid = grid_of(rows, channels, x.device)
        out = torch.empty_like(x)
        sums = torch.empty(grid.parts, 2, channels, dtype=torch.float32, device=x.device)
        kept = torch.empty(2, channels, dtype=torch.float32, device=x.device)  # mean, 1 / standard deviation
        tracked = running_mean is not None
        running = (running_mean, running_variance) if tracked else (kept, kept)
        with torch.cuda.device_of(x):  # Triton launches on the current one
            sums_kernel[grid.parts, grid.columns](x, sums, rows, channels, grid.rows_each, **grid.options)
            if not grid.folded:
                statistics_kernel[1, grid.columns](
                    sums,
                    kept,
                    *running,
                    grid.parts,
                    grid.rows_each,
                    rows,
                    momentum,
                    eps,
                    channels,
                    TRACKED=tracked,
                    **grid.adding_options,
                )
            programs, rows_each = grid.second_pass(rows)
            apply_kernel[programs](
                x,
                x if shortcut is None else shortcut,
                out,
                weight,
                bias,
                sums,
                kept,
                *running,
                grid.parts,
                momentum,
                eps,
                rows,
                channels,
                rows_each,
                FOLDED=grid.folded,
                TRACKED=tracked,
                SHORTCUT=shortcut is not None,
                RELU=relu,
                BLOCK_P=PARTS_AT_ONCE,
                **grid.second_options,
            )
        ctx.relu, ctx.with_shortcut = relu, shortcut is not None
        ctx.save_for_backward(x, weight, bias, kept, out if relu and shortcut is not None else None)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        refuse_double_backward(
            "fused batch normalisation", "call the network inside flatclr.models.batch_norm.by_pytorch()"
        )
        x, weight, bias, kept, out = ctx.saved_tensors
        gradient, x = (t.contiguous(memory_format=torch.channels_last) for t in (gradient, x))
        out = None if out is None else out.contiguous(memory_format=torch.channels_last)  # a hook may have changed it
        rows, channels = x.numel() // x.shape[1], x.shape[1]
        grid = grid_of(rows, channels, x.device)
        # with a shortcut ReLU's part of the gradient is the shortcut's, and is written once for both
        before_relu = torch.empty_like(x) if out is not None else gradient
        sums = torch.empty(grid.parts, 2, channels, dtype=torch.float32, device=x.device)
        of_parameters = torch.empty(2, channels, dtype=torch.float32, device=x.device)
        of_x = torch.empty_like(x)
        with torch.cuda.device_of(x):
            gradient_sums_kernel[grid.parts, grid.columns](
                gradient,
                x,
                x if out is None else out,
                before_relu,
                weight,
                bias,
                kept,
                sums,
                rows,
                channels,
                grid.rows_each,
                SHORTCUT=ctx.with_shortcut,
                RELU=ctx.relu,
                **grid.options,
            )
            if not grid.folded:
                gradient_statistics_kernel[1, grid.columns](
                    sums, kept, of_parameters, grid.parts, channels, **grid.adding_options
                )
            programs, rows_each = grid.second_pass(rows)
            gradient_apply_kernel[programs](
                before_relu,
                x,
                of_x,
                weight,
                bias,
                kept,
                sums,
                of_parameters,
                float(rows),
                grid.parts,
                rows,
                channels,
                rows_each,
                FOLDED=grid.folded,
                MASKED=ctx.relu and not ctx.with_shortcut,
                BLOCK_P=PARTS_AT_ONCE,
                **grid.second_options,
            )
        of_weight, of_bias = of_parameters  # one piece of memory, of which neither is written again
        of_shortcut = before_relu if ctx.with_shortcut else None
        return of_x, of_shortcut, of_weight, of_bias, None, None, None, None, None
