"""Negatives drawn at random: k distinct ones for every anchor, uniformly among those it may have.

No anchor's candidates are written down. Rows are put in an order in which those of one label stand together: what an
anchor's label leaves out is then one stretch, and what its id leaves out a sorted list of places. The r-th row that is
left is found by arithmetic and one binary search, in shapes that do not depend on labels and ids.

Shape suffixes: A anchors, k drawn, N samples, M rows to draw from.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from flatclr.checks import require_count
from flatclr.contrast import relation
from flatclr.contrast.known import Known
from flatclr.contrast.luck import luck
from flatclr.contrast.relation import Layout

ORDERED_PER_COMPARISON = 16  # numbers are ordered in the time that many pairs of numbers are compared


def draw_negatives(
    layout: Layout, k: int, generator: torch.Generator | None, device: torch.device, known: Known | None = None
) -> Tensor:
    """k distinct negatives for every anchor, uniformly, as rows of the stack (view by view, then queue): [A, k].

    An anchor that has fewer gets -1 in the rest of its row.
    """
    available = layout.negatives
    require_count("negatives_per_anchor", k, at_most=available, advice="enlarge the batch or the queue, or draw fewer.")
    samples_N = torch.arange(layout.samples, device=device)
    known = known or Known(ids=samples_N, queue_ids=samples_N.new_full((available - layout.from_batch,), -1))
    of_view = _Left.of(known.labels, known.ids, known.labels, known.ids)
    views = len(layout.groups[0].candidates) if layout.from_batch else 0
    from_batch_N = views * of_view.count_N
    count_N, of_queue = from_batch_N, None
    if layout.from_batch < available:
        of_queue = _Left.of(known.queue_labels, known.queue_ids, known.labels, known.ids)
        count_N = count_N + of_queue.count_N

    groups = len(layout.groups)
    luck_device = device if generator is None else generator.device
    picks_Ak = _distinct(count_N.repeat(groups), k, available, generator, luck_device)
    samples_A1, sound_Ak = samples_N.repeat(groups).unsqueeze(1), picks_Ak.clamp_min(0)
    per_view_A1 = of_view.count_N[samples_A1].clamp_min(1)
    candidates_GC = torch.tensor([group.candidates for group in layout.groups], device=device)
    place_Ak = (sound_Ak // per_view_A1).clamp_max(candidates_GC.shape[1] - 1)
    view_Ak = candidates_GC.repeat_interleave(layout.samples, 0).gather(1, place_Ak)
    drawn_Ak = view_Ak * layout.samples + of_view.rows(samples_A1, sound_Ak % per_view_A1)
    if of_queue is not None:
        beyond_Ak = sound_Ak - from_batch_N[samples_A1]
        queued_Ak = layout.views * layout.samples + of_queue.rows(samples_A1, beyond_Ak.clamp_min(0))
        drawn_Ak = torch.where(beyond_Ak < 0, drawn_Ak, queued_Ak)
    return drawn_Ak.masked_fill(picks_Ak < 0, -1)


def _distinct(
    below_A: Tensor, k: int, available: int, generator: torch.Generator | None, source: torch.device
) -> Tensor:
    """k distinct whole numbers below each of these, uniformly; -1 in the rest of a row that has fewer: [A, k]."""
    if k * k > ORDERED_PER_COMPARISON * available:
        return _first_of_an_order(below_A, k, available, generator, source)
    # Floyd's way: each pick is of one number more, and a number taken before stands for the one that was added
    luck_kA = luck(k, len(below_A), generator, source, torch.float64).to(below_A.device)
    picks_kA = torch.full_like(luck_kA, -1, dtype=torch.long)
    for step, luck_A in enumerate(luck_kA):
        added_A = below_A - k + step
        pick_A = (luck_A * (added_A + 1)).long()
        pick_A = torch.where((picks_kA[:step] == pick_A).any(0), added_A, pick_A)
        picks_kA[step] = pick_A.masked_fill(added_A < 0, -1)
    return picks_kA.T.contiguous()


def _first_of_an_order(
    below_A: Tensor, k: int, available: int, generator: torch.Generator | None, source: torch.device
) -> Tensor:
    """The same by giving every number its luck: work for large k, a few anchors at a time."""
    columns_M, found = torch.arange(available, device=below_A.device), []
    for below_a in below_A.split(max(1, relation.ENTRIES_AT_ONCE // available)):
        luck_aM = luck(len(below_a), available, generator, source).to(below_A.device)
        luck_ak, picks_ak = luck_aM.masked_fill_(columns_M >= below_a.unsqueeze(1), -1.0).topk(k)
        found.append(picks_ak.masked_fill(luck_ak < 0, -1))
    return torch.cat(found)


@dataclass(frozen=True)
class _Left:
    """The rows that every sample may have as negatives."""

    order_M: Tensor  # rows of one label together
    stretch_N: Tensor  # places of the sample's label, less those of its id
    start_N: Tensor  # of the stretch, among places that are not of its id
    listed: _Listed | None  # places of its id
    count_N: Tensor  # rows that are left

    @classmethod
    def of(cls, labels_M: Tensor | None, ids_M: Tensor | None, labels_N: Tensor | None, ids_N: Tensor | None) -> _Left:
        """Of rows with these labels and ids, for samples with those."""
        like = labels_M if labels_M is not None else ids_M
        own = labels_N if labels_N is not None else ids_N
        assert like is not None
        assert own is not None
        order_M, listed = torch.arange(len(like), device=like.device), None
        start_N = stretch_N = torch.zeros((), dtype=torch.long, device=like.device)
        if labels_M is not None and labels_N is not None:
            ordered_M, order_M = labels_M.long().sort(stable=True)
            start_N, stop_N = _segment(ordered_M, labels_N.long())
            stretch_N = stop_N - start_N
        left_N = len(like) - stretch_N
        if ids_M is not None and ids_N is not None:
            listed = _Listed.of(ids_M.long()[order_M], ids_N.long())
            before_N, through_N = listed.before(start_N), listed.before(start_N + stretch_N)
            start_N, stretch_N = start_N - before_N, stretch_N - (through_N - before_N)
            left_N = len(like) - listed.count_N - stretch_N
        return cls(order_M, stretch_N.expand(len(own)), start_N.expand(len(own)), listed, left_N)

    def rows(self, samples_A1: Tensor, ranks_Ak: Tensor) -> Tensor:
        """The row of each rank among those that are left; any row for a rank beyond them."""
        behind = ranks_Ak >= self.start_N[samples_A1]
        places_Ak = ranks_Ak + behind * self.stretch_N[samples_A1]
        if self.listed is not None:
            places_Ak = places_Ak + self.listed.passed(samples_A1, places_Ak)
        return self.order_M[places_Ak.clamp_max(len(self.order_M) - 1)]


@dataclass(frozen=True)
class _Listed:
    """For every sample the places p_0 < p_1 < ... of its id, one after the other in one sorted list of keys."""

    first_N: Tensor  # in the list
    count_N: Tensor
    by_place_M: Tensor  # keys (id, p_t)
    by_rank_M: Tensor  # keys (id, p_t - t): how many places before p_t are not listed

    @classmethod
    def of(cls, ids_M: Tensor, ids_N: Tensor) -> _Listed:
        ordered_M, places_M = ids_M.sort(stable=True)
        first_N, stop_N = _segment(ordered_M, ids_N)
        first_M = torch.searchsorted(ordered_M, ordered_M)
        by_place_M = first_M * (len(ids_M) + 1) + places_M
        turn_M = torch.arange(len(ids_M), device=ids_M.device) - first_M
        return cls(first_N, stop_N - first_N, by_place_M, by_place_M - turn_M)

    def before(self, places_N: Tensor) -> Tensor:
        """How many of a sample's places are before this one."""
        found_N = torch.searchsorted(self.by_place_M, self.first_N * (len(self.by_place_M) + 1) + places_N)
        return torch.minimum(found_N - self.first_N, self.count_N)

    def passed(self, samples_A1: Tensor, ranks_Ak: Tensor) -> Tensor:
        """How many of a sample's places are before the place of this rank among the others."""
        first_A1 = self.first_N[samples_A1]
        keys_Ak = first_A1 * (len(self.by_rank_M) + 1) + ranks_Ak
        found_Ak = torch.searchsorted(self.by_rank_M, keys_Ak, right=True)
        return torch.minimum(found_Ak - first_A1, self.count_N[samples_A1])


def _segment(ordered_M: Tensor, wanted_N: Tensor) -> tuple[Tensor, Tensor]:
    """Where each wanted number begins and ends in a sorted list."""
    return torch.searchsorted(ordered_M, wanted_N), torch.searchsorted(ordered_M, wanted_N, right=True)
