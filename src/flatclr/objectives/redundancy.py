"""Without negatives: VICReg (Bardes et al. 2022) and Barlow Twins (Zbontar et al. 2021).

Both keep embeddings from collapsing by what their features say together: variances and covariances over the global
batch. Embeddings are taken as they come, not normalised. The stats that come with them are those of cosines at
temperature 0.1, gauges alone.

Shape suffixes: V views, N samples of the global batch, D features.
"""

from __future__ import annotations

from itertools import combinations
from typing import Unpack

import torch
from torch import Tensor

from flatclr.checks import require_number
from flatclr.contrast import ContrastOptions, PairSet
from flatclr.contrast.numerics import accumulation_type, no_autocast, products
from flatclr.objectives.base import Objective, Traits, register

REFUSED = (
    "pairing",
    "in_batch_negatives",
    "negatives_per_anchor",
    "false_negative_margin",
    "normalize",
    "route",
    "backend",
)
VARIANCE_FLOOR = 1e-4  # of VICReg's square root
NORM_FLOOR = 1e-5  # of Barlow Twins' division, that of batch normalisation


def vic_reg(views_VND: Tensor, *, invariance: float = 25.0, variance: float = 25.0, covariance: float = 1.0) -> Tensor:
    """VICReg's loss of the views of a batch, averaged over pairs of views.

        loss(z, y) = invariance mean (z - y)^2 + variance (v(z) + v(y)) + covariance (c(z) + c(y))
        v(z)       = mean over features of relu(1 - sqrt(var + 1e-4))
        c(z)       = sum of the squared off-diagonal entries of the covariance / D

    Variances and covariances divide by N - 1. The first term is the mean over samples and features, as in the paper's
    algorithm 1; its equation 5 lacks the 1 / D.

    Args:
        views_VND: embeddings as they are.
        invariance: weight of the first term.
        variance: of the second.
        covariance: of the third.

    Returns:
        A scalar.

    >>> z = torch.tensor([[1.0, 1.0], [-1.0, 1.0], [1.0, -1.0], [-1.0, -1.0]])
    >>> vic_reg(torch.stack([z, z]))  # spread enough and not correlated
    tensor(0.)

    Reference: Bardes et al. 2022, equations 1 to 6 and algorithm 1.
    """
    mean_VND = views_VND.mean(0)
    # the mean over pairs of views of (z - y)^2 is 2 V / (V - 1) times the variance over views
    views, samples, features = views_VND.shape
    apart = (views_VND - mean_VND).square().mean() * (2 * views / (views - 1))
    centred_VND = views_VND - views_VND.mean(1, keepdim=True)
    covariance_VDD = products(centred_VND.mT, centred_VND.mT) / (samples - 1)
    variance_VD = covariance_VDD.diagonal(dim1=1, dim2=2)
    spread = torch.relu(1 - (variance_VD + VARIANCE_FLOOR).sqrt()).mean()
    redundant = (covariance_VDD.square().sum() - variance_VD.square().sum()) / (views * features)
    return invariance * apart + 2 * (variance * spread + covariance * redundant)


def barlow_twins(views_VND: Tensor, *, weight: float = 0.005) -> Tensor:
    """Barlow Twins' loss of the views of a batch, averaged over pairs of views.

        loss = sum_k (1 - c_kk)^2 + weight sum_{k != l} c_kl^2,   c the correlation of the features of two views

    Args:
        views_VND: embeddings as they are.
        weight: of the off-diagonal entries.

    Returns:
        A scalar.

    >>> z = torch.tensor([[1.0, 1.0], [-1.0, 1.0], [1.0, -1.0], [-1.0, -1.0]])
    >>> barlow_twins(torch.stack([z, z])) < 1e-9
    tensor(True)

    Reference: Zbontar et al. 2021, equations 1 and 2.
    """
    samples = views_VND.shape[1]
    centred_VND = views_VND - views_VND.mean(1, keepdim=True)
    scaled_VND = centred_VND * (centred_VND.square().mean(1, keepdim=True) + NORM_FLOOR).rsqrt()
    losses = []
    for view, other in combinations(scaled_VND, 2):
        correlation_DD = products(view.T, other.T) / samples
        diagonal_D = correlation_DD.diagonal()
        redundant = correlation_DD.square().sum() - diagonal_D.square().sum()
        losses.append((1 - diagonal_D).square().sum() + weight * redundant)
    return torch.stack(losses).mean()


