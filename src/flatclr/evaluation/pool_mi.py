"""Mutual information between two views, against a pool of negatives."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from flatclr.checks import require_number, require_views
from flatclr.contrast import ContrastStats, contrast_stats

POOL_BETAS = (2.0, 4.0, 8.0, 16.0, 32.0, 64.0)


def pool_mi_nats(z_a: Tensor, z_b: Tensor, *, beta: float, chooses: Tensor | None = None) -> dict[str, float]:
    """InfoNCE's bound with all other samples as negatives: what the encoder really shares between the views.

    Args:
        z_a, z_b: embeddings of two views of the same samples, [N, d] each.
        beta: the inverse temperature.
        chooses: bool [N], the samples that choose the best inverse temperature; every second one unless given.

    Returns:
        `pool_mi_nats` is the bound at `beta`. `pool_best_beta` is chosen on the samples that `chooses` marks, in a pool
        of these alone, and `pool_mi_best_nats` is the bound at it over the other samples, against the whole pool: the
        choice cannot flatter the anchors it is read on. `pool_ceiling_nats` is the most either can say.

    >>> z = torch.nn.functional.one_hot(torch.arange(8)).float()
    >>> round(pool_mi_nats(z, z, beta=32.0)["pool_mi_nats"], 4), round(math.log(8), 4)
    (2.0794, 2.0794)
    """
    require_views((z_a, z_b), None)
    require_number("beta", beta, above=0)
    if len(z_a) < 4:
        raise ValueError(f"a pool must have at least 4 samples, got {len(z_a)}; halves of 1 have no negatives.")
    if chooses is None:
        chooses = torch.arange(len(z_a), device=z_a.device) % 2 == 0
    a, b = z_a[chooses], z_b[chooses]
    best = max((*POOL_BETAS, beta), key=lambda tried: _stats(a, b, tried).mi_nats.item())
    ceiling = math.log(len(z_a))
    return {
        "pool_mi_nats": _stats(z_a, z_b, beta).mi_nats.item(),
        "pool_mi_best_nats": ceiling - _stats(z_a, z_b, best).info_nce[~chooses].mean().item(),
        "pool_ceiling_nats": ceiling,
        "pool_best_beta": best,
    }


def both_ways_mi_nats(z_a: Tensor, z_b: Tensor, *, beta: float) -> float:
    """InfoNCE's bound with every sample of both views as an anchor, so that as little as can be is left to chance.

    Args:
        z_a, z_b: embeddings of two views of the same samples, [N, d] each.
        beta: the inverse temperature.

    Returns:
        Nats, at most log N.

    >>> round(both_ways_mi_nats(torch.eye(8), torch.eye(8), beta=64.0), 4)
    2.0794
    """
    return (_stats(z_a, z_b, beta).mi_nats.item() + _stats(z_b, z_a, beta).mi_nats.item()) / 2


@torch.no_grad()
def _stats(z_a: Tensor, z_b: Tensor, beta: float) -> ContrastStats:
    return contrast_stats(z_a, z_b, inverse_temperature=beta, pairing="one_way")
