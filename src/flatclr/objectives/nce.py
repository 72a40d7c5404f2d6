"""The InfoNCE family: InfoNCE, FlatNCE and Hölder-FlatNCE. Equations per anchor first, then the modules."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from flatclr.checks import require_one_of
from flatclr.contrast import ContrastOptions, ContrastStats, PairSet, stats_of
from flatclr.objectives.base import Objective, Traits, register
from flatclr.objectives.critics import CriticObjective
from flatclr.objectives.ess_control import EssControl

VALUES = ("nats", "paper")


def info_nce(stats: ContrastStats) -> Tensor:
    """InfoNCE loss per anchor in nats.

        loss_i = softplus(logsumexp_j s_ij - p_i),  j over the negatives of anchor i

    With several positives it is the mean over them, each alone against the negatives.

    Args:
        stats: of the batch.

    Returns:
        [A].

    >>> info_nce(flatclr.stats_from_scores(torch.zeros(1, 8)))
    tensor([2.0794])

    Reference: van den Oord et al. 2018.
    """
    return stats.info_nce


def flat_nce(stats: ContrastStats, *, value: str = "nats", keep_positive: bool = False) -> Tensor:
    """FlatNCE loss per anchor: the gradient of the gap, with a value that can be watched.

        gap_i     = logsumexp_j s_ij - p_i          the positive is not in the sum
        value_i   = InfoNCE's loss in nats, or 1
        d value_i = d gap_i

    Scores must be bounded, say cosines times a fixed or controlled beta: the gap has no lower bound when they can grow.

    Args:
        stats: of the batch.
        value: "nats" reads as the InfoNCE loss; "paper" is the paper's exp(gap - sg[gap]), which is always 1.
        keep_positive: the paper's variant (1 + sum) / (1 + sg[sum]), whose gradient is InfoNCE's.

    Returns:
        [A].

    >>> flat_nce(flatclr.stats_from_scores(torch.zeros(1, 8)), value="paper")
    tensor([1.])

    Reference: Chen et al. 2021.
    """
    if keep_positive and value == "nats":
        return stats.info_nce  # value and gradient
    return with_gradient_of(stats.info_nce if keep_positive else stats.gap, stats, value)


def holder_flat_nce(
    pairs: PairSet, inverse_temperature: float | Tensor, gamma: float, *, value: str = "nats"
) -> tuple[Tensor, ContrastStats]:
    """FlatNCE with a Hölder mean of order gamma over the negatives.

        m_i     = (mean_j exp(gamma (s_ij - p_i)))^(1 / gamma)
        d value = d log m_i

    Args:
        pairs: the batch.
        inverse_temperature: what dot products are multiplied with.
        gamma: 1 is FlatNCE, 0 the plain mean, inf the hardest negative alone, -inf the easiest.
        value: as in `flat_nce`.

    Returns:
        The loss per anchor [A], and the stats at gamma 1 that its value in nats was read from.

    >>> pairs = flatclr.PairSet.of(torch.eye(4), torch.eye(4))
    >>> holder_flat_nce(pairs, 1.0, gamma=2.0, value="paper")[0].mean()
    tensor(1.)

    Reference: Chen et al. 2021.
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
    return _log_mean(stats_of(pairs, gamma * inverse_temperature)) / gamma


def _log_mean(stats: ContrastStats) -> Tensor:
    """log mean_j exp(s_ij - p_i)"""
    return stats.gap - stats.log_negatives


def with_gradient_of(contrast: Tensor, stats: ContrastStats, value: str) -> Tensor:
    """The value of the InfoNCE loss, or the constant 1, with the gradient of `contrast`."""
    held = contrast.detach()
    no_value = contrast - held
    if value != "paper":
        if contrast is stats.gap and stats.each_positive is None:
            return F.softplus(held, threshold=40) + no_value
        with torch.no_grad():  # of labels another pass over the pairs, which nothing is to be kept of
            in_nats = stats.info_nce
        return in_nats + no_value
    # a selected negative need not be the one that is NaN, and a constant would not show it
    return no_value.exp().masked_fill(stats.gap.detach().isnan(), torch.nan)


@register("infonce", Traits("InfoNCE / NT-Xent, SimCLR's loss", vanishes_when_solved=True))
class InfoNCE(CriticObjective):
    """InfoNCE / NT-Xent, SimCLR's loss, in nats.

        loss = mean_i softplus(logsumexp_j s_ij - p_i),  s = cosine / temperature

    With `negatives_per_anchor=k` it is the k-negative loss of the theory of negatives. With several views or labels, an
    anchor's loss is the mean over its positives.

    Args:
        temperature: a number > 0, or an `EssControl` that adapts it.
        critic: "cosine", "bilinear", "separable", "mlp" or a module that scores all pairs, as
            `flatclr.objectives.CriticObjective` takes it, with `critic_dim`; `stop_at_nats` likewise.
        learn_temperature: make its logarithm a parameter.
        options: those of `flatclr.Objective`.

    >>> z = torch.eye(4)
    >>> InfoNCE(temperature=1.0)(z, z)  # softplus(log 6 - 1)
    tensor(1.1654)

    Reference: van den Oord et al. 2018; Chen et al. 2020.
    """

    def loss(self, pairs: PairSet, inverse_temperature: float | Tensor) -> tuple[Tensor, ContrastStats]:
        stats = stats_of(pairs, inverse_temperature) if self.critic is None else self.stats(pairs, inverse_temperature)
        loss = stats.mean(info_nce(stats))
        return loss if self.stop_at_nats is None else self.towards(loss, stats), stats


