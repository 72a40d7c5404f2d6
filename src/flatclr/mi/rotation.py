"""Undoing spirals: rows turned in some plane by an angle proportional to their norm or its square.

Such turns keep volume and norm, so they hide dependence from correlations without changing the information. They are
looked for plane by plane: with w the other variable, the covariance of turned coordinates with w at every speed comes
from two matrix products, E[cos(v r) x w^T] and E[sin(v r) x w^T], r the norm to the given power.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from flatclr.mi.arrays import Array, normal_quantile, turned
from flatclr.mi.gaussian import gaussian_nats, plug_in_bias_nats
from flatclr.mi.margins import RankNormal

_LARGEST_SPREAD = 4.0  # radians: standard deviation of the angles over the rows
_SPEEDS = 48
_LARGEST_DIM = 64
_ROUNDS = 6
_LARGEST_SEARCH = 5000  # rows
_SHORTLIST = 6
_LEAST_GAIN = 0.003  # nats


@dataclass(frozen=True)
class Turn:
    """In the plane of coordinates i and j by `speed` radians per unit of the norm's power."""

    i: int
    j: int
    speed: float


@dataclass(frozen=True)
class Spirals:
    """Turns to apply to x and to y, in their own coordinates or in normal scores."""

    x: tuple[Turn, ...] = ()
    y: tuple[Turn, ...] = ()
    margins: tuple[RankNormal, RankNormal] | None = None
    power: int = 2  # of the norm

    def __call__(self, x: Array, y: Array) -> tuple[Array, Array]:
        if not (self.x or self.y):
            return x, y
        if self.margins is not None:
            x, y = self.margins[0](x), self.margins[1](y)
        return turn_all(x, self.x, self.power), turn_all(y, self.y, self.power)


def turn_all(rows: Array, turns: tuple[Turn, ...], power: int) -> Array:
    radius = _radius(rows, power)
    for turn in turns:
        rows = turned(rows, turn.i, turn.j, turn.speed * radius)
    return rows


def _radius(rows: Array, power: int) -> Array:
    radius: Array = np.linalg.norm(rows, axis=1) ** power
    return radius


def find_spirals(x: Array, y: Array) -> Spirals:
    """The turns that make the Gaussian copula of these rows share most, if they beat chance."""
    margins = RankNormal.fit(x), RankNormal.fit(y)
    every = math.ceil(len(x) / _LARGEST_SEARCH)
    x, y = x[::every], y[::every]
    as_given, in_scores = (x, y), (margins[0](x), margins[1](y))
    best, found = gaussian_copula_nats(normal_scores(x), normal_scores(y)), Spirals()
    for power in (2, 1):
        for rows, used in ((as_given, None), (in_scores, margins)):
            value, turns_x, turns_y = _search(*rows, power)
            if value > best:
                best, found = value, Spirals(turns_x, turns_y, used, power)
    return found


def _search(x: Array, y: Array, power: int) -> tuple[float, tuple[Turn, ...], tuple[Turn, ...]]:
    """(Gaussian information, turns of x, turns of y), one turn at a time, x and y by turns, while they help."""
    rows = [x, y]
    turns: list[tuple[Turn, ...]] = [(), ()]
    best = gaussian_copula_nats(normal_scores(x), normal_scores(y))
    idle = 0
    for step in range(2 * _ROUNDS):
        side = step % 2
        turn, value = _best_turn(rows[side], rows[1 - side], best, power)
        candidates = 2 * _SPEEDS * math.comb(rows[side].shape[1], 2)
        if turn is not None and value - best > _LEAST_GAIN + 2 * math.log(max(candidates, 2)) / len(x):
            rows[side] = turn_all(rows[side], (turn,), power)
            turns[side], best, idle = (*turns[side], turn), value, 0
        else:
            idle += 1
        if idle == 2:
            break
    return best, turns[0], turns[1]


