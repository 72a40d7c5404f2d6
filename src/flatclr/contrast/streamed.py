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
from flatclr.contrast.kernels.reductions import Embeddings, Hardest, LogSumExp, MeanPhi, Ready, Rows, Side
from flatclr.contrast.numerics import keep_scale, kept_scale, no_autocast
from flatclr.contrast.parts import Operands, gradients_of_parts, parts_of
from flatclr.contrast.phi import Phi
from flatclr.contrast.relation import Layout


@dataclass(frozen=True)
class Pass:
    """What a pass over the tiles is to do: everything about it that is not a tensor."""

    layout: Layout
    route: str
    phi: Phi | None  # None: log-sum-exp
    normalize: bool
    shared_loss: bool
    with_ess: bool  # of a log-sum-exp
    embedding_type: torch.dtype

    @property
    def kernels(self) -> Kernels:
        return kernels_of(self.route)


def reduce_streamed(
    batch: Batch, scale: float | Tensor, route: str, phi: Phi | None, *, with_ess: bool = True
) -> tuple[Tensor, ...]:
    """Of two views: (positive, log-sum-exp, their gap, ess if asked) of anchors; given phi, (positive, its mean)."""
    options, z = batch.options, batch.views[0]
    work = Pass(batch.layout, route, phi, options.normalize, options.shared_loss, with_ess, z.dtype)
    given_queue = None if batch.given_queue is batch.queue else batch.given_queue  # no graph takes a tensor twice
    return work.kernels.run(_Streamed.apply, z, *batch.views, batch.queue, given_queue, scale, work)


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
    queue = None if batch.queue is None else Rows(batch.queue)
    operands = Operands(Rows(layout.own_stack(everyone)), Rows(everyone), queue)
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


@dataclass(frozen=True)
class Prepared:
    """Two views ready to be multiplied, and what multiplies them."""

    ready: Ready
    operands: Operands

    @classmethod
    def of(
        cls,
        z_a: Tensor,
        z_b: Tensor,
        queue: Tensor | None,
        given_queue: Tensor | None,
        scale: float | Tensor,
        work: Pass,
        *,
        with_moment: bool,
    ) -> Prepared:
        layout, kernels = work.layout, work.kernels
        ready = kernels.ready(
            (z_a, z_b),
            scale,
            work.phi,
            normalize=work.normalize,
            anchor_groups=len(layout.groups),
            with_moment=with_moment,
            with_ess=work.with_ess,
        )
        given_queue = queue if given_queue is None else given_queue
        whole_queue = Embeddings.of(given_queue, queue, normalized=work.normalize)
        return cls(ready, Operands.of(kernels, ready.operand, whole_queue, layout))

    def reduced(self, scale: float | Tensor, work: Pass) -> list[Tensor]:
        """(positive, value and, of a log-sum-exp, gap and ess if asked; with a moment, it) of all ranks' anchors."""
        layout, kernels, ready = work.layout, work.kernels, self.ready
        for part in parts_of(layout, self.operands, scale, bounded=work.normalize):
            if part.row_anchors is not None:
                columns = part.column_anchors if part.mirrored else None
                kernels.reduce_block(
                    part.block,
                    ready.sums.part(part.row_anchors),
                    None if columns is None else ready.sums.part(columns),
                )
        per_anchor = [ready.positive, *kernels.finish(ready.sums, ready.positive, layout.negatives)]
        if layout.ranks.size > 1:
            packed_Gnq = torch.stack([q.view(len(layout.groups), layout.own_samples) for q in per_anchor], dim=2)
            per_anchor = [q.flatten() for q in distributed.gather_views(packed_Gnq, layout.ranks).unbind(2)]
        return per_anchor


