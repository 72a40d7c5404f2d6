"""Sums over the pairs that a relation selects, for any number of views, labels, ids, margins and temperatures.

Dense, streamed or strip by strip. A pair is selected because it may be a negative, or because its ends have one label;
never because they are views of one sample, which are few and are looked at one by one elsewhere.

Shape suffixes: V views, G groups of anchors, n samples of this rank, N of all, A anchors, C candidates, d features.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from flatclr import distributed
from flatclr.checks import refuse_double_backward
from flatclr.contrast.batch import Batch
from flatclr.contrast.drawn import candidate_scores
from flatclr.contrast.kernels import TRITON_MODULES, knows
from flatclr.contrast.known import Known
from flatclr.contrast.numerics import by_row, keep_scale, kept_scale, no_autocast, products
from flatclr.contrast.phi import Phi
from flatclr.contrast.relation import Layout
from flatclr.contrast.selected_operators import reduce_selected_traced
from flatclr.contrast.selected_pass import Kept, Needs, Work, gradients_of_pairs, lens_of, reduce_pairs


@dataclass(frozen=True)
class Wanted:
    """Which pairs are meant and what is wanted of them."""

    phi: Phi | None = None  # sum_j phi(s_ij - shift_i); None: log sum_j exp(s_ij)
    positives: bool = False  # pairs of one label in the batch, else negatives of batch and queue
    shift: Tensor | None = None  # [A]
    highest_cosine: Tensor | None = None  # [A]; pairs above it are left out, without gradient
    squares: bool = True  # of a log-sum-exp, that of twice the scores too


@dataclass(frozen=True)
class PairSums:
    """One value per anchor of all ranks."""

    value: Tensor  # of nothing: -inf for a log-sum-exp, else 0
    squares: Tensor | None  # log sum_j exp(2 s_ij), without gradient; None: not asked for
    count: Tensor  # pairs that were selected


def reduce_selected(batch: Batch, scale: float | Tensor, route: str, wanted: Wanted) -> PairSums:
    """The sums of every anchor; `scale` is a number, a 0-dim tensor, or one value per anchor."""
    with no_autocast(batch.views[0]):
        if route == "dense" or (route == "drawn" and not wanted.positives):
            return sums_of_matrix(*_score_matrix(batch, scale, wanted), wanted, scale)
        if route == "drawn" or not knows(route, wanted.phi):
            route = "streamed"
        return _streamed(batch, scale, route, wanted)


def sums_of_matrix(scores_AC: Tensor, excluded_AC: Tensor, wanted: Wanted, scale: float | Tensor) -> PairSums:
    """The sums of scores that are all there, in plain PyTorch."""
    if wanted.highest_cosine is not None:
        lens = lens_of(wanted.highest_cosine, scale)
        excluded_AC = excluded_AC | (lens.seen(scores_AC.detach(), 1) == -torch.inf)
    count = excluded_AC.logical_not().sum(1)
    if wanted.phi is None:
        left = scores_AC.masked_fill(excluded_AC, -torch.inf)
        return PairSums(left.logsumexp(1), (2 * left.detach()).logsumexp(1), count)
    shifted = scores_AC if wanted.shift is None else scores_AC - wanted.shift.unsqueeze(1)
    # what a function does to pairs that are left out must not reach the gradient, not even as a NaN
    values = wanted.phi.applied(shifted.masked_fill(excluded_AC, 0.0)).masked_fill(excluded_AC, 0.0)
    return PairSums(values.sum(1), None, count)


def _score_matrix(batch: Batch, scale: float | Tensor, wanted: Wanted) -> tuple[Tensor, Tensor]:
    """(scores, which of them are not meant) of every anchor against its candidates, [A, C]."""
    if batch.drawn_Ak is not None and not wanted.positives:
        return candidate_scores(batch, scale, batch.drawn_Ak.clamp_min(0)), batch.drawn_Ak < 0
    layout, known, everyone_VNd = batch.layout, batch.known or Known(), batch.everyone_VNd
    whole = replace(layout, ranks=distributed.ALONE, own_samples=layout.samples)
    samples_N1 = torch.arange(layout.samples, device=everyone_VNd.device).unsqueeze(1)
    cosines, excluded = [], []
    for group in layout.groups:
        candidates = group.candidates if layout.from_batch or wanted.positives else ()
        blocks = [everyone_VNd[view] for view in candidates]
        codes = [known.codes(whole, (group.view,), candidates, positives=wanted.positives)] if candidates else []
        same_sample = samples_N1 == samples_N1.repeat(len(candidates), 1).T
        if batch.queue is not None and not wanted.positives:
            blocks.append(batch.queue)
            codes.append(known.queue_codes(whole, (group.view,)))
            same_sample = torch.cat([same_sample, same_sample.new_zeros(layout.samples, len(batch.queue))], 1)
        cosines.append(products(everyone_VNd[group.view], torch.cat(blocks)))
        by_code = [c.excluded() for c in codes]
        if any(mask is not None for mask in by_code):
            same_sample = same_sample | torch.cat([mask for mask in by_code if mask is not None], 1)
        excluded.append(same_sample)
    return torch.cat(cosines) * by_row(scale), torch.cat(excluded)


def _streamed(batch: Batch, scale: float | Tensor, route: str, wanted: Wanted) -> PairSums:
    layout, known = batch.layout, batch.known
    own_Vnd, stack = batch.own_Vnd, torch.cat([z.detach() for z in batch.views])
    shift, highest_cosine, by_label = wanted.shift, wanted.highest_cosine, None
    count = _known_count(batch, wanted) if route == "strips" else None
    if known is not None and known.labels is not None and route == "strips" and layout.ranks.size == 1:
        by_label = _ByLabel.of(known, layout)
        known, stack = by_label.known, by_label.sort(stack)
        shift, highest_cosine, count = (None if x is None else by_label.sort(x) for x in (shift, highest_cosine, count))
        scale = by_label.sort(scale) if isinstance(scale, Tensor) and scale.dim() else scale
    work = Work(
        layout=layout,
        route=route,
        known=known,
        phi=wanted.phi,
        positives=wanted.positives,
        normalize=batch.options.normalize,
        shared_loss=batch.options.shared_loss,
        highest_cosine=highest_cosine,
        squares=wanted.squares,
        count=count,
    )
    queues: tuple[Tensor | None, Tensor | None] = None, None  # in which there are no positives
    if not wanted.positives:  # no graph takes a tensor twice
        queues = batch.queue, None if batch.given_queue is batch.queue else batch.given_queue
    if torch.compiler.is_compiling() and route in TRITON_MODULES:
        own_Vnd = own_Vnd if by_label is None else by_label.sort(own_Vnd.flatten(0, 1)).view_as(own_Vnd)
        found: tuple[Tensor, ...] = reduce_selected_traced(work, batch.options, own_Vnd, stack, *queues, scale, shift)
    else:
        found = work.kernels.run(_SelectedPairs.apply, stack, own_Vnd, stack, *queues, scale, shift, work, by_label)
    value, squares, count = found
    if by_label is not None:
        value, count = by_label.back(value), by_label.back(count)
    if wanted.phi is not None or not wanted.squares:
        return PairSums(value, None, count)
    return PairSums(value, squares if by_label is None else by_label.back(squares), count)


def _known_count(batch: Batch, wanted: Wanted) -> Tensor | None:
    """How many pairs every anchor has [A], where labels and ids tell it; None: kernels are to count."""
    layout, known = batch.layout, batch.known
    if wanted.highest_cosine is not None or layout.ranks.size > 1:
        return None
    if wanted.positives:
        assert known is not None
        return (len(layout.groups[0].candidates) * known.others_of_label()).repeat(len(layout.groups))
    return _count_of_negatives(batch) if wanted.phi is None else None


def _count_of_negatives(batch: Batch) -> Tensor:
    """Of every anchor [A], in batch and queue, in O(N log N) work."""
    layout, known, device = batch.layout, batch.known, batch.views[0].device
    count_N = torch.full((layout.samples,), layout.negatives, device=device)
    if known is not None and layout.from_batch:
        count_N = count_N - len(layout.groups[0].candidates) * known.left_out()
    if known is not None and batch.queue is not None:
        count_N = count_N - known.left_out_of_queue()
    return count_N.repeat(len(layout.groups))


@dataclass(frozen=True)
class _ByLabel:
    """Samples in the order of their labels.

    Kernels that look for pairs of one label pass over the tiles between labels that are far apart, and those that leave
    such pairs out compare no labels there.
    """

    known: Known
    order_N: Tensor
    place_N: Tensor  # where each sample stands in that order

    @classmethod
    def of(cls, known: Known, layout: Layout) -> _ByLabel:
        assert known.labels is not None
        order_N = known.labels.argsort(stable=True)
        place_N = torch.empty_like(order_N).scatter_(0, order_N, torch.arange(layout.samples, device=order_N.device))
        ids = None if known.ids is None else known.ids[order_N]
        return cls(replace(known, labels=known.labels[order_N], ids=ids, in_order=True), order_N, place_N)

    def sort(self, x: Tensor) -> Tensor:
        """Of all views' rows or all groups' anchors, [V N, ...]."""
        return _taken(x, self.order_N, self.place_N)

    def back(self, x: Tensor) -> Tensor:
        return _taken(x, self.place_N, self.order_N)


def _taken(x: Tensor, order_N: Tensor, back_N: Tensor) -> Tensor:
    """x in this order, group by group."""
    taken: Tensor = _Taken.apply(x, order_N, back_N)
    return taken


class _Taken(torch.autograd.Function):
    """An index that names each row once is undone by another; autograd would add rows up one by one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, order_N: Tensor, back_N: Tensor) -> Tensor:
        ctx.save_for_backward(order_N, back_N)
        samples = order_N.shape[0]
        groups = torch.arange(0, x.shape[0], samples, device=x.device)
        # of whole rows: an index of the second of three dimensions is four times as slow
        return x.index_select(0, (groups.unsqueeze(1) + order_N).flatten())

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None]:
        order_N, back_N = ctx.saved_tensors
        return _taken(upstream, back_N, order_N), None, None


