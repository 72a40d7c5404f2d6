"""Variational bounds on mutual information as losses: per anchor, the mean is minus the bound in nats.

The owner of every bound that is a function of `ContrastStats` or of critic scores; `flatclr.mi.bounds` reads them with
the other sign. `stats` hold the critic's scores: of the positive pair, and the log-sum-exp over the negatives of every
anchor. f is the critic, p the joint distribution, q the product of the margins, r = p / q the density ratio.

Shape suffixes: A anchors; K rows of a batch whose diagonal holds the positives; M negatives per anchor.
"""

from __future__ import annotations

import math
from typing import Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flatclr.checks import require_switch
from flatclr.contrast import ContrastOptions, ContrastStats, PairSet
from flatclr.objectives.base import Traits, register
from flatclr.objectives.critics import COSINE, CriticObjective
from flatclr.objectives.ess_control import EssControl

RUNNING_STEP = 0.1  # of a running mean towards the present batch
_EXPONENT_LIMIT = {torch.float32: 60.0, torch.float64: 650.0}  # a mean over many such terms must stay finite


def dv(stats: ContrastStats) -> Tensor:
    """Minus the Donsker-Varadhan bound, the expectation over all negative pairs of the batch.

        loss_i = log E_q exp(s) - p_i

    Args:
        stats: of the critic's scores.

    Returns:
        [A]; its mean is too low by about chi^2 / 2M, as the logarithm of a finite mean is.

    >>> dv(flatclr.stats_from_scores(torch.zeros(2, 4)))
    tensor([0., 0.])

    Reference: Donsker & Varadhan 1983; as a loss, Belghazi et al. 2018.
    """
    return stats.log_partition - stats.positive


def mine(stats: ContrastStats, log_average: Tensor) -> Tensor:
    """A loss with DV's gradient over a moving average of the partition, which a small batch biases less.

        loss_i = E_q e^s / average - p_i

    Args:
        stats: of the critic's scores.
        log_average: logarithm of the moving average of E_q e^s, 0-dim and without gradient.

    Returns:
        [A]; to be minimised, no bound itself: read the critic by `dv`.

    >>> mine(flatclr.stats_from_scores(torch.zeros(2, 4)), torch.tensor(0.0))
    tensor([1., 1.])

    Reference: Belghazi et al. 2018.
    """
    return exp_with_tangent(stats.log_partition - log_average) - stats.positive


def nwj(stats: ContrastStats) -> Tensor:
    """Minus the Nguyen-Wainwright-Jordan bound; at its optimum s = 1 + log r.

        loss_i = mean_j exp(s_ij - 1) - p_i

    Args:
        stats: of the critic's scores.

    Returns:
        [A].

    >>> nwj(flatclr.stats_from_scores(torch.ones(2, 4)))
    tensor([0., 0.])

    Reference: Nguyen, Wainwright & Jordan 2010.
    """
    return exp_with_tangent(stats.negative_logsumexp - stats.log_negatives - 1) - stats.positive


def tuba(stats: ContrastStats, log_baseline_A: Tensor | float) -> Tensor:
    """Minus the TUBA bound, NWJ with a baseline a of the anchor; at its optimum s = log r + log a.

        loss_i = -(1 + p_i - log a_i - mean_j exp(s_ij) / a_i)

    Args:
        stats: of the critic's scores.
        log_baseline_A: log a, one value per anchor or one for all; it may not depend on the pairing. 1 gives NWJ.

    Returns:
        [A].

    >>> tuba(flatclr.stats_from_scores(2 * torch.eye(3)), 0.0)
    tensor([-2., -2., -2.])

    Reference: Poole et al. 2019.
    """
    log_mean = stats.negative_logsumexp - stats.log_negatives
    return -(1 + stats.positive - log_baseline_A - exp_with_tangent(log_mean - log_baseline_A))


def flo(stats: ContrastStats, u: Tensor) -> Tensor:
    """Minus the Fenchel-Legendre bound (FLO); at its optimum u = -log r.

        loss_i = u_i + exp(-u_i) mean_j exp(s_ij - p_i) - 1

    Args:
        stats: of the critic's scores.
        u: [A]; u_i may depend on the positive pair but not on the negatives. With several views [A, P], one value per
            positive; the loss is their mean.

    Returns:
        [A].

    >>> flo(flatclr.stats_from_scores(torch.zeros(2, 4)), torch.zeros(2))
    tensor([0., 0.])

    Reference: Guo et al. 2022.
    """
    if stats.each_positive is None:
        return u + exp_with_tangent(stats.gap - stats.log_negatives - u) - 1
    gap_AP = (stats.negative_logsumexp - stats.log_negatives).unsqueeze(1) - stats.each_positive.view_scores_AP
    return (u + exp_with_tangent(gap_AP - u) - 1).mean(1)


