"""Alignment and uniformity on the sphere (Wang & Isola 2020)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from flatclr.contrast import ContrastStats, PairSet
from flatclr.contrast.numerics import alignment


def pair_alignment(pairs: PairSet, alpha: float = 2.0) -> Tensor:
    """||x - y||^alpha of every sample's two views on the sphere, over all ranks: [N].

    >>> pair_alignment(flatclr.PairSet.of(torch.eye(2), torch.eye(2)))
    tensor([0., 0.])
    """
    view_a, view_b = pairs.stack.chunk(2)
    return pairs.of_all_ranks(alignment(view_a, view_b, alpha))


def uniformity(stats: ContrastStats, t: float, views: int) -> Tensor:
    """log mean_{i != j} exp(-t ||x_i - x_j||^2) within each anchor view, averaged over the views.

    On the sphere -t ||x - y||^2 = 2 t <x, y> - 2 t, so `stats` are those at inverse temperature 2 t.
    """
    logsumexp_Vn = stats.negative_logsumexp.view(views, -1)
    pairs_per_view = logsumexp_Vn.shape[1] * stats.negatives
    return (torch.logsumexp(logsumexp_Vn, dim=1) - math.log(pairs_per_view)).mean() - 2 * t
