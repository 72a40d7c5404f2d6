"""The multivariate Student distribution: quantiles, density, scatter, and what a common scale adds to information."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from flatclr.mi.arrays import Array, digamma
from flatclr.mi.gaussian import regular

_DF_RANGE = (0.3, 60.0)


def student_excess_nats(dim_x: int, dim_y: int, df: float) -> float:
    """What a common Student scale adds to the information of a Gaussian of the same dispersion.

        h(d_x) + h(d_y) - h(d_x + d_y),  h(k) the entropy of a k-variate Student with the identity as dispersion

    Args:
        dim_x, dim_y: coordinates of x and of y.
        df: degrees of freedom, > 0; the excess falls to 0 as they grow.

    Returns:
        Nats, >= 0.

    >>> round(student_excess_nats(1, 1, df=1.0), 4)
    0.2242

    Reference: Arellano-Valle, Contreras-Reyes & Genton 2013.
    """
    return student_entropy_nats(dim_x, df) + student_entropy_nats(dim_y, df) - student_entropy_nats(dim_x + dim_y, df)


def student_entropy_nats(k: int, df: float) -> float:
    """Differential entropy of a k-variate Student distribution whose dispersion is the identity."""
    half = (df + k) / 2
    return (
        -math.lgamma(half)
        + math.lgamma(df / 2)
        + k / 2 * math.log(df * math.pi)
        + half * (digamma(half) - digamma(df / 2))
    )


def student_quantile(z: Array, df: float) -> Array:
    """Student quantiles of normal scores, by interpolation in a fine table."""
    out: Array = np.interp(z, *_quantile_table(df))
    return out


def student_score(t: Array, df: float) -> Array:
    """Normal scores of Student quantiles, the inverse of `student_quantile`."""
    scores, quantiles = _quantile_table(df)
    out: Array = np.interp(t, quantiles, scores)
    return out


@lru_cache(maxsize=64)
def _quantile_table(df: float) -> tuple[Array, Array]:
    from scipy.special import ndtr, stdtrit

    scores = np.linspace(-8, 8, 3201)
    return scores, np.where(scores < 0, 1, -1) * stdtrit(df, ndtr(-np.abs(scores)))  # the lower tail keeps its digits


def likeliest_df(z: Array) -> float:
    """Degrees of freedom of the Student copula of largest likelihood; infinite if there is nothing to gain."""
    from scipy.optimize import minimize_scalar

    def loss(log_df: float) -> float:
        df = math.exp(log_df)
        t = student_quantile(z, df)
        margins = sum(student_log_density(t[:, [i]], np.eye(1), df) for i in range(t.shape[1]))
        return -float(np.mean(student_log_density(t, student_correlation(t, df), df) - margins))

    grid = np.linspace(math.log(_DF_RANGE[0]), math.log(_DF_RANGE[1]), 7)
    start = int(np.argmin([loss(v) for v in grid]))
    if start == len(grid) - 1:
        return math.inf
    bracket = (grid[max(start - 1, 0)], grid[start + 1])
    return math.exp(minimize_scalar(loss, bounds=bracket, method="bounded", options={"xatol": 0.02}).x)


def student_correlation(t: Array, df: float, iterations: int = 8) -> Array:
    """Correlation matrix of the scatter that fits Student rows of known degrees of freedom, by its fixed point."""
    scatter = np.eye(t.shape[1])
    for _ in range(iterations):
        weights = (df + t.shape[1]) / (df + _squared_lengths(t, scatter))
        scatter = (t * weights[:, None]).T @ t / len(t)
    scale = np.sqrt(np.diag(scatter))
    scale[scale == 0] = np.inf  # constant in these rows
    correlation: Array = scatter / np.outer(scale, scale)
    np.fill_diagonal(correlation, 1.0)
    return correlation


def student_log_density(t: Array, correlation: Array, df: float) -> Array:
    """log density of each row under the Student distribution with this dispersion."""
    k = t.shape[1]
    constant = math.lgamma((df + k) / 2) - math.lgamma(df / 2) - k / 2 * math.log(df * math.pi)
    log_det = np.linalg.slogdet(regular(correlation))[1]
    density: Array = constant - log_det / 2 - (df + k) / 2 * np.log1p(_squared_lengths(t, correlation) / df)
    return density


def _squared_lengths(t: Array, scatter: Array) -> Array:
    lengths: Array = (t * np.linalg.solve(regular(scatter), t.T).T).sum(1)
    return lengths
