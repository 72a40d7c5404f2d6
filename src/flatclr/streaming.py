"""The streamed quantities of a contrast, forward and backward, on one rank or many.

The score matrix is never stored: backward visits its tiles again. On W ranks each rank reduces its own anchors against
everyone's embeddings and the results are gathered; since every rank then holds all values, backward needs no collective
unless the ranks' losses differ.

Shape suffixes: V views, n samples of this rank, d features. A stack holds view a, then view b.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from flatclr import distributed
from flatclr.autograd import keep_scale, kept_scale, refuse_double_backward
from flatclr.kernels import fused_kernels_run, tiled_torch, with_triton
from flatclr.kernels.block import Block, Side
from flatclr.kernels.phi import Phi
from flatclr.kernels.tiled_torch import Hardest, LogSumExp, MeanPhi, Ready, SumsT
from flatclr.pairing import Layout, Views, same_sample_pairs, span
from flatclr.precision import no_autocast

BACKENDS = ("torch", "triton")


def prefers_fused(embeddings: Tensor) -> bool:
    """Whether streaming these is a matter for the fused kernels.

    In half precision on a GPU, called eagerly, they were faster at every size that is streamed, from 1.5 times at 2,048
    rows to 26 times at 65,536 (`results/loss_gpu.jsonl`); a graph of torch.compile they would break.
    """
    if torch.compiler.is_compiling() or embeddings.dtype not in (torch.bfloat16, torch.float16):
        return False
    return embeddings.is_cuda and fused_kernels_run(embeddings.device)


def kernels_of(backend: str) -> Any:
    """The backend's module."""
    return tiled_torch if backend == "torch" else with_triton("fused_triton")


def reduce_streamed(
    z_a: Tensor, z_b: Tensor, queue: Tensor | None, scale: float | Tensor, layout: Layout, phi: Phi | None
) -> tuple[Tensor, ...]:
    """(positive, log-sum-exp, their gap, ess) of all ranks' anchors or, given phi, (positive, mean of phi)."""
    arguments = (z_a, z_b, queue, scale, layout, phi)
    outputs: tuple[Tensor, ...]
    if layout.backend == "triton":
        outputs = kernels_of("triton").untraced_on_device(_Streamed.apply, *arguments)
    else:
        outputs = _Streamed.apply(*arguments)
    return outputs


@torch.no_grad()
def hardest_candidates(everyone: Tensor, queue: Tensor | None, layout: Layout, *, easiest: bool = False) -> Tensor:
    """Which row of (view a, view b, queue) is every anchor's hardest (or easiest) negative: [A]."""
    layout = replace(layout, backend="torch")  # fused kernels do not remember where a score stood
    views = layout.pairing.anchor_views
    found = Hardest.start(views * layout.own_samples, everyone)
    operands = _Operands(layout.own_stack(everyone), everyone, queue)
    for part in _parts(layout, operands, -1.0 if easiest else 1.0):
        part.reduce(found.counting_from(row=part.rows.start, column=part.columns.start))
    return distributed.gather_views(found.candidate.view(views, -1), layout.ranks).flatten()


@dataclass(frozen=True)
class _Part:
    """One block of a contrast, and where its rows and columns stand."""

    block: Block
    rows: slice  # in this rank's stack
    columns: slice  # in the stack of all ranks, or in the queue behind it
    row_views: Views
    column_views: Views
    rows_are_anchors: bool
    columns_are_anchors: bool
    mirrored: bool  # the columns are this rank's own rows too, so one visit serves both sides
    backend: str

    def reduce(self, sums: SumsT) -> None:
        if self.rows_are_anchors:
            both = self.mirrored and self.columns_are_anchors
            reduce_block = kernels_of(self.backend).reduce_block
            reduce_block(self.block, sums.part(self.rows), sums.part(self.columns) if both else None)


@dataclass(frozen=True)
class _Operands:
    """Embeddings as the backend multiplies them."""

    stack: Tensor  # of this rank
    everyone: Tensor
    queue: Tensor | None

    @classmethod
    def of(cls, layout: Layout, own: Tensor, everyone: Tensor, queue: Tensor | None) -> _Operands:
        """`own` is an operand already; alone, everyone is just this rank."""
        operand, dtype = kernels_of(layout.backend).operand, layout.embedding_type
        all_rows = own if layout.ranks.size == 1 else operand(everyone, dtype)
        return cls(own, all_rows, None if queue is None else operand(queue, dtype))


