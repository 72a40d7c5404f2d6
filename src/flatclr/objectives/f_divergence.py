"""The f-divergences of f-MICL (Lu et al. 2023), with derivative and convex conjugate.

With u = p(x, y) / (p(x) p(y)) modelled by a similarity, the loss is -E f'(u) over positives plus weight * E f*(f'(u))
over negatives. Everything is written in v = log u, where no divergence overflows on the sphere:

    Gaussian similarity   u = mu exp(-||x - y||^2 / (2 sigma^2)) = mu exp((cos - 1) / sigma^2)
    cosine similarity     the critic is T = slope * cos + offset, which maps [-1, 1] into the inside of f*'s domain
    raw cosine            T = cos as published, which leaves the domain of f* for some divergences
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from flatclr.checks import require_number, require_one_of
from flatclr.contrast import Phi
from flatclr.objectives.variational import exp_with_tangent, slope_of_exp_with_tangent

Function = Callable[[Tensor], Tensor]
DEVICE_CODE = "flatclr.objectives.device.f_divergence"


@dataclass(frozen=True)
class Divergence:
    """f with f(1) = 0, its derivative and convex conjugate."""

    name: str
    f: Function  # of u
    reward: Function  # f'(u), of v = log u
    reward_slope: Function  # d reward / d v = u f''(u), of v
    penalty: Function  # f*(f'(u)), of v
    penalty_slope: Function  # d penalty / d v = u^2 f''(u), of v
    conjugate: Function  # f*(t)
    conjugate_derivative: Function  # the u with f'(u) = t
    cosine_slope: float = 1.0
    cosine_offset: float = 0.0
    parameters: tuple[float, ...] = ()  # that tell divergences of one name apart
    raw: bool = False  # the cosine is the critic as it is

    def derivative(self, u: Tensor) -> Tensor:
        """f'(u)"""
        return self.reward(u.log())

    def conjugate_of_derivative(self, u: Tensor) -> Tensor:
        """f*(f'(u))"""
        return self.penalty(u.log())

    def critic(self, cosine: Tensor) -> Tensor:
        """T, inside the domain of f* for every cosine."""
        return self.cosine_slope * cosine + self.cosine_offset

    def with_raw_cosine(self) -> Divergence:
        """The same with T = cos, which may be outside the domain of f*."""
        return replace(self, cosine_slope=1.0, cosine_offset=0.0, raw=True)

    def gaussian_penalty(self, log_shift: float | Tensor) -> Phi:
        """Penalty of a negative as a function of its score cos / sigma^2, where v = score + log_shift."""
        return Phi(
            f"{self.name}_gaussian",
            value=lambda score: self.penalty(score + log_shift),
            derivative=lambda score: self.penalty_slope(score + log_shift),
            parameters=(log_shift, *self.parameters),
            device=f"{DEVICE_CODE}:{self.name}_gaussian",
        )

    def gaussian_reward(self, log_shift: float | Tensor) -> Phi:
        """Reward of a positive as a function of its score."""
        return Phi(
            f"{self.name}_gaussian_reward",
            value=lambda score: self.reward(score + log_shift),
            derivative=lambda score: self.reward_slope(score + log_shift),
        )

    def cosine_penalty(self) -> Phi:
        """Penalty of a negative as a function of its cosine."""
        return Phi(
            f"{self.name}_{'raw_' if self.raw else ''}cosine",
            value=lambda cosine: self.conjugate(self.critic(cosine)),
            derivative=lambda cosine: self.cosine_slope * self.conjugate_derivative(self.critic(cosine)),
            parameters=self.parameters,
            device=None if self.raw else f"{DEVICE_CODE}:{self.name}_cosine",
        )


KL = Divergence(
    "kl",
    f=lambda u: torch.xlogy(u, u),
    reward=lambda v: v + 1,
    reward_slope=torch.ones_like,
    penalty=torch.exp,
    penalty_slope=torch.exp,
    conjugate=lambda t: (t - 1).exp(),
    conjugate_derivative=lambda t: (t - 1).exp(),
)

JS = Divergence(
    "js",
    f=lambda u: torch.xlogy(u, u) - (u + 1) * ((1 + u) / 2).log(),
    reward=lambda v: math.log(2) - F.softplus(-v),
    reward_slope=lambda v: torch.sigmoid(-v),
    penalty=lambda v: F.softplus(v) - math.log(2),
    penalty_slope=torch.sigmoid,
    conjugate=lambda t: -(2 - t.exp()).log(),  # t < ln 2
    conjugate_derivative=lambda t: t.exp() / (2 - t.exp()),
    cosine_slope=0.5,
)

