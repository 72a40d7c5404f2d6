"""Who is contrasted with whom.

V views of N samples are stacked: rows 0..N-1 are the first view, rows N..2N-1 the second, and so on. The positives of
an anchor are the other views of its sample; its negatives are embeddings of *other* samples, from the views its pairing
names, and a queue.

    views      every view -> all views             V N anchors, V (N-1) negatives each        (SimCLR)
    cross      each view -> each other, by pairs   V (V-1) N anchors, N-1 negatives each      (CLIP)
    one_way    the first view -> the others        N anchors, (V-1)(N-1) negatives each       (MoCo)
    within     each view -> itself                 V N anchors, N-1 negatives each            (uniformity, f-MICL)

"two_view" is the older name of "views". A pairing is a function from the number of views to groups of N anchors each;
everything else is derived from the groups, so one that is added here works wherever these do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from torch import Tensor

from flatclr.distributed import Ranks

Views = tuple[int, ...]
ENTRIES_AT_ONCE = 2**22  # of a temporary that would otherwise grow with the square of the batch


@dataclass(frozen=True)
class Group:
    """N anchors, the rows of one view."""

    view: int
    candidates: Views  # where their negatives stand
    positives: Views  # where the other views of their samples stand


def _views(count: int) -> tuple[Group, ...]:
    return tuple(Group(v, tuple(range(count)), _without(v, count)) for v in range(count))


def _cross(count: int) -> tuple[Group, ...]:
    return tuple(Group(v, (w,), (w,)) for v in range(count) for w in _without(v, count))


def _one_way(count: int) -> tuple[Group, ...]:
    return (Group(0, _without(0, count), _without(0, count)),)


def _within(count: int) -> tuple[Group, ...]:
    return tuple(Group(v, (v,), _without(v, count)) for v in range(count))


def _without(view: int, count: int) -> Views:
    return tuple(v for v in range(count) if v != view)


Pairing = Callable[[int], tuple[Group, ...]]
PAIRINGS: dict[str, Pairing] = {
    "two_view": _views,
    "views": _views,
    "cross": _cross,
    "one_way": _one_way,
    "within": _within,
}


# the geometries of two views whose scores make one tile, whatever the pairing is called
TILES: dict[tuple[Group, ...], str] = {PAIRINGS[name](2): name for name in ("views", "cross", "one_way", "within")}


@dataclass(frozen=True)
class Layout:
    """The geometry of a contrast. Anchors come group by group, in each group in the order of the samples."""

    pairing: str
    views: int  # V
    groups: tuple[Group, ...]
    ranks: Ranks
    own_samples: int  # n of this rank
    samples: int  # N of all ranks
    anchors: int  # of all ranks
    negatives: int  # that an anchor can have at most, queue included
    from_batch: int  # of these, rows of the batch
    tile: str | None  # which of `TILES` it is; None: another, or of several ranks

    def __hash__(self) -> int:
        # asked for at every call, and the groups follow from these
        return hash((self.pairing, self.views, self.own_samples, self.samples, self.negatives))

    def own(self, per_anchor: Tensor) -> Tensor:
        """This rank's part of values of all anchors."""
        if self.ranks.size == 1:
            return per_anchor
        per_group = per_anchor.view(len(self.groups), self.samples, *per_anchor.shape[1:])
        return per_group[:, self.ranks.own_rows(self.own_samples)].flatten(0, 1)

    def own_stack(self, everyone: Tensor) -> Tensor:
        """This rank's part of the rows of all views."""
        if self.ranks.size == 1:
            return everyone
        return everyone.view(self.views, self.samples, -1)[:, self.ranks.own_rows(self.own_samples)].flatten(0, 1)

    def group_of(self, view: int, over: int) -> int | None:
        """Which group is anchored in one view and looks for negatives in the other."""
        found = (g for g, group in enumerate(self.groups) if group.view == view and over in group.candidates)
        return next(found, None)

    def blocks(self) -> tuple[tuple[Views, Views], ...]:
        """(row views, column views) that cover every pair of the batch once; one block where all meet all.

        The rows of every block are anchors; its columns may be.
        """
        every = tuple(range(self.views))
        if [(g.view, g.candidates) for g in self.groups] == [(v, every) for v in every]:
            return ((every, every),)
        needed = []
        for v in every:
            for w in every[v:]:
                if self.group_of(v, w) is not None:
                    needed.append(((v,), (w,)))
                elif self.group_of(w, v) is not None:
                    needed.append(((w,), (v,)))
        return tuple(needed)


@lru_cache(maxsize=1024)
def layout_of(
    pairing: str, plan: Pairing, ranks: Ranks, views: int, own_samples: int, queued: int, in_batch: bool
) -> Layout:
    """The geometry of a batch; `plan` is what the name means now, so that a name registered anew is not remembered."""
    groups, samples = plan(views), own_samples * ranks.size
    _require_computable(pairing, groups, views)
    from_batch = len(groups[0].candidates) * (samples - 1) if in_batch else 0
    return Layout(
        pairing=pairing,
        views=views,
        groups=groups,
        ranks=ranks,
        own_samples=own_samples,
        samples=samples,
        anchors=len(groups) * samples,
        negatives=from_batch + queued,
        from_batch=from_batch,
        tile=TILES.get(groups) if ranks.size == 1 else None,
    )


def _require_computable(pairing: str, groups: tuple[Group, ...], views: int) -> None:
    """Refuse a pairing that the routes would compute as something else."""
    problem, anchored = None, [(group.view, over) for group in groups for over in group.candidates]
    named = {v for group in groups for v in (group.view, *group.candidates, *group.positives)}
    if not groups or not all(group.candidates and group.positives for group in groups):
        problem = "have anchors, candidates and positives"
    elif not named <= set(range(views)):
        problem = f"name views 0 to {views - 1}"
    elif any(group.view in group.positives for group in groups):
        problem = "have other views as positives"
    elif len(anchored) != len(set(anchored)):
        problem = "look from one view to another once"
    elif len({(len(group.candidates), len(group.positives)) for group in groups}) > 1:
        problem = "have the same number of candidates and of positives each"
    if problem is not None:
        raise ValueError(f"the groups of pairing {pairing!r} must {problem}, got {groups}; register it otherwise.")


def span(views: Views, samples: int) -> slice:
    """Where neighbouring views stand in a stack of `samples` rows per view."""
    return slice(views[0] * samples, (views[-1] + 1) * samples)


@dataclass(frozen=True)
class Diagonal:
    """The pairs (i, i + offset) for row_start <= i < row_stop: embeddings of one sample, hence not negatives."""

    row_start: int
    row_stop: int
    offset: int


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
