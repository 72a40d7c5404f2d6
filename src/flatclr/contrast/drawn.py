"""The scores of a few chosen candidates per anchor, a few anchors at a time so that [A, k, d] is never stored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from flatclr.checks import refuse_double_backward
from flatclr.contrast import relation
from flatclr.contrast.batch import Batch
from flatclr.contrast.numerics import by_row, no_autocast


def candidate_scores(batch: Batch, scale: float | Tensor, candidates_Ak: Tensor) -> Tensor:
    """Scores of every anchor against these rows of (view by view, queue): [A, k]; a scale may be one per anchor."""
    stack_VNd = batch.everyone_VNd
    rows = stack_VNd.flatten(0, 1)
    anchors = torch.cat([stack_VNd[group.view] for group in batch.layout.groups])
    with no_autocast(rows):
        products: Tensor = _IndexedDotProducts.apply(
            anchors, rows if batch.queue is None else torch.cat([rows, batch.queue]), candidates_Ak
        )
    return by_row(scale) * products


class _IndexedDotProducts(torch.autograd.Function):
    """<anchor_i, row_index[i, j]>"""

    @staticmethod
    def forward(ctx: Any, anchors_Ad: Tensor, rows_Md: Tensor, index_Ak: Tensor) -> Tensor:
        ctx.save_for_backward(anchors_Ad, rows_Md, index_Ak)
        return torch.cat(
            [torch.einsum("ad,akd->ak", anchors_Ad[s], rows_Md[index_Ak[s]]) for s in _strips(rows_Md, index_Ak)]
        )

    @staticmethod
    def backward(ctx: Any, upstream_Ak: Tensor) -> tuple[Tensor, Tensor, None]:
        refuse_double_backward()
        anchors_Ad, rows_Md, index_Ak = ctx.saved_tensors
        d_anchors, d_rows = torch.empty_like(anchors_Ad), torch.zeros_like(rows_Md)
        with no_autocast(rows_Md):
            for s in _strips(rows_Md, index_Ak):
                d_anchors[s] = torch.einsum("ak,akd->ad", upstream_Ak[s], rows_Md[index_Ak[s]])
                pull_akd = upstream_Ak[s].unsqueeze(2) * anchors_Ad[s].unsqueeze(1)
                d_rows.index_add_(0, index_Ak[s].flatten(), pull_akd.flatten(0, 1))
        return d_anchors, d_rows, None


def _strips(rows_Md: Tensor, index_Ak: Tensor) -> Iterator[slice]:
    at_once = max(1, relation.ENTRIES_AT_ONCE // (index_Ak.shape[1] * rows_Md.shape[1]))
    for start in range(0, len(index_Ak), at_once):
        yield slice(start, min(start + at_once, len(index_Ak)))