def _parts(layout: Layout, operands: _Operands, scale: float | Tensor) -> Iterator[_Part]:
    """The blocks that cover this rank's rows: alone, each pair of views once; among ranks, from both of its sides."""
    pairing, alone = layout.pairing, layout.ranks.size == 1
    stack, everyone, queue = operands.stack, operands.everyone, operands.queue
    sides = list(pairing.blocks)
    if not alone:
        sides += [(columns, rows) for rows, columns in pairing.blocks if rows != columns]
    for row_views, column_views in sides if layout.in_batch else []:
        rows, columns = span(row_views, layout.own_samples), span(column_views, layout.samples)
        yield _Part(
            block=Block(
                stack[rows],
                everyone[columns],
                scale,
                excluded=same_sample_pairs(row_views, column_views, layout.own_samples, layout.ranks),
                symmetric=alone and row_views == column_views,
                bounded=layout.normalize,
            ),
            rows=rows,
            columns=columns,
            row_views=row_views,
            column_views=column_views,
            rows_are_anchors=pairing.are_anchors(row_views, over=column_views),
            columns_are_anchors=pairing.are_anchors(column_views, over=row_views),
            mirrored=alone,
            backend=layout.backend,
        )
    if queue is not None:
        anchor_views = tuple(range(pairing.anchor_views))
        rows = span(anchor_views, layout.own_samples)
        yield _Part(
            block=Block(stack[rows], queue, scale, bounded=layout.normalize),
            rows=rows,
            columns=slice(len(everyone), len(everyone) + len(queue)),
            row_views=anchor_views,
            column_views=(),
            rows_are_anchors=True,
            columns_are_anchors=False,
            mirrored=False,
            backend=layout.backend,
        )


class _Streamed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        z_a: Tensor,
        z_b: Tensor,
        queue: Tensor | None,
        scale: float | Tensor,
        layout: Layout,
        phi: Phi | None,
    ) -> tuple[Tensor, ...]:
        views, own = layout.pairing.anchor_views, layout.own_samples
        learns_scale = ctx.needs_input_grad[3]
        kernels = kernels_of(layout.backend)
        ready: Ready = kernels.ready(
            z_a,
            z_b,
            scale,
            phi,
            normalize=layout.normalize,
            anchor_views=views,
            with_moment=learns_scale,
        )
        everyone = distributed.gather_views(ready.rows.view(2, own, -1), layout.ranks).flatten(0, 1)
        operands = _Operands.of(layout, ready.operand, everyone, queue)
        for part in _parts(layout, operands, scale):
            part.reduce(ready.sums)
        per_anchor = [ready.positive, *kernels.finish(ready.sums, ready.positive, layout.negatives)]
        if layout.ranks.size > 1:
            packed_Vnq = torch.stack([q.view(views, own) for q in per_anchor], dim=2)
            per_anchor = [q.flatten() for q in distributed.gather_views(packed_Vnq, layout.ranks).unbind(2)]
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
        ctx.layout, ctx.phi = layout, phi
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
        operands, kept = _Operands(*embeddings), ctx.saved_tensors[8:]
        scale = kept_scale(ctx, kept)
        layout: Layout = ctx.layout
        needs_queue, needs_scale = ctx.needs_input_grad[2:4]
        if layout.ranks.size > 1 and not layout.shared_loss:
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
            reduction = LogSumExp() if ctx.phi is None else MeanPhi(ctx.phi, layout.negatives)
            parts = _parts(layout, operands, scale)
            from_negatives, d_queue = _negatives_gradient(
                rows, parts, reduction, Side(value, g_value), layout, needs_queue
            )
        own_pull = None if pull.gradient is None else layout.own(pull.gradient)
        # a rank's rows get W times the global partial derivative; DDP's average undoes the factor
        d_views = kernels_of(layout.backend).views_gradient(
            from_negatives,
            own_pull,
            rows,
            inverse_norms,
            scale,
            sign=pull.sign,
            factor=float(layout.ranks.size),
            dtype=layout.embedding_type,
        )
        if d_queue is not None and layout.ranks.size > 1:
            d_queue.mul_(layout.ranks.size)
        return *d_views, d_queue, d_scale, None, None


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


def _negatives_gradient(
    stack: Tensor,
    parts: Iterator[_Part],
    reduction: LogSumExp | MeanPhi,
    anchors: Side,
    layout: Layout,
    needs_queue: bool,
) -> tuple[Tensor | None, Tensor | None]:
    """What the negatives send to this rank's rows, perhaps in strips [P, 2n, d] yet to be added, and to the queue."""
    own_anchors = Side(layout.own(anchors.value), layout.own(anchors.gradient))
    d_stack = d_queue = None
    for part in parts:
        from_queue = not part.column_views
        need_rows = any(layout.needs_gradient[v] for v in part.row_views)
        need_columns = (
            needs_queue if from_queue else part.mirrored and any(layout.needs_gradient[v] for v in part.column_views)
        )
        if not (need_rows or need_columns):
            continue
        d_rows, d_columns = kernels_of(layout.backend).block_gradients(
            part.block,
            reduction,
            own_anchors.part(part.rows) if part.rows_are_anchors else None,
            anchors.part(part.columns) if part.columns_are_anchors else None,
            need_rows=need_rows,
            need_columns=need_columns,
        )
        if d_stack is None and d_rows is not None and d_rows.shape[-2:] == stack.shape:
            d_stack, d_rows = d_rows, None
        elif d_stack is None:
            d_stack = torch.zeros_like(stack)
        if d_rows is not None:
            d_stack = _added(d_stack)
            d_stack[part.rows] += _added(d_rows)
        if from_queue:
            d_queue = None if d_columns is None else _added(d_columns)
        elif d_columns is not None:
            d_stack[part.columns] += _added(d_columns)
    return d_stack, d_queue


def _added(gradient: Tensor) -> Tensor:
    """The sum over the strips of columns that a kernel kept apart, if any."""
    return gradient.sum(0) if gradient.dim() == 3 else gradient
