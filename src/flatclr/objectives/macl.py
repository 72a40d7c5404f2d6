"""Model-aware contrastive learning (Huang et al. 2023): a temperature that follows the alignment of the positives."""

from __future__ import annotations

from typing import Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from flatclr.checks import require_number
from flatclr.contrast import ContrastOptions, ContrastStats, PairSet, stats_of
from flatclr.objectives.base import Objective, Traits, register

SERIES_BELOW = -10.0  # of the gap, where the series is exact to 1e-14 and the quotient would be 0 / 0


def macl(stats: ContrastStats) -> Tensor:
    """MACL's loss per anchor: InfoNCE over the probability that the positive is missed.

        loss_i = -sg[1 / (1 - P_i)] log P_i,   P_i = exp p_i / (exp p_i + sum_j exp s_ij)

    With several positives p_i is their mean score.

    Args:
        stats: of the batch, at the temperature that the alignment asks for.

    Returns:
        [A]; at least 1, and its gradient is FlatNCE's at that temperature.

    >>> macl(flatclr.stats_from_scores(torch.zeros(1, 2)))  # 2 log 2
    tensor([1.3863])

    Reference: Huang et al. 2023, the reweighted loss.
    """
    gap = stats.gap.detach()
    odds = gap.clamp_max(SERIES_BELOW).exp()
    quotient = F.softplus(gap, threshold=40) / torch.sigmoid(gap.clamp_min(SERIES_BELOW))
    value = torch.where(gap < SERIES_BELOW, 1 + odds / 2 - odds.square() / 6, quotient)
    return value + stats.gap - gap


def aligned_inverse_temperature(
    pairs: PairSet, inverse_temperature: float | Tensor, *, alpha: float, initial_alignment: float
) -> float | Tensor:
    """The inverse temperature that the mean cosine A of the positives asks for, without gradient.

        tau = tau_0 (1 + alpha (A - A_0))

    Args:
        pairs: the batch.
        inverse_temperature: 1 / tau_0.
        alpha: how far it follows.
        initial_alignment: A_0.

    Returns:
        1 / tau, one for all anchors.

    >>> pairs = flatclr.PairSet.of(torch.eye(4), torch.eye(4))
    >>> aligned_inverse_temperature(pairs, 10.0, alpha=0.5, initial_alignment=0.0)  # A = 1
    tensor(6.6667)

    Reference: Huang et al. 2023, the adaptive temperature.
    """
    if alpha == 0:
        return inverse_temperature
    with torch.no_grad():
        alignment = pairs.mean(pairs.positive(1.0))
        return inverse_temperature / (1 + alpha * (alignment - initial_alignment))


@register(
    "macl", Traits("MACL: temperature by alignment, FlatNCE's gradient", bounded_scores=True, accepts_control=False)
)
class MACL(Objective):
    """Model-aware contrastive learning: the temperature rises as the positives align, and no anchor starves.

        tau  = temperature (1 + alpha (A - initial_alignment)),   A the mean cosine of the positives, no gradient
        loss = mean_i -sg[1 / (1 - P_i)] log P_i                   at that tau

    At alpha = 0 its gradient is `FlatNCE`'s.

    Args:
        temperature: tau_0, a number > 0. An `EssControl` is refused: the alignment sets it.
        alpha: how far it follows, 0 to 1.
        initial_alignment: A_0, where tau is tau_0.
        options: those of `flatclr.Objective`; normalize=False is refused.

    >>> z = torch.eye(4)
    >>> MACL(temperature=1.0, alpha=0.0)(z, z)  # softplus(gap) / sigmoid(gap), gap = log 6 - 1
    tensor(1.6934)

    Reference: Huang et al. 2023.
    """

    def __init__(
        self,
        temperature: float = 0.1,
        *,
        alpha: float = 0.5,
        initial_alignment: float = 0.0,
        **options: Unpack[ContrastOptions],
    ) -> None:
        super().__init__(temperature, **options)
        require_number("alpha", alpha)
        require_number("initial_alignment", initial_alignment)
        if not 0 <= alpha * (1 + initial_alignment) < 1 or alpha < 0:
            raise ValueError(
                f"alpha must be >= 0 and below 1 / (1 + initial_alignment), got {alpha} and {initial_alignment}; "
                "the temperature would not stay positive."
            )
        self.alpha, self.initial_alignment = alpha, initial_alignment

    def loss(self, pairs: PairSet, inverse_temperature: float | Tensor) -> tuple[Tensor, ContrastStats]:
        beta = aligned_inverse_temperature(
            pairs, inverse_temperature, alpha=self.alpha, initial_alignment=self.initial_alignment
        )
        stats = stats_of(pairs, beta)
        return stats.mean(macl(stats)), stats
