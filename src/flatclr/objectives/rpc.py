"""Relative predictive coding (Tsai et al. 2021)."""

from __future__ import annotations

from typing import Unpack

from torch import Tensor

from flatclr.checks import require_number
from flatclr.contrast import ContrastOptions, PairSet, Phi
from flatclr.objectives.base import Objective, Traits, register
from flatclr.objectives.ess_control import EssControl

# J = E_P f - a E_Q f - (b/2) E_P f^2 - (g/2) E_Q f^2,  optimum f = (r - a) / (b r + g) for the density ratio r


def rpc_positive(score: Tensor, *, b: float) -> Tensor:
    """What a positive pair adds to J: f - (b/2) f^2."""
    return score - (b / 2) * score.square()


def rpc_negative(*, a: float, g: float) -> Phi:
    """What a negative pair takes from J: a f + (g/2) f^2."""
    return Phi(
        "rpc",
        value=lambda f: a * f + (g / 2) * f.square(),
        derivative=lambda f: a + g * f,
        parameters=(a, g),
        device="flatclr.objectives.device.rpc:rpc",
    )


def rpc(pairs: PairSet, inverse_temperature: float | Tensor, *, a: float, b: float, g: float) -> Tensor:
    """Relative predictive coding's loss per anchor.

        loss_i = -J_i,  J = E_P f - a E_Q f - (b/2) E_P f^2 - (g/2) E_Q f^2      P positives, Q negatives, f the score

    Args:
        pairs: the batch.
        inverse_temperature: what dot products are multiplied with.
        a: weight of the negatives' mean.
        b: weight of the positives' square.
        g: weight of the negatives' square.

    Returns:
        [A].

    >>> pairs = flatclr.PairSet.of(torch.eye(3), torch.eye(3), pairing="cross")
    >>> rpc(pairs, 1.0, a=0.0, b=1.0, g=1.0)
    tensor([-0.5000, -0.5000, -0.5000, -0.5000, -0.5000, -0.5000])

    Reference: Tsai et al. 2021.
    """
    score, penalty = pairs.mean_phi(rpc_negative(a=a, g=g), inverse_temperature)
    if pairs.plain:
        return penalty - rpc_positive(score, b=b)
    reward = Phi("rpc_positive", lambda s: rpc_positive(s, b=b), lambda s: 1 - b * s)
    return penalty - pairs.mean_positive(reward, inverse_temperature)


def density_ratio(score: Tensor, *, a: float, b: float, g: float) -> Tensor:
    """The ratio r that makes a score optimal: (g f + a) / (1 - b f)."""
    return (g * score + a) / (1 - b * score)


@register("rpc", Traits("relative predictive coding", temperature=128.0, temperature_weighs=False))
class RPC(Objective):
    """Relative predictive coding: quadratic in the scores, no logarithm or exponential.

        loss = -J,  J = E_P f - a E_Q f - (b/2) E_P f^2 - (g/2) E_Q f^2      P positives, Q negatives, f the score

    The optimum is f = (r - a) / (b r + g) for the density ratio r. Defaults are those of the published CIFAR script.

    Args:
        temperature: a number > 0, or an `EssControl` with clamps that suit unnormalised scores.
        a: weight of the negatives' mean, >= 0.
        b: weight of the positives' square, >= 0.
        g: weight of the negatives' square, >= 0.
        learn_temperature: make its logarithm a parameter.
        options: those of `flatclr.Objective`; normalize is False by default.

    >>> z = torch.eye(4)
    >>> RPC(temperature=1.0, b=1.0)(z, z)  # -(1 - 1/2)
    tensor(-0.5000)

    Reference: Tsai et al. 2021.
    """

    def __init__(
        self,
        temperature: float | EssControl = 128.0,
        *,
        a: float = 0.0,
        b: float = 0.001,
        g: float = 1.0,
        learn_temperature: bool = False,
        **options: Unpack[ContrastOptions],
    ) -> None:
        for name, value in (("a", a), ("b", b), ("g", g)):
            require_number(name, value)
            if value < 0:
                raise ValueError(f"{name} must be >= 0, got {value}; a negative weight makes J unbounded.")
        options.setdefault("normalize", False)
        super().__init__(temperature, learn_temperature=learn_temperature, **options)
        self.a, self.b, self.g = a, b, g

    def loss(self, pairs: PairSet, inverse_temperature: float | Tensor) -> tuple[Tensor, None]:
        return pairs.mean(rpc(pairs, inverse_temperature, a=self.a, b=self.b, g=self.g)), None
