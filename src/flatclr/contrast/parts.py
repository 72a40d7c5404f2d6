"""The blocks that cover a contrast, where their rows and columns stand, and what they send back.

Shape suffixes: V views, n samples of this rank, N of all, d features.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor

from flatclr import distributed
from flatclr.contrast.kernels import Kernels
from flatclr.contrast.kernels.reductions import Block, Embeddings, Rows, SideIn, SideT
from flatclr.contrast.known import Known
from flatclr.contrast.relation import Diagonal, Layout, Views, same_sample_pairs, span


class BlockGradients(Protocol[SideIn]):
    """Gradients of a block's rows and columns under one reduction."""

    def __call__(
        self, block: Block, rows: SideIn | None, columns: SideIn | None, /, *, need_rows: bool, need_columns: bool
    ) -> tuple[Tensor | None, Tensor | None]: ...


@dataclass(frozen=True)
class Part:
    """One block of a contrast, where its rows and columns stand, and which of them are anchors."""

    block: Block
    rows: slice  # in this rank's stack
    columns: slice  # in the stack of all ranks, or in the queue behind it
    row_views: Views
    column_views: Views
    row_anchors: slice | None  # among this rank's anchors
    column_anchors: slice | None  # among all ranks' anchors
    mirrored: bool  # the columns are this rank's own rows too, so one visit serves both sides


@dataclass(frozen=True)
class Operands:
    """Embeddings as the backend multiplies them."""

    stack: Rows  # of this rank
    everyone: Rows
    queue: Rows | None

    @classmethod
    def of(cls, kernels: Kernels, stack: Rows, queue: Embeddings | None, layout: Layout) -> Operands:
        """Gathers what the other ranks have; alone, everyone is just this rank."""
        everyone = stack
        if layout.ranks.size > 1:
            values = kernels.laid_out(_gathered(stack.values, layout))
            everyone = Rows(values, None if stack.factors is None else _gathered(stack.factors, layout))
        return cls(stack, everyone, None if queue is None else kernels.operand(queue, stack.values.dtype))

    def tensors(self) -> list[Tensor | None]:
        """To be saved for backward."""
        parts = (self.stack, self.everyone, self.queue)
        return [tensor for rows in parts for tensor in ((None, None) if rows is None else (rows.values, rows.factors))]

    @classmethod
    def of_tensors(cls, tensors: Sequence[Tensor | None]) -> Operands:
        """The inverse of `tensors`."""
        stack, everyone, queue = (
            None if values is None else Rows(values, factors)
            for values, factors in zip(tensors[::2], tensors[1::2], strict=True)
        )
        assert stack is not None
        assert everyone is not None
        return cls(stack, everyone, queue)


def _gathered(own_R: Tensor, layout: Layout) -> Tensor:
    """Of all ranks, view by view."""
    return distributed.gather_views(own_R.unflatten(0, (layout.views, -1)), layout.ranks).flatten(0, 1)


def parts_of(
    layout: Layout,
    operands: Operands,
    scale: float | Tensor,
    *,
    bounded: bool,
    known: Known | None = None,
    positives: bool = False,
) -> Iterator[Part]:
    """The blocks that cover this rank's rows: alone, each pair of views once; among ranks, from both of its sides.

    With `positives` they are to find rows of one label, else negatives, for which a queue is visited too.
    """
    stack, everyone, queue = operands.stack, operands.everyone, operands.queue
    find_places = _places.__wrapped__ if torch.compiler.is_compiling() else _places
    for place in find_places(layout) if layout.from_batch or positives else ():
        codes = None
        if known is not None:
            codes = known.codes(layout, place.row_views, place.column_views, positives=positives)
        yield Part(
            block=Block(
                stack[place.rows],
                everyone[place.columns],
                scale,
                excluded=place.excluded,
                symmetric=place.mirrored and place.row_views == place.column_views,
                bounded=bounded,
                codes=codes,
            ),
            rows=place.rows,
            columns=place.columns,
            row_views=place.row_views,
            column_views=place.column_views,
            row_anchors=place.row_anchors,
            column_anchors=place.column_anchors,
            mirrored=place.mirrored,
        )
    if queue is not None and not positives:
        for views, anchors in _rows_of_anchors(layout):
            rows = span(views, layout.own_samples)
            yield Part(
                block=Block(
                    stack[rows],
                    queue,
                    scale,
                    bounded=bounded,
                    codes=None if known is None else known.queue_codes(layout, views),
                ),
                rows=rows,
                columns=slice(len(everyone), len(everyone) + len(queue)),
                row_views=views,
                column_views=(),
                row_anchors=anchors,
                column_anchors=None,
                mirrored=False,
            )