def js(positive_A: Tensor, negatives_AM: Tensor) -> Tensor:
    """Logistic regression, joint against independent pairs; at its optimum f = log r.

        loss_i = softplus(-f_i) + mean_j softplus(f_ij)

    Args:
        positive_A: scores of the positive pairs.
        negatives_AM: scores of each anchor's negatives.

    Returns:
        [A]; minus the Jensen-Shannon divergence up to 2 ln 2, no bound on the information: read the critic by
        `tuba` with baseline 1.

    >>> js(torch.zeros(2), torch.zeros(2, 4))  # 2 ln 2
    tensor([1.3863, 1.3863])

    Reference: Nowozin et al. 2016; for information, Hjelm et al. 2019.
    """
    return F.softplus(-positive_A) + F.softplus(negatives_AM).mean(1)


def smile(positive_A: Tensor, log_mean_exp_clipped: Tensor) -> Tensor:
    """Minus DV with the scores of its partition clipped; no bound, as the clipped partition reads low.

        loss_i = -(f_i - log E_q e^clip(f, -tau, tau))

    Args:
        positive_A: scores of the positive pairs.
        log_mean_exp_clipped: the logarithm of the clipped partition, 0-dim.

    Returns:
        [A].

    >>> smile(torch.ones(2), torch.tensor(0.5))
    tensor([-0.5000, -0.5000])

    Reference: Song & Ermon 2020.
    """
    return -(positive_A - log_mean_exp_clipped)


