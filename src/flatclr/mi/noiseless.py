"""Continuous variables that determine each other share unlimited information, which no finite number should hide."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from flatclr.mi.arrays import Array, Integers, level_numbers
from flatclr.mi.columns import is_tied
from flatclr.mi.margins import RankNormal

_SAME = 1e-10  # 1 - rho^2 of a canonical correlation that counts as 1: 11.5 nats of one pair
_THINNED = 4  # a reading of all rows is compared with one of a fourth of them
_RISING = 0.5  # of ln 4, which is what a reading without noise rises by
_FEWEST_ROWS, _MOST_ROWS = 200, 2000  # of a level, for a function to be sought, and of all that are looked at
_FEWEST_ROWS_OF_TWO = 800  # for a function of two columns, whose neighbours are further; of more, none is sought
_FALLING = 0.6  # of the power of the rows that residuals of a smooth function fall with
_NEAR = 0.1  # of a standard deviation: what may be left at most
_TRIES = 2  # at random halves of the rows
_DRAW = 0x4A1F  # keeps the order of the rows from repeating a user's


def exact_relation(x: Array, y: Array) -> str:
    """What ties x and y without noise, if something does: a column in common, up to a monotone map, or a linear law.

    >>> v = np.random.default_rng(0).normal(size=(100, 2))
    >>> exact_relation(v, np.exp(v[:, :1])), exact_relation(v, v.sum(1, keepdims=True))
    ('a column in common', 'a linear combination in common')
    >>> exact_relation(v[:, :1], v[:, 1:])
    ''
    """
    x, y = _untied(x), _untied(y)
    if 0 in (x.shape[1], y.shape[1]):
        return ""
    if not _orders(x).isdisjoint(_orders(y)):
        return "a column in common"
    if len(x) <= x.shape[1] + y.shape[1] + 1:
        return ""
    basis_x, basis_y = (np.linalg.qr(_standard(v))[0] for v in (x, y))
    # 1 - rho^2 is read from what one basis leaves of the other: rho itself has not the digits
    left = basis_x - basis_y @ (basis_y.T @ basis_x)
    return "a linear combination in common" if np.linalg.svd(left, compute_uv=False)[-1] ** 2 < _SAME else ""


def keeps_rising(nats: float, thinned_nats: float, error: float) -> bool:
    """Whether a neighbour reading of all rows exceeds that of a fourth of them as it does where there is no noise.

    Without noise neighbours get ever nearer, and the reading grows like the logarithm of the rows.

    >>> keeps_rising(3.9, 2.6, error=0.1), keeps_rising(1.0, 0.9, error=0.05)
    (True, False)
    """
    return nats - thinned_nats - error > _RISING * math.log(_THINNED)


def function_found(x: Array, y: Array) -> bool:
    """Whether a continuous column looks like a function of those of the other variable, within its levels or without.

    A column alone, or two together, may determine it. What other columns there are hides nothing, as information never
    falls with more of them.

    >>> a, noise = np.random.default_rng(0).normal(size=(2, 400, 1))
    >>> function_found(a, np.hstack([a**2, noise])), function_found(a, a**2 + 0.01 * noise)
    (True, False)
    """
    if len(x) < _FEWEST_ROWS:
        return False
    drawn = np.random.default_rng([len(x), _DRAW]).permutation(len(x))[:_MOST_ROWS]
    x, y = x[drawn], y[drawn]
    return _determines(x, y) or _determines(y, x)


def _determines(x: Array, y: Array) -> bool:
    """Whether a continuous column of y looks like a function of those of x; the rows are in random order."""
    levels = level_numbers(x[:, [is_tied(column) for column in x.T]])
    x, y = _untied(x), _untied(y)
    if 0 in (x.shape[1], y.shape[1]):
        return False
    scores_x, scores_y = (RankNormal.fit(v, smooth=True)(v) for v in (x, y))
    columns = [([i], _FEWEST_ROWS) for i in range(x.shape[1])]
    if x.shape[1] == 2:
        columns.append(([0, 1], _FEWEST_ROWS_OF_TWO))
    within = [np.zeros_like(levels), levels] if levels.any() else [levels]
    return any(
        _both_fall((x[:, i], y), (scores_x[:, i], scores_y), each)
        for i, fewest in columns
        for each in within
        if fewest * (each.max() + 1) <= len(x)
    )


def _both_fall(rows: tuple[Array, Array], scores: tuple[Array, Array], levels: Integers) -> bool:
    """Whether a column falls as it is and with normal margins: a noisy law may be straight in one of them alone."""
    found = _falls(*scores, levels)
    return bool(found.any() and (found & _falls(_standard(rows[0]), _standard(rows[1]), levels)).any())


def _falls(x: Array, y: Array, levels: Integers) -> NDArray[np.bool_]:
    """Of each column of y, whether what x leaves of it is little and falls with the rows as without noise.

    A smooth function of d columns is straight up to the square of the distance of neighbours: n^(-2 / d).
    """
    whole = _left(x, y, levels)
    parts = [part for i in range(_TRIES) for part in np.array_split(np.roll(np.arange(len(x)), i * len(x) // 4), 2)]
    halves = np.mean([np.log2(_left(x[part], y[part], levels[part])) for part in parts], 0)
    falls = halves - np.log2(whole) > _FALLING * 2 / x.shape[1]
    found: NDArray[np.bool_] = (whole < _NEAR) & falls | (whole < math.sqrt(_SAME))
    return found


def _left(x: Array, y: Array, levels: Integers) -> Array:
    """The median distance of the columns of y from straight pieces through the nearest rows of the same level."""
    of_levels = [levels == level for level in np.unique(levels)]
    left = [_off_straight(x[rows], y[rows]) for rows in of_levels if rows.sum() > 2 * (x.shape[1] + 1)]
    medians: Array = np.median(np.concatenate(left), 0) + np.finfo(float).eps
    return medians


def _off_straight(x: Array, y: Array) -> Array:
    """How far each y is from the plane through twice as many nearest rows as a plane needs."""
    from scipy.spatial import cKDTree

    near = cKDTree(x).query(x, k=1 + 2 * (x.shape[1] + 1))[1][:, 1:]
    steps = x[near] - x[:, None]
    steps /= np.abs(steps).max((1, 2), keepdims=True) + np.finfo(float).tiny
    planes = np.concatenate([np.ones((*near.shape, 1)), steps], 2)
    weights = np.linalg.pinv(planes)[:, 0]
    off: Array = np.abs(np.einsum("nk,nkd->nd", weights, y[near]) - y)
    return off


def _untied(rows: Array) -> Array:
    return rows[:, [not is_tied(column) for column in rows.T]]


def _orders(rows: Array) -> set[bytes]:
    """The order of the rows along each column, and its reverse."""
    ascending = [np.argsort(column, kind="stable") for column in rows.T]
    return {order.tobytes() for each in ascending for order in (each, each[::-1])}


def _standard(rows: Array) -> Array:
    centred = rows - rows.mean(0)
    scaled: Array = centred / centred.std(0)
    return scaled