def _best_turn(own: Array, other: Array, best: float, power: int) -> tuple[Turn | None, float]:
    """The turn of `own` that makes its Gaussian copula with `other` share most, and what they then share."""
    from scipy.optimize import minimize_scalar

    if not 2 <= own.shape[1] <= _LARGEST_DIM:
        return None, best
    radius = _radius(own, power)
    step = _LARGEST_SPREAD / _SPEEDS / max(float(radius.std()), 1e-300)
    scores_own, scores_other = normal_scores(own), normal_scores(other)

    def value(i: int, j: int, speed: float) -> float:
        scores = scores_own.copy()
        scores[:, [i, j]] = normal_scores(turned(own[:, [i, j]], 0, 1, speed * radius))
        return gaussian_copula_nats(scores, scores_other)

    i, j, speed = max(_shortlist(own, other, radius, step), key=lambda candidate: value(*candidate))
    refined = minimize_scalar(
        lambda v: -value(i, j, v), bounds=(speed - step, speed + step), method="bounded", options={"xatol": step / 20}
    )
    return Turn(i, j, float(refined.x)), -float(refined.fun)


def _shortlist(own: Array, other: Array, radius: Array, step: float) -> list[tuple[int, int, float]]:
    """The planes and speeds that add most to the squared covariances with the other variable.

    Rows may turn about the origin or, if shifted since, about their mean: both are looked at.
    """
    deviation = own.std(0)
    scaled = own / np.where(deviation > 0, deviation, 1.0)
    found = [_planes(centred, other, radius, step) for centred in (scaled, scaled - scaled.mean(0))]
    return found[0] + found[1]


def _planes(scaled: Array, other: Array, radius: Array, step: float) -> list[tuple[int, int, float]]:
    white = _whitened(other)
    upper = np.triu_indices(scaled.shape[1], 1)

    def shared(speed: float) -> Array:
        """|cos_i - sin_j|^2 + |sin_i + cos_j|^2 of every plane, cos = E[cos(v r) x w^T], sin = E[sin(v r) x w^T]."""
        angle = speed * (radius - radius.mean())
        cos = (scaled * np.cos(angle)[:, None]).T @ white / len(scaled)
        sin = (scaled * np.sin(angle)[:, None]).T @ white / len(scaled)
        length, across = (cos**2 + sin**2).sum(1), sin @ cos.T
        plane: Array = (length[:, None] + length[None, :] + 2 * (across - across.T))[upper]
        return plane

    speeds = step * np.array([m for m in range(-_SPEEDS, _SPEEDS + 1) if m != 0])
    gains_VP = np.stack([shared(v) for v in speeds]) - shared(0.0)
    fastest_P = gains_VP.argmax(0)
    planes = np.argsort(gains_VP.max(0))[-_SHORTLIST:]
    return [(int(upper[0][p]), int(upper[1][p]), float(speeds[fastest_P[p]])) for p in planes]


def _whitened(rows: Array) -> Array:
    centred = rows - rows.mean(0)
    covariance = centred.T @ centred / len(rows)
    white: Array = np.linalg.solve(np.linalg.cholesky(covariance + 1e-9 * np.eye(len(covariance))), centred.T).T
    return white


def normal_scores(rows: Array) -> Array:
    """Normal quantiles of each column's ranks."""
    table = normal_quantile(np.arange(1, len(rows) + 1) / (len(rows) + 1))
    scores = np.empty_like(rows)
    for column, order in enumerate(np.argsort(rows, axis=0).T):
        scores[order, column] = table
    return scores


def gaussian_copula_nats(z_x: Array, z_y: Array) -> float:
    """Bias-corrected information of Gaussian normal scores."""
    covariance = np.cov(np.hstack([z_x, z_y]), rowvar=False)
    dim_x, dim_y = z_x.shape[1], z_y.shape[1]
    return gaussian_nats(covariance, dim_x) - plug_in_bias_nats(len(z_x), dim_x, dim_y)
