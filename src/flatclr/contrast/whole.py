"""The quantities of two views that meet in one block, on one GPU, at a temperature that is a number.

What `streamed` finds on Triton's routes, to rounding, where up to some thousand rows the host was the limit: it goes by
a plan that is made once for a shape. Everything else stays with `streamed`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from flatclr.checks import refuse_double_backward
from flatclr.contrast.batch import Batch
from flatclr.contrast.kernels import kernels_of, may_be_planned, whole_plan
from flatclr.contrast.numerics import no_autocast, parted_gradients


def has_plan(batch: Batch, scale: float) -> bool:
    """Whether it is a contrast that plans are made for; only of blocks too large for one visit there is none yet."""
    options, tile = batch.options, batch.layout.tile
    return (
        (tile == "views" or tile == "cross")
        and batch.queue is None
        and options.normalize
        and not options.with_ess
        and not torch.compiler.is_compiling()
        and may_be_planned(scale, *batch.views)
    )


def reduce_whole(batch: Batch, scale: float, route: str) -> tuple[Tensor, ...] | None:
    """(positive, log-sum-exp, their gap) of anchors of a contrast that has a plan, on a route of Triton's.

    None where its block is too large for one visit.
    """
    tile = batch.layout.tile
    assert tile is not None
    plan = whole_plan(route, tile, batch.views[0])
    if plan is None:
        return None
    return kernels_of(route).run(_Whole.apply, batch.views[0], *batch.views, scale, plan)


class _Whole(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z_a: Tensor, z_b: Tensor, scale: float, plan: Any) -> tuple[Tensor, ...]:
        unit, operand, per_anchor = plan.reduced(z_a, z_b, scale)
        ctx.save_for_backward(unit, operand, per_anchor)
        ctx.scale, ctx.plan = scale, plan
        ctx.set_materialize_grads(False)
        positive, value, gap, *_ = per_anchor.unbind()
        return positive, value, gap

    @staticmethod
    def backward(
        ctx: Any, g_positive: Tensor | None, g_value: Tensor | None, g_gap: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        refuse_double_backward()
        unit, operand, per_anchor = ctx.saved_tensors
        with no_autocast(unit):
            pull, sign, g_value = parted_gradients(g_positive, g_value, g_gap)
            nothing = per_anchor.new_zeros(per_anchor.shape[1]) if pull is None or g_value is None else per_anchor
            return (
                *ctx.plan.gradients(
                    unit,
                    operand,
                    per_anchor,
                    nothing if g_value is None else g_value,
                    nothing if pull is None else pull,
                    sign,
                    ctx.scale,
                ),
                None,
                None,
            )
