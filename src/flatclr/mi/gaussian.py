"""The mutual information of a Gaussian copula, and its log density ratio, in closed form."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from flatclr.mi.arrays import Array

_CLEAR = 2.0  # standard errors beyond the largest of so many normal variables
_LEAST_FREE = 1e-6  # of a variance that another column leaves, below which nothing is left to look at


@dataclass(frozen=True)
class QuadraticRatio:
    """log r(x, y) = constant + x^T cross y - 1/2 x^T own_x x - 1/2 y^T own_y y."""

    constant: float
    cross: Array  # [d_x, d_y]
    own_x: Array
    own_y: Array

    @classmethod
    def of(cls, correlation: Array, dim_x: int) -> QuadraticRatio:
        """The ratio p(x, y) / (p(x) p(y)) of a zero-mean Gaussian with this covariance."""
        correlation = regular(correlation)
        x, y = correlation[:dim_x, :dim_x], correlation[dim_x:, dim_x:]
        precision = np.linalg.inv(correlation).astype(np.float64)
        return cls(
            constant=gaussian_nats(correlation, dim_x),
            cross=-precision[:dim_x, dim_x:],
            own_x=precision[:dim_x, :dim_x] - np.linalg.inv(x),
            own_y=precision[dim_x:, dim_x:] - np.linalg.inv(y),
        )

    def __call__(self, x: Array, y: Array) -> Array:
        """log r of each row's pair."""
        value: Array = (
            self.constant
            + ((x @ self.cross) * y).sum(1)
            - ((x @ self.own_x) * x).sum(1) / 2
            - ((y @ self.own_y) * y).sum(1) / 2
        )
        return value


def gaussian_nats(covariance: Array, dim_x: int) -> float:
    """-1/2 sum_i ln(1 - rho_i^2) over the canonical correlations rho.

    >>> round(gaussian_nats(np.array([[1, 0.8], [0.8, 1]]), 1), 4)
    0.5108
    """
    rho = canonical_correlations(covariance, dim_x)
    return float(-0.5 * np.log1p(-(np.minimum(rho, 1 - 1e-12) ** 2)).sum())


def canonical_correlations(covariance: Array, dim_x: int) -> Array:
    """Descending."""
    return np.linalg.svd(whitened_cross(covariance, dim_x)[2], compute_uv=False).astype(np.float64)


def whitened_cross(covariance: Array, dim_x: int) -> tuple[Array, Array, Array]:
    """L_x, L_y and L_x^-1 S_xy L_y^-T, L the Cholesky roots: its singular values are the canonical correlations."""
    covariance = regular(covariance)
    root_x = np.linalg.cholesky(covariance[:dim_x, :dim_x]).astype(np.float64)
    root_y = np.linalg.cholesky(covariance[dim_x:, dim_x:]).astype(np.float64)
    whitened: Array = np.linalg.solve(root_y, np.linalg.solve(root_x, covariance[:dim_x, dim_x:]).T).T
    return root_x, root_y, whitened


def regular(covariance: Array, noise: float = 1e-12) -> Array:
    """Columns that determine each other, or are constant, make it singular; this noise is beyond its digits."""
    variances = np.diag(covariance)
    return covariance + noise * np.diag(np.where(variances > 0, variances, 1.0))


def plug_in_bias_nats(rows: int, dim_x: int, dim_y: int) -> float:
    """How far a sample covariance overstates a Gaussian's information on average; about d_x d_y / (2 N).

    E ln det of a Wishart matrix exceeds ln det of its mean by sum_i psi((n - i + 1)/2) - ln(n/2), n = N - 1.

    >>> round(plug_in_bias_nats(10_000, 50, 50), 3)
    0.126
    """
    freedom = rows - 1
    order = torch.arange(1, dim_x + dim_y + 1, dtype=torch.float64)
    excess = torch.digamma((freedom - order + 1) / 2) - math.log(freedom / 2)
    return float(excess[:dim_x].sum() + excess[:dim_y].sum() - excess.sum()) / 2


