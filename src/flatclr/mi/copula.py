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
    canonical_correlations,
    correlation_of,
    gaussian_nats,
    pairs_are_normal,
    plug_in_bias_nats,
    regular,
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
    student_score,
)

_WIDE = 0.05  # coordinates per row above which the critic's correlation matrix is shrunk
_FEWEST_ROWS_PER_COLUMN = 4  # for anything but a Gaussian
_STRONG = 50.0  # times 1 / rows: unexplained variance below which the noise of ranks would be seen
_SPARE_ROWS = 10  # beyond the columns, for a correlation matrix whose determinant can be corrected


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
    determined: bool = True  # whether there are: without, the plug-in value says next to nothing
    smoothing_nats: float = 0.0  # what smooth margins read beyond those of ranks, where dependence is strong

    def scores(self, x: Array, y: Array) -> tuple[Array, Array]:
        """Coordinates in which the copula is elliptical, with standard normal margins."""
        x, y = self.spirals(x, y)
        return self.margins_x(x), self.margins_y(y)

    @property
    def dim_y(self) -> int:
        return len(self.correlation) - self.dim_x

    def draw(self, rows: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """Rows of the fitted copula itself, as normal scores."""
        z = rng.standard_normal((rows, len(self.correlation))) @ np.linalg.cholesky(regular(self.correlation)).T
        if math.isfinite(self.df):
            z = student_score(z / np.sqrt(rng.chisquare(self.df, size=(rows, 1)) / self.df), self.df)
        return z[:, : self.dim_x], z[:, self.dim_x :]

    def fits(self, x: Array, y: Array) -> bool:
        """Whether pairs of columns look as the family says.

        Student rows are first made normal: divided by their length, which is given the quantiles of a normal row's.
        """
        z = np.hstack(self.scores(x, y))
        if math.isinf(self.df):
            return pairs_are_normal(z)
        root = np.linalg.cholesky(regular(self.plain_correlation))
        white = np.linalg.solve(root, student_quantile(z, self.df).T).T
        lengths = np.linalg.norm(white, axis=1)
        return pairs_are_normal(white * (_normal_lengths(lengths, z.shape[1]) / lengths)[:, None])

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
    margins_x, margins_y, z = _margins(x, y, smooth=False)
    smoothing_nats = 0.0
    if 1 - canonical_correlations(correlation_of(z), dim_x)[0] ** 2 < _STRONG / rows:
        by_ranks = gaussian_nats(correlation_of(z), dim_x)
        margins_x, margins_y, z = _margins(x, y, smooth=True)
        smoothing_nats = abs(gaussian_nats(correlation_of(z), dim_x) - by_ranks)
    df = choose_df(z) if rows > _FEWEST_ROWS_PER_COLUMN * z.shape[1] else math.inf
    plain = correlation_of(z) if math.isinf(df) else student_correlation(student_quantile(z, df), df)
    correlation = shrunk_correlation(z) if math.isinf(df) and z.shape[1] > _WIDE * rows else plain
    determined = rows >= z.shape[1] + _SPARE_ROWS
    if determined:
        plug_in_nats = gaussian_nats(plain, dim_x) - plug_in_bias_nats(rows, dim_x, y.shape[1])
    else:
        plain = correlation
        plug_in_nats = gaussian_nats(correlation, dim_x)
    if math.isfinite(df):
        plug_in_nats += student_excess_nats(dim_x, y.shape[1], df)
    return Copula(
        spirals,
        margins_x,
        margins_y,
        correlation,
        dim_x,
        df,
        rows,
        plug_in_nats=max(plug_in_nats, 0.0),
        plain_correlation=plain,
        determined=determined,
        smoothing_nats=smoothing_nats,
    )


def _normal_lengths(lengths: Array, dim: int) -> Array:
    """The length that a standard normal row of the same rank has."""
    from scipy.special import gammaincinv

    ranks = np.argsort(np.argsort(lengths)) + 0.5
    normal: Array = np.sqrt(2 * gammaincinv(dim / 2, ranks / len(lengths)))
    return normal


def _margins(x: Array, y: Array, *, smooth: bool) -> tuple[RankNormal, RankNormal, Array]:
    """The maps of both variables to normal scores, and the scores side by side."""
    of_x, of_y = RankNormal.fit(x, smooth=smooth), RankNormal.fit(y, smooth=smooth)
    return of_x, of_y, np.hstack([of_x(x), of_y(y)])


def _no_tails(z: Array) -> float:
    """Degrees of freedom of a Gaussian."""
    return math.inf