@register("flatnce", Traits("FlatNCE: small batches learn like large ones", bounded_scores=True))
class FlatNCE(Objective):
    """FlatNCE: small batches learn like large ones.

        gradient of mean_i (logsumexp_j s_ij - p_i)          the positive is not in the sum

    InfoNCE's gradient is this one times sigmoid(gap), which vanishes once a batch is solved. The value is not an
    antiderivative of the gradient: watch it, but do not search along it.

    Args:
        temperature: a number > 0, or an `EssControl` that adapts it.
        value: "nats" reads as the InfoNCE loss; "paper" is the paper's loss, which is always 1.
        keep_positive: keep the positive in the denominator, which gives InfoNCE's gradient.
        learn_temperature: refused unless `keep_positive`: the gap has no lower bound in the scale of the scores.
        options: those of `flatclr.Objective`; normalize=False is refused for the same reason.

    >>> z = torch.eye(4, requires_grad=True)
    >>> FlatNCE(temperature=1.0)(z, z)
    tensor(1.1654, grad_fn=<MeanBackward0>)

    Reference: Chen et al. 2021.
    """

    def __init__(
        self,
        temperature: float | EssControl = 0.1,
        *,
        value: str = "nats",
        keep_positive: bool = False,
        learn_temperature: bool = False,
        **options: Unpack[ContrastOptions],
    ) -> None:
        traits = self.traits_with(keep_positive=keep_positive)
        super().__init__(temperature, learn_temperature=learn_temperature, traits=traits, **options)
        require_one_of("value", value, VALUES)
        self.value, self.keep_positive = value, keep_positive

    @classmethod
    def traits_with(cls, **options: Any) -> Traits:
        """With the positive kept, it is InfoNCE's gradient, which is bounded, and vanishes."""
        if not options.get("keep_positive"):
            return cls.traits
        return replace(cls.traits, bounded_scores=False, vanishes_when_solved=True)

    def loss(self, pairs: PairSet, inverse_temperature: float | Tensor) -> tuple[Tensor, ContrastStats]:
        stats = stats_of(pairs, inverse_temperature)
        return stats.mean(flat_nce(stats, value=self.value, keep_positive=self.keep_positive)), stats


@register("holder", Traits("FlatNCE with a Hölder mean of order gamma", bounded_scores=True))
class HolderFlatNCE(Objective):
    """FlatNCE with a Hölder mean of order gamma over the negatives, from the easiest to the hardest.

        gradient of mean_i log m_i,  m_i = (mean_j exp(gamma (s_ij - p_i)))^(1 / gamma)

    Stats and ESS control are those of gamma = 1.

    Args:
        temperature: a number > 0, or an `EssControl` that adapts it.
        gamma: 1 is FlatNCE, 0 the plain mean, float("inf") the hardest negative alone, float("-inf") the easiest.
        value: as in `FlatNCE`.
        learn_temperature: refused, as by `FlatNCE`.
        options: those of `flatclr.Objective`; normalize=False is refused.

    >>> z = torch.eye(4)
    >>> HolderFlatNCE(temperature=1.0, gamma=2.0)(z, z)  # reads as the InfoNCE loss
    tensor(1.1654)

    Reference: Chen et al. 2021.
    """

    def __init__(
        self,
        temperature: float | EssControl = 0.1,
        *,
        gamma: float = 1.0,
        value: str = "nats",
        learn_temperature: bool = False,
        **options: Unpack[ContrastOptions],
    ) -> None:
        super().__init__(temperature, learn_temperature=learn_temperature, **options)
        require_one_of("value", value, VALUES)
        if isinstance(gamma, bool) or not isinstance(gamma, int | float) or math.isnan(gamma):
            raise ValueError(f"gamma must be a number, 0, inf or -inf, got {gamma!r}; 1 is FlatNCE.")
        self.gamma, self.value = float(gamma), value

    def loss(self, pairs: PairSet, inverse_temperature: float | Tensor) -> tuple[Tensor, ContrastStats]:
        losses, stats = holder_flat_nce(pairs, inverse_temperature, self.gamma, value=self.value)
        return stats.mean(losses), stats
