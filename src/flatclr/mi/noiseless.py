"""Continuous variables that determine each other share unlimited information, which no finite number should hide."""

from __future__ import annotations

import math

import numpy as np

from flatclr.mi.arrays import Array
from flatclr.mi.columns import is_tied

_SAME = 1e-10  # 1 - rho^2 of a canonical correlation that counts as 1: 11.5 nats of one pair
_THINNED = 4  # a reading of all rows is compared with one of a fourth of them
_RISING = 0.5  # of ln 4, which is what a reading without noise rises by


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
