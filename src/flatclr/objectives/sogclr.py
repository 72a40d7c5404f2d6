"""Global contrastive losses: SogCLR (Yuan et al. 2022) and iSogCLR (Qiu et al. 2023).

A small batch sees few of a sample's negatives. A moving average of each sample's mean exp(score), kept over all of
training, takes the place of the batch's own in the weight of its gradient.

Shape suffixes: G groups of anchors, N samples of the global batch, A = G N anchors.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Unpack

import torch
from torch import Tensor

from flatclr.checks import require_number
from flatclr.contrast import ContrastOptions, ContrastStats, PairSet, stats_of
from flatclr.objectives.base import Objective, Traits, register
from flatclr.objectives.sample_state import SampleState, index_of_all_ranks


def sog_clr(stats: ContrastStats, inverse_temperature: float | Tensor, log_u: Tensor) -> Tensor:
    """SogCLR's loss per anchor.

        loss_i = (sg[g_i / u_i] logsumexp_j s_ij - p_i) / beta,   g_i = mean_j exp s_ij

    Args:
        stats: of the batch.
        inverse_temperature: beta, that of the stats.
        log_u: [A], the logarithm of the moving average of g, of which g_i is the newest.

    Returns:
        [A]; where u = g its gradient is FlatNCE's / beta.

    >>> stats = flatclr.stats_from_scores(torch.zeros(1, 8))
    >>> sog_clr(stats, 1.0, torch.zeros(1))  # log 7
    tensor([1.9459])

    Reference: Yuan et al. 2022, algorithm 1.
    """
    weight = (_log_mean_exp(stats) - log_u).exp()
    return (weight * stats.negative_logsumexp - stats.positive) / inverse_temperature


def negatives_kl(stats: ContrastStats, mean_score: Tensor) -> Tensor:
    """KL divergence of the weights of the negatives to equal weights, in nats.

        KL_i = sum_j w_ij log(K w_ij) = E_w[s] - logsumexp_j s_ij + log K

    Args:
        stats: of the batch.
        mean_score: [A], E_w[s], the mean score of the negatives under their weights.

    Returns:
        [A], in [0, log K].

    >>> negatives_kl(flatclr.stats_from_scores(torch.zeros(1, 8)), torch.zeros(1))
    tensor([0.])

    Reference: Qiu et al. 2023.
    """
    return (mean_score - stats.negative_logsumexp.detach() + stats.log_negatives).clamp_min(0)


def weighted_mean_score(pairs: PairSet, inverse_temperature: Tensor) -> Tensor:
    """E_w[s] of every anchor's negatives, w = softmax: beta times the slope of the log-sum-exp in beta.

    Args:
        pairs: the batch.
        inverse_temperature: [A].

    Returns:
        [A], without gradient; one more pass over the pairs.

    >>> pairs = flatclr.PairSet.of(torch.eye(4), torch.eye(4))
    >>> weighted_mean_score(pairs, torch.ones(8)).sum()
    tensor(0.)
    """
    beta_A = inverse_temperature.detach().requires_grad_()
    with torch.enable_grad():
        total = stats_of(pairs.detach(), beta_A).negative_logsumexp
        (slope_A,) = torch.autograd.grad(total.nan_to_num().sum(), beta_A)
    return beta_A.detach() * slope_A


def _log_mean_exp(stats: ContrastStats) -> Tensor:
    """log g = log mean_j exp s_ij, without gradient."""
    return stats.negative_logsumexp.detach() - stats.log_negatives


def _averaged(log_old_A: Tensor, log_new_A: Tensor, gamma: float) -> Tensor:
    """log((1 - gamma) old + gamma new); a sample never seen, whose old is 0, takes the new."""
    if gamma == 1:
        return log_new_A
    mixed = torch.logaddexp(log_old_A + math.log1p(-gamma), log_new_A + math.log(gamma))
    return torch.where(log_old_A == -torch.inf, log_new_A, mixed)


def _log_mean_of_samples(log_A: Tensor, log_old_N: Tensor) -> Tensor:
    """log of the mean over each sample's anchors; those without negatives are NaN and do not count."""
    log_GN = log_A.view(-1, len(log_old_N))
    counted_GN = log_GN.isfinite()
    count_N = counted_GN.sum(0).clamp_min(1).to(log_A.dtype)
    mean = log_GN.masked_fill(~counted_GN, -torch.inf).logsumexp(0) - count_N.log()
    return torch.where(counted_GN.any(0), mean, log_old_N)


