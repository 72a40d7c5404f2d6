"""How close the mini-batch bound is to the most it can say."""

from __future__ import annotations

from torch import Tensor

from flatclr.contrast import ContrastStats


def saturation(stats: ContrastStats) -> Tensor:
    """InfoNCE bound over its ceiling log(K + 1). Near 1 the batch cannot tell a good encoder from a better one.

    >>> saturation(flatclr.stats_from_scores(100 * torch.eye(8)))
    tensor(1.)
    """
    return stats.mi_nats / stats.ceiling_nats