def plug_in_deviation_nats(rows: int, dim_x: int, dim_y: int) -> float:
    """The deviation of a Gaussian's plug-in information where x and y share nothing; about sqrt(d_x d_y / 2) / N.

    exp(-2 I) is Wilks' ratio of determinants, a product of d_x independent Beta variables, and the variance of their
    logarithms is a difference of trigamma functions. Infinite where the rows do not determine the covariance.

    >>> round(plug_in_deviation_nats(10_000, 50, 50), 4), plug_in_deviation_nats(100, 50, 50)
    (0.0036, inf)
    """
    freedom = rows - 1
    if freedom < dim_x + dim_y:
        return math.inf
    order = torch.arange(1, dim_x + 1, dtype=torch.float64)
    variances = torch.polygamma(1, (freedom - dim_y - order + 1) / 2) - torch.polygamma(1, (freedom - order + 1) / 2)
    return math.sqrt(float(variances.sum())) / 2


def shrunk_correlation(z: Array) -> Array:
    """The correlation matrix, pulled to the identity as far as its noise warrants (Schäfer & Strimmer 2005).

    weight = sum_{i != j} var(r_ij) / sum_{i != j} r_ij^2: nothing at many rows, much where rows are few for the width.
    """
    rows, standard = len(z), _standardised(z)
    correlation = _correlation(standard)
    fourth = (standard**2).T @ standard**2 / rows
    off = ~np.eye(len(correlation), dtype=bool)
    noise = ((fourth - correlation**2)[off]).sum() / (rows - 1)
    weight = min(1.0, max(0.0, noise / max((correlation[off] ** 2).sum(), 1e-12)))
    return np.where(off, (1 - weight) * correlation, correlation)


def correlation_of(z: Array) -> Array:
    """Plain correlation matrix; a column that does not vary in these rows correlates with nothing."""
    return _correlation(_standardised(z))


def _correlation(standard: Array) -> Array:
    correlation: Array = standard.T @ standard / len(standard)
    np.fill_diagonal(correlation, 1.0)
    return correlation


def _standardised(z: Array) -> Array:
    centred = z - z.mean(0)
    deviation = np.where((z != z[0]).any(0), centred.std(0), np.inf)  # that of many equal numbers need not be 0
    standard: Array = centred / deviation
    return standard


def pairs_are_normal(z: Array) -> bool:
    """Whether moments of pairs of columns are those of a joint normal law, up to chance.

    Of standard columns with correlation r, (a^2 - 1)(b^2 - 1) has the mean 2 r^2; (a^2 - 1) b and (a^3 - 3 a) b have 0.
    What a leaves of b, e = (b - r a) / sqrt(1 - r^2), has nothing to do with a: (a^2 - 1)(e^2 - 1) has the mean 0 and
    the variance 4. It finds rows whose columns are not linked, among others that are.

    >>> rng = np.random.default_rng(0)
    >>> a, b = rng.normal(size=(2, 2000))
    >>> pairs_are_normal(np.stack([a, a + b], 1)), pairs_are_normal(np.stack([a, a**2 + b], 1))
    (True, False)
    """
    standard = _standardised(z)
    correlation, rows = _correlation(standard), len(z)
    squares, cubes = standard**2 - 1, standard**3 - 3 * standard
    off = ~np.eye(z.shape[1], dtype=bool)
    largest = 0.0
    for a, b, expected in ((squares, squares, 2 * correlation**2), (squares, standard, 0.0), (cubes, standard, 0.0)):
        mean = a.T @ b / rows
        variance = np.maximum((a**2).T @ b**2 / rows - mean**2, np.finfo(float).tiny)
        largest = max(largest, float((np.abs(mean - expected) * np.sqrt(rows / variance))[off].max(initial=0.0)))
    left = _uneven_rest(standard, correlation)[off]
    largest = max(largest, float((np.abs(left) * math.sqrt(rows / 4)).max(initial=0.0)))
    return largest < _CLEAR + math.sqrt(2 * math.log(4 * len(correlation) ** 2))


def _uneven_rest(standard: Array, correlation: Array) -> Array:
    """Mean of (a^2 - 1)(e^2 - 1) for every two columns, a in rows, b in columns; of columns that are one, 0."""
    rows, squares = len(standard), standard**2 - 1
    plain, crossed, own = (
        (squares.T @ standard**2) / rows,
        ((squares * standard).T @ standard) / rows,
        (squares * standard**2).mean(0)[:, None],
    )
    free = 1 - correlation**2
    rest = (plain - 2 * correlation * crossed + correlation**2 * own) / np.maximum(free, np.finfo(float).tiny)
    found: Array = np.where(free > _LEAST_FREE, rest - squares.mean(0)[:, None], 0.0)
    return found
