"""The pass over the pairs that a relation selects: sums forward, gradients backward, tile by tile or strip by strip.

What autograd, and an operator in a graph of torch.compile, put around it is elsewhere: here are functions of tensors.

Shape suffixes: V views, n samples of this rank, G groups of anchors, N samples of all ranks, A anchors, d features.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from flatclr import distributed
from flatclr.contrast.kernels import Kernels, kernels_of
from flatclr.contrast.kernels.reductions import Embeddings, Reduction
from flatclr.contrast.kernels.selected import (
    Lens,
    SelectedLogSumExp,
    SelectedLogSumExpSums,
    SelectedPhi,
    SelectedPhiSums,
    SelectedSide,
)
from flatclr.contrast.known import Known
from flatclr.contrast.parts import Operands, Part, added, gradients_of_parts, parts_of
from flatclr.contrast.phi import Phi
from flatclr.contrast.relation import Layout


def lens_of(highest_cosine: Tensor | None, scale: float | Tensor) -> Lens:
    """What anchors see of scores that carry this scale already; of a negative one the largest cosine is the lowest."""
    if highest_cosine is None:
        return Lens()
    if isinstance(scale, Tensor):
        scale = scale.detach()
        return Lens(limit=highest_cosine * scale.abs(), sign=scale.sign())
    return Lens(limit=highest_cosine * abs(scale), sign=1.0 if scale > 0 else -1.0)


@dataclass(frozen=True)
class Work:
    """Everything about a pass that is not a tensor with gradient."""

    layout: Layout
    route: str
    known: Known | None
    phi: Phi | None
    positives: bool
    normalize: bool
    shared_loss: bool
    highest_cosine: Tensor | None
    squares: bool
    count: Tensor | None  # [A], of selected pairs; None: kernels are to count

    @property
    def kernels(self) -> Kernels:
        return kernels_of(self.route)

    def parts(self, operands: Operands, scale: float | Tensor) -> Iterator[Part]:
        tile_scale = 1.0 if isinstance(scale, Tensor) and scale.dim() else scale
        return parts_of(
            self.layout,
            operands,
            tile_scale,
            bounded=self.normalize,
            known=self.known,
            positives=self.positives,
        )

    def lens(self, scale: float | Tensor) -> Lens:
        """Of all ranks' anchors."""
        lens = lens_of(self.highest_cosine, scale)
        return replace(lens, scale=scale) if isinstance(scale, Tensor) and scale.dim() else lens

    def own_lens(self, scale: float | Tensor) -> Lens:
        lens = self.lens(scale)
        own_scale, limit = (None if x is None else self.layout.own(x) for x in (lens.scale, lens.limit))
        sign = self.layout.own(lens.sign) if isinstance(lens.sign, Tensor) and lens.sign.dim() else lens.sign
        return Lens(own_scale, limit, sign)


@dataclass(frozen=True)
class Kept:
    """What backward needs of forward."""

    unit: Tensor  # [V n, d]
    operands: Operands
    value: Tensor | None  # [A]: of log-sum-exps, finite; of a phi, what its scores are shifted by
    slopes: Tensor  # [A]: of a phi, their sum
    count: Tensor  # [A], of selected pairs
    moment: Tensor | None  # [A], where the scale learns

    def tensors(self) -> list[Tensor | None]:
        """To be saved for backward."""
        return [self.unit, *self.operands.tensors(), self.value, self.slopes, self.count, self.moment]

    @classmethod
    def of_tensors(cls, tensors: list[Tensor | None]) -> Kept:
        """The inverse of `tensors`."""
        unit, *embeddings = tensors[:-4]
        value, slopes, count, moment = tensors[-4:]
        assert unit is not None
        assert slopes is not None
        assert count is not None
        return cls(unit, Operands.of_tensors(embeddings), value, slopes, count, moment)


class Needs(NamedTuple):
    """Which gradients are."""

    rows: bool
    queue: bool
    scale: bool
    shift: bool


def operands_of(work: Work, stack: Tensor, queue: Tensor | None, given_queue: Tensor | None) -> tuple[Tensor, Operands]:
    """(rows [V n, d] on the sphere if asked, embeddings of all ranks as products take them)"""
    unit, _, rows = work.kernels.stacked(stack, normalize=work.normalize)
    given_queue = queue if given_queue is None else given_queue
    queued = Embeddings.of(given_queue, queue, normalized=work.normalize)
    return unit, Operands.of(work.kernels, rows, queued, work.layout)