@dataclass(frozen=True)
class _Place:
    """Where a block of the batch stands: everything about it that follows from the geometry."""

    rows: slice
    columns: slice
    row_views: Views
    column_views: Views
    row_anchors: slice | None
    column_anchors: slice | None
    excluded: tuple[Diagonal, ...]
    mirrored: bool


@lru_cache(maxsize=1024)
def _places(layout: Layout) -> tuple[_Place, ...]:
    alone = layout.ranks.size == 1
    sides = list(layout.blocks())
    if not alone:
        sides += [(columns, rows) for rows, columns in sides if rows != columns]
    return tuple(
        _Place(
            rows=span(row_views, layout.own_samples),
            columns=span(column_views, layout.samples),
            row_views=row_views,
            column_views=column_views,
            row_anchors=_anchors(layout, row_views, column_views, layout.own_samples),
            column_anchors=_anchors(layout, column_views, row_views, layout.samples),
            excluded=same_sample_pairs(row_views, column_views, layout.own_samples, layout.ranks),
            mirrored=alone,
        )
        for row_views, column_views in sides
    )


def _rows_of_anchors(layout: Layout) -> list[tuple[Views, slice]]:
    """Views, and which anchors their rows are; all at once where every view has one group at most."""
    views = tuple(group.view for group in layout.groups)
    if views == tuple(range(len(views))):
        return [(views, slice(0, len(views) * layout.own_samples))]
    return [((view,), span((g,), layout.own_samples)) for g, view in enumerate(views)]


def _anchors(layout: Layout, views: Views, over: Views, samples: int) -> slice | None:
    """Where the rows of these views stand among the anchors that look for negatives over there, if they do."""
    groups = [layout.group_of(view, over[0]) for view in views]
    if any(group is None for group in groups):
        return None
    return span(tuple(g for g in groups if g is not None), samples)


def gradients_of_parts(
    stack: Tensor,
    parts: Iterable[Part],
    block_gradients: BlockGradients[SideT],
    own_anchors: SideT,
    anchors: SideT,
    needs_views: list[bool],
    needs_queue: bool,
) -> tuple[Tensor | None, Tensor | None]:
    """What pairs send to this rank's rows, perhaps in strips [P, V n, d] yet to be added, and to the queue."""
    to_rows: list[tuple[slice, Tensor]] = []
    d_queue = None
    for part in parts:
        from_queue = not part.column_views
        need_rows = any(needs_views[v] for v in part.row_views)
        need_columns = needs_queue if from_queue else part.mirrored and any(needs_views[v] for v in part.column_views)
        if not (need_rows or need_columns):
            continue
        d_rows, d_columns = block_gradients(
            part.block,
            None if part.row_anchors is None else own_anchors.part(part.row_anchors),
            None if part.column_anchors is None else anchors.part(part.column_anchors),
            need_rows=need_rows,
            need_columns=need_columns,
        )
        if d_rows is not None:
            to_rows.append((part.rows, d_rows))
        if d_columns is not None and from_queue:
            d_queue = added(d_columns) if d_queue is None else d_queue.add_(added(d_columns))
        elif d_columns is not None:
            to_rows.append((part.columns, d_columns))
    return _stacked(stack, to_rows), d_queue


def _stacked(stack: Tensor, to_rows: list[tuple[slice, Tensor]]) -> Tensor | None:
    """Gradients of runs of rows as one of all rows, in few operations where the runs follow each other."""
    if not to_rows:
        return None
    (first_rows, first), *others = to_rows
    edges = [0, *(rows.stop for rows, _ in to_rows)]
    follow = edges[-1] == stack.shape[0] and [rows.start for rows, _ in to_rows] == edges[:-1]
    if follow and len({gradient.shape[:-2] for _, gradient in to_rows}) == 1:
        return first if not others else torch.cat([gradient for _, gradient in to_rows], -2)
    if first_rows == slice(0, len(stack)):
        d_stack = added(first)
    else:
        d_stack, others = torch.zeros_like(stack), to_rows
    for rows, gradient in others:
        d_stack[rows].add_(added(gradient))
    return d_stack


def added(gradient: Tensor) -> Tensor:
    """The sum over the strips of columns that a kernel kept apart, if any."""
    return gradient.sum(0) if gradient.dim() == 3 else gradient
