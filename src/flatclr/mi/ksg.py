"""Nearest-neighbour estimators of mutual information: one value per row.

Kraskov et al. 2004 (ksg_1, ksg_2); Gao et al. 2017 (mixed_ksg); Ross 2014 (same_level_ksg). The mean is the estimate.
Neighbours are found by scipy's k-d trees in the maximum norm.
"""

from __future__ import annotations

import numpy as np

from flatclr.checks import require_count
from flatclr.mi.arrays import Array, Integers


def ksg_1(x: Array, y: Array, k: int = 3) -> Array:
    """psi(k) + psi(N) - psi(n_x + 1) - psi(n_y + 1), n counting rows strictly nearer than the k-th joint neighbour."""
    from scipy.special import digamma

    distance, _ = _neighbours(x, y, k)
    inside = np.nextafter(distance[:, -1], 0)
    n_x, n_y = _others_within(x, inside), _others_within(y, inside)
    terms: Array = digamma(k) + digamma(len(x)) - digamma(n_x + 1) - digamma(n_y + 1)
    return terms


def ksg_2(x: Array, y: Array, k: int = 3) -> Array:
    """psi(k) - 1/k + psi(N) - psi(n_x) - psi(n_y), n within the k neighbours' extent along each variable."""
    from scipy.special import digamma

    _, neighbours = _neighbours(x, y, k)
    n_x, n_y = (_others_within(v, np.abs(v[neighbours] - v[:, None]).max((1, 2))) for v in (x, y))
    terms: Array = digamma(k) - 1 / k + digamma(len(x)) - digamma(n_x) - digamma(n_y)
    return terms


def mixed_ksg(x: Array, y: Array, k: int = 3) -> Array:
    """psi(k~) + ln N - psi(n_x) - psi(n_y) for mixtures of discrete and continuous parts.

    Counts include the row itself; where the k-th neighbour is at distance 0, k~ is the number of rows in that place.
    They are strict elsewhere, as in the authors' code; the paper prints log(n + 1) of counts up to and with the radius.
    Either misreads lattices, where many rows lie exactly at the radius.
    """
    distance, _ = _neighbours(x, y, k)
    return _mixed_terms(x, y, np.full(len(x), k), distance[:, -1])


def same_level_ksg(x: Array, y: Array, x_levels: Integers, y_levels: Integers, k: int = 3) -> Array:
    """The terms of mixed_ksg where rows of other levels are infinitely far, so that no order of levels matters.

    With levels of one variable and columns of the other these are Ross' terms, with ln N for psi(N). Where a level has
    too few rows, k is all its others; rows that are alone have no term.

    >>> label = np.repeat([0, 1], 50)
    >>> y = np.random.default_rng(0).normal(size=(100, 1)) + 10 * label[:, None]
    >>> same_level_ksg(np.zeros((100, 0)), y, label, np.zeros(100, int)).mean().round(2)  # ln 2 and a little
    np.float64(0.7)
    """
    far = 1 + np.ptp(np.hstack([x, y]))
    x, y = np.column_stack([2 * far * x_levels, x]), np.column_stack([2 * far * y_levels, y])
    distance, _ = _neighbours(x, y, k)
    near = (distance < far).sum(1)
    radius = distance[np.arange(len(x)), near - 1]
    kept: Array = _mixed_terms(x, y, near, radius)[near > 0]
    return kept


def _mixed_terms(x: Array, y: Array, k: Integers, radius: Array) -> Array:
    """psi(k~) + ln N - psi(n_x) - psi(n_y) of rows whose k-th neighbour is at the radius."""
    from scipy.special import digamma

    tied = radius == 0
    if tied.any():
        k = np.where(tied, _others_within(np.hstack([x, y]), np.zeros(len(x))) + 1, k)
    inside = np.where(tied, 0, np.nextafter(radius, 0))
    n_x, n_y = _others_within(x, inside) + 1, _others_within(y, inside) + 1
    terms: Array = digamma(k) + np.log(len(x)) - digamma(n_x) - digamma(n_y)
    return terms


def ksg_1_ceiling_nats(rows: int, k: int) -> float:
    """psi(N) - psi(k), the most ksg_1 can say: at least k rows are as near along x and along y."""
    from scipy.special import digamma

    return float(digamma(rows) - digamma(k))


def ksg_2_ceiling_nats(rows: int, k: int) -> float:
    """psi(N) - psi(k) - 1/k, the most ksg_2 can say."""
    return ksg_1_ceiling_nats(rows, k) - 1 / k


def mixed_ksg_ceiling_nats(rows: int, k: int) -> float:
    """ln N - psi(k), the most mixed_ksg can say."""
    from scipy.special import digamma

    return float(np.log(rows) - digamma(k))


def _neighbours(x: Array, y: Array, k: int) -> tuple[Array, Integers]:
    """Distances to and rows of the k nearest others in the joint space."""
    from scipy.spatial import cKDTree

    require_count("k", k, at_most=len(x) - 1, advice="3 to 10 are usual.")
    joint = np.hstack([x, y])
    distance, rows = cKDTree(joint).query(joint, k=k + 1, p=np.inf)
    return distance[:, 1:], rows[:, 1:]


def _others_within(rows: Array, radius: Array) -> Integers:
    """How many other rows lie at most `radius` away; a tree compares differences, which a sorted column would round."""
    from scipy.spatial import cKDTree

    others: Integers = cKDTree(rows).query_ball_point(rows, radius, p=np.inf, return_length=True) - 1
    return others