PEARSON = Divergence(
    "pearson",
    f=lambda u: (u - 1).square(),
    reward=lambda v: 2 * torch.expm1(v),
    reward_slope=lambda v: 2 * v.exp(),
    penalty=lambda v: torch.expm1(2 * v),
    penalty_slope=lambda v: 2 * (2 * v).exp(),
    conjugate=lambda t: torch.where(t >= -2, t.square() / 4 + t, -1),
    conjugate_derivative=lambda t: (1 + t / 2).clamp_min(0),
)

HELLINGER = Divergence(
    "hellinger",
    f=lambda u: (u.sqrt() - 1).square(),
    reward=lambda v: 1 - exp_with_tangent(-v / 2),
    reward_slope=lambda v: slope_of_exp_with_tangent(-v / 2) / 2,
    penalty=lambda v: torch.expm1(v / 2),
    penalty_slope=lambda v: (v / 2).exp() / 2,
    conjugate=lambda t: t / (1 - t),  # t < 1
    conjugate_derivative=lambda t: (1 - t).square().reciprocal(),
    cosine_slope=0.5,
)

VLC = Divergence(
    "vlc",
    f=lambda u: (u - 1).square() / (u + 1),
    reward=lambda v: 1 - 4 * torch.sigmoid(-v).square(),
    reward_slope=lambda v: 8 * torch.sigmoid(v) * torch.sigmoid(-v).square(),
    penalty=lambda v: 3 - 8 * torch.sigmoid(-v) + 4 * torch.sigmoid(-v).square(),
    penalty_slope=lambda v: 8 * torch.sigmoid(-v) * torch.sigmoid(v).square(),
    conjugate=lambda t: torch.where(t >= -3, 4 - t - 4 * (1 - t).sqrt(), -1),  # t < 1
    conjugate_derivative=lambda t: torch.where(t >= -3, 2 * (1 - t).rsqrt() - 1, 0),
    cosine_slope=0.5,
)


def tsallis(alpha: float) -> Divergence:
    """Tsallis-alpha, alpha > 0 and not 1 (where it becomes KL).

    f*(t) needs t >= 0 for alpha > 1 (flat below) and t < 0 for alpha < 1, so the cosine moves up or down accordingly.
    """
    require_number("tsallis_alpha", alpha, above=0, advice="3 is the published choice.")
    if alpha == 1:
        raise ValueError("tsallis_alpha must not be 1, got 1; use divergence='kl', its limit there.")
    rest = 1 / (alpha - 1)
    power = alpha * rest

    def base(t: Tensor) -> Tensor:  # u^(alpha - 1)
        return (t / power).clamp_min(0) if alpha > 1 else t / power

    return Divergence(
        "tsallis",
        f=lambda u: (u**alpha - 1) * rest,
        reward=lambda v: power * exp_with_tangent((alpha - 1) * v),
        reward_slope=lambda v: alpha * slope_of_exp_with_tangent((alpha - 1) * v),
        penalty=lambda v: (alpha * v).exp() + rest,
        penalty_slope=lambda v: alpha * (alpha * v).exp(),
        conjugate=lambda t: base(t) ** power + rest,
        conjugate_derivative=lambda t: base(t) ** rest,
        cosine_offset=1.0 if alpha > 1 else -2.0,
        parameters=(alpha,),
    )


DIVERGENCES = {d.name: d for d in (KL, JS, PEARSON, HELLINGER, VLC)}


def find_divergence(name: str, tsallis_alpha: float = 3.0) -> Divergence:
    """A divergence of f-MICL by its name.

    Args:
        name: "kl", "js", "pearson", "hellinger", "vlc" or "tsallis".
        tsallis_alpha: order of the last, > 0 and not 1.

    Returns:
        f with its derivative and convex conjugate.

    >>> find_divergence("pearson").derivative(torch.tensor(3.0))  # 2 (u - 1)
    tensor(4.)
    """
    require_one_of("divergence", name, (*DIVERGENCES, "tsallis"))
    return tsallis(tsallis_alpha) if name == "tsallis" else DIVERGENCES[name]
