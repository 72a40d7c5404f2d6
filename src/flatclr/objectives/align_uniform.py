"""Alignment and uniformity on the sphere (Wang & Isola 2020)."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from flatclr.checks import require_number
from flatclr.contrast import ContrastOptions, ContrastStats, PairSet, Phi, stats_of
from flatclr.contrast.numerics import alignment
from flatclr.objectives.base import Objective, Traits, register, require_sphere


def pair_alignment(pairs: PairSet, alpha: float = 2.0) -> Tensor:
    """Distance of every sample's views on the sphere, averaged over the pairs of views that are positives.

        mean over pairs of views of ||x - y||^alpha

    Args:
        pairs: the batch.
        alpha: exponent of the distance.

    Returns:
        [N], one value per sample.

    >>> pair_alignment(flatclr.PairSet.of(torch.eye(2), torch.eye(2)))
    tensor([0., 0.])
    """
    views = pairs.stack.chunk(pairs.layout.views)
    meeting = sorted({(min(g.view, p), max(g.view, p)) for g in pairs.layout.groups for p in g.positives})
    of_pairs = [alignment(views[v], views[w], alpha) for v, w in meeting]
    return pairs.of_all_ranks(of_pairs[0] if len(of_pairs) == 1 else torch.stack(of_pairs).mean(0))


def positive_alignment(pairs: PairSet, alpha: float = 2.0) -> Tensor:
    """||x - y||^alpha averaged over the positives of every anchor, those of its label too: [A]."""
    half = alpha / 2

    def squared(cosine: Tensor) -> Tensor:
        return (2 - 2 * cosine).clamp_min(torch.finfo(cosine.dtype).tiny)

    def slope(cosine: Tensor) -> Tensor:  # none at distance 0, where a power below 2 has no finite one
        return torch.where(cosine < 1, -alpha * squared(cosine) ** (half - 1), 0.0)

    distance = Phi("distance", lambda c: squared(c) ** half, slope)
    return pairs.mean_positive(distance, 1.0)


def uniformity(stats: ContrastStats, t: float, views: int) -> Tensor:
    """Uniformity from stats: the log mean Gaussian potential of the negatives, averaged over groups of anchors.

        log mean_{i != j} exp(-t ||x_i - x_j||^2)

    On the sphere -t ||x - y||^2 = 2 t <x, y> - 2 t, so it is the log-sum-exp at another scale. A group none of whose
    anchors has a negative is left out.

    Args:
        stats: at inverse temperature 2 t.
        t: of the potential.
        views: how many groups the anchors are in; with the pairing "within" a group is a view.

    Returns:
        A scalar.

    >>> z = torch.eye(2)
    >>> uniformity(flatclr.contrast_stats(z, z, inverse_temperature=4.0, pairing="within"), t=2.0, views=2)
    tensor(-4.)

    Reference: Wang & Isola 2020.
    """
    of_groups = stats.log_partition_of_groups(views)
    if stats.counted is None:
        return of_groups.mean() - 2 * t
    some = stats.counted.view(views, -1).any(1)
    return of_groups.masked_fill(~some, 0.0).sum() / some.sum() - 2 * t


@register("align_uniform", Traits("alignment plus uniformity", temperature=None, pairing="within"))
class AlignUniform(Objective):
    """Alignment plus uniformity on the sphere.

        align_weight E ||x - y||^alpha + uniform_weight log E exp(-t ||x - x'||^2)

    Args:
        alpha: exponent of the distance of positives.
        t: of the Gaussian potential of negatives, which takes the place of a temperature.
        align_weight: of the first term.
        uniform_weight: of the second term.
        options: those of `flatclr.Objective`; the pairing is "within" by default.

    >>> z = torch.eye(2)
    >>> AlignUniform()(z, z)  # uniformity of orthogonal points is -2 t
    tensor(-4.)

    Reference: Wang & Isola 2020.
    """

    def __init__(
        self,
        *,
        alpha: float = 2.0,
        t: float = 2.0,
        align_weight: float = 1.0,
        uniform_weight: float = 1.0,
        **options: Unpack[ContrastOptions],
    ) -> None:
        require_number("alpha", alpha, above=0)
        require_number("t", t, above=0)
        require_number("align_weight", align_weight)
        require_number("uniform_weight", uniform_weight)
        self._require_known(options)
        require_sphere("AlignUniform", options)
        super().__init__(1 / (2 * t), **options)
        self.alpha, self.t, self.align_weight, self.uniform_weight = alpha, t, align_weight, uniform_weight

    def loss(self, pairs: PairSet, inverse_temperature: float | Tensor) -> tuple[Tensor, ContrastStats]:
        stats = stats_of(pairs, inverse_temperature)
        if pairs.counts_differ:
            aligned = stats.mean(positive_alignment(pairs, self.alpha))
        else:
            aligned = pair_alignment(pairs, self.alpha).mean()
        uniform = uniformity(stats, self.t, len(pairs.layout.groups))
        return self.align_weight * aligned + self.uniform_weight * uniform, stats
