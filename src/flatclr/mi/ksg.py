"""Nearest-neighbour estimators of mutual information (Kraskov et al. 2004; Gao et al. 2017): one value per row.

Their mean is the estimate. Neighbours are found by scipy's k-d trees in the maximum norm.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flatclr.checks import require_count
from flatclr.mi.tasks import Array


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
    """
    from scipy.special import digamma

    distance, _ = _neighbours(x, y, k)
    radius = distance[:, -1]
    tied = radius == 0
    same_place = np.full(len(x), k)
    if tied.any():
        same_place[tied] = _others_within(np.hstack([x, y]), np.zeros(len(x)))[tied] + 1
    inside = np.where(tied, 0, np.nextafter(radius, 0))
    n_x, n_y = _others_within(x, inside) + 1, _others_within(y, inside) + 1
    terms: Array = digamma(same_place) + np.log(len(x)) - digamma(n_x) - digamma(n_y)
    return terms


def ceiling_nats(name: str, rows: int, k: int) -> float:
    """The most an estimator can say of so many rows: at least k of them are as near along x and along y."""
    from scipy.special import digamma

    if name == "mixed_ksg":
        return float(np.log(rows) - digamma(k))
    return float(digamma(rows) - digamma(k) - (1 / k if name == "ksg2" else 0.0))


def _neighbours(x: Array, y: Array, k: int) -> tuple[Array, NDArray[np.intp]]:
    """Distances to and rows of the k nearest others in the joint space."""
    from scipy.spatial import cKDTree

    require_count("k", k, at_most=len(x) - 1, advice="3 to 10 are usual.")
    joint = np.hstack([x, y])
    distance, rows = cKDTree(joint).query(joint, k=k + 1, p=np.inf)
    return distance[:, 1:], rows[:, 1:]


def _others_within(rows: Array, radius: Array) -> NDArray[np.intp]:
    """How many other rows lie at most `radius` away; a tree compares differences, which a sorted column would round."""
    from scipy.spatial import cKDTree

    others: NDArray[np.intp] = cKDTree(rows).query_ball_point(rows, radius, p=np.inf, return_length=True) - 1
    return others