def reduce_pairs(
    work: Work,
    stack: Tensor,
    queue: Tensor | None,
    given_queue: Tensor | None,
    scale: float | Tensor,
    shift: Tensor | None,
    *,
    with_moment: bool,
    with_slopes: bool,
) -> tuple[Tensor, Tensor, Kept]:
    """(value, log-sum-exp of twice the scores or the sum of slopes, what backward needs) of all ranks' anchors.

    `stack` has the views [V n, d] as they came.
    """
    layout, kernels = work.layout, work.kernels
    groups, own = len(layout.groups), layout.own_samples
    unit, operands = operands_of(work, stack, queue, given_queue)
    sums = _start(work, unit, scale, shift, with_moment=with_moment, with_slopes=with_slopes)
    for part in work.parts(operands, scale):
        if part.row_anchors is not None:
            columns = part.column_anchors if part.mirrored else None
            kernels.reduce_block(
                part.block, sums.part(part.row_anchors), None if columns is None else sums.part(columns)
            )
    results, count = sums.results(), sums.count if work.count is None else work.count
    assert count is not None
    if layout.ranks.size > 1:
        packed_Gnq = torch.stack([q.view(groups, own) for q in results], dim=2)
        results = [q.flatten() for q in distributed.gather_views(packed_Gnq, layout.ranks).unbind(2)]
        count = distributed.gather_views(count.view(groups, own), layout.ranks).flatten()
    value, other, *moments = results
    kept_value = value.masked_fill(count == 0, 0.0) if work.phi is None else shift
    return value, other, Kept(unit, operands, kept_value, other, count, moments[0] if moments else None)


def gradients_of_pairs(
    kept: Kept, scale: float | Tensor, work: Work, g_value: Tensor, needs: Needs
) -> tuple[Tensor | None, ...]:
    """Gradients of this rank's rows [V n, d] on the sphere, of the queue, the scale and the shift, as far as needed."""
    layout = work.layout
    g_value = g_value.masked_fill(kept.count == 0, 0.0)  # also where NaN stands for what is not there
    d_shift = -g_value * kept.slopes if needs.shift else None
    if layout.ranks.size > 1 and not work.shared_loss:
        g_value = distributed.average_over_ranks(g_value, layout.ranks)
    d_scale = None
    if needs.scale:
        assert kept.moment is not None
        d_scale = g_value * kept.moment / scale
        d_scale = d_scale if isinstance(scale, Tensor) and scale.dim() else d_scale.sum()
    reduction: Reduction[SelectedSide] = SelectedLogSumExp() if work.phi is None else SelectedPhi(work.phi)
    value = torch.zeros_like(g_value) if kept.value is None else kept.value
    d_unit, d_queue = gradients_of_parts(
        kept.unit,
        work.parts(kept.operands, scale),
        lambda block, *sides, **need: work.kernels.block_gradients(block, reduction, *sides, **need),
        SelectedSide(layout.own(value), layout.own(g_value), work.own_lens(scale)),
        SelectedSide(value, g_value, work.lens(scale)),
        [needs.rows] * layout.views,
        needs.queue,
    )
    d_rows = None if d_unit is None else added(d_unit)
    for gradient in (d_rows, d_queue):
        if gradient is not None and layout.ranks.size > 1:
            # a rank's rows get W times the global partial derivative; DDP's average undoes the factor
            gradient.mul_(layout.ranks.size)
    return d_rows, d_queue, d_scale, d_shift


def _start(
    work: Work, like: Tensor, scale: float | Tensor, shift: Tensor | None, *, with_moment: bool, with_slopes: bool
) -> SelectedLogSumExpSums | SelectedPhiSums:
    """Sums of this rank's anchors, with nothing in them yet."""
    anchors, lens = len(work.layout.groups) * work.layout.own_samples, work.own_lens(scale)
    if work.phi is None:
        return SelectedLogSumExpSums.of(
            anchors, like, lens, with_moment=with_moment, with_squares=work.squares, with_count=work.count is None
        )
    own_shift = None if shift is None else work.layout.own(shift)
    with_count = work.count is None
    return SelectedPhiSums.of(
        anchors,
        like,
        work.phi,
        own_shift,
        lens,
        with_moment=with_moment,
        with_slopes=with_slopes,
        with_count=with_count,
    )
