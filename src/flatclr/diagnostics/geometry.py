"""The shape of a set of features."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from flatclr.checks import (
    refuse_transforms,
    require_matrix,
    require_number,
    require_one_of,
    require_values,
    require_views,
    unusable_rows,
)
from flatclr.contrast import contrast_stats
from flatclr.contrast.numerics import accumulation_type, unit_rows
from flatclr.contrast.numerics import alignment as alignment_per_pair
from flatclr.contrast.relation import PAIRINGS


def alignment(z_a: Tensor, z_b: Tensor, alpha: float = 2.0) -> Tensor:
    """Distance of positive pairs on the sphere.

        mean_i ||x_i - y_i||^alpha

    Args:
        z_a: embeddings of one view [N, d]; they are normalised.
        z_b: those of the other view, row by row.
        alpha: exponent of the distance.

    Returns:
        A scalar: 0 where views coincide, 2^alpha where they are antipodal.

    >>> alignment(torch.eye(2), torch.eye(2))
    tensor(0.)

    Reference: Wang & Isola 2020.
    """
    require_views((z_a, z_b), None)
    require_number("alpha", alpha, above=0)
    return alignment_per_pair(z_a, z_b, alpha).mean()


def uniformity(z: Tensor, t: float = 2.0) -> Tensor:
    """How evenly points lie on the sphere; streamed.

        log mean_{i != j} exp(-t ||x_i - x_j||^2)

    Args:
        z: embeddings [N, d]; they are normalised.
        t: of the Gaussian potential.

    Returns:
        A scalar: 0 where all points coincide, the lower the more evenly spread. At t = 2 points spread evenly have
        -1.575 on the circle and -3.938 in 128 dimensions.

    >>> uniformity(torch.eye(2))
    tensor(-4.)

    Reference: Wang & Isola 2020.
    """
    require_number("t", t, above=0)
    return contrast_stats(z, z, inverse_temperature=2 * t, pairing="one_way").log_partition - 2 * t


def effective_rank(features: Tensor) -> Tensor:
    """How many dimensions the features use: RankMe on centred features.

        exp(-sum_k q_k log q_k),  q = singular values over their sum

    Args:
        features: [N, d].

    Returns:
        A scalar between 1 and min(N - 1, d).

    >>> effective_rank(torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]))
    tensor(2.)

    Reference: Garrido et al. 2023.
    """
    refuse_transforms()
    require_matrix("features", features)
    require_values("features", features)
    problem = unusable_rows("features", features, directions=False)
    if problem is not None:
        raise ValueError(problem)
    rows = features.double()
    centred = rows - rows.mean(0)
    # their squares are those of the smaller Gram matrix, found many times faster, up to rounding of the largest
    squares = torch.linalg.eigvalsh(centred.T @ centred if len(centred) >= centred.shape[1] else centred @ centred.T)
    rounding = len(squares) * torch.finfo(squares.dtype).eps * squares.max()
    singular = torch.where(squares > rounding, squares, 0.0).sqrt()
    shares = singular / singular.sum().clamp_min(torch.finfo(singular.dtype).tiny)
    return (-torch.xlogy(shares, shares)).sum().exp().to(accumulation_type(features))


def embedding_std(z: Tensor) -> Tensor:
    """Spread of directions, over that of directions drawn at random.

        sqrt(d) mean_k std_i(x_ik),  x_i = z_i / ||z_i||

    Args:
        z: embeddings [N, d]; they are normalised.

    Returns:
        A scalar: 0 where all points coincide, about 1 where they are spread evenly.

    >>> embedding_std(torch.tensor([[1.0, 0.0], [1.0, 0.0]]))
    tensor(0.)

    Reference: Chen & He 2021.
    """
    require_matrix("z", z)
    unit = unit_rows(z.to(accumulation_type(z)))
    spread: Tensor = unit.std(0, correction=0).mean() * unit.shape[1] ** 0.5
    return spread


def collision_rate(
    labels: Tensor,
    queue_labels: Tensor | None = None,
    *,
    pairing: str = "two_view",
    in_batch_negatives: bool = True,
) -> Tensor:
    """Share of (anchor, negative) pairs that are of the same class, over the batch and the queue.

    Args:
        labels: class numbers of the samples [N].
        queue_labels: those of a queue [M].
        pairing: of the objective.
        in_batch_negatives: False counts the queue alone.

    Returns:
        A scalar in [0, 1]; about 1/C for C balanced classes.

    >>> collision_rate(torch.tensor([0, 0, 1, 1]))
    tensor(0.3333)
    """
    require_one_of("pairing", pairing, PAIRINGS)
    labels = _class_numbers("labels", labels)
    queue = labels.new_empty(0) if queue_labels is None else _class_numbers("queue_labels", queue_labels)
    views = len(PAIRINGS[pairing](2)[0].candidates) if in_batch_negatives else 0
    negatives = views * (len(labels) - 1) + len(queue)
    if negatives == 0:
        raise ValueError(
            f"every anchor must have a negative, got {len(labels)} labels and no queue; pass at least 2 labels."
        )
    classes = int(torch.cat([labels, queue]).max()) + 1
    anchors_C = torch.bincount(labels, minlength=classes).double()
    queue_C = torch.bincount(queue, minlength=classes).double()
    same = anchors_C @ (views * (anchors_C - 1) + queue_C)
    return (same / (len(labels) * negatives)).float()


def simplex_etf_distance(features: Tensor, labels: Tensor) -> Tensor:
    """How far class means are from a simplex equiangular tight frame.

        ||G - E||_F / ||E||_F,  G the Gram matrix of normalised class means, E = 1 on the diagonal, -1/(C - 1) off it

    Args:
        features: [N, d]; they are normalised.
        labels: class numbers [N] of at least 2 classes.

    Returns:
        A scalar: 0 at the arrangement that minimises the contrastive loss of C balanced, disjoint classes.

    >>> angles = 2 * torch.pi * torch.arange(3) / 3
    >>> simplex_etf_distance(torch.stack([angles.cos(), angles.sin()], 1), torch.arange(3)) < 1e-6
    tensor(True)
    """
    means_Cd = unit_rows(_class_means(features, labels)[0])
    classes = len(means_Cd)
    if classes < 2:
        raise ValueError(f"labels must hold at least 2 classes, got {classes}; one class has no simplex.")
    ideal = torch.full(
        (classes, classes), -1 / (classes - 1), dtype=means_Cd.dtype, device=means_Cd.device
    ).fill_diagonal_(1)
    distance: Tensor = torch.linalg.matrix_norm(means_Cd @ means_Cd.T - ideal) / torch.linalg.matrix_norm(ideal)
    return distance


def within_class_variance(features: Tensor, labels: Tensor) -> Tensor:
    """Mean squared distance of a normalised feature to the mean of its class.

    Args:
        features: [N, d]; they are normalised.
        labels: class numbers [N].

    Returns:
        A scalar: 0 where each class has collapsed to a point.

    >>> within_class_variance(torch.eye(2), torch.tensor([0, 0]))
    tensor(0.5000)
    """
    means_Cd, unit_Nd, members = _class_means(features, labels)
    return (unit_Nd - means_Cd[members]).square().sum(1).mean()


def _class_means(features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(means of the normalised features per class, normalised features, class of each row among those present)"""
    require_matrix("features", features)
    labels = _class_numbers("labels", labels)
    if len(labels) != len(features):
        raise ValueError(
            f"labels must be one per row of features, got {len(labels)} for {len(features)} rows; align them."
        )
    unit = unit_rows(features.to(accumulation_type(features)))
    present, members = labels.unique(return_inverse=True)
    one_hot_NC = F.one_hot(members, len(present)).to(unit.dtype)
    return (one_hot_NC.T @ unit) / one_hot_NC.sum(0).unsqueeze(1), unit, members


def _class_numbers(name: str, labels: Tensor) -> Tensor:
    if not isinstance(labels, Tensor) or labels.dim() != 1 or labels.dtype.is_floating_point or labels.dtype.is_complex:
        got = f"{labels.dtype} of shape {list(labels.shape)}" if isinstance(labels, Tensor) else type(labels).__name__
        raise TypeError(f"{name} must be a one-dimensional tensor of class numbers, got {got}; pass labels.long().")
    if len(labels) == 0 or bool((labels < 0).any()):
        raise ValueError(
            f"{name} must be non-empty class numbers >= 0, got {labels.tolist()[:5]}...; drop unlabelled rows."
        )
    return labels.long()