def interpolated(scores_KK: Tensor, log_baseline_K: Tensor, alpha: float) -> Tensor:
    """Minus the bound between InfoNCE (alpha 1) and TUBA (alpha 0), leaving one row out at a time.

        loss_j = -(1 + mean_{i != j}[s_ii - log a(y_i; x_-j)] - mean_{i != j} e^s_ij / a(y_j; x_-j))
        a(y; x_-j) = alpha mean_{l != j} e^f(x_l, y) + (1 - alpha) q(y)

    Args:
        scores_KK: f(x_i, y_j), the positives on the diagonal.
        log_baseline_K: log q(y_j).
        alpha: in [0, 1].

    Returns:
        [K], one value per left-out row; their mean is at least -`interpolated_ceiling_nats(K, alpha)`.

    >>> interpolated(2 * torch.eye(3), torch.zeros(3), 0.0)
    tensor([-2., -2., -2.])

    Reference: Poole et al. 2019.
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
    return -(1 + joint_ji.sum(1) / (K - 1) - ratio_ij.sum(0) / (K - 1))


def _logsumexp_of_other_rows(scores_KK: Tensor) -> Tensor:
    """[j, i]: log sum_{l != j} exp(s_li), from the sums above and below j; taking j from the whole would cancel."""
    nothing = torch.full_like(scores_KK[:1], -torch.inf)
    above = torch.cat([nothing, scores_KK[:-1].logcumsumexp(0)])
    below = torch.cat([scores_KK[1:].flip(0).logcumsumexp(0).flip(0), nothing])
    return torch.logaddexp(above, below)


def interpolated_ceiling_nats(batch: int, alpha: float) -> float:
    """The most the interpolated bound can report.

        1 + log((K - 1) / alpha)

    Args:
        batch: K, the rows of a batch, at least 2.
        alpha: in [0, 1]; at 0, which is TUBA, there is no ceiling.

    Returns:
        Nats; infinite at alpha 0.

    >>> round(interpolated_ceiling_nats(256, alpha=0.5), 3)
    7.234
    """
    return 1 + math.log((batch - 1) / alpha) if alpha > 0 else math.inf


def exp_with_tangent(x: Tensor) -> Tensor:
    """exp(x), continued by its tangent above 60 (650 in float64): a diverging critic has a huge finite loss, not inf.

    >>> exp_with_tangent(torch.tensor([0.0, 1000.0])).isfinite().all()
    tensor(True)
    """
    limit = _EXPONENT_LIMIT[x.dtype]
    return torch.where(x > limit, math.exp(limit) * (1 + x - limit), x.clamp_max(limit).exp())


def slope_of_exp_with_tangent(x: Tensor) -> Tensor:
    """Its derivative: exp(x) up to where the tangent begins.

    >>> slope_of_exp_with_tangent(torch.tensor([0.0, 1000.0])).isfinite().all()
    tensor(True)
    """
    return x.clamp_max(_EXPONENT_LIMIT[x.dtype]).exp()


@register("dv", Traits("minus the Donsker-Varadhan bound"))
class DV(CriticObjective):
    """Minus the Donsker-Varadhan bound on the mutual information, in nats.

        loss = log mean_{i, j} exp(s_ij) - mean_i p_i

    Its value on a sample is biased upward as a bound when negatives are few. For a tight bound let the temperature be
    learned, or set normalize=False.

    Args:
        temperature: a number > 0, or an `EssControl` that adapts it.
        critic: "cosine", "bilinear", "separable", "mlp" or a module that scores all pairs, as
            `flatclr.objectives.CriticObjective` takes it, with `critic_dim`; `stop_at_nats` likewise.
        learn_temperature: make its logarithm a parameter.
        options: those of `flatclr.Objective`.

    >>> z = torch.eye(4)
    >>> DV(temperature=1.0)(z, z)  # log 1 - 1
    tensor(-1.)

    Reference: Donsker & Varadhan 1983; Belghazi et al. 2018.
    """

    def loss(self, pairs: PairSet, inverse_temperature: float | Tensor) -> tuple[Tensor, ContrastStats]:
        stats = self.stats(pairs, inverse_temperature)
        return self.towards(stats.mean(dv(stats))), stats


class RunningLogMean(nn.Module):
    """The log mean exp of the negatives' scores over earlier batches: a scale for this one that it does not set itself.

    The first batch sets its own. In evaluation mode nothing is learned.

    >>> running = RunningLogMean()
    >>> running(torch.tensor(9.0)), running(torch.tensor(5.0)), running(torch.tensor(5.0))
    (tensor(9.), tensor(9.), tensor(8.6000))
    """

    value: Tensor  # NaN before the first batch

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("value", torch.tensor(math.nan))

    def forward(self, log_mean: Tensor) -> Tensor:
        """The value for a batch whose own log mean exp is this; a batch without one teaches nothing."""
        present = log_mean.detach().to(self.value)
        used = torch.where(self.value.isnan(), present, self.value)
        if self.training:
            moved = used + RUNNING_STEP * (present - used)
            self.value.copy_(torch.where(present.isfinite(), moved, self.value))
        return used

    def _load_from_state_dict(
        self, state_dict: dict[str, Tensor], prefix: str, *args: object, **kwargs: object
    ) -> None:
        state_dict.setdefault(f"{prefix}value", torch.tensor(math.nan))  # of versions that had none: starts anew
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


@register("nwj", Traits("minus the Nguyen-Wainwright-Jordan bound", training_options={"running_offset": True}))
class NWJ(CriticObjective):
    """Minus the Nguyen-Wainwright-Jordan bound on the mutual information, in nats.

        loss = mean_i [mean_j exp(s_ij - 1) - p_i],  at its optimum s = 1 + log r for the density ratio r

    Unbiased for a fixed critic; it varies strongly when the information is large. Cosines times a fixed beta cannot
    find the offset that the optimum has: with `running_offset` the critic is s + 1 - m, where m is the log mean exp of
    the negatives' scores over earlier batches. The value is a lower bound all the same, TUBA's with the baseline e^m.

    Args:
        temperature: a number > 0, or an `EssControl` that adapts it.
        critic: "cosine", "bilinear", "separable", "mlp" or a module that scores all pairs, as
            `flatclr.objectives.CriticObjective` takes it, with `critic_dim`; `stop_at_nats` likewise.
        running_offset: whether scores are shifted so that those of negatives are about right; `flatclr.train` does.
        learn_temperature: make its logarithm a parameter.
        options: those of `flatclr.Objective`.

    >>> z = torch.eye(4)
    >>> NWJ(temperature=1.0)(z, z)  # e^-1 - 1
    tensor(-0.6321)
    >>> NWJ(temperature=0.1)(z + 1, z + 1) > 1000, NWJ(temperature=0.1, running_offset=True)(z + 1, z + 1) < 0
    (tensor(True), tensor(True))

    Reference: Nguyen, Wainwright & Jordan 2010.
    """

    def __init__(
        self,
        temperature: float | EssControl = 0.1,
        *,
        critic: str | nn.Module = COSINE,
        critic_dim: int | None = None,
        stop_at_nats: float | None = None,
        running_offset: bool = False,
        learn_temperature: bool = False,
        **options: Unpack[ContrastOptions],
    ) -> None:
        super().__init__(
            temperature,
            critic=critic,
            critic_dim=critic_dim,
            stop_at_nats=stop_at_nats,
            learn_temperature=learn_temperature,
            **options,
        )
        require_switch("running_offset", running_offset)
        self.running = RunningLogMean() if running_offset else None

    def loss(self, pairs: PairSet, inverse_temperature: float | Tensor) -> tuple[Tensor, ContrastStats]:
        stats = self.stats(pairs, inverse_temperature)
        if self.running is None:
            return self.towards(stats.mean(nwj(stats))), stats
        return self.towards(stats.mean(tuba(stats, self.running(stats.log_partition)))), stats


class AffineU(nn.Module):
    """FLO's default u: minus an affine function of the positive score, two learnable scalars, on a running offset."""

    def __init__(self, *, running_offset: bool = True) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.offset = nn.Parameter(torch.tensor(0.0))
        self.running = RunningLogMean() if running_offset else None

    def forward(self, positive: Tensor, log_partition: Tensor) -> Tensor:
        u = -(self.scale * positive + self.offset)
        return u if self.running is None else u + self.running(log_partition)


