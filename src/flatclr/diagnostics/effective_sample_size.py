"""How many negatives really carry the gradient."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from flatclr.checks import require_matrix
from flatclr.contrast import ContrastStats
from flatclr.contrast.numerics import dense_ess


def effective_sample_size(log_weights: Tensor) -> Tensor:
    """The share of a row's entries that carry its softmax.

        ess = 1 / (K sum_j w_j^2),  w = softmax of the row

    Of a batch, `stats.ess` holds it already.

    Args:
        log_weights: scores, or logarithms of weights, [A, K].

    Returns:
        [A], each in [1/K, 1]: 1 where all entries weigh the same, 1/K where one carries everything.

    >>> effective_sample_size(torch.tensor([[0.0, 0.0, 0.0, 0.0], [99.0, 0.0, 0.0, 0.0]]))
    tensor([1.0000, 0.2500])
    """
    require_matrix("log_weights", log_weights, "[A, K]")
    return dense_ess(log_weights, log_weights.shape[1])


def ess_with_positive(stats: ContrastStats) -> Tensor:
    """The share of a row's K + 1 entries that carry InfoNCE's own softmax, which the positive is in.

        ess = exp(2 lae(p, l) - lae(2 p, l2)) / (K + 1),  lae = logaddexp, l2 = log-sum-exp of twice the scores

    `stats.ess` is of the negatives alone. This one falls to 1 / (K + 1) where the positive outweighs all negatives,
    whatever they are.

    Args:
        stats: of a batch with one positive per anchor.

    Returns:
        [A], each in [1 / (K + 1), 1]; without gradient.

    Raises:
        ValueError: where anchors have several positives.

    >>> ess_with_positive(flatclr.stats_from_scores(99 * torch.eye(4)))
    tensor([0.2500, 0.2500, 0.2500, 0.2500])

    Reference: Chen et al. 2021, Fig. 6.
    """
    if stats.each_positive is not None:
        raise ValueError("stats must have one positive per anchor, got several; pass two views and no labels.")
    gap, negatives = stats.gap.detach(), stats.negatives
    # relative to l: the positive is -gap, and l2 - 2 l is minus the log of the negatives' effective number
    log_square = torch.logaddexp(-2 * gap, -(stats.ess * negatives).log())
    return (2 * F.softplus(-gap, threshold=40) - log_square).exp() / (negatives + 1)
