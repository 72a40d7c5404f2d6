"""The spectral contrastive loss (HaoChen et al. 2021)."""

from __future__ import annotations

from typing import Unpack

from torch import Tensor

from flatclr.contrast import ContrastOptions, PairSet
from flatclr.objectives.base import Objective, Traits, register
from flatclr.objectives.rpc import rpc


def spectral(pairs: PairSet, inverse_temperature: float | Tensor = 1.0) -> Tensor:
    """Spectral contrastive loss per anchor.

        loss_i = -2 p_i + mean_j s_ij^2,   s = z.z' times the inverse temperature

    It is twice relative predictive coding's with a = b = 0 and g = 1.

    Args:
        pairs: the batch.
        inverse_temperature: what dot products are multiplied with: the squared radius of the sphere.

    Returns:
        [A].

    >>> spectral(flatclr.PairSet.of(torch.eye(3), torch.eye(3), pairing="one_way"))
    tensor([-2., -2., -2.])

    Reference: HaoChen et al. 2021, the spectral contrastive loss L(f).
    """
    return 2 * rpc(pairs, inverse_temperature, a=0.0, b=0.0, g=1.0)


@register(
    "spectral",
    Traits("spectral contrastive loss", temperature=1.0, accepts_control=False, temperature_weighs=False),
)
class Spectral(Objective):
    """Spectral contrastive loss: its minimum factorises the graph of augmentations.

        loss = -2 E[z.z+] + E[(z.z')^2],   z on the sphere of radius 1 / sqrt(temperature)

    Over all data the square bounds free features too, but not in a batch, where no view of a sample is its own
    negative: with normalize=False mind their growth.

    Args:
        temperature: one over the squared radius, a number > 0. An `EssControl` is refused: no softmax has weights here.
        options: those of `flatclr.Objective`.

    >>> z = torch.eye(4)
    >>> Spectral()(z, z)
    tensor(-2.)

    Reference: HaoChen et al. 2021.
    """

    def __init__(self, temperature: float = 1.0, **options: Unpack[ContrastOptions]) -> None:
        super().__init__(temperature, **options)

    def loss(self, pairs: PairSet, inverse_temperature: float | Tensor) -> tuple[Tensor, None]:
        return pairs.mean(spectral(pairs, inverse_temperature)), None
