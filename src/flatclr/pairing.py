"""Who is contrasted with whom.

Two views of N samples are stacked: rows 0..N-1 are view a, rows N..2N-1 view b. The positive of an anchor is the other
view of its sample; its negatives are embeddings of *other* samples, from the views its pairing names, and a queue.

    two_view   a, b -> both views     2N anchors, 2N-2 negatives each   (SimCLR)
    cross      a -> b,  b -> a        2N anchors,  N-1 negatives each   (CLIP)
    one_way    a -> b                  N anchors,  N-1 negatives each   (MoCo)
    within     a -> a,  b -> b        2N anchors,  N-1 negatives each   (uniformity, f-MICL)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from flatclr.checks import require_count
from flatclr.distributed import Ranks
from flatclr.kernels.block import Diagonal

Views = tuple[int, ...]
A, B, BOTH = (0,), (1,), (0, 1)
ENTRIES_AT_ONCE = 2**22  # of a temporary that would otherwise grow with the square of the batch


@dataclass(frozen=True)
class Pairing:
    name: str
    candidates: tuple[Views, ...]  # for each anchor view, the views its negatives come from
    blocks: tuple[tuple[Views, Views], ...]  # (row views, column views) that cover every pair once

    @property
    def anchor_views(self) -> int:
        return len(self.candidates)

    def negatives(self, samples: int) -> int:
        return len(self.candidates[0]) * (samples - 1)

    def are_anchors(self, views: Views, over: Views) -> bool:
        return all(v < self.anchor_views and set(over) <= set(self.candidates[v]) for v in views)


PAIRINGS = {
    pairing.name: pairing
    for pairing in (
        Pairing("two_view", candidates=(BOTH, BOTH), blocks=((BOTH, BOTH),)),
        Pairing("cross", candidates=(B, A), blocks=((A, B),)),
        Pairing("one_way", candidates=(B,), blocks=((A, B),)),
        Pairing("within", candidates=(A, B), blocks=((A, A), (B, B))),
    )
}


@dataclass(frozen=True)
class Layout:
    """The shape of a contrast: everything about it that is not a tensor."""

    pairing: Pairing
    ranks: Ranks
    own_samples: int  # n
    negatives: int  # per anchor, queue included
    in_batch: bool
    normalize: bool
    shared_loss: bool
    backend: str
    needs_gradient: tuple[bool, bool]  # view a, view b
    embedding_type: torch.dtype = torch.float32  # as the embeddings came

    @property
    def samples(self) -> int:
        """N, over all ranks."""
        return self.own_samples * self.ranks.size

    def own(self, per_anchor: Tensor) -> Tensor:
        """This rank's part of values of all anchors."""
        if self.ranks.size == 1:
            return per_anchor
        per_view = per_anchor.view(self.pairing.anchor_views, self.samples)
        return per_view[:, self.ranks.own_rows(self.own_samples)].flatten()

    def own_stack(self, everyone: Tensor) -> Tensor:
        if self.ranks.size == 1:
            return everyone
        return everyone.view(2, self.samples, -1)[:, self.ranks.own_rows(self.own_samples)].flatten(0, 1)


def layout_of(
    pairing: str,
    ranks: Ranks,
    *,
    own_samples: int,
    queued: int,
    in_batch: bool,
    normalize: bool,
    shared_loss: bool,
    backend: str,
    needs_gradient: tuple[bool, bool],
    embedding_type: torch.dtype = torch.float32,
) -> Layout:
    plan, samples = PAIRINGS[pairing], own_samples * ranks.size
    negatives = queued + (plan.negatives(samples) if in_batch else 0)
    if negatives == 0:
        raise ValueError(
            f"every anchor must have a negative, got a batch of {samples} with in_batch_negatives={in_batch} and no "
            "queue; use at least 2 pairs, or pass negatives=."
        )
    return Layout(
        plan,
        ranks,
        own_samples,
        negatives,
        in_batch,
        normalize,
        shared_loss,
        backend,
        needs_gradient,
        embedding_type,
    )


def span(views: Views, samples: int) -> slice:
    """Where the views stand in a stack of `samples` rows per view."""
    return slice(views[0] * samples, (views[-1] + 1) * samples)


def same_sample_pairs(row_views: Views, column_views: Views, rows_per_view: int, ranks: Ranks) -> tuple[Diagonal, ...]:
    """The diagonals on which this rank's rows meet their own samples among everyone's columns."""
    columns_per_view = rows_per_view * ranks.size
    diagonals = []
    for r, _ in enumerate(row_views):
        for c, _ in enumerate(column_views):
            first_row = r * rows_per_view
            first_column = c * columns_per_view + ranks.rank * rows_per_view
            diagonals.append(Diagonal(first_row, first_row + rows_per_view, first_column - first_row))
    return tuple(diagonals)


def draw_negatives(layout: Layout, k: int, generator: torch.Generator | None, device: torch.device) -> Tensor:
    """k distinct negatives for every anchor, uniformly, as rows of the stack (view a, view b, queue): [anchors, k]."""
    available, pairing, samples = layout.negatives, layout.pairing, layout.samples
    require_count("negatives_per_anchor", k, at_most=available, advice="enlarge the batch or the queue, or draw fewer.")
    from_batch = pairing.negatives(samples) if layout.in_batch else 0
    source = generator.device if generator is not None else device
    anchors = pairing.anchor_views * samples
    rows_at_once = max(1, ENTRIES_AT_ONCE // available)
    picks_Ak = torch.cat(
        [
            torch.rand(min(rows_at_once, anchors - start), available, generator=generator, device=source)
            .topk(k)
            .indices
            for start in range(0, anchors, rows_at_once)
        ]
    ).to(device)
    anchor_A1 = torch.arange(anchors, device=device).unsqueeze(1)
    own_sample = anchor_A1 % samples
    others = max(samples - 1, 1)
    sample = picks_Ak % others
    sample = sample + (sample >= own_sample)  # skip the anchor's own sample
    views_of_anchor = torch.tensor(pairing.candidates, device=device)[anchor_A1 // samples].squeeze(1)
    view = views_of_anchor.gather(1, (picks_Ak // others).clamp_max(views_of_anchor.shape[1] - 1))
    return torch.where(picks_Ak < from_batch, view * samples + sample, picks_Ak - from_batch + 2 * samples)
