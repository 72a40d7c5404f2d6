"""What several modules of `flatclr.mi` do with arrays of rows.

Shape suffixes: N rows, d columns.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]
"""Rows of numbers, [N, d] of float64."""

Integers = NDArray[np.intp]  # row numbers, level numbers, counts


def as_tensor(rows_Nd: Array) -> Tensor:
    """Rows as the float32 tensor a network is given.

    >>> as_tensor(np.ones((2, 3))).dtype
    torch.float32
    """
    return torch.from_numpy(np.ascontiguousarray(rows_Nd, dtype=np.float32))


def turned(rows_Nd: Array, i: int, j: int, angle_N: Array) -> Array:
    """Each row turned by its own angle in the plane of two coordinates.

    Args:
        rows_Nd: the rows.
        i, j: the coordinates; an angle of pi / 2 takes coordinate i to coordinate j.
        angle_N: radians.

    Returns:
        [N, d], a copy.

    >>> turned(np.array([[1.0, 0.0], [0.0, 2.0]]), 0, 1, np.full(2, np.pi / 2)).round(6).tolist()
    [[0.0, 1.0], [-2.0, 0.0]]
    """
    out = rows_Nd.copy()
    cos, sin = np.cos(angle_N), np.sin(angle_N)
    out[:, i] = cos * rows_Nd[:, i] - sin * rows_Nd[:, j]
    out[:, j] = sin * rows_Nd[:, i] + cos * rows_Nd[:, j]
    return out


def level_numbers(rows: Array | Integers) -> Integers:
    """Which of the distinct values [N], or distinct rows [N, d], each one is, in ascending order.

    >>> level_numbers(np.array([5.0, 2.0, 5.0])).tolist()
    [1, 0, 1]
    """
    if rows.ndim == 2 and rows.shape[1] == 0:
        return np.zeros(len(rows), np.intp)
    numbers: Integers = np.unique(rows, axis=0 if rows.ndim == 2 else None, return_inverse=True)[1].ravel()
    return numbers


def normal_cdf(v: Array) -> Array:
    """P(z <= v) of a standard normal z."""
    below: Array = torch.special.ndtr(torch.from_numpy(v)).numpy()
    return below


def normal_quantile(u: Array) -> Array:
    """The v with P(z <= v) = u of a standard normal z.

    >>> normal_quantile(np.array([0.5, 0.975])).round(2).tolist()
    [0.0, 1.96]
    """
    quantile: Array = torch.special.ndtri(torch.from_numpy(np.ascontiguousarray(u))).numpy()
    return quantile


def digamma(v: float) -> float:
    """psi(v) in float64; of a number, and without scipy, which is optional.

    >>> round(digamma(1.0), 4)
    -0.5772
    """
    return float(torch.digamma(torch.tensor(v, dtype=torch.float64)))
