"""The expected FlatNCE gradient by enumeration, against loops over every draw; and where it has a zero."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
import torch

from flatclr.studies import Job
from flatclr.studies.experiments import convergence


def test_counts_and_their_chances_are_those_of_all_draws() -> None:
    margin = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)
    counts = convergence.counts_of(3)
    chances = dict(
        zip(map(tuple, counts.long().tolist()), convergence.probabilities_of(counts, margin).tolist(), strict=True)
    )
    expected: dict[tuple[int, ...], float] = {}
    for draw in product(range(4), repeat=3):
        key = tuple(draw.count(symbol) for symbol in range(4))
        expected[key] = expected.get(key, 0.0) + float(margin[list(draw)].prod())
    assert chances == pytest.approx(expected)


@pytest.mark.parametrize("negatives", [4, 5])
def test_a_symmetric_joint_has_a_zero_where_a_symbol_can_get_the_weight_it_needs(
    negatives: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """p(y | x) = 0.7 on the diagonal: 1 - 0.75^4 = 0.68 is too little, 1 - 0.75^5 = 0.76 is enough."""
    joint = (0.1 * torch.ones(4, 4, dtype=torch.float64) + 0.6 * torch.eye(4, dtype=torch.float64)) / 4
    monkeypatch.setattr(convergence, "joint_of", lambda seed: joint)
    numbers = convergence.measure(Job({"negatives": negatives, "rounds": 20}, 0, "cpu", Path()))
    assert numbers["zero_for_pairs"] == (negatives == 5)
    assert convergence.is_zero(numbers) == (negatives == 5)
