"""The effective sample size of importance weights."""

from __future__ import annotations

from torch import Tensor


def effective_share(total: Tensor, norm: Tensor, negatives: int) -> Tensor:
    """(sum_j w_j)^2 / (K sum_j w_j^2) from the sum of K weights and their Euclidean norm, in [1/K, 1]."""
    return (total / norm).square_().div_(negatives).clamp_(1 / negatives, 1)
