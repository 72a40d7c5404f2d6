"""The sigmoid loss (SigLIP, Zhai et al. 2023): every pair is classified on its own."""

from __future__ import annotations

from typing import Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flatclr.checks import require_number
from flatclr.contrast import ContrastOptions, ContrastStats, PairSet, Phi, stats_of
from flatclr.contrast.numerics import accumulation_type
from flatclr.objectives.base import Objective, Traits, register

DEVICE_CODE = "flatclr.objectives.device.sigmoid"


def sig_lip(pairs: PairSet, inverse_temperature: float | Tensor, bias: Tensor) -> tuple[Tensor, ContrastStats | None]:
    """Sigmoid loss per anchor.

        loss_i = sum over positives of softplus(-(s + b)) + sum over negatives of softplus(s + b)

    The bias gets its gradient from a second pass over the pairs, of sigmoid(s + b), where it needs one.

    Args:
        pairs: the batch.
        inverse_temperature: t, what dot products are multiplied with.
        bias: b, 0-dim.

    Returns:
        [A], and the stats where they had to be made to count negatives.

    >>> pairs = flatclr.PairSet.of(torch.eye(2), torch.eye(2), pairing="cross")
    >>> sig_lip(pairs, 1.0, torch.tensor(0.0))[0]  # softplus(-1) + log 2
    tensor([1.0064, 1.0064, 1.0064, 1.0064])

    Reference: Zhai et al. 2023, the sigmoid loss of section 3.
    """
    stats, count, positives = _counted(pairs, inverse_temperature)
    z = pairs.views[0]
    at = bias.detach().to(z.device, accumulation_type(z))
    _, negative = pairs.mean_phi(_softplus_above(at), inverse_temperature)
    positive = pairs.mean_positive(_softplus_below(at), inverse_temperature)
    losses = positives * positive + count * negative
    if not (torch.is_grad_enabled() and bias.requires_grad):
        return losses, stats
    with torch.no_grad():
        _, pushed = pairs.mean_phi(_sigmoid_above(at), inverse_temperature)
        pulled = pairs.mean_positive(_sigmoid_below(at), inverse_temperature)
        slope = count * pushed - positives * pulled
    return losses + slope * (bias.to(at) - at), stats


def _counted(
    pairs: PairSet, inverse_temperature: float | Tensor
) -> tuple[ContrastStats | None, int | Tensor, int | Tensor]:
    """How many negatives and positives an anchor has, and the stats where it takes them to know."""
    if not pairs.counts_differ:
        return None, pairs.negatives, len(pairs.layout.groups[0].positives)
    with torch.no_grad():
        stats = stats_of(pairs, inverse_temperature)
    return stats, stats.negatives, stats.positives


def _softplus_above(bias: Tensor) -> Phi:
    return Phi(
        "softplus_above",
        value=lambda s: F.softplus(s + bias, threshold=40),
        derivative=lambda s: torch.sigmoid(s + bias),
        parameters=(bias,),
        device=f"{DEVICE_CODE}:softplus_above",
    )


def _sigmoid_above(bias: Tensor) -> Phi:
    return Phi(
        "sigmoid_above",
        value=lambda s: torch.sigmoid(s + bias),
        derivative=lambda s: torch.sigmoid(s + bias) * torch.sigmoid(-(s + bias)),
        parameters=(bias,),
        device=f"{DEVICE_CODE}:sigmoid_above",
    )


def _softplus_below(bias: Tensor) -> Phi:
    return Phi(
        "softplus_below",
        value=lambda s: F.softplus(-(s + bias), threshold=40),
        derivative=lambda s: -torch.sigmoid(-(s + bias)),
    )


def _sigmoid_below(bias: Tensor) -> Phi:
    return Phi(
        "sigmoid_below",
        value=lambda s: torch.sigmoid(-(s + bias)),
        derivative=lambda s: -torch.sigmoid(s + bias) * torch.sigmoid(-(s + bias)),
    )


@register("siglip", Traits("SigLIP: a sigmoid for every pair", pairing="cross", accepts_control=False))
class SigLIP(Objective):
    """SigLIP: every pair is a positive or a negative by itself, with a learned scale and bias.

        loss = -(1/N) sum_ij log sigmoid(y_ij (t cos_ij + b)),   y = 1 on positives, -1 on negatives

    No softmax couples the pairs of a row. The sum runs over all pairs, so a larger batch weighs negatives more; the
    bias starts where it says that nearly all pairs are negatives.

    Args:
        temperature: 1 / t at the start, a number > 0. An `EssControl` is refused: the loss needs t to be learned.
        bias: b at the start.
        learn_temperature: make log t a parameter.
        learn_bias: make b a parameter; its gradient costs a second pass over the pairs forward, none backward.
        options: those of `flatclr.Objective`; the pairing is "cross" by default.

    >>> z = torch.eye(2)
    >>> SigLIP(temperature=1.0, bias=0.0)(z, z).item()  # softplus(-1) + log 2
    1.0064...

    Reference: Zhai et al. 2023.
    """

    def __init__(
        self,
        temperature: float = 0.1,
        *,
        bias: float = -10.0,
        learn_temperature: bool = True,
        learn_bias: bool = True,
        **options: Unpack[ContrastOptions],
    ) -> None:
        super().__init__(temperature, learn_temperature=learn_temperature, **options)
        require_number("bias", bias)
        if not isinstance(learn_bias, bool):
            raise TypeError(f"learn_bias must be True or False, got {learn_bias!r}; pass a bool.")
        self.bias = nn.Parameter(torch.tensor(float(bias)), requires_grad=learn_bias)

    def loss(self, pairs: PairSet, inverse_temperature: float | Tensor) -> tuple[Tensor, ContrastStats | None]:
        losses, stats = sig_lip(pairs, inverse_temperature, self.bias)
        return pairs.mean(losses), stats
