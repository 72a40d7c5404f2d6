"""Supervised contrastive learning: many positives of one label (Khosla et al. 2020)."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from flatclr.checks import require_one_of
from flatclr.contrast import ContrastOptions, ContrastStats, PairSet, stats_of
from flatclr.objectives.base import Objective, Traits, register
from flatclr.objectives.ess_control import EssControl

POSITIONS = ("outside", "inside")


def sup_con(stats: ContrastStats, position: str = "outside") -> Tensor:
    """SupCon loss per anchor in nats, the logarithm outside or inside the mean over positives P.

        outside_i = log(sum_P e^s + sum_N e^s) - mean_P s
        inside_i  = log(sum_P e^s + sum_N e^s) - log mean_P e^s

    Args:
        stats: of the batch; every positive stands in the denominator of every other.
        position: of the logarithm. Outside is the better of the two.

    Returns:
        [A].

    >>> sup_con(flatclr.stats_from_scores(torch.zeros(1, 8)))  # one positive: InfoNCE
    tensor([2.0794])

    Reference: Khosla et al. 2020, equations 2 and 3.
    """
    everything = torch.logaddexp(stats.positive_logsumexp, stats.negative_logsumexp)
    if position == "outside":
        return everything - stats.positive
    return everything - stats.positive_logsumexp + stats.log_positives


@register(
    "supcon",
    Traits("SupCon: rows of one label are positives, where a call passes labels", vanishes_when_solved=True),
)
class SupCon(Objective):
    """Supervised contrastive loss, in nats: pass labels= with the views.

        outside = mean_i [log(sum_P e^s + sum_N e^s) - mean_P s],  P positives and N negatives of anchor i

    Without labels the positives are the other views of a sample. Unlike in `InfoNCE`, the positives of an anchor
    compete with each other.

    Args:
        temperature: a number > 0, or an `EssControl`.
        position: "outside" (the better) or "inside", where the logarithm stands.
        learn_temperature: make its logarithm a parameter.
        options: those of `flatclr.Objective`.

    >>> z = torch.eye(4)
    >>> SupCon(temperature=1.0)(z, z, labels=torch.tensor([0, 0, 1, 1]))  # log(e + 6) - 1/3
    tensor(1.8321)

    Reference: Khosla et al. 2020.
    """

    def __init__(
        self,
        temperature: float | EssControl = 0.1,
        *,
        position: str = "outside",
        learn_temperature: bool = False,
        **options: Unpack[ContrastOptions],
    ) -> None:
        super().__init__(temperature, learn_temperature=learn_temperature, **options)
        require_one_of("position", position, POSITIONS)
        self.position = position

    def loss(self, pairs: PairSet, inverse_temperature: float | Tensor) -> tuple[Tensor, ContrastStats]:
        stats = stats_of(pairs, inverse_temperature)
        return stats.mean(sup_con(stats, self.position)), stats
