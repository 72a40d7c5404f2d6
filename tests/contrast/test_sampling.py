"""Drawn negatives are distinct, allowed, and every set of them is as likely as any other."""

from __future__ import annotations

import math
from collections import Counter
from itertools import combinations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import flatclr
from flatclr.contrast import sampling
from flatclr.contrast.known import Known
from flatclr.contrast.relation import PAIRINGS, Layout, layout_of
from flatclr.contrast.sampling import draw_negatives
from flatclr.distributed import Ranks
from tests.support.memory import LargestTensor

CPU = torch.device("cpu")
WAYS = {"one by one": math.inf, "by an order": 0}  # which draws are made one by one
every_way = pytest.mark.parametrize("comparisons", WAYS.values(), ids=WAYS)


def allowed_rows(layout: Layout, known: Known | None, queue: int) -> list[set[int]]:
    """The rows of (view by view, queue) that every anchor may have, by looking at each of them."""
    known, samples, sets = known or Known(), layout.samples, []
    said = [
        (x.tolist(), None if q is None else q.tolist())
        for x, q in ((known.labels, known.queue_labels), (known.ids, known.queue_ids))
        if x is not None
    ]
    for group in layout.groups:
        for n in range(samples):
            others = [m for m in range(samples) if m != n and all(own[m] != own[n] for own, _ in said)]
            rows = {v * samples + m for v in group.candidates for m in others if layout.from_batch}
            free = [m for m in range(queue) if all(theirs is None or theirs[m] != own[n] for own, theirs in said)]
            sets.append(rows | {layout.views * samples + m for m in free})
    return sets


@st.composite
def problems(draw: st.DrawFn) -> tuple[Layout, Known | None, int]:
    """Any pairing, queue, and codes that coincide in any way."""
    samples, queue = draw(st.integers(1, 7)), draw(st.integers(0, 5))
    pairing, views = draw(st.sampled_from(sorted(PAIRINGS))), draw(st.integers(2, 3))
    layout = layout_of(
        pairing,
        PAIRINGS[pairing],
        Ranks(),
        views=views,
        own_samples=samples,
        queued=queue,
        in_batch=draw(st.booleans()),
    )

    def codes(count: int) -> torch.Tensor:
        return torch.tensor(draw(st.lists(st.integers(-2, 2), min_size=count, max_size=count)), dtype=torch.long)

    labels, ids = (codes(samples) if draw(st.booleans()) else None for _ in range(2))
    if labels is None and ids is None:
        return layout, None, queue
    of_queue = [codes(queue) if x is not None and queue else None for x in (labels, ids)]
    return layout, Known(labels, ids, *of_queue), queue


@every_way
@given(problem=problems(), seed=st.integers(0, 2**16), few=st.booleans())
def test_drawn_negatives_are_distinct_and_allowed(
    comparisons: float, problem: tuple[Layout, Known | None, int], seed: int, few: bool
) -> None:
    layout, known, queue = problem
    if layout.negatives == 0:
        return
    k = max(1, layout.negatives // 2) if few else layout.negatives
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampling, "ORDERED_PER_COMPARISON", comparisons)
        drawn = draw_negatives(layout, k, torch.Generator().manual_seed(seed), CPU, known)
    for row, allowed in zip(drawn.tolist(), allowed_rows(layout, known, queue), strict=True):
        some = [candidate for candidate in row if candidate >= 0]
        assert len(some) == len(set(some)) == min(k, len(allowed))
        assert set(some) <= allowed


@every_way
def test_every_set_of_allowed_negatives_is_equally_likely(comparisons: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "ORDERED_PER_COMPARISON", comparisons)
    layout = layout_of("cross", PAIRINGS["cross"], Ranks(), views=2, own_samples=6, queued=3, in_batch=True)
    known = Known(
        torch.tensor([1, 0, 1, 0, 2, 2]),
        torch.tensor([7, 5, 9, 7, 9, 3]),
        torch.tensor([1, 0, 2]),
        torch.tensor([0, 7, 0]),
    )
    generator, draws = torch.Generator().manual_seed(0), 3000
    seen: list[Counter[frozenset[int]]] = [Counter() for _ in range(layout.anchors)]
    for _ in range(draws):
        for counter, row in zip(seen, draw_negatives(layout, 2, generator, CPU, known).tolist(), strict=True):
            counter[frozenset(row)] += 1
    chi_squared = freedom = 0.0
    for counter, allowed in zip(seen, allowed_rows(layout, known, 3), strict=True):
        sets = [frozenset(pair) for pair in combinations(sorted(allowed), 2)]
        assert set(counter) == set(sets)
        expected = draws / len(sets)
        chi_squared += sum((counter[s] - expected) ** 2 / expected for s in sets)
        freedom += len(sets) - 1
    assert abs(chi_squared - freedom) < 4 * math.sqrt(2 * freedom)


@pytest.mark.parametrize("said", [{}, {"labels": torch.arange(4000) % 10, "ids": torch.arange(4000) // 2}])
def test_a_few_negatives_are_drawn_without_a_look_at_the_others(said: dict[str, torch.Tensor]) -> None:
    z = torch.zeros(2, 4000, 1)
    with LargestTensor() as largest:
        flatclr.PairSet.of(z, negatives_per_anchor=8, **said)
    assert largest.elements <= 8 * 8000
