"""Rank correlation with its interval."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from flatclr.evaluation.intervals import NORMAL, Score

FEWEST = 5  # values for an interval


def ranks(values: Sequence[float]) -> list[float]:
    """From 0 on; equal values share the mean of their ranks.

    >>> ranks([3.0, 1.0, 3.0])
    [1.5, 0.0, 1.5]
    """
    below = {value: sum(other < value for other in values) for value in set(values)}
    equal = {value: sum(other == value for other in values) for value in set(values)}
    return [below[value] + (equal[value] - 1) / 2 for value in values]


def rank_correlation(x: Sequence[float], y: Sequence[float]) -> Score:
    """Spearman's, with the interval of Fisher's z (Bonett & Wright 2000); 0 where one side does not vary.

    >>> rank_correlation([1.0, 2.0, 3.0, 4.0, 5.0], [2.0, 4.0, 6.0, 8.0, 9.0]).value
    1.0
    >>> rank_correlation([1.0, 2.0, 3.0], [5.0, 5.0, 5.0]).value
    0.0
    """
    if len(set(x)) < 2 or len(set(y)) < 2:
        return Score(0.0, math.nan, math.nan)
    rho = statistics.correlation(ranks(x), ranks(y))
    if len(x) < FEWEST or abs(rho) > 1 - 1e-12:
        return Score(round(rho, 12), math.nan, math.nan)
    half = NORMAL * math.sqrt((1 + rho * rho / 2) / (len(x) - 3))
    return Score(rho, math.tanh(math.atanh(rho) - half), math.tanh(math.atanh(rho) + half))
