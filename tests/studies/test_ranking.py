"""Rank correlation against scipy's, and its interval against what it covers."""

from __future__ import annotations

import math
import random

import pytest
from scipy.stats import spearmanr

from flatclr.studies.ranking import rank_correlation


@pytest.mark.parametrize("levels", [3, 1000])
def test_rank_correlation_is_spearmans_ties_included(levels: int) -> None:
    generator = random.Random(0)
    x = [float(generator.randrange(levels)) for _ in range(40)]
    y = [value + generator.gauss(0, levels) for value in x]
    assert rank_correlation(x, y).value == pytest.approx(spearmanr(x, y).statistic, abs=1e-12)


def test_the_interval_covers_no_correlation_95_times_in_100() -> None:
    generator = random.Random(0)
    draws = 1000
    covered = 0
    for _ in range(draws):
        x, y = ([generator.random() for _ in range(20)] for _ in range(2))
        score = rank_correlation(x, y)
        covered += score.low < 0 < score.high
    assert abs(covered / draws - 0.95) < 4 * math.sqrt(0.95 * 0.05 / draws)
