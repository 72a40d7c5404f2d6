"""The spectral contrastive loss (HaoChen et al. 2021)."""

from __future__ import annotations

from typing import Unpack

from torch import Tensor

from flatclr.contrast import ContrastOptions, PairSet
from flatclr.objectives.base import Objective, Traits, register
from flatclr.objectives.rpc import rpc


def spectral(pairs: PairSet) -> Tensor:
    """Spectral contrastive loss per anchor.

        loss_i = -2 z_i.z_i+ + mean_j (z_i.z_j)^2

    It is twice relative predictive coding's with a = b = 0 and g = 1.

    Args:
        pairs: the batch.

    Returns:
        [A].

    >>> spectral(flatclr.PairSet.of(torch.eye(3), torch.eye(3), pairing="one_way"))
    tensor([-2., -2., -2.])

    Reference: HaoChen et al. 2021, equation 6.
    """
    return 2 * rpc(pairs, 1.0, a=0.0, b=0.0, g=1.0)


@register("spectral", Traits("spectral contrastive loss, on free features", temperature=None, accepts_control=False))
class Spectral(Objective):
    """Spectral contrastive loss: its minimum factorises the graph of augmentations.

        loss = -2 E[z.z+] + E[(z.z')^2]

    Args:
        options: those of `flatclr.Objective`; normalize is False by default: the loss bounds the features itself.

    >>> z = torch.eye(4)
    >>> Spectral()(z, z)
    tensor(-2.)

    Reference: HaoChen et al. 2021.
    """

    def __init__(self, **options: Unpack[ContrastOptions]) -> None:
        options.setdefault("normalize", False)
        self._require_known(options)
        super().__init__(1.0, **options)

    def loss(self, pairs: PairSet, inverse_temperature: float | Tensor) -> tuple[Tensor, None]:
        return pairs.mean(spectral(pairs)), None
