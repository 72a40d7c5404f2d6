"""Relative predictive coding (Tsai et al. 2021)."""

from __future__ import annotations

from torch import Tensor

from flatclr.contrast import PairSet, Phi

# J = E_P f - a E_Q f - (b/2) E_P f^2 - (g/2) E_Q f^2,  optimum f = (r - a) / (b r + g) for the density ratio r


def rpc_positive(score: Tensor, *, b: float) -> Tensor:
    """What a positive pair adds to J: f - (b/2) f^2."""
    return score - (b / 2) * score.square()


def rpc_negative(*, a: float, g: float) -> Phi:
    """What a negative pair takes from J: a f + (g/2) f^2."""
    return Phi("rpc", value=lambda f: a * f + (g / 2) * f.square(), derivative=lambda f: a + g * f, parameters=(a, g))


def rpc(pairs: PairSet, inverse_temperature: float | Tensor, *, a: float, b: float, g: float) -> Tensor:
    """Minus J per anchor.

    >>> pairs = flatclr.PairSet.of(torch.eye(3), torch.eye(3), pairing="cross")
    >>> rpc(pairs, 1.0, a=0.0, b=1.0, g=1.0)
    tensor([-0.5000, -0.5000, -0.5000, -0.5000, -0.5000, -0.5000])
    """
    score, penalty = pairs.mean_phi(rpc_negative(a=a, g=g), inverse_temperature)
    return penalty - rpc_positive(score, b=b)


def density_ratio(score: Tensor, *, a: float, b: float, g: float) -> Tensor:
    """The ratio r that makes a score optimal: (g f + a) / (1 - b f)."""
    return (g * score + a) / (1 - b * score)
