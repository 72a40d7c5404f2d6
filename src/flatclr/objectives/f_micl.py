"""f-MICL (Lu et al. 2023): an f-divergence between positive and negative pairs, by Gaussian or cosine similarity."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Unpack

from torch import Tensor

from flatclr.checks import require_number, require_one_of
from flatclr.contrast import ContrastOptions, PairSet
from flatclr.objectives.base import Objective, Traits, register, require_sphere
from flatclr.objectives.ess_control import EssControl
from flatclr.objectives.f_divergence import Divergence, find_divergence

GAUSSIAN, RAW_COSINE = "gaussian", "raw_cosine"
COSINES = ("cosine", RAW_COSINE)


def f_micl_gaussian(
    pairs: PairSet,
    inverse_temperature: float | Tensor,
    divergence: Divergence,
    *,
    mu: float = 1.0,
    weight: float = 40.0,
) -> Tensor:
    """f-MICL's loss per anchor with Gaussian similarity.

        loss_i = weight mean_j f*(f'(u_ij)) - f'(u_i),  u = mu exp((cos - 1) inverse_temperature)

    Args:
        pairs: the batch.
        inverse_temperature: 1 / sigma^2.
        divergence: one of `find_divergence`.
        mu: factor of the similarity.
        weight: of the negatives.

    Returns:
        [A].

    >>> pairs = flatclr.PairSet.of(torch.eye(2), torch.eye(2), pairing="within")
    >>> f_micl_gaussian(pairs, 2.0, find_divergence("kl"), weight=1.0)  # e^-2 - 1
    tensor([-0.8647, -0.8647, -0.8647, -0.8647])

    Reference: Lu et al. 2023.
    """
    if isinstance(inverse_temperature, Tensor) and inverse_temperature.numel() > 1:
        raise ValueError(
            f"inverse_temperature of f-MICL must be one value, got {inverse_temperature.numel()}; pass one for all."
        )
    log_shift = math.log(mu) - inverse_temperature
    score, penalty = pairs.mean_phi(divergence.gaussian_penalty(log_shift), inverse_temperature)
    if pairs.plain:
        return weight * penalty - divergence.reward(score + log_shift)
    return weight * penalty - pairs.mean_positive(divergence.gaussian_reward(log_shift), inverse_temperature)


def f_micl_cosine(pairs: PairSet, divergence: Divergence, *, weight: float = 40.0) -> Tensor:
    """f-MICL's loss per anchor with cosine similarity.

        loss_i = weight mean_j f*(T_ij) - T_i,  T the divergence's map of the cosine into the domain of f*

    Args:
        pairs: the batch.
        divergence: one of `find_divergence`.
        weight: of the negatives.

    Returns:
        [A].

    >>> pairs = flatclr.PairSet.of(torch.eye(2), torch.eye(2), pairing="within")
    >>> f_micl_cosine(pairs, find_divergence("kl"), weight=1.0)  # e^-1 - 1
    tensor([-0.6321, -0.6321, -0.6321, -0.6321])

    Reference: Lu et al. 2023.
    """
    cosine, penalty = pairs.mean_phi(divergence.cosine_penalty(), 1.0)
    return weight * penalty - divergence.critic(cosine)


@register("fmicl", Traits("f-MICL: six f-divergences", temperature=0.5, pairing="within", temperature_weighs=False))
class FMICL(Objective):
    """f-MICL: an f-divergence between positive and negative pairs, negatives within each view.

        loss = weight mean_{i != j} f*(f'(u_ij)) - mean_i f'(u_i)

        kernel="gaussian"   u = mu exp((cos - 1) / temperature),  temperature = sigma^2
        kernel="cosine"     a monotone map of the cosine into the domain of f* takes the place of f'(u)
        kernel="raw_cosine" the cosine itself does, as published: js is NaN above cos = ln 2, hellinger and vlc have no
                            end as cos goes to 1, tsallis (of order above 1) does not push negatives below cos = 0

    Args:
        divergence: "kl", "js", "pearson", "hellinger", "tsallis" or "vlc".
        kernel: "gaussian", "cosine" or "raw_cosine".
        temperature: a number > 0, or an `EssControl`; None is the published 0.5. Refused with the cosine kernels.
        mu: factor of the Gaussian similarity.
        weight: of the negatives; with 1 the loss is minus a lower bound on the f-mutual information.
        tsallis_alpha: order of the Tsallis divergence, > 0 and not 1.
        options: those of `flatclr.Objective`; the pairing is "within" by default.

    >>> z = torch.eye(2)
    >>> FMICL("kl", weight=1.0)(z, z)  # e^-2 - 1
    tensor(-0.8647)

    Reference: Lu et al. 2023.
    """

    def __init__(
        self,
        divergence: str = "kl",
        *,
        kernel: str = "gaussian",
        temperature: float | EssControl | None = None,
        mu: float = 1.0,
        weight: float = 40.0,
        tsallis_alpha: float = 3.0,
        **options: Unpack[ContrastOptions],
    ) -> None:
        require_one_of("kernel", kernel, (GAUSSIAN, *COSINES))
        require_number("mu", mu, above=0)
        require_number("weight", weight, above=0)
        self._require_known(options)
        require_sphere("FMICL", options)
        if kernel in COSINES and temperature is not None:
            raise ValueError(
                f"temperature must be None with kernel={kernel!r}, got {temperature!r}; the cosine is the critic."
            )
        default = self.traits.temperature if kernel == GAUSSIAN else 1.0
        assert default is not None
        super().__init__(default if temperature is None else temperature, **options)
        find_divergence(divergence, tsallis_alpha)  # refuses what it does not know
        self.divergence_name, self.tsallis_alpha = divergence, tsallis_alpha
        self.kernel, self.mu, self.weight = kernel, mu, weight

    @classmethod
    def traits_with(cls, **options: Any) -> Traits:
        """The traits when it is made with these options: cosine kernels have no temperature to control.

        Args:
            options: arguments of the constructor.

        Returns:
            Those of the class, changed where an option changes them.
        """
        if options.get("kernel") in COSINES:
            return replace(cls.traits, temperature=None, accepts_control=False)
        return cls.traits

    @property
    def divergence(self) -> Divergence:
        """The divergence with its derivative and convex conjugate."""
        found = find_divergence(self.divergence_name, self.tsallis_alpha)
        return found.with_raw_cosine() if self.kernel == RAW_COSINE else found

    def loss(self, pairs: PairSet, inverse_temperature: float | Tensor) -> tuple[Tensor, None]:
        if self.kernel in COSINES:
            losses = f_micl_cosine(pairs, self.divergence, weight=self.weight)
        else:
            losses = f_micl_gaussian(pairs, inverse_temperature, self.divergence, mu=self.mu, weight=self.weight)
        return pairs.mean(losses), None