@register("flo", Traits("minus the Fenchel-Legendre bound"))
class FLO(CriticObjective):
    """Minus the Fenchel-Legendre bound on the mutual information, in nats.

        loss = mean_i [u_i + exp(-u_i) mean_j exp(s_ij - p_i) - 1],  at its optimum u = -log r for the density ratio r

    Labels are refused: u is of the views of one sample.

    Args:
        temperature: a number > 0, or an `EssControl` that adapts it.
        critic: "cosine", "bilinear", "separable", "mlp" or a module that scores all pairs, as
            `flatclr.objectives.CriticObjective` takes it, with `critic_dim`; `stop_at_nats` likewise.
        u: a module called as u(z_a, z_b) on the global batch, normalised if the objective normalises, that returns one
            value per pair [N]; of several views each pair is passed once, the earlier view first. None: minus an affine
            function of the positive score, with two learnable scalars. Its parameters are parameters of this module.
        running_offset: whether the default u has the log mean exp of the negatives' scores over earlier batches (of the
            first batch: its own) added to it, without which the loss starts at exp(1 / temperature).
        learn_temperature: make its logarithm a parameter.
        options: those of `flatclr.Objective`.

    >>> z = torch.eye(4)
    >>> FLO(temperature=1.0, running_offset=False)(z, z).item()  # u = -1: -1 + e^(1 - 1) - 1
    -1.0
    >>> FLO(temperature=1.0)(z, z).item()  # negatives score 0 here, so that nothing is added
    -1.0

    Reference: Guo et al. 2022.
    """

    def __init__(
        self,
        temperature: float | EssControl = 0.1,
        *,
        critic: str | nn.Module = COSINE,
        critic_dim: int | None = None,
        stop_at_nats: float | None = None,
        u: nn.Module | None = None,
        running_offset: bool = True,
        learn_temperature: bool = False,
        **options: Unpack[ContrastOptions],
    ) -> None:
        super().__init__(
            temperature,
            critic=critic,
            critic_dim=critic_dim,
            stop_at_nats=stop_at_nats,
            learn_temperature=learn_temperature,
            **options,
        )
        require_switch("running_offset", running_offset)
        if u is not None and not isinstance(u, nn.Module):
            raise TypeError(
                f"u must be an nn.Module called as u(z_a, z_b), got {type(u).__name__}; wrap the function in one."
            )
        self.u = AffineU(running_offset=running_offset) if u is None else u

    def loss(self, pairs: PairSet, inverse_temperature: float | Tensor) -> tuple[Tensor, ContrastStats]:
        if pairs.known is not None and pairs.known.labels is not None:
            raise ValueError(
                "FLO must have the views of a sample as its positives, got labels=; leave them out, or use InfoNCE."
            )
        stats = self.stats(pairs, inverse_temperature)
        return self.towards(stats.mean(flo(stats, self._u(pairs, stats)))), stats

    def _u(self, pairs: PairSet, stats: ContrastStats) -> Tensor:
        """[A] or, with several views, [A, P]."""
        each = stats.each_positive
        if isinstance(self.u, AffineU):
            affine: Tensor = self.u(stats.positive if each is None else each.view_scores_AP, stats.log_partition)
            return affine
        if each is None:
            return self._u_of(*pairs.everyone_VNd).repeat(len(pairs.layout.groups))
        views, groups = pairs.everyone_VNd, pairs.layout.groups
        meeting = {tuple(sorted((g.view, p))) for g in groups for p in g.positives}
        of_pair = {(v, w): self._u_of(views[v], views[w]) for v, w in sorted(meeting)}
        columns = [[of_pair[min(g.view, p), max(g.view, p)] for p in g.positives] for g in groups]
        return torch.cat([torch.stack(column, 1) for column in columns])

    def _u_of(self, z_a: Tensor, z_b: Tensor) -> Tensor:
        per_pair: Tensor = self.u(z_a, z_b)
        if per_pair.shape != z_a.shape[:1]:
            raise ValueError(
                f"u(z_a, z_b) must return one value per pair, shape {[len(z_a)]}, got {list(per_pair.shape)}; "
                "squeeze it."
            )
        return per_pair
