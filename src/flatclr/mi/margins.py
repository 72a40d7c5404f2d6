"""Normal margins: monotone maps of single coordinates change no information, so all can be made normal."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flatclr.mi.arrays import Array, normal_cdf, normal_quantile

_TAIL = 0.1  # slope of the logarithm beyond the outermost training rows
_ROWS_PER_KNOT = 20
_UNTIED = 0.95  # share of distinct values
_KNOTS = (8, 64)  # fewest and most of a column without ties


@dataclass(frozen=True)
class RankNormal:
    """A strictly increasing map per coordinate that makes the rows it was fitted to standard normal.

    Through all of its values the map depends on ranks only, so that no monotone map of a column changes the scores. But
    ranks add noise of their own, which hides strong dependence: 10 nats of a normal pair read 8.4 from 10,000 ranks. A
    smooth map, through few quantiles of a column without ties, does not.

    >>> import numpy as np
    >>> rows = np.exp(np.random.default_rng(0).normal(size=(999, 1)))
    >>> z = RankNormal.fit(rows)(rows)
    >>> bool(abs(z.mean()) < 1e-12), bool(0.98 < z.std() < 1)
    (True, True)
    >>> bool(abs(RankNormal.fit(rows, smooth=True)(rows) - z).max() < 0.1)
    True
    """

    knots: tuple[Array, ...]  # values of each coordinate, ascending
    scores: tuple[Array, ...]  # their normal scores; ties share the score of their middle rank
    smooth: bool = False

    @classmethod
    def fit(cls, rows_Nd: Array, *, smooth: bool = False) -> RankNormal:
        fitted = [_knots_of(column, smooth) for column in rows_Nd.T]
        return cls(tuple(knots for knots, _ in fitted), tuple(scores for _, scores in fitted), smooth)

    def __call__(self, rows_Nd: Array) -> Array:
        columns = [_interpolate(*each, self.smooth) for each in zip(rows_Nd.T, self.knots, self.scores, strict=True)]
        return np.stack(columns, axis=1)


def _knots_of(column: Array, smooth: bool) -> tuple[Array, Array]:
    """Every distinct value, or quantiles at equal steps of the normal score."""
    values, counts = np.unique(column, return_counts=True)
    rows = len(column)
    wanted = int(np.clip(rows // _ROWS_PER_KNOT, *_KNOTS))
    if not smooth or len(values) < _UNTIED * rows or rows <= wanted:
        middle = np.cumsum(counts) - (counts - 1) / 2
        return values, normal_quantile(middle / (rows + 1))
    furthest = float(normal_quantile(np.array([rows / (rows + 1)]))[0])
    scores = np.linspace(-furthest, furthest, wanted)
    quantiles = np.interp(normal_cdf(scores) * (rows + 1), np.arange(1, rows + 1), np.sort(column))
    knots, first = np.unique(quantiles, return_index=True)
    return knots, scores[first]


def _interpolate(values: Array, knots: Array, scores: Array, smooth: bool) -> Array:
    """Straight or smooth between knots, a slow logarithm beyond: an outlier stays an outlier but does not rule."""
    inside = np.clip(values, knots[0], knots[-1])
    out = _monotone_cubic(inside, knots, scores) if smooth else np.interp(inside, knots, scores)
    scale = max(float(knots[-1] - knots[0]), np.finfo(float).tiny)
    out += _TAIL * np.log1p(np.maximum(values - knots[-1], 0) / scale)
    out -= _TAIL * np.log1p(np.maximum(knots[0] - values, 0) / scale)
    return out


def _monotone_cubic(values: Array, knots: Array, scores: Array) -> Array:
    """The cubic Hermite curve through strictly ascending knots and scores that is itself ascending.

    The slope at a knot is the harmonic mean of its neighbours' (Fritsch & Butland 1984), at the ends the chord's.
    """
    if len(knots) < 3:
        return np.interp(values, knots, scores)
    width, chord = np.diff(knots), np.diff(scores) / np.diff(knots)
    weight = (width[:-1] + 2 * width[1:]) / (3 * (width[:-1] + width[1:]))
    inner = chord[:-1] * chord[1:] / (weight * chord[1:] + (1 - weight) * chord[:-1])
    slope = np.concatenate([chord[:1], inner, chord[-1:]])
    left = np.clip(np.searchsorted(knots, values, side="right") - 1, 0, len(width) - 1)
    t = (values - knots[left]) / width[left]
    rise = width[left]
    out: Array = (
        (1 + 2 * t) * (1 - t) ** 2 * scores[left]
        + t**2 * (3 - 2 * t) * scores[left + 1]
        + t * (1 - t) ** 2 * rise * slope[left]
        - t**2 * (1 - t) * rise * slope[left + 1]
    )
    return out
