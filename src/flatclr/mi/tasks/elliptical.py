"""Gaussian and Student tasks."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from flatclr.checks import require_count, require_number
from flatclr.mi.arrays import Array
from flatclr.mi.student import student_excess_nats
from flatclr.mi.tasks.task import Task, mapped


def gaussian(covariance: Array, dim_x: int, name: str = "gaussian") -> Task:
    """Jointly Gaussian x and y of any covariance.

        I = 1/2 ln(det S_x det S_y / det S)

    Args:
        covariance: S [d_x + d_y, d_x + d_y], positive definite.
        dim_x: the first `dim_x` coordinates are x, the others y.
        name: of the task.

    Returns:
        The task, with its exact `mi_nats`.

    >>> round(gaussian(np.array([[1.0, 0.8], [0.8, 1.0]]), dim_x=1).mi_nats, 4)
    0.5108
    """
    covariance = np.asarray(covariance, dtype=float)
    parts = (covariance[:dim_x, :dim_x], covariance[dim_x:, dim_x:], covariance)
    log_x, log_y, log_xy = (np.linalg.slogdet(part)[1] for part in parts)
    root = np.linalg.cholesky(covariance)

    def draw(n: int, rng: np.random.Generator) -> tuple[Array, Array]:
        rows = rng.standard_normal((n, len(covariance))) @ root.T
        return rows[:, :dim_x], rows[:, dim_x:]

    return Task(name, float(log_x + log_y - log_xy) / 2, dim_x, len(covariance) - dim_x, draw)


def gaussian_pairs(dim: int, *, pairs: int = 2, correlation: float = 0.8) -> Task:
    """Standard normal x and y, of which the first coordinates correlate, x_i with y_i.

        I = -pairs / 2 ln(1 - rho^2)

    Args:
        dim: coordinates of x, and of y.
        pairs: how many of them correlate, at most `dim`.
        correlation: rho of each pair, in (-1, 1).

    Returns:
        The task, with its exact `mi_nats`.

    >>> round(gaussian_pairs(5, pairs=2, correlation=0.8).mi_nats, 4)
    1.0217
    """
    require_number("correlation", correlation, above=-1, below=1)
    require_count("pairs", pairs, at_most=dim, advice="a coordinate can be in one pair only.")
    covariance, linked = np.eye(2 * dim), np.arange(pairs)
    covariance[linked, dim + linked] = covariance[dim + linked, linked] = correlation
    return gaussian(covariance, dim, f"{pairs}-pair {dim}")


def gaussian_dense(dim_x: int, dim_y: int | None = None, *, correlation: float = 0.5) -> Task:
    """Normal coordinates, every two of which, within and across x and y, correlate alike.

    Args:
        dim_x, dim_y: coordinates of x and of y; `dim_y` is `dim_x` if left out.
        correlation: rho of every two coordinates, in [0, 1).

    Returns:
        The task, with its exact `mi_nats`.

    >>> round(gaussian_dense(2, 3).mi_nats, 4)
    0.3466
    """
    dim_y = dim_x if dim_y is None else dim_y
    total = dim_x + dim_y
    covariance = np.full((total, total), correlation) + (1 - correlation) * np.eye(total)
    return gaussian(covariance, dim_x, f"dense {dim_x}" if dim_x == dim_y else f"dense {dim_x}x{dim_y}")


def gaussian_with_mi(mi_nats: float, dim: int = 20) -> Task:
    """Equally correlated pairs that share exactly so much.

        rho^2 = 1 - exp(-2 I / d)

    Args:
        mi_nats: I, > 0.
        dim: d, the number of pairs.

    Returns:
        The task, with its exact `mi_nats`.

    >>> round(gaussian_with_mi(6.0).mi_nats, 6)
    6.0

    Reference: the "correlated Gaussian" of Belghazi et al. 2018 and Poole et al. 2019.
    """
    require_number("mi_nats", mi_nats, above=0)
    task = gaussian_pairs(dim, pairs=dim, correlation=math.sqrt(-math.expm1(-2 * mi_nats / dim)))
    return replace(task, name=f"gaussian {dim} at {mi_nats:g} nats")


def staircase(dim: int = 20, *, cubic: bool = False) -> list[Task]:
    """Gaussian tasks of 2, 4, 6, 8 and 10 nats.

    Args:
        dim: coordinates of x, and of y.
        cubic: raise y to the third power, which changes no information but makes critics err.

    Returns:
        Five tasks, in ascending order.

    >>> [round(task.mi_nats) for task in staircase(cubic=True)]
    [2, 4, 6, 8, 10]

    Reference: Poole et al. 2019, Song & Ermon 2020.
    """
    steps = [gaussian_with_mi(float(mi), dim) for mi in (2, 4, 6, 8, 10)]
    return [mapped(task, "cubic", y=lambda y: y**3) for task in steps] if cubic else steps


def student(dim_x: int, dim_y: int, df: float, dispersion: Array | None = None) -> Task:
    """Multivariate Student t: what is uncorrelated still shares its scale.

        I = I_gauss(dispersion) + h(d_x) + h(d_y) - h(d_x + d_y)

    Args:
        dim_x, dim_y: coordinates of x and of y.
        df: degrees of freedom, > 0; 1 is Cauchy's.
        dispersion: [d_x + d_y, d_x + d_y], the identity if left out.

    Returns:
        The task, with its exact `mi_nats`.

    >>> round(student(1, 1, df=1).mi_nats, 4)
    0.2242

    Reference: Arellano-Valle et al. 2013; as a benchmark, Czyż et al. 2023.
    """
    require_number("df", df, above=0)
    shape = np.eye(dim_x + dim_y) if dispersion is None else dispersion
    base = gaussian(shape, dim_x)

    def draw(n: int, rng: np.random.Generator) -> tuple[Array, Array]:
        x, y = base.draw(n, rng)
        scale = np.sqrt(rng.chisquare(df, size=(n, 1)) / df)
        return x / scale, y / scale

    name = f"student {dim_x}-{dim_y}-{df:g}"
    return Task(name, base.mi_nats + student_excess_nats(dim_x, dim_y, df), dim_x, dim_y, draw)
