"""Losses with the positive outside the denominator: DCL, DCLW (Yeh et al. 2022) and DHEL (Koromilas et al. 2024)."""

from __future__ import annotations

from typing import Unpack

from torch import Tensor

from flatclr.checks import require_number
from flatclr.contrast import ContrastOptions, ContrastStats, PairSet, stats_of
from flatclr.objectives.base import Objective, Traits, register
from flatclr.objectives.ess_control import EssControl


def dcl(stats: ContrastStats) -> Tensor:
    """Decoupled contrastive loss per anchor: InfoNCE with the positive taken out of the denominator.

        loss_i = logsumexp_j s_ij - p_i

    Args:
        stats: of the batch.

    Returns:
        [A]; its gradient is FlatNCE's.

    >>> dcl(flatclr.stats_from_scores(torch.zeros(1, 8)))  # log 7
    tensor([1.9459])

    Reference: Yeh et al. 2022, the loss L_DC.
    """
    return stats.gap


def dclw(stats: ContrastStats, inverse_temperature: float | Tensor, sigma: float = 0.5) -> Tensor:
    """DCL with positives weighted down where they agree already, by a negative von Mises-Fisher function.

        loss_i = logsumexp_j s_ij - w_i p_i,   w_i = 2 - exp(c_i / sigma) / mean_k exp(c_k / sigma),   c = p / beta

    The gradient passes through the weights too.

    Args:
        stats: of the batch.
        inverse_temperature: beta, that of the stats.
        sigma: width of the weighting; a large one gives DCL.

    Returns:
        [A].

    >>> dclw(flatclr.stats_from_scores(torch.eye(2, 8)), 1.0)  # equal positives: DCL
    tensor([0.9459, 0.9459])

    Reference: Yeh et al. 2022, the loss L_DCW.
    """
    positive = stats.positive
    if stats.counted is not None:  # a NaN would reach every anchor through the mean
        positive = positive.masked_fill(~stats.counted, 0.0)
    agreement = positive / (inverse_temperature * sigma)
    likelihood = (agreement - agreement.detach().amax()).exp()
    weight = 2 - likelihood / stats.mean(likelihood)
    return stats.gap + (1 - weight) * positive


def dhel(stats: ContrastStats) -> Tensor:
    """Decoupled hypersphere-energy loss, per anchor of the pairing "within".

        mean_i loss_i = mean over samples of [l_a + l_b - p],   l_v = logsumexp over the other samples of view v
        loss_i        = 2 l_i - p_i

    With V views it is the mean over pairs of views.

    Args:
        stats: of the batch.

    Returns:
        [A].

    >>> z = torch.eye(4)
    >>> dhel(flatclr.contrast_stats(z, z, inverse_temperature=1.0, pairing="within")).mean()  # 2 log 3 - 1
    tensor(1.1972)

    Reference: Koromilas et al. 2024.
    """
    return 2 * stats.negative_logsumexp - stats.positive


@register("dcl", Traits("decoupled contrastive loss; FlatNCE's gradient", bounded_scores=True))
class DCL(Objective):
    """Decoupled contrastive loss: InfoNCE without the positive in the denominator.

        loss = mean_i (logsumexp_j s_ij - p_i)

    Its gradient is `FlatNCE`'s; its value is what that gradient descends, and falls below 0 once the positives win.

    Args:
        temperature: a number > 0, or an `EssControl` that adapts it.
        options: those of `flatclr.Objective`; normalize=False is refused, as by `FlatNCE`.

    >>> z = torch.eye(4)
    >>> DCL(temperature=1.0)(z, z)  # log 6 - 1
    tensor(0.7918)

    Reference: Yeh et al. 2022.
    """

    def __init__(self, temperature: float | EssControl = 0.1, **options: Unpack[ContrastOptions]) -> None:
        super().__init__(temperature, **options)

    def loss(self, pairs: PairSet, inverse_temperature: float | Tensor) -> tuple[Tensor, ContrastStats]:
        stats = stats_of(pairs, inverse_temperature)
        return stats.mean(dcl(stats)), stats


@register("dclw", Traits("DCL with positives weighted by how far they still are", bounded_scores=True))
class DCLW(Objective):
    """Decoupled contrastive loss with a negative von Mises-Fisher weight on the positives.

        loss = mean_i (logsumexp_j s_ij - w_i p_i),   w_i = 2 - exp(c_i / sigma) / mean_k exp(c_k / sigma)

    c is the cosine of the positive, over the whole global batch. Positives that agree less than the others weigh more.

    Args:
        temperature: a number > 0, or an `EssControl` that adapts it.
        sigma: width of the weighting.
        options: those of `flatclr.Objective`; normalize=False is refused, as by `FlatNCE`.

    >>> z = torch.eye(4)
    >>> DCLW(temperature=1.0)(z, z)  # all positives agree alike: DCL
    tensor(0.7918)

    Reference: Yeh et al. 2022.
    """

    def __init__(
        self, temperature: float | EssControl = 0.1, *, sigma: float = 0.5, **options: Unpack[ContrastOptions]
    ) -> None:
        super().__init__(temperature, **options)
        require_number("sigma", sigma, above=0)
        self.sigma = sigma

    def loss(self, pairs: PairSet, inverse_temperature: float | Tensor) -> tuple[Tensor, ContrastStats]:
        stats = stats_of(pairs, inverse_temperature)
        return stats.mean(dclw(stats, inverse_temperature, self.sigma)), stats


@register(
    "dhel", Traits("decoupled hypersphere energy: negatives inside each view", pairing="within", bounded_scores=True)
)
class DHEL(Objective):
    """Decoupled hypersphere-energy loss: the energy of each view apart, and the positives.

        loss = mean over samples of [logsumexp_j a_i.a_j + logsumexp_j b_i.b_j - a_i.b_i] / temperature inside the sums

    Twice FlatNCE's gradient within each view, with the positives at half weight.

    Args:
        temperature: a number > 0, or an `EssControl` that adapts it.
        options: those of `flatclr.Objective`; the pairing is "within" by default, normalize=False is refused.

    >>> z = torch.eye(4)
    >>> DHEL(temperature=1.0)(z, z)  # 2 log 3 - 1
    tensor(1.1972)

    Reference: Koromilas et al. 2024.
    """

    def __init__(self, temperature: float | EssControl = 0.1, **options: Unpack[ContrastOptions]) -> None:
        super().__init__(temperature, **options)

    def loss(self, pairs: PairSet, inverse_temperature: float | Tensor) -> tuple[Tensor, ContrastStats]:
        stats = stats_of(pairs, inverse_temperature)
        return stats.mean(dhel(stats)), stats
