"""How close the mini-batch bound is to the most it can say."""

from __future__ import annotations

from torch import Tensor

from flatclr.contrast import ContrastStats


def saturation(stats: ContrastStats) -> Tensor:
    """InfoNCE's bound over its ceiling; near 1 the batch cannot tell a good encoder from a better one.

        1 - loss / log(K + 1)

    It is read from the loss alone, so it means as much where labels or hard negatives choose the negatives and there is
    no bound.

    Args:
        stats: of the batch.

    Returns:
        A scalar of at most 1; negative where positives score below the negatives.

    >>> saturation(flatclr.stats_from_scores(100 * torch.eye(8)))
    tensor(1.)
    """
    if not isinstance(stats, ContrastStats):
        raise TypeError(
            f"stats must be ContrastStats, got {type(stats).__name__}; take them from objective.with_stats or "
            "contrast_stats."
        )
    ceiling = stats.ceiling_nats
    return (ceiling - stats.mean(stats.info_nce)) / ceiling