SOGCLR = Traits(
    "SogCLR: a moving average of each sample's negatives makes a small batch unbiased",
    bounded_scores=True,
    accepts_control=False,
    keeps_samples=True,
)


@register("sogclr", SOGCLR)
class SogCLR(Objective):
    """SogCLR: the gradient of the loss over all negatives of the data, by a moving average per sample.

        g_i  = mean_j exp s_ij                          of this batch
        u_i  = (1 - gamma) u + gamma g_i                u of the sample; at its first visit u_i = g_i
        loss = mean_i (sg[g_i / u_i] logsumexp_j s_ij - p_i) / beta

    What is kept of a sample is the mean of its anchors' u_i, in log space, as a buffer: it is in the state dict, and
    alike on all ranks. It changes on every call in training mode; a call in evaluation mode reads it, or goes without
    `index`. At gamma = 1 nothing is averaged, `index` may be left out, and the gradient is `FlatNCE`'s / beta.

    Args:
        temperature: a number > 0. An `EssControl` is refused: averages over steps need one temperature.
        gamma: weight of the newest value, in (0, 1].
        samples: how many the data has; None: room is made as indices come, which waits for the device.
        options: those of `flatclr.Objective`; normalize=False and negatives_per_anchor are refused.

    >>> z, index = torch.eye(4), torch.tensor([7, 1, 0, 4])
    >>> objective = SogCLR(temperature=1.0)
    >>> objective(z, z, index=index)  # first visit: (log 6 - 1) / beta
    tensor(0.7918)
    >>> objective.state.log_average[7]  # log mean exp 0
    tensor(0.)

    Reference: Yuan et al. 2022.
    """

    def __init__(
        self,
        temperature: float = 0.1,
        *,
        gamma: float = 0.9,
        samples: int | None = None,
        **options: Unpack[ContrastOptions],
    ) -> None:
        super().__init__(temperature, **options)
        _require_all_negatives(type(self).__name__, options)
        require_share("gamma", gamma)
        self.gamma = gamma
        self.state = SampleState(samples, log_average=-torch.inf)

    def loss_of_samples(
        self, pairs: PairSet, inverse_temperature: float | Tensor, index: Tensor | None
    ) -> tuple[Tensor, ContrastStats]:
        stats = stats_of(pairs, inverse_temperature)
        log_g_A = _log_mean_exp(stats)
        if index is None and (self.gamma == 1 or not self.training):
            return stats.mean(sog_clr(stats, inverse_temperature, log_g_A)), stats
        index_N = index_of_all_ranks("SogCLR", index, pairs)
        self.state.admit(index_N)
        log_u_A = _updated_average(self.state, index_N, log_g_A, self.gamma, keep=self.training)
        return stats.mean(sog_clr(stats, inverse_temperature, log_u_A)), stats


