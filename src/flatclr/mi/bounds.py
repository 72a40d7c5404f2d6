"""Bounds on mutual information in nats, as values per anchor whose mean is the bound.

`stats` hold the critic's scores: the positive pair and the log-sum-exp over the negatives of every anchor. The critic's
optimum is the log density ratio log r, up to what the bound leaves free.

Shape suffixes: A anchors; K rows of a batch whose diagonal holds the positives; M negatives per anchor.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from flatclr.contrast import ContrastStats
from flatclr.objectives import variational
from flatclr.objectives.variational import exp_with_tangent


def infonce(stats: ContrastStats) -> Tensor:
    """Lower bound log(M + 1) - softplus(gap), never above log(M + 1) (van den Oord et al. 2018)."""
    return stats.ceiling_nats - stats.info_nce


def dv(stats: ContrastStats) -> Tensor:
    """Lower bound E_p f - log E_q e^f (Donsker & Varadhan 1983), biased upward by the logarithm of a finite mean."""
    return -variational.dv(stats)


def nwj(stats: ContrastStats) -> Tensor:
    """Lower bound E_p f - E_q e^(f - 1) (Nguyen et al. 2010); optimum f = 1 + log r."""
    return -variational.nwj(stats)


def tuba(stats: ContrastStats, log_baseline_A: Tensor | float) -> Tensor:
    """Lower bound 1 + E_p[f - log a] - E_q[e^f / a] for any baseline a of the anchor (Poole et al. 2019).

    >>> tuba(flatclr.stats_from_scores(torch.zeros(2, 4)), 0.0)
    tensor([0., 0.])
    """
    log_mean = stats.negative_logsumexp - math.log(stats.negatives)
    return 1 + stats.positive - log_baseline_A - exp_with_tangent(log_mean - log_baseline_A)


def flo(stats: ContrastStats, u_A: Tensor) -> Tensor:
    """Lower bound 1 - u - e^-u mean_j e^(s_ij - p_i) (Guo et al. 2022); u sees the positive pair only."""
    return -variational.flo(stats, u_A)


def js(stats: ContrastStats) -> Tensor:
    """Lower bound of a critic trained by `js_loss`, whose optimum is log r: NWJ at f + 1, as NWJ at f reads low."""
    return tuba(stats, 0.0)


def js_loss(positive_A: Tensor, negatives_AM: Tensor) -> Tensor:
    """E_p softplus(-f) + E_q softplus(f) (Hjelm et al. 2019): logistic regression, joint against independent pairs."""
    return F.softplus(-positive_A) + F.softplus(negatives_AM).mean(1)


def smile(positive_A: Tensor, log_mean_exp_clipped: Tensor) -> Tensor:
    """E_p f - log E_q e^clip(f, -tau, tau) (Song & Ermon 2020); clipping the partition alone makes it no bound."""
    return positive_A - log_mean_exp_clipped


def mine_loss(stats: ContrastStats, log_average: Tensor) -> Tensor:
    """-E_p f + E_q e^f / average: DV's gradient over a moving average of the partition (Belghazi et al. 2018)."""
    return exp_with_tangent(stats.log_partition - log_average) - stats.positive


def interpolated(scores_KK: Tensor, log_baseline_K: Tensor, alpha: float) -> Tensor:
    """Lower bound between InfoNCE (alpha 1) and TUBA (alpha 0), leaving one out; one value per left-out row j.

    1 + mean_{i != j}[s_ii - log a(y_i; x_-j)] - mean_{i != j} e^s_ij / a(y_j; x_-j),
    a(y; x_-j) = alpha mean_{l != j} e^f(x_l, y) + (1 - alpha) q(y);  never above 1 + log((K - 1) / alpha).
    """
    K = len(scores_KK)
    others_KK = ~torch.eye(K, dtype=torch.bool, device=scores_KK.device)
    log_mean_ji = _logsumexp_of_other_rows(scores_KK) - math.log(K - 1)
    log_q_ji = log_baseline_K.expand(K, K)
    if alpha == 1:
        mixed_ji = log_mean_ji
    elif alpha == 0:
        mixed_ji = log_q_ji
    else:
        mixed_ji = torch.logaddexp(log_mean_ji + math.log(alpha), log_q_ji + math.log1p(-alpha))
    joint_ji = (scores_KK.diagonal() - mixed_ji).masked_fill(~others_KK, 0)
    ratio_ij = exp_with_tangent(scores_KK - mixed_ji.diagonal()).masked_fill(~others_KK, 0)
    return 1 + joint_ji.sum(1) / (K - 1) - ratio_ij.sum(0) / (K - 1)


def _logsumexp_of_other_rows(scores_KK: Tensor) -> Tensor:
    """[j, i]: log sum_{l != j} exp(s_li), from the sums above and below j; taking j from the whole would cancel."""
    nothing = torch.full_like(scores_KK[:1], -torch.inf)
    above = torch.cat([nothing, scores_KK[:-1].logcumsumexp(0)])
    below = torch.cat([scores_KK[1:].flip(0).logcumsumexp(0).flip(0), nothing])
    return torch.logaddexp(above, below)


def interpolated_ceiling_nats(batch: int, alpha: float) -> float:
    """1 + log((K - 1) / alpha)."""
    return 1 + math.log((batch - 1) / alpha) if alpha > 0 else math.inf


def ba(log_q_N: Tensor, entropy_nats: float) -> Tensor:
    """Lower bound E log q(y | x) + H(y) (Barber & Agakov 2003), as good as H(y) is known."""
    return log_q_N + entropy_nats


def club(log_q_KK: Tensor) -> Tensor:
    """Upper bound E_p log q(y | x) - E_pp log q(y | x) (Cheng et al. 2020), if q is the true conditional.

    log_q_KK[i, j] = log q(y_j | x_i).
    """
    K = len(log_q_KK)
    positive = log_q_KK.diagonal()
    return positive - (log_q_KK.sum(1) - positive) / (K - 1)


def l1out(log_q_KK: Tensor) -> Tensor:
    """Upper bound log q(y_i | x_i) - log mean_{j != i} q(y_i | x_j) (Poole et al. 2019), if q is the true one."""
    K = len(log_q_KK)
    others = log_q_KK.clone().fill_diagonal_(-torch.inf)
    return log_q_KK.diagonal() - (others.logsumexp(0) - math.log(K - 1))
