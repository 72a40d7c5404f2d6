"""Bounds on mutual information in nats, as values per anchor whose mean is the bound.

`stats` hold the critic's scores: the positive pair and the log-sum-exp over the negatives of every anchor
(`flatclr.stats_from_scores` makes them of a score matrix). f is the critic, p the joint distribution, q the product of
the margins; the critic's optimum is the log density ratio log r, up to what the bound leaves free.

Bounds of a critic are `flatclr.objectives.variational`'s losses with the other sign. Those of a conditional density
q(y | x), which no critic has, are here.

Shape suffixes: A anchors; K rows of a batch whose diagonal holds the positives; M negatives per anchor; N rows.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from flatclr.contrast import ContrastStats
from flatclr.objectives import info_nce, variational
from flatclr.objectives.variational import interpolated_ceiling_nats

__all__ = [
    "ba",
    "club",
    "dv",
    "flo",
    "infonce",
    "interpolated",
    "interpolated_ceiling_nats",
    "js",
    "js_loss",
    "l1out",
    "mine_loss",
    "nwj",
    "smile",
    "tuba",
]


def infonce(stats: ContrastStats) -> Tensor:
    """Lower bound log(M + 1) - softplus(gap), never above log(M + 1).

    Args:
        stats: of the critic's scores.

    Returns:
        [A]; the mean is the bound.

    >>> infonce(flatclr.stats_from_scores(100 * torch.eye(8))).mean()  # ln 8
    tensor(2.0794)

    Reference: van den Oord et al. 2018.
    """
    return stats.ceiling_nats - info_nce(stats)


def dv(stats: ContrastStats) -> Tensor:
    """Lower bound E_p f - log E_q e^f, biased upward by the logarithm of a finite mean.

    Args:
        stats: of the critic's scores.

    Returns:
        [A]; the mean is the bound.

    >>> dv(flatclr.stats_from_scores(2 * torch.eye(3)))
    tensor([2., 2., 2.])

    Reference: Donsker & Varadhan 1983.
    """
    return -variational.dv(stats)


def nwj(stats: ContrastStats) -> Tensor:
    """Lower bound E_p f - E_q e^(f - 1); optimum f = 1 + log r.

    Args:
        stats: of the critic's scores.

    Returns:
        [A]; the mean is the bound.

    >>> nwj(flatclr.stats_from_scores(torch.ones(2, 4)))
    tensor([-0., -0.])

    Reference: Nguyen, Wainwright & Jordan 2010.
    """
    return -variational.nwj(stats)


def tuba(stats: ContrastStats, log_baseline_A: Tensor | float) -> Tensor:
    """Lower bound 1 + E_p[f - log a] - E_q[e^f / a] for any baseline a of the anchor.

    Args:
        stats: of the critic's scores.
        log_baseline_A: log a, one value per anchor or one for all.

    Returns:
        [A]; the mean is the bound.

    >>> tuba(flatclr.stats_from_scores(2 * torch.eye(3)), 0.0)
    tensor([2., 2., 2.])

    Reference: Poole et al. 2019.
    """
    return -variational.tuba(stats, log_baseline_A)


def flo(stats: ContrastStats, u_A: Tensor) -> Tensor:
    """Lower bound 1 - u - e^-u mean_j e^(s_ij - p_i); optimum u = -log r.

    Args:
        stats: of the critic's scores.
        u_A: one value per anchor, of the positive pair only.

    Returns:
        [A]; the mean is the bound.

    >>> flo(flatclr.stats_from_scores(2 * torch.eye(3)), torch.full((3,), -2.0))
    tensor([2., 2., 2.])

    Reference: Guo et al. 2022.
    """
    return -variational.flo(stats, u_A)


def js(stats: ContrastStats) -> Tensor:
    """Lower bound 1 + E_p f - E_q e^f of a critic trained by `js_loss`, whose optimum is log r.

    It is NWJ at f + 1: NWJ at f itself would read low by 1/e at that optimum.

    Args:
        stats: of the critic's scores.

    Returns:
        [A]; the mean is the bound.

    >>> js(flatclr.stats_from_scores(2 * torch.eye(3)))
    tensor([2., 2., 2.])

    Reference: Poole et al. 2019.
    """
    return tuba(stats, 0.0)


def js_loss(positive_A: Tensor, negatives_AM: Tensor) -> Tensor:
    """The loss E_p softplus(-f) + E_q softplus(f): logistic regression, joint against independent pairs.

    Args:
        positive_A: scores of the positive pairs.
        negatives_AM: scores of each anchor's negatives.

    Returns:
        [A]; the mean is to be minimised.

    >>> js_loss(torch.zeros(2), torch.zeros(2, 4))  # 2 ln 2
    tensor([1.3863, 1.3863])

    Reference: Hjelm et al. 2019.
    """
    return variational.js(positive_A, negatives_AM)


def smile(positive_A: Tensor, log_mean_exp_clipped: Tensor) -> Tensor:
    """E_p f - log E_q e^clip(f, -tau, tau); clipping the partition alone makes it no bound.

    Args:
        positive_A: scores of the positive pairs.
        log_mean_exp_clipped: the logarithm of the clipped partition, 0-dim.

    Returns:
        [A]; the mean is the estimate.

    >>> smile(torch.ones(2), torch.tensor(0.5))
    tensor([0.5000, 0.5000])

    Reference: Song & Ermon 2020.
    """
    return -variational.smile(positive_A, log_mean_exp_clipped)


def mine_loss(stats: ContrastStats, log_average: Tensor) -> Tensor:
    """The loss -E_p f + E_q e^f / average: DV's gradient over a moving average of the partition.

    Args:
        stats: of the critic's scores.
        log_average: logarithm of the moving average of E_q e^f, 0-dim and without gradient.

    Returns:
        [A]; the mean is to be minimised.

    >>> mine_loss(flatclr.stats_from_scores(torch.zeros(2, 4)), torch.tensor(0.0))
    tensor([1., 1.])

    Reference: Belghazi et al. 2018.
    """
    return variational.mine(stats, log_average)


def interpolated(scores_KK: Tensor, log_baseline_K: Tensor, alpha: float) -> Tensor:
    """Lower bound between InfoNCE (alpha 1) and TUBA (alpha 0), leaving one row out at a time.

        1 + mean_{i != j}[s_ii - log a(y_i; x_-j)] - mean_{i != j} e^s_ij / a(y_j; x_-j)
        a(y; x_-j) = alpha mean_{l != j} e^f(x_l, y) + (1 - alpha) q(y)

    Args:
        scores_KK: f(x_i, y_j), the positives on the diagonal.
        log_baseline_K: log q(y_j).
        alpha: in [0, 1].

    Returns:
        [K], one value per left-out row; their mean is the bound, never above 1 + log((K - 1) / alpha).

    >>> interpolated(2 * torch.eye(3), torch.zeros(3), 0.0)
    tensor([2., 2., 2.])

    Reference: Poole et al. 2019.
    """
    return -variational.interpolated(scores_KK, log_baseline_K, alpha)


def ba(log_q_N: Tensor, entropy_nats: float) -> Tensor:
    """Lower bound E_p log q(y | x) + H(y), as good as H(y) is known.

    Args:
        log_q_N: log q(y_i | x_i).
        entropy_nats: H(y).

    Returns:
        [N]; the mean is the bound.

    >>> ba(torch.tensor([-0.5, -1.5]), entropy_nats=1.5)
    tensor([1., 0.])

    Reference: Barber & Agakov 2003.
    """
    return log_q_N + entropy_nats


def club(log_q_KK: Tensor) -> Tensor:
    """Upper bound E_p log q(y | x) - E_x E_y log q(y | x), if q(y | x) is the true conditional density.

    Args:
        log_q_KK: log q(y_j | x_i) at [i, j].

    Returns:
        [K]; the mean is the bound.

    >>> club(torch.eye(3))
    tensor([1., 1., 1.])

    Reference: Cheng et al. 2020.
    """
    K = len(log_q_KK)
    positive = log_q_KK.diagonal()
    return positive - (log_q_KK.sum(1) - positive) / (K - 1)


def l1out(log_q_KK: Tensor) -> Tensor:
    """Upper bound log q(y_i | x_i) - log mean_{j != i} q(y_i | x_j), if q(y | x) is the true conditional density.

    Args:
        log_q_KK: log q(y_j | x_i) at [i, j].

    Returns:
        [K]; the mean is the bound.

    >>> l1out(torch.eye(3))
    tensor([1., 1., 1.])

    Reference: Poole et al. 2019.
    """
    K = len(log_q_KK)
    others = log_q_KK.clone().fill_diagonal_(-torch.inf)
    return log_q_KK.diagonal() - (others.logsumexp(0) - math.log(K - 1))
