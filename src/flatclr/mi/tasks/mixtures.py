"""Mixtures of Gaussians: their densities are known, and so is their information, up to a Monte Carlo error.

Reference for the tasks by name: Czyż et al. 2023, "On the properties and estimation of pointwise mutual information
profiles" (Bend and Mix models), second version of the benchmark of the package bmi.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.special import logsumexp

from flatclr.checks import require_count, require_number
from flatclr.mi.arrays import Array, turned
from flatclr.mi.tasks.task import Task, mapped

TRUTH_ROWS, TRUTH_SEED, BLOCK_ROWS = 100_000, 0, 10_000


def gaussian_mixture(
    proportions: Sequence[float], means: Array, covariances: Array, dim_x: int, name: str = "mixture"
) -> Task:
    """Rows of one of several Gaussians, drawn by proportion.

        I = E[ln p(x, y) - ln p(x) - ln p(y)], the mean over 100,000 rows of a fixed seed

    Args:
        proportions: of the C components; they sum to 1.
        means: [C, d_x + d_y].
        covariances: [C, d_x + d_y, d_x + d_y], positive definite.
        dim_x: the first `dim_x` coordinates are x, the others y.
        name: of the task.

    Returns:
        The task, with its `mi_nats` to about 0.004.

    >>> apart = np.array([[-9.0, -9.0], [9.0, 9.0]])  # which component it is can be read from x and from y
    >>> round(gaussian_mixture([0.5, 0.5], apart, np.array([np.eye(2)] * 2), dim_x=1).mi_nats, 3)
    0.693
    """
    shares, means, covariances = (np.asarray(given, dtype=float) for given in (proportions, means, covariances))
    components, dim = means.shape
    if shares.shape != (components,) or covariances.shape != (components, dim, dim):
        raise ValueError(
            f"proportions and covariances must be given for each of the {components} means of {dim} columns, got "
            f"{list(shares.shape)} and {list(covariances.shape)}; give one of each for every component."
        )
    if shares.min() < 0 or abs(shares.sum() - 1) > 1e-9:
        raise ValueError(f"proportions must be >= 0 and sum to 1, got {shares.tolist()}; divide them by their sum.")
    require_count("dim_x", dim_x, at_most=dim - 1, advice="y needs a column too.")
    roots = np.linalg.cholesky(covariances)

    def draw(n: int, rng: np.random.Generator) -> tuple[Array, Array]:
        of = rng.choice(components, size=n, p=shares)
        noise, rows = rng.standard_normal((n, dim)), np.empty((n, dim))
        for component in range(components):
            chosen = of == component
            rows[chosen] = means[component] + noise[chosen] @ roots[component].T
        return rows[:, :dim_x], rows[:, dim_x:]

    def log_density(rows: Array, columns: slice) -> Array:
        parts = [
            np.log(share) + _normal_log_density(rows - mean[columns], covariance[columns, columns])
            for share, mean, covariance in zip(shares, means, covariances, strict=True)
            if share
        ]
        total: Array = logsumexp(parts, axis=0)
        return total

    rng, means_of_blocks = np.random.default_rng(TRUTH_SEED), []
    for _ in range(TRUTH_ROWS // BLOCK_ROWS):
        x, y = draw(BLOCK_ROWS, rng)
        both = log_density(np.hstack([x, y]), slice(None))
        apart = log_density(x, slice(dim_x)) + log_density(y, slice(dim_x, None))
        means_of_blocks.append((both - apart).mean())
    return Task(name, float(np.mean(means_of_blocks)), dim_x, dim - dim_x, draw)


def _normal_log_density(centred: Array, covariance: Array) -> Array:
    root = np.linalg.cholesky(covariance)
    white = centred @ np.linalg.inv(root).T
    value: Array = -0.5 * (white**2).sum(1) - np.log(np.diag(root)).sum() - len(root) / 2 * np.log(2 * np.pi)
    return value


def letters() -> Task:
    """Six narrow Gaussians that write "AI" in the plane.

    Returns:
        The task, with its `mi_nats` to about 0.004.

    >>> round(letters().mi_nats, 1)
    0.8
    """
    slant = 0.95 * np.sqrt(0.04 * 0.2)
    stroke = np.array([[0.04, slant], [slant, 0.2]])
    bars = [np.diag([0.01, 0.2]), *[np.diag([0.05, 0.001])] * 2, np.diag([0.03, 0.001])]
    means = np.array([[1.0, 0.0], [1.0, 1.0], [1.0, -1.0], [-0.8, -0.2], [-1.2, 0.0], [-0.4, 0.0]])
    covariances = np.array([*bars, stroke, stroke * [[1, -1], [-1, 1]]])
    return gaussian_mixture([1 / 6] * 6, means, covariances, dim_x=1, name="letters")


def waves() -> Task:
    """Twelve upright Gaussians in a row, bent into waves; y says which of four kinds it is.

    Returns:
        The task, with its `mi_nats` to about 0.004.

    >>> waves().dim_x
    2
    """
    number = np.arange(12.0)
    means = 1.5 * np.stack([number, np.zeros(12), number % 4], axis=1)
    base = gaussian_mixture([1 / 12] * 12, means, np.array([np.diag([0.1, 1.0, 0.1])] * 12), dim_x=2, name="12")

    def bent(v: Array) -> Array:
        return np.stack([0.1 * (v[:, 0] + 5 * np.sin(3 * v[:, 1])) - 0.8, 0.5 * v[:, 1]], axis=1)

    return mapped(base, "waves", x=bent)


def galaxy(speed: float = 0.5, distance: float = 3.0) -> Task:
    """Two balls, x of which is wound up like the arms of a galaxy.

    Args:
        speed: radians per unit of the squared norm of x.
        distance: between the centres, in every coordinate.

    Returns:
        The task, with its `mi_nats` to about 0.004.

    >>> galaxy().name
    'galaxy 3'
    """
    require_number("distance", distance, above=0)
    means = np.array([[-1.0] * 3, [1.0] * 3]) * distance / 2
    base = gaussian_mixture([0.5, 0.5], means, np.array([np.eye(3)] * 2), dim_x=2, name=f"{distance:g}")
    return mapped(base, "galaxy", x=lambda v: turned(v, 0, 1, speed * (v**2).sum(1)))


def concentric(dim: int, components: int) -> Task:
    """Balls of standard deviations 1, 2, ... around one centre; y is the number of the ball, almost exactly.

    Args:
        dim: columns of x; y has one.
        components: how many balls.

    Returns:
        The task, with its `mi_nats` to about 0.004.

    >>> concentric(3, 5).name
    'concentric 3-5'
    """
    require_count("dim", dim, advice="x needs a column.")
    require_count("components", components, at_least=2, advice="one ball shares nothing.")
    number = np.arange(1, components + 1, dtype=float)
    means = np.concatenate([np.zeros((components, dim)), number[:, None]], axis=1)
    covariances = np.array([np.diag([radius**2] * dim + [1e-4]) for radius in number])
    return gaussian_mixture([1 / components] * components, means, covariances, dim, f"concentric {dim}-{components}")


def inliers(dim: int, share: float, *, correlation: float = 0.8) -> Task:
    """Two correlated pairs of coordinates beside noise; in some of the rows x has nothing to do with y.

    Args:
        dim: columns of x, and of y, at least 2.
        share: of the rows whose x and y are independent, in (0, 1).
        correlation: of each pair in the other rows.

    Returns:
        The task, with its `mi_nats` to about 0.004.

    >>> inliers(5, 0.2).dim_x
    5
    """
    require_count("dim", dim, at_least=2, advice="two pairs need two columns each.")
    require_number("share", share, above=0, below=1)
    linked = np.eye(4)
    linked[[0, 1, 2, 3], [2, 3, 0, 1]] = correlation
    base = gaussian_mixture([1 - share, share], np.zeros((2, 4)), np.array([linked, np.eye(4)]), dim_x=2)

    def draw(n: int, rng: np.random.Generator) -> tuple[Array, Array]:
        x, y = base.draw(n, rng)
        noise_x, noise_y = rng.standard_normal((2, n, dim - 2))
        return np.hstack([x, noise_x]), np.hstack([y, noise_y])

    return replace(base, name=f"inliers {dim}-{share:g}", dim_x=dim, dim_y=dim, draw=draw)
