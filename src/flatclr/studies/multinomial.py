"""How often each symbol is among so many draws, and how probable each outcome is."""

from __future__ import annotations

from functools import cache
from itertools import combinations
from math import lgamma

import torch
from torch import Tensor


@cache
def counts_of(symbols: int, draws: int) -> Tensor:
    """Every outcome [outcomes, symbols] of so many draws, their order forgotten.

    >>> counts_of(2, 2).tolist()
    [[0.0, 2.0], [1.0, 1.0], [2.0, 0.0]]
    """
    bars = combinations(range(draws + symbols - 1), symbols - 1)
    edges = torch.tensor([(-1, *places, draws + symbols - 1) for places in bars])
    return (edges.diff(dim=1) - 1).double()


def probabilities_of(counts: Tensor, margin: Tensor) -> Tensor:
    """Multinomial probability of each outcome.

    >>> probabilities_of(counts_of(2, 2), torch.tensor([0.5, 0.5], dtype=torch.float64))
    tensor([0.2500, 0.5000, 0.2500], dtype=torch.float64)
    """
    total = int(counts[0].sum())
    log_ways = lgamma(total + 1) - torch.lgamma(counts + 1).sum(1)
    return (log_ways + counts @ margin.log()).exp()
