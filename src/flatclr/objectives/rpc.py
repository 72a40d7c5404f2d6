"""Relative predictive coding (Tsai et al. 2021)."""

from __future__ import annotations

from torch import Tensor

from flatclr.kernels.phi import Phi

# J = E_P f - a E_Q f - (b/2) E_P f^2 - (g/2) E_Q f^2,  optimum f = (r - a) / (b r + g) for the density ratio r


def rpc_positive(score: Tensor, *, b: float) -> Tensor:
    """What a positive pair adds to J: f - (b/2) f^2."""
    return score - (b / 2) * score.square()


def rpc_negative(*, a: float, g: float) -> Phi:
    """What a negative pair takes from J: a f + (g/2) f^2."""
    return Phi("rpc", value=lambda f: a * f + (g / 2) * f.square(), derivative=lambda f: a + g * f)


def density_ratio(score: Tensor, *, a: float, b: float, g: float) -> Tensor:
    """The ratio r that makes a score optimal: (g f + a) / (1 - b f)."""
    return (g * score + a) / (1 - b * score)
