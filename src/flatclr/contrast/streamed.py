"""The streamed quantities of a contrast, forward and backward, on one rank or many.

The score matrix is never stored: backward visits its tiles again. On W ranks each rank reduces its own anchors against
everyone's embeddings and the results are gathered; since every rank then holds all values, backward needs no collective
unless the ranks' losses differ.

Shape suffixes: V views, G groups of anchors, n samples of this rank, N of all, d features.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from flatclr import distributed
from flatclr.checks import refuse_double_backward
from flatclr.contrast.batch import Batch
from flatclr.contrast.kernels import Kernels, kernels_of, tiled_torch
from flatclr.contrast.kernels.reductions import Hardest, LogSumExp, MeanPhi, Side
from flatclr.contrast.numerics import keep_scale, kept_scale, no_autocast
from flatclr.contrast.parts import Operands, gradients_of_parts, parts_of
from flatclr.contrast.phi import Phi
from flatclr.contrast.relation import Layout


@dataclass(frozen=True)
class _Pass:
    """What a pass over the tiles is to do: everything about it that is not a tensor."""

    layout: Layout
    route: str
    phi: Phi | None  # None: log-sum-exp
    normalize: bool
    shared_loss: bool
    embedding_type: torch.dtype

    @property
    def kernels(self) -> Kernels:
        return kernels_of(self.route)


def reduce_streamed(batch: Batch, scale: float | Tensor, route: str, phi: Phi | None) -> tuple[Tensor, ...]:
    """Of two views: (positive, log-sum-exp, their gap, ess) of all anchors or, given phi, (positive, mean of phi)."""
    options, z = batch.options, batch.views[0]
    work = _Pass(batch.layout, route, phi, options.normalize, options.shared_loss, z.dtype)
    return work.kernels.run(_Streamed.apply, z, *batch.views, batch.queue, scale, work)


@torch.no_grad()
def hardest_candidates(
    batch: Batch, highest_cosine: Tensor | None = None, *, easiest: bool = False
) -> tuple[Tensor, Tensor]:
    """Which row of (view by view, queue) is every anchor's hardest (or easiest) negative [A], and whether it has one.

    Candidates above `highest_cosine` [A] are left out.
    """
    layout, everyone = batch.layout, batch.everyone_VNd.detach().flatten(0, 1)
    groups = len(layout.groups)
    found = Hardest.start(groups * layout.own_samples, everyone)
    sign = -1.0 if easiest else 1.0
    if highest_cosine is not None:
        found = replace(found, limit=layout.own(highest_cosine), sign=sign)
    operands = Operands(layout.own_stack(everyone), everyone, batch.queue)
    # fused kernels do not remember where a score stood
    for part in parts_of(layout, operands, sign, bounded=False, known=batch.known):
        if part.row_anchors is not None:
            columns = part.column_anchors if part.mirrored else None
            sums = found.counting_from(row=part.rows.start, column=part.columns.start)
            tiled_torch.reduce_block(
                part.block, sums.part(part.row_anchors), None if columns is None else sums.part(columns)
            )
    exists = found.score != -torch.inf
    candidate, some = (
        distributed.gather_views(x.view(groups, -1), layout.ranks).flatten() for x in (found.candidate, exists)
    )
    return candidate, some


class _Streamed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, z_a: Tensor, z_b: Tensor, queue: Tensor | None, scale: float | Tensor, work: _Pass
    ) -> tuple[Tensor, ...]:
        layout, kernels = work.layout, work.kernels
        groups, own = len(layout.groups), layout.own_samples
        learns_scale = ctx.needs_input_grad[3]
        ready = kernels.ready(
            (z_a, z_b), scale, work.phi, normalize=work.normalize, anchor_groups=groups, with_moment=learns_scale
        )
        everyone = distributed.gather_views(ready.rows.view(layout.views, own, -1), layout.ranks).flatten(0, 1)
        operands = Operands.of(kernels, ready.operand, everyone, queue, work.embedding_type)
        for part in parts_of(layout, operands, scale, bounded=work.normalize):
            if part.row_anchors is not None:
                columns = part.column_anchors if part.mirrored else None
                kernels.reduce_block(
                    part.block,
                    ready.sums.part(part.row_anchors),
                    None if columns is None else ready.sums.part(columns),
                )
        per_anchor = [ready.positive, *kernels.finish(ready.sums, ready.positive, layout.negatives)]
        if layout.ranks.size > 1:
            packed_Gnq = torch.stack([q.view(groups, own) for q in per_anchor], dim=2)
            per_anchor = [q.flatten() for q in distributed.gather_views(packed_Gnq, layout.ranks).unbind(2)]
        moment = per_anchor.pop() if learns_scale else None
        ctx.save_for_backward(
            ready.rows,
            ready.inverse_norms,
            operands.stack,
            operands.everyone,
            operands.queue,
            *per_anchor[:2],
            moment,
            *keep_scale(ctx, scale),
        )
        ctx.work = work
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*per_anchor[3:])
        return tuple(per_anchor)

    @staticmethod
    def backward(
        ctx: Any, g_positive: Tensor | None, g_value: Tensor | None, g_gap: Tensor | None = None, *_: None
    ) -> tuple[Tensor | None, ...]:
        refuse_double_backward()
        with no_autocast(ctx.saved_tensors[0]):
            if g_gap is None:
                return _Streamed._gradients(ctx, g_value, _Pull(g_positive))
            if g_positive is None and g_value is None:
                return _Streamed._gradients(ctx, g_gap, _Pull(g_gap, -1.0))
            g_positive = -g_gap if g_positive is None else g_positive - g_gap
            return _Streamed._gradients(ctx, g_gap if g_value is None else g_value + g_gap, _Pull(g_positive))

    @staticmethod
    def _gradients(ctx: Any, g_value: Tensor | None, pull: _Pull) -> tuple[Tensor | None, ...]:
        rows, inverse_norms, *embeddings, positive, value, moment = ctx.saved_tensors[:8]
        operands, kept = Operands(*embeddings), ctx.saved_tensors[8:]
        scale, work = kept_scale(ctx, kept), ctx.work
        layout: Layout = work.layout
        *needs_views, needs_queue, needs_scale, _ = ctx.needs_input_grad
        if layout.ranks.size > 1 and not work.shared_loss:
            g_value, pull = _averaged(positive, g_value, pull, layout)

        d_scale = None
        if needs_scale:
            terms = []
            if pull.gradient is not None:
                terms.append((pull.gradient @ positive) * (pull.sign / scale))
            if g_value is not None:
                terms.append((g_value @ moment) / scale)
            d_scale = torch.stack(terms).sum()

        from_negatives = d_queue = None
        if g_value is not None:
            reduction = LogSumExp() if work.phi is None else MeanPhi(work.phi, layout.negatives)
            from_negatives, d_queue = gradients_of_parts(
                rows,
                parts_of(layout, operands, scale, bounded=work.normalize),
                lambda block, *sides, **need: work.kernels.block_gradients(block, reduction, *sides, **need),
                Side(layout.own(value), layout.own(g_value)),
                Side(value, g_value),
                needs_views,
                needs_queue,
            )
        own_pull = None if pull.gradient is None else layout.own(pull.gradient)
        # a rank's rows get W times the global partial derivative; DDP's average undoes the factor
        d_views = work.kernels.views_gradient(
            from_negatives,
            own_pull,
            rows,
            inverse_norms,
            scale,
            views=layout.views,
            sign=pull.sign,
            factor=float(layout.ranks.size),
            dtype=work.embedding_type,
        )
        if d_queue is not None and layout.ranks.size > 1:
            d_queue.mul_(layout.ranks.size)
        return *d_views, d_queue, d_scale, None


@dataclass(frozen=True)
class _Pull:
    """sign * gradient is what reached the scores of the positives."""

    gradient: Tensor | None
    sign: float = 1.0


def _averaged(like: Tensor, g_value: Tensor | None, pull: _Pull, layout: Layout) -> tuple[Tensor, _Pull]:
    """Upstream gradients of all ranks, in one collective that every rank joins whichever outputs its loss used."""
    g_positive = None if pull.gradient is None else pull.sign * pull.gradient
    both = torch.stack([torch.zeros_like(like) if g is None else g for g in (g_positive, g_value)])
    averaged = distributed.average_over_ranks(both, layout.ranks)
    return averaged[1], _Pull(averaged[0])