@register("isogclr", replace(SOGCLR, summary="SogCLR with a temperature learned for each sample"))
class ISogCLR(Objective):
    """iSogCLR: SogCLR with a temperature of its own for every sample, learned beside the network.

        loss  = mean_i tau_i (sg[g_i / u_i] logsumexp_j s_ij - p_i),      s = cosine / tau_i
        KL_i  = E_w[s] - logsumexp_j s_ij + log K                          how far the negatives' weights are from equal
        tau_i = clip(tau_i - rate v_i),   v_i <- (1 - gamma) v_i + gamma (rho - KL_i)

    A sample whose closest negatives outweigh the rest needs a larger temperature to bring its KL to rho, and gets it.
    Temperatures, averages and slopes are buffers by sample, as in `SogCLR`. E_w[s] costs one more pass over the pairs
    in training.

    Args:
        temperature: of a sample never seen, a number > 0.
        gamma: weight of the newest value in the averages, in (0, 1].
        rho: the KL divergence in nats that temperatures are led to.
        rate: step of a temperature per nat.
        minimum: least temperature.
        maximum: largest temperature.
        samples: how many the data has; None: room is made as indices come, which waits for the device.
        options: those of `flatclr.Objective`; normalize=False and negatives_per_anchor are refused.

    >>> z, index = torch.eye(4), torch.arange(4)
    >>> objective = ISogCLR(temperature=0.5)
    >>> _ = objective(z, z, index=index)
    >>> objective.state.temperature[0]  # equal weights, KL 0: 0.5 - 0.01 rho
    tensor(0.4970)

    Reference: Qiu et al. 2023.
    """

    def __init__(
        self,
        temperature: float = 0.1,
        *,
        gamma: float = 0.9,
        rho: float = 0.3,
        rate: float = 0.01,
        minimum: float = 0.02,
        maximum: float = 1.0,
        samples: int | None = None,
        **options: Unpack[ContrastOptions],
    ) -> None:
        super().__init__(temperature, **options)
        _require_all_negatives(type(self).__name__, options)
        require_share("gamma", gamma)
        require_number("rho", rho, above=0)
        require_number("rate", rate, above=0)
        require_number("minimum", minimum, above=0)
        require_number("maximum", maximum, above=minimum)
        self.gamma, self.rho, self.rate, self.minimum, self.maximum = gamma, rho, rate, minimum, maximum
        self.initial_temperature = temperature
        self.state = SampleState(samples, log_average=-torch.inf, temperature=temperature, slope=0.0)

    @property
    def inverse_temperature(self) -> float | Tensor:
        """One over the mean temperature of the samples."""
        temperatures = self.state.column("temperature")
        return 1 / temperatures.mean() if len(temperatures) else 1 / self.initial_temperature

    def loss_of_samples(
        self, pairs: PairSet, inverse_temperature: float | Tensor, index: Tensor | None
    ) -> tuple[Tensor, ContrastStats]:
        if index is None and not self.training:
            stats = stats_of(pairs, inverse_temperature)
            return stats.mean(sog_clr(stats, inverse_temperature, _log_mean_exp(stats))), stats
        index_N = index_of_all_ranks("ISogCLR", index, pairs)
        self.state.admit(index_N)
        groups = len(pairs.layout.groups)
        beta_A = pairs.scale(1 / self.state.read("temperature", index_N).repeat(groups))
        assert isinstance(beta_A, Tensor)
        stats = stats_of(pairs, beta_A)
        if self.training:
            first = self.state.read("log_average", index_N) == -torch.inf
            self._follow(index_N, negatives_kl(stats, weighted_mean_score(pairs, beta_A)), first)
        log_u_A = _updated_average(self.state, index_N, _log_mean_exp(stats), self.gamma, keep=self.training)
        return stats.mean(sog_clr(stats, beta_A, log_u_A)), stats

    @torch.no_grad()
    def _follow(self, index_N: Tensor, kl_A: Tensor, first_N: Tensor) -> None:
        """Move the temperatures of these samples by what their anchors' divergences say."""
        kl_N = kl_A.view(-1, len(index_N)).nanmean(0)
        newest_N, old_N = self.rho - kl_N, self.state.read("slope", index_N)
        slope_N = torch.where(first_N, newest_N, (1 - self.gamma) * old_N + self.gamma * newest_N)
        temperature_N = self.state.read("temperature", index_N)
        moved_N = (temperature_N - self.rate * slope_N).clamp(self.minimum, self.maximum)
        known_N = kl_N.isfinite()  # a sample without negatives, or a batch of NaN, says nothing
        self.state.write(
            index_N,
            slope=torch.where(known_N, slope_N, old_N),
            temperature=torch.where(known_N, moved_N, temperature_N),
        )


def _updated_average(state: SampleState, index_N: Tensor, log_g_A: Tensor, gamma: float, *, keep: bool) -> Tensor:
    """log u of every anchor [A]; the mean over each sample's anchors is kept."""
    log_old_N = state.read("log_average", index_N).to(log_g_A.dtype)
    groups = len(log_g_A) // len(index_N)
    log_u_A = _averaged(log_old_N.repeat(groups), log_g_A, gamma)
    if keep:
        state.write(index_N, log_average=_log_mean_of_samples(log_u_A, log_old_N))
    return log_u_A


def require_share(name: str, value: float) -> None:
    """Refuse a weight of the newest value that no moving average has."""
    require_number(name, value, above=0, advice="0.9 is the published choice.")
    if value > 1:
        raise ValueError(f"{name} must be at most 1, got {value}; 1 keeps no average.")


def _require_all_negatives(name: str, options: ContrastOptions) -> None:
    if options.get("negatives_per_anchor") is not None:
        raise ValueError(
            f"{name} must see all negatives of a batch, got negatives_per_anchor={options['negatives_per_anchor']}; "
            "its average is of all of them: leave it out."
        )
