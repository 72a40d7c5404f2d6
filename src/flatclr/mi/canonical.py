"""The few directions in which x and y correlate: what lies in them is read more sharply than in all columns.

I(A x; B y) <= I(x; y) for any A and B, so that nothing is added; what does not correlate is lost.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from flatclr.mi.arrays import Array
from flatclr.mi.copula import Copula
from flatclr.mi.gaussian import canonical_correlations, whitened_cross

_MOST_PAIRS = 2  # so that neighbours are near
_BEYOND_CHANCE = 2.0  # over sqrt(rows), above the largest correlation that chance gives


@dataclass(frozen=True)
class CanonicalColumns:
    """Scores of a copula, projected on the directions that correlate most."""

    copula: Copula
    directions_x: Array  # [d_x, pairs]
    directions_y: Array

    @classmethod
    def of(cls, copula: Copula, pairs: int) -> CanonicalColumns:
        """The pairs of directions that correlate most."""
        root_x, root_y, whitened = whitened_cross(copula.correlation, copula.dim_x)
        left, _, right = np.linalg.svd(whitened, full_matrices=False)
        return cls(copula, np.linalg.solve(root_x.T, left[:, :pairs]), np.linalg.solve(root_y.T, right[:pairs].T))

    def __call__(self, x: Array, y: Array) -> tuple[Array, Array]:
        z_x, z_y = self.copula.scores(x, y)
        return z_x @ self.directions_x, z_y @ self.directions_y


def correlating_pairs(copula: Copula) -> int:
    """How many pairs of directions correlate beyond chance; 0 where reading in them would save no columns.

    Neighbours are near in two pairs at most.
    """
    correlations = canonical_correlations(copula.correlation, copula.dim_x)
    pairs = int((correlations > largest_by_chance(copula.rows, copula.dim_x, copula.dim_y)).sum())
    return pairs if pairs <= _MOST_PAIRS and 2 * pairs < len(copula.correlation) else 0


def largest_by_chance(rows: int, dim_x: int, dim_y: int) -> float:
    """What the largest canonical correlation of columns that share nothing is seldom above.

    The edge of their limiting law (Wachter 1980), and a margin.

    >>> round(largest_by_chance(5000, 25, 25), 3)
    0.169
    """
    p, q = min(dim_x / rows, 1.0), min(dim_y / rows, 1.0)
    return math.sqrt(p * (1 - q)) + math.sqrt(q * (1 - p)) + _BEYOND_CHANCE / math.sqrt(rows)
