"""Copula models with a closed-form log density ratio: Gaussian, Student, and Gaussian after undoing a spiral.

A model is fitted to some rows and may then be asked for the log ratio of any others. Its information is the plug-in
value of the fitted parameters, corrected for the bias of fitting them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from flatclr.mi.arrays import Array
from flatclr.mi.gaussian import (
    QuadraticRatio,
    correlation_of,
    gaussian_nats,
    plug_in_bias_nats,
    shrunk_correlation,
)
from flatclr.mi.margins import RankNormal
from flatclr.mi.rotation import Spirals, find_spirals
from flatclr.mi.student import (
    likeliest_df,
    student_correlation,
    student_excess_nats,
    student_log_density,
    student_quantile,
)

_WIDE = 0.05  # coordinates per row above which the critic's correlation matrix is shrunk
_FEWEST_ROWS_PER_COLUMN = 4  # for anything but a shrunk Gaussian


@dataclass(frozen=True)
class Copula:
    """Normal scores of x and y, perhaps after undoing spirals, that are jointly Gaussian or Student."""

    spirals: Spirals
    margins_x: RankNormal
    margins_y: RankNormal
    correlation: Array
    dim_x: int
    df: float  # infinite for the Gaussian
    rows: int
    plug_in_nats: float  # information of the fitted copula, less what fitting its correlations adds on average
    plain_correlation: Array  # not shrunk, where there are rows enough: what the plug-in value is made of

    def scores(self, x: Array, y: Array) -> tuple[Array, Array]:
        """Coordinates in which the copula is elliptical, with standard normal margins."""
        x, y = self.spirals(x, y)
        return self.margins_x(x), self.margins_y(y)

    @property
    def quadratic(self) -> QuadraticRatio:
        return QuadraticRatio.of(self.correlation, self.dim_x)

    def log_ratio(self, z_x: Array, z_y: Array) -> Array:
        """log p(x, y) / (p(x) p(y)) of each row's pair of normal scores."""
        if math.isinf(self.df):
            return self.quadratic(z_x, z_y)
        joint = np.hstack([student_quantile(z_x, self.df), student_quantile(z_y, self.df)])
        both, x, y = slice(None), slice(None, self.dim_x), slice(self.dim_x, None)
        log_xy, log_x, log_y = (
            student_log_density(joint[:, part], self.correlation[part, part], self.df) for part in (both, x, y)
        )
        return log_xy - log_x - log_y


def fit_gaussian(x: Array, y: Array) -> Copula:
    return _fit(x, y, Spirals(), _no_tails)


def fit_student(x: Array, y: Array) -> Copula:
    return _fit(x, y, Spirals(), likeliest_df)


def fit_spiral(x: Array, y: Array) -> Copula:
    enough = len(x) > _FEWEST_ROWS_PER_COLUMN * (x.shape[1] + y.shape[1])
    return _fit(x, y, find_spirals(x, y) if enough else Spirals(), _no_tails)


def refitted(copula: Copula, x: Array, y: Array) -> Copula:
    """The same family with margins, correlations and tails of these rows; the turns stay those that were validated."""
    return _fit(x, y, copula.spirals, _no_tails if math.isinf(copula.df) else likeliest_df)


FAMILIES: dict[str, Callable[[Array, Array], Copula]] = {
    "gaussian": fit_gaussian,
    "student": fit_student,
    "spiral": fit_spiral,
}


def _fit(x: Array, y: Array, spirals: Spirals, choose_df: Callable[[Array], float]) -> Copula:
    dim_x, rows = x.shape[1], len(x)
    x, y = spirals(x, y)
    margins_x, margins_y = RankNormal.fit(x), RankNormal.fit(y)
    z = np.hstack([margins_x(x), margins_y(y)])
    df = choose_df(z) if rows > _FEWEST_ROWS_PER_COLUMN * z.shape[1] else math.inf
    plain = correlation_of(z) if math.isinf(df) else student_correlation(student_quantile(z, df), df)
    correlation = shrunk_correlation(z) if math.isinf(df) and z.shape[1] > _WIDE * rows else plain
    if rows > 2 * z.shape[1]:
        plug_in_nats = gaussian_nats(plain, dim_x) - plug_in_bias_nats(rows, dim_x, y.shape[1])
    else:  # too few rows for the correction, and for a correlation matrix that is not shrunk
        plain = correlation
        plug_in_nats = gaussian_nats(correlation, dim_x)
    if math.isfinite(df):
        plug_in_nats += student_excess_nats(dim_x, y.shape[1], df)
    return Copula(spirals, margins_x, margins_y, correlation, dim_x, df, rows, max(plug_in_nats, 0.0), plain)


def _no_tails(z: Array) -> float:
    """Degrees of freedom of a Gaussian."""
    return math.inf
