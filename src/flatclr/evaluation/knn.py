"""Nearest-neighbour accuracy on frozen features."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from flatclr.checks import require_class_numbers, require_count, require_matrix, require_number
from flatclr.contrast.numerics import unit_rows
from flatclr.data.arrays import MOST_CLASSES

ENTRIES_AT_ONCE = 2**24
LARGE_BANK = 20_000


def neighbours_for(bank: int) -> int:
    """How many neighbours vote: 200 in a large bank, 20 in a small one."""
    return 200 if bank >= LARGE_BANK else 20


@torch.no_grad()
def knn_votes(
    train_features: Tensor,
    train_labels: Tensor,
    features: Tensor,
    *,
    k: int = 200,
    temperature: float = 0.07,
    classes: int | None = None,
) -> Tensor:
    """Votes of the k nearest neighbours by cosine similarity (Wu et al. 2018).

    votes_nc = sum over the neighbours of n in class c of exp((cosine - 1) / temperature)

    Args:
        train_features, train_labels: the bank [M, d] and its class numbers [M].
        features: of the samples to classify, [N, d].
        k: neighbours that vote; all of a smaller bank.
        temperature: how much nearer neighbours count more; all count the same at infinity.
        classes: how many there are; as many as `train_labels` has unless given.

    Returns:
        Votes [N, C]. Memory is that of 2^24 similarities, however many features there are.

    >>> knn_votes(torch.eye(2), torch.tensor([0, 1]), torch.tensor([[0.0, 1.0]]), k=2, temperature=float("inf"))
    tensor([[1., 1.]])
    """
    require_matrix("train_features", train_features)
    require_matrix("features", features)
    require_class_numbers("train_labels", train_labels, len(train_features))
    require_count("k", k, advice="200 for large sets, 20 for small ones.")
    if not (isinstance(temperature, float) and temperature == math.inf):
        require_number("temperature", temperature, above=0, advice="0.07 is the published choice.")
    if features.shape[1] != train_features.shape[1]:
        raise ValueError(
            f"features must have the {train_features.shape[1]} columns of the bank, got {features.shape[1]}; embed "
            "both by one encoder."
        )
    found = int(train_labels.max()) + 1
    classes = found if classes is None or (isinstance(classes, int) and classes == 0) else classes
    require_count("classes", classes, at_least=found, at_most=MOST_CLASSES, advice="count all that the labels have.")
    k = min(k, len(train_features))
    bank, queries = unit_rows(train_features.float()), unit_rows(features.float())
    votes = []
    for part in queries.split(max(1, ENTRIES_AT_ONCE // len(bank))):
        cosine, nearest = (part @ bank.T).topk(k, dim=1)
        empty = torch.zeros(len(part), classes, device=part.device)
        votes.append(empty.scatter_add_(1, train_labels[nearest], ((cosine - 1) / float(temperature)).exp()))
    return torch.cat(votes)


def knn_predict(
    train_features: Tensor, train_labels: Tensor, features: Tensor, *, k: int = 200, temperature: float = 0.07
) -> Tensor:
    """The class of each row with the most votes.

    Args:
        train_features, train_labels, features, k, temperature: as for `knn_votes`.

    Returns:
        Class numbers [N].

    >>> knn_predict(torch.eye(2), torch.tensor([5, 7]), torch.tensor([[0.1, 1.0]]), k=1)
    tensor([7])
    """
    return knn_votes(train_features, train_labels, features, k=k, temperature=temperature).argmax(1)


def knn_accuracy(
    train_features: Tensor, train_labels: Tensor, features: Tensor, labels: Tensor, *, k: int = 200
) -> float:
    """Share of rows whose class `knn_predict` finds.

    Args:
        train_features, train_labels, features, k: as for `knn_votes`.
        labels: the true class numbers [N].

    Returns:
        A share of 1.

    >>> knn_accuracy(torch.eye(2), torch.tensor([0, 1]), torch.eye(2), torch.tensor([0, 0]), k=1)
    0.5
    """
    found = knn_predict(train_features, train_labels, features, k=k)
    require_class_numbers("labels", labels, len(found))
    return (found == labels).float().mean().item()
