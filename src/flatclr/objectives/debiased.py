"""Debiased contrastive learning (Chuang et al. 2020): negatives corrected for those that are of the anchor's class."""

from __future__ import annotations

import math
from typing import Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from flatclr.checks import require_number
from flatclr.contrast import ContrastOptions, ContrastStats, PairSet, stats_of
from flatclr.objectives.base import Objective, Traits, register, require_sphere
from flatclr.objectives.ess_control import EssControl


def debiased(stats: ContrastStats, inverse_temperature: float | Tensor, prior: float = 0.1) -> Tensor:
    """Debiased InfoNCE per anchor, in nats.

        loss_i = log(exp p_i + K g_i) - p_i,   g_i = max((mean_j exp s_ij - prior exp p_i) / (1 - prior), exp(-beta))

    A row at the lower limit, the least that a negative on the sphere can have, pushes no negative. Several positives
    estimate the second mean together, and the loss is their mean.

    Args:
        stats: of the batch.
        inverse_temperature: beta, that of the stats.
        prior: probability that a negative is of the anchor's class, in [0, 1).

    Returns:
        [A].

    >>> debiased(flatclr.stats_from_scores(torch.zeros(1, 8)), 1.0, prior=0.0)  # InfoNCE
    tensor([2.0794])

    Reference: Chuang et al. 2020, equation 8.
    """
    log_mean_negative = stats.negative_logsumexp - stats.log_negatives
    log_mean_positive = stats.positive_logsumexp - stats.log_positives
    limit = torch.zeros_like(log_mean_negative) - inverse_temperature
    # log(a - b) = log a + log(1 - exp(log b - log a)) where a > b; elsewhere the limit holds
    log_share = (math.log(prior) if prior else -torch.inf) + log_mean_positive - log_mean_negative
    left = log_share < -torch.finfo(log_share.dtype).eps  # nearer to 0 its logarithm has no finite slope
    log_left = torch.log1p(-log_share.masked_fill(~left, -torch.inf).exp())
    corrected = log_mean_negative + log_left - math.log1p(-prior)
    log_total = torch.where(left & (corrected > limit), corrected, limit) + stats.log_negatives
    log_total = torch.where(log_mean_negative.isnan(), log_mean_negative, log_total)
    if stats.each_positive is None:
        return F.softplus(log_total - stats.positive, threshold=40)
    return stats.each_positive.info_nce(log_total)


@register("debiased", Traits("InfoNCE corrected for negatives of the anchor's own class", vanishes_when_solved=True))
class Debiased(Objective):
    """Debiased InfoNCE, in nats: what negatives of the anchor's own class add to the sum is estimated and taken out.

        loss = mean_i [log(exp p_i + K g_i) - p_i]
        g_i  = max((mean_j exp s_ij - prior exp p_i) / (1 - prior), exp(-beta))

    Args:
        temperature: a number > 0, or an `EssControl` that adapts it.
        prior: probability that a negative is of the anchor's class: 0.1 for ten classes alike; 0 is InfoNCE.
        learn_temperature: make its logarithm a parameter.
        options: those of `flatclr.Objective`; embeddings are on the sphere.

    >>> z = torch.eye(4)
    >>> Debiased(temperature=1.0, prior=0.1)(z, z)  # log(e + 6 (1 - e / 10) / 0.9) - 1
    tensor(1.0246)

    Reference: Chuang et al. 2020.
    """

    def __init__(
        self,
        temperature: float | EssControl = 0.1,
        *,
        prior: float = 0.1,
        learn_temperature: bool = False,
        **options: Unpack[ContrastOptions],
    ) -> None:
        self._require_known(options)
        require_sphere("Debiased", options)
        super().__init__(temperature, learn_temperature=learn_temperature, **options)
        require_number("prior", prior, below=1, advice="0.1 suits ten classes.")
        if prior < 0:
            raise ValueError(f"prior must be >= 0, got {prior}; 0 is InfoNCE, 0.1 suits ten classes.")
        self.prior = prior

    def loss(self, pairs: PairSet, inverse_temperature: float | Tensor) -> tuple[Tensor, ContrastStats]:
        stats = stats_of(pairs, inverse_temperature)
        return stats.mean(debiased(stats, inverse_temperature, self.prior)), stats