class _Streamed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        z_a: Tensor,
        z_b: Tensor,
        queue: Tensor | None,
        given_queue: Tensor | None,
        scale: float | Tensor,
        work: Pass,
    ) -> tuple[Tensor, ...]:
        learns_scale = ctx.needs_input_grad[4]
        prepared = Prepared.of(z_a, z_b, queue, given_queue, scale, work, with_moment=learns_scale)
        per_anchor = prepared.reduced(scale, work)
        moment = per_anchor.pop() if learns_scale else None
        ready, operands = prepared.ready, prepared.operands
        ctx.save_for_backward(
            ready.rows,
            ready.inverse_norms,
            *operands.tensors(),
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
        rows, inverse_norms, *embeddings, positive, value, moment = ctx.saved_tensors[:11]
        kept = Kept(rows, inverse_norms, Operands.of_tensors(embeddings), positive, value, moment)
        scale = kept_scale(ctx, ctx.saved_tensors[11:])
        with no_autocast(rows):
            if g_gap is None:
                pull = Pull(g_positive)
            elif g_positive is None and g_value is None:
                g_value, pull = g_gap, Pull(g_gap, -1.0)
            else:
                pull = Pull(-g_gap if g_positive is None else g_positive - g_gap)
                g_value = g_gap if g_value is None else g_value + g_gap
            needs = *ctx.needs_input_grad[:3], ctx.needs_input_grad[4]
            d_a, d_b, d_queue, d_scale = gradients_of(kept, scale, ctx.work, g_value, pull, needs)
            return d_a, d_b, d_queue, None, d_scale, None


@dataclass(frozen=True)
class Kept:
    """What backward needs of forward."""

    rows: Tensor
    inverse_norms: Tensor | None
    operands: Operands
    positive: Tensor
    value: Tensor
    moment: Tensor | None


@dataclass(frozen=True)
class Pull:
    """sign * gradient is what reached the scores of the positives."""

    gradient: Tensor | None
    sign: float = 1.0


def gradients_of(
    kept: Kept, scale: float | Tensor, work: Pass, g_value: Tensor | None, pull: Pull, needs: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    """Gradients of both views, the queue and the scale, as far as they are needed, from those that reached anchors."""
    layout, (*needs_views, needs_queue, needs_scale) = work.layout, needs
    if layout.ranks.size > 1 and not work.shared_loss:
        g_value, pull = _averaged(kept.positive, g_value, pull, layout)
    d_scale = None
    if needs_scale:
        terms = []
        if pull.gradient is not None:
            terms.append((pull.gradient @ kept.positive) * (pull.sign / scale))
        if g_value is not None:
            assert kept.moment is not None
            terms.append((g_value @ kept.moment) / scale)
        d_scale = torch.stack(terms).sum()
    from_negatives = d_queue = None
    if g_value is not None:
        reduction = LogSumExp() if work.phi is None else MeanPhi(work.phi, layout.negatives)
        from_negatives, d_queue = gradients_of_parts(
            kept.rows,
            parts_of(layout, kept.operands, scale, bounded=work.normalize),
            lambda block, *sides, **need: work.kernels.block_gradients(block, reduction, *sides, **need),
            Side(layout.own(kept.value), layout.own(g_value)),
            Side(kept.value, g_value),
            needs_views,
            needs_queue,
        )
    own_pull = None if pull.gradient is None else layout.own(pull.gradient)
    # a rank's rows get W times the global partial derivative; DDP's average undoes the factor
    d_views = work.kernels.views_gradient(
        from_negatives,
        own_pull,
        kept.rows,
        kept.inverse_norms,
        scale,
        views=layout.views,
        sign=pull.sign,
        factor=float(layout.ranks.size),
        dtype=work.embedding_type,
    )
    if d_queue is not None and layout.ranks.size > 1:
        d_queue.mul_(layout.ranks.size)
    return *d_views, d_queue, d_scale


def _averaged(like: Tensor, g_value: Tensor | None, pull: Pull, layout: Layout) -> tuple[Tensor, Pull]:
    """Upstream gradients of all ranks, in one collective that every rank joins whichever outputs its loss used."""
    g_positive = None if pull.gradient is None else pull.sign * pull.gradient
    both = torch.stack([torch.zeros_like(like) if g is None else g for g in (g_positive, g_value)])
    averaged = distributed.average_over_ranks(both, layout.ranks)
    return averaged[1], Pull(averaged[0])