class _WithoutNegatives(Objective):
    """What the two share: raw embeddings of all ranks, and refusals of what only contrasts have."""

    def __init__(self, **options: Unpack[ContrastOptions]) -> None:
        self._require_known(options)
        for name in REFUSED:
            if name in options:
                raise ValueError(
                    f"{name} must be left out for {type(self).__name__}, got {options[name]!r}; "  # type: ignore[literal-required]
                    "it has no negatives and takes embeddings as they come."
                )
        super().__init__(0.1, **options)

    def _views(self, pairs: PairSet) -> Tensor:
        """All views of all ranks as they came, in accumulation precision: [V, N, D]."""
        name = type(self).__name__
        given = {"negatives": pairs.queue, "labels or ids": pairs.known, "hard_negatives": pairs.hard_nHd}
        for what, value in given.items():
            if value is not None:
                raise ValueError(f"{what} must be left out for {name}, got some; it has no negatives to choose.")
        z = pairs.views[0]
        return pairs.gathered(torch.stack(pairs.views).to(accumulation_type(z)))


def _require_weight(name: str, value: float) -> None:
    require_number(name, value)
    if value < 0:
        raise ValueError(f"{name} must be >= 0, got {value}; a negative weight would reward collapse.")


@register(
    "vicreg",
    Traits(
        "VICReg: invariance, variance, covariance; no negatives",
        temperature=None,
        accepts_control=False,
        uses_negatives=False,
    ),
)
class VICReg(_WithoutNegatives):
    """VICReg: views agree, features vary, features do not repeat each other.

        loss = invariance mean (z - y)^2 + variance (v(z) + v(y)) + covariance (c(z) + c(y))

    v is the mean hinge below standard deviation 1, c the sum of squared covariances over D, both over the global batch.
    Of several views it is the mean over their pairs.

    Args:
        invariance: weight of the first term.
        variance: of the second.
        covariance: of the third.
        options: gather and check_embeddings of `flatclr.Objective`; what says which negatives to use is refused.

    >>> z = torch.tensor([[1.0, 1.0], [-1.0, 1.0], [1.0, -1.0], [-1.0, -1.0]])
    >>> VICReg()(z, z)
    tensor(0.)

    Reference: Bardes et al. 2022.
    """

    def __init__(
        self,
        *,
        invariance: float = 25.0,
        variance: float = 25.0,
        covariance: float = 1.0,
        **options: Unpack[ContrastOptions],
    ) -> None:
        super().__init__(**options)
        for name, value in (("invariance", invariance), ("variance", variance), ("covariance", covariance)):
            _require_weight(name, value)
        self.invariance, self.variance, self.covariance = invariance, variance, covariance

    def loss(self, pairs: PairSet, inverse_temperature: float | Tensor) -> tuple[Tensor, None]:
        with no_autocast(pairs.views[0]):
            weights = {"invariance": self.invariance, "variance": self.variance, "covariance": self.covariance}
            return vic_reg(self._views(pairs), **weights), None


@register(
    "barlow_twins",
    Traits(
        "Barlow Twins: the cross-correlation of two views is the identity; no negatives",
        temperature=None,
        accepts_control=False,
        uses_negatives=False,
    ),
)
class BarlowTwins(_WithoutNegatives):
    """Barlow Twins: each feature correlates with itself in the other view, and with no other feature.

        loss = sum_k (1 - c_kk)^2 + weight sum_{k != l} c_kl^2,   c over the global batch

    Of several views it is the mean over their pairs.

    Args:
        weight: of the off-diagonal entries.
        options: gather and check_embeddings of `flatclr.Objective`; what says which negatives to use is refused.

    >>> z = torch.tensor([[1.0, 1.0], [-1.0, 1.0], [1.0, -1.0], [-1.0, -1.0]])
    >>> BarlowTwins()(z, -z)  # (1 + 1)^2 for either feature
    tensor(7.9999)

    Reference: Zbontar et al. 2021.
    """

    def __init__(self, *, weight: float = 0.005, **options: Unpack[ContrastOptions]) -> None:
        super().__init__(**options)
        _require_weight("weight", weight)
        self.weight = weight

    def loss(self, pairs: PairSet, inverse_temperature: float | Tensor) -> tuple[Tensor, None]:
        with no_autocast(pairs.views[0]):
            return barlow_twins(self._views(pairs), weight=self.weight), None
