"""What pixels alone say: how alike images are, and whether two splits share some."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

SIDE = 16  # pixels to which images are brought; copies stay alike, and all pairs are compared in a moment
NEAR = 0.0025  # of the mean squared distance of two images: a twentieth of the usual distance
ROWS_AT_ONCE = 1024


def pixel_rows(images: Tensor) -> Tensor:
    """Images as rows of small pictures.

    Args:
        images: [N, C, H, W], uint8 or floating point.

    Returns:
        [N, C * 16 * 16], of smaller images fewer columns.

    >>> pixel_rows(torch.zeros(3, 1, 28, 28, dtype=torch.uint8)).shape
    torch.Size([3, 256])
    """
    side = min(SIDE, *images.shape[-2:])
    parts = [F.adaptive_avg_pool2d(part.float(), side).flatten(1) for part in images.split(ROWS_AT_ONCE)]
    return torch.cat(parts)


def near_duplicate_rate(rows: Tensor) -> float:
    """Share of the pairs of images that are nearly the same: how often a negative is one in truth.

    Args:
        rows: what `pixel_rows` made, [N, P].

    Returns:
        The share of all pairs i != j.

    >>> near_duplicate_rate(torch.tensor([[0.0], [0.0], [1.0], [1.0]]))
    0.3333333333333333
    """
    if len(rows) < 2:
        return 0.0
    near = sum(int(part.sum()) for part in _near(rows, rows)) - len(rows)
    return max(near, 0) / (len(rows) * (len(rows) - 1))


def overlap_rate(rows: Tensor, others: Tensor) -> float:
    """Share of the rows that have a near-duplicate among the others.

    Args:
        rows, others: what `pixel_rows` made of two splits.

    Returns:
        The share, 0 where the splits are disjoint.

    >>> overlap_rate(torch.tensor([[0.0], [3.0]]), torch.tensor([[3.0], [5.0]]))
    0.5
    """
    return torch.cat([part.any(1) for part in _near(rows, others)]).float().mean().item()


def _near(rows: Tensor, others: Tensor) -> list[Tensor]:
    typical = 2 * torch.cat([rows, others]).var(0, correction=0).sum()
    squares = others.square().sum(1)
    return [
        part.square().sum(1, keepdim=True) + squares - 2 * part @ others.T <= NEAR * typical
        for part in rows.split(ROWS_AT_ONCE)
    ]