class _SelectedPairs(torch.autograd.Function):
    """Of rows as they came, whose gradient goes to the rows on the sphere that all parts of a loss share.

    There it is added up and projected in accumulation precision: parts that all but cancel would lose what is left of
    them if each were rounded to few bits.
    """

    @staticmethod
    def forward(
        ctx: Any,
        own_Vnd: Tensor,
        stack: Tensor,
        queue: Tensor | None,
        given_queue: Tensor | None,
        scale: float | Tensor,
        shift: Tensor | None,
        work: Work,
        by_label: _ByLabel | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(value, log-sum-exp of twice the scores or the sum of slopes, count) of all ranks' anchors."""
        rows, _, queued, _, learns, shifted, *_ = ctx.needs_input_grad
        needs = Needs(rows, queued, learns, shifted)
        value, other, kept = reduce_pairs(
            work, stack, queue, given_queue, scale, shift, with_moment=learns, with_slopes=shifted
        )
        ctx.save_for_backward(*kept.tensors(), *keep_scale(ctx, scale))
        ctx.work, ctx.needs, ctx.by_label, ctx.own_shape = work, needs, by_label, own_Vnd.shape
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(other, kept.count)
        return value, other, kept.count

    @staticmethod
    def backward(ctx: Any, g_value: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        refuse_double_backward()
        if g_value is None:
            return (None,) * 8
        saved = list(ctx.saved_tensors)
        kept = Kept.of_tensors(saved if ctx.scale is not None else saved[:-1])
        scale = kept_scale(ctx, saved[-1:] if ctx.scale is None else [])
        with no_autocast(kept.unit):
            d_own, d_queue, d_scale, d_shift = gradients_of_pairs(kept, scale, ctx.work, g_value, ctx.needs)
            if d_own is not None:
                d_own = (d_own if ctx.by_label is None else ctx.by_label.back(d_own)).view(ctx.own_shape)
        return d_own, None, d_queue, None, d_scale, d_shift, None, None
