"""Variational lower bounds on mutual information as losses: per anchor, the mean is minus the bound in nats."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from flatclr.contrast import ContrastStats

_EXPONENT_LIMIT = {torch.float32: 60.0, torch.float64: 650.0}  # a mean over many such terms must stay finite


def dv(stats: ContrastStats) -> Tensor:
    """Donsker-Varadhan: log E_q exp(s) - p_i, the expectation over all negative pairs of the batch.

    >>> dv(flatclr.stats_from_scores(torch.zeros(2, 4)))
    tensor([0., 0.])
    """
    return stats.log_partition - stats.positive


def nwj(stats: ContrastStats) -> Tensor:
    """Nguyen-Wainwright-Jordan: mean_j exp(s_ij - 1) - p_i; at its optimum s = 1 + log ratio.

    >>> nwj(flatclr.stats_from_scores(torch.ones(2, 4)))
    tensor([0., 0.])
    """
    return exp_with_tangent(stats.negative_logsumexp - math.log(stats.negatives) - 1) - stats.positive


def flo(stats: ContrastStats, u: Tensor) -> Tensor:
    """Fenchel-Legendre (FLO, Guo et al. 2022): u_i + exp(-u_i) mean_j exp(s_ij - p_i) - 1.

    u_i may depend on the positive pair but not on the negatives; at the optimum u = -log ratio.

    >>> flo(flatclr.stats_from_scores(torch.zeros(2, 4)), torch.zeros(2))
    tensor([0., 0.])
    """
    return u + exp_with_tangent(stats.gap - math.log(stats.negatives) - u) - 1


def exp_with_tangent(x: Tensor) -> Tensor:
    """exp(x), continued by its tangent above 60 (650 in float64): a diverging critic has a huge finite loss, not inf.

    >>> exp_with_tangent(torch.tensor([0.0, 1000.0])).isfinite().all()
    tensor(True)
    """
    limit = _EXPONENT_LIMIT[x.dtype]
    return torch.where(x > limit, math.exp(limit) * (1 + x - limit), x.clamp_max(limit).exp())
