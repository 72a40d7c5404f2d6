"""Finding samples of the same class among all others by cosine similarity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from flatclr.checks import require_class_numbers, require_matrix
from flatclr.contrast.numerics import unit_rows

ENTRIES_AT_ONCE = 2**23
RANKS = (1, 5, 10)


@dataclass(frozen=True)
class Retrieval:
    """What `retrieve` found of every query; a query whose class has no other member is left out.

    Args:
        recall_NK: whether one of the first k samples is of the query's class, k as in `ranks`.
        average_precision_N: of the query.
    """

    recall_NK: Tensor  # whether one of the first k is of its class, k as in `ranks`
    average_precision_N: Tensor


@torch.no_grad()
def retrieve(features: Tensor, labels: Tensor, *, ranks: Sequence[int] = RANKS) -> Retrieval:
    """Every sample asks for its class among all the others, by cosine similarity.

    Args:
        features: [N, d].
        labels: class numbers [N].
        ranks: numbers of nearest samples among which one of the class is looked for.

    Returns:
        Recalls and average precision of every query whose class has another member.

    >>> retrieve(torch.eye(2)[[0, 0, 1, 1]], torch.tensor([0, 0, 1, 1])).average_precision_N
    tensor([1., 1., 1., 1.])
    """
    require_matrix("features", features)
    require_class_numbers("labels", labels, len(features))
    unit_Nd = unit_rows(features.float())
    answerable = (torch.bincount(labels)[labels] > 1).nonzero()[:, 0]
    if len(answerable) == 0:
        raise ValueError("retrieval must have a class with two test images, got none; add images.")
    position_M = torch.arange(1, len(labels), device=labels.device)
    recall, precision = [], []
    for rows in answerable.split(max(1, ENTRIES_AT_ONCE // len(labels))):
        cosine = unit_Nd[rows] @ unit_Nd.T
        cosine.scatter_(1, rows.unsqueeze(1), -torch.inf)  # a sample does not find itself: it comes last
        order = cosine.argsort(dim=1, descending=True)[:, :-1]
        relevant = labels[order] == labels[rows].unsqueeze(1)
        found = relevant.cumsum(1)
        recall.append(torch.stack([found[:, min(k, len(position_M)) - 1] > 0 for k in ranks], 1))
        precision.append((relevant * found / position_M).sum(1) / found[:, -1])
    return Retrieval(torch.cat(recall), torch.cat(precision))
