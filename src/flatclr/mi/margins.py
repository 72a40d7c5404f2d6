"""Rank-normalised margins: monotone maps of single coordinates change no information, so all can be made normal."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flatclr.mi.arrays import Array, normal_quantile

_TAIL = 0.1  # slope of the logarithm beyond the outermost training rows


@dataclass(frozen=True)
class RankNormal:
    """A strictly increasing map per coordinate that makes the rows it was fitted to standard normal.

    >>> import numpy as np
    >>> rows = np.exp(np.random.default_rng(0).normal(size=(999, 1)))
    >>> z = RankNormal.fit(rows)(rows)
    >>> bool(abs(z.mean()) < 1e-12), bool(0.98 < z.std() < 1)
    (True, True)
    """

    knots: tuple[Array, ...]  # distinct values of each coordinate, ascending
    scores: tuple[Array, ...]  # their normal scores; ties share the score of their middle rank

    @classmethod
    def fit(cls, rows_Nd: Array) -> RankNormal:
        knots, scores = [], []
        for column in rows_Nd.T:
            values, counts = np.unique(column, return_counts=True)
            middle = np.cumsum(counts) - (counts - 1) / 2
            knots.append(values)
            scores.append(normal_quantile(middle / (len(column) + 1)))
        return cls(tuple(knots), tuple(scores))

    def __call__(self, rows_Nd: Array) -> Array:
        columns = [_interpolate(*each) for each in zip(rows_Nd.T, self.knots, self.scores, strict=True)]
        return np.stack(columns, axis=1)


def _interpolate(values: Array, knots: Array, scores: Array) -> Array:
    """Straight between the knots, and a slow logarithm beyond them: an outlier stays an outlier but does not rule."""
    out: Array = np.interp(values, knots, scores)
    scale = max(float(knots[-1] - knots[0]), np.finfo(float).tiny)
    out += _TAIL * np.log1p(np.maximum(values - knots[-1], 0) / scale)
    out -= _TAIL * np.log1p(np.maximum(knots[0] - values, 0) / scale)
    return out
