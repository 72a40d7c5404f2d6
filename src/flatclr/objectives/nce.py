"""The InfoNCE family: per-anchor losses, to be averaged by the caller."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from flatclr.contrast import ContrastStats, PairSet, stats_of

VALUES = ("nats", "paper")


def info_nce(stats: ContrastStats) -> Tensor:
    """InfoNCE loss in nats (van den Oord et al. 2018).

    loss_i = softplus(logsumexp_j s_ij - p_i),  j over negatives

    >>> info_nce(flatclr.stats_from_scores(torch.zeros(1, 8)))
    tensor([2.0794])
    """
    return stats.info_nce


def flat_nce(stats: ContrastStats, *, value: str = "nats", keep_positive: bool = False) -> Tensor:
    """FlatNCE (Chen et al. 2021): gradient of gap_i = logsumexp_j s_ij - p_i, the positive never in the sum.

    The paper's loss exp(gap - sg[gap]) is always 1 (value="paper"). By default the same gradient comes with a value
    that can be watched, the InfoNCE loss in nats. `keep_positive` is the variant (1 + sum) / (1 + sg[sum]), whose
    gradient is InfoNCE's.

    Scores must be bounded (cosines times a fixed or controlled beta): the gap has no lower bound when they can grow.

    >>> flat_nce(flatclr.stats_from_scores(torch.zeros(1, 8)), value="paper")
    tensor([1.])
    """
    contrast = stats.info_nce if keep_positive else stats.gap
    return with_gradient_of(contrast, stats, value)


def holder_flat_nce(
    pairs: PairSet, inverse_temperature: float | Tensor, gamma: float, *, value: str = "nats"
) -> tuple[Tensor, ContrastStats]:
    """FlatNCE with a Hölder mean of order gamma over the negatives, and the stats its value in nats was read from.

    >>> pairs = flatclr.PairSet.of(torch.eye(4), torch.eye(4))
    >>> holder_flat_nce(pairs, 1.0, gamma=2.0, value="paper")[0].mean()
    tensor(1.)
    """
    if gamma == 1:
        stats = stats_of(pairs, inverse_temperature)
        return flat_nce(stats, value=value), stats
    with torch.no_grad():
        stats = stats_of(pairs, inverse_temperature)
    return with_gradient_of(holder_log_mean(pairs, inverse_temperature, gamma), stats, value), stats


def holder_log_mean(pairs: PairSet, inverse_temperature: float | Tensor, gamma: float) -> Tensor:
    """log m_gamma = (1 / gamma) log mean_j exp(gamma (s_ij - p_i)).

    gamma 0 is the mean over j of s_ij - p_i, +inf its maximum (the hardest negative), -inf its minimum (the easiest);
    orders within 1e-12 of 0, or beyond 1e12, are told apart from these by no floating point number.
    """
    if abs(gamma) < 1e-12:
        return pairs.mean_negative(inverse_temperature) - pairs.positive(inverse_temperature)
    if abs(gamma) > 1e12:
        return pairs.extreme_negative(inverse_temperature, hardest=gamma > 0) - pairs.positive(inverse_temperature)
    return (stats_of(pairs, gamma * inverse_temperature).gap - math.log(pairs.negatives)) / gamma


def with_gradient_of(contrast: Tensor, stats: ContrastStats, value: str) -> Tensor:
    """The value of the InfoNCE loss, or the constant 1, with the gradient of `contrast`."""
    no_value = contrast - contrast.detach()
    return no_value.exp() if value == "paper" else stats.info_nce.detach() + no_value
