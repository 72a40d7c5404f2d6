"""Outcomes of draws and their chances, against every order of drawing."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from flatclr.studies.multinomial import counts_of, probabilities_of


def test_counts_and_their_chances_are_those_of_all_draws() -> None:
    margin = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)
    counts = counts_of(4, 3)
    chances = dict(zip(map(tuple, counts.long().tolist()), probabilities_of(counts, margin).tolist(), strict=True))
    expected: dict[tuple[int, ...], float] = {}
    for draw in product(range(4), repeat=3):
        key = tuple(draw.count(symbol) for symbol in range(4))
        expected[key] = expected.get(key, 0.0) + float(margin[list(draw)].prod())
    assert chances == pytest.approx(expected)
