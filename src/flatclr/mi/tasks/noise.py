"""Tasks of uniform noise, counts, hidden signs, circles and folds."""

from __future__ import annotations

import math

import numpy as np

from flatclr.checks import require_count, require_number
from flatclr.mi.arrays import Array, digamma
from flatclr.mi.tasks.task import Task


def additive_uniform(noise: float) -> Task:
    """x uniform on [0, 1], y = x + uniform on [-noise, noise].

        I = 1 / (4 noise) if noise > 1/2, else noise - ln(2 noise)

    Args:
        noise: half the width of the noise, > 0.

    Returns:
        The task, with its exact `mi_nats`.

    >>> additive_uniform(1.0).mi_nats, round(additive_uniform(0.1).mi_nats, 4)
    (0.25, 1.7094)

    Reference: Czyż et al. 2023.
    """
    require_number("noise", noise, above=0)
    mi_nats = 1 / (4 * noise) if noise > 0.5 else noise - math.log(2 * noise)

    def draw(n: int, rng: np.random.Generator) -> tuple[Array, Array]:
        x = rng.uniform(size=(n, 1))
        return x, x + rng.uniform(-noise, noise, size=(n, 1))

    return Task(f"additive {noise:g}", mi_nats, 1, 1, draw)


def discrete_uniform(symbols: int = 5) -> Task:
    """x uniform on 0 .. m - 1, y uniform on [x, x + 2]: one variable is discrete, the other is not.

        I = ln m - (m - 1) / m ln 2

    Args:
        symbols: m, at least 1.

    Returns:
        The task, with its exact `mi_nats`.

    >>> round(discrete_uniform(5).mi_nats, 4)
    1.0549

    Reference: Gao et al. 2017.
    """
    require_count("symbols", symbols, advice="5 is the literature's.")
    mi_nats = math.log(symbols) - (symbols - 1) / symbols * math.log(2)

    def draw(n: int, rng: np.random.Generator) -> tuple[Array, Array]:
        x = rng.integers(symbols, size=(n, 1)).astype(float)
        return x, x + rng.uniform(0, 2, size=(n, 1))

    return Task(f"discrete uniform {symbols}", mi_nats, 1, 1, draw)


def zero_inflated_poisson(zeros: float = 0.15) -> Task:
    """x exponential, y Poisson(x) but 0 with probability `zeros`; zeros of both kinds look the same.

    The information is the exact one. The value printed in the paper takes the two kinds of zeros as told apart.

    Args:
        zeros: probability of an extra zero, in [0, 1).

    Returns:
        The task, with its exact `mi_nats`.

    >>> round(zero_inflated_poisson(0.15).mi_nats, 4)
    0.2298

    Reference: Gao et al. 2017.
    """
    require_number("zeros", zeros, above=-1e-12, below=1)

    def draw(n: int, rng: np.random.Generator) -> tuple[Array, Array]:
        x = rng.exponential(size=(n, 1))
        return x, np.where(rng.uniform(size=(n, 1)) < zeros, 0, rng.poisson(x)).astype(float)

    return Task(f"zero-inflated poisson {zeros:g}", _zero_inflated_poisson_nats(zeros), 1, 1, draw)


def _zero_inflated_poisson_nats(zeros: float) -> float:
    """E_x sum_k p(k | x) ln(p(k | x) / p(k)); given k, x is Gamma(k + 1, rate 2), and for k = 0 e^-x is uniform."""
    kept = 1 - zeros
    zero = zeros + kept / 2  # P(y = 0)
    log_zeros = math.log(zeros) if zeros > 0 else 0.0
    value = (zeros**2 / 4 - 1 / 4 - zeros**2 / 2 * log_zeros) / kept - zero * math.log(zero)
    for k in range(1, 80):
        mean_log_x = digamma(k + 1) - math.log(2)
        log_likelihood = k * mean_log_x - (k + 1) / 2 - math.lgamma(k + 1)
        value += kept * 0.5 ** (k + 1) * (log_likelihood + (k + 1) * math.log(2))
    return value


def sign_mixture(dim: int, correlation: float = 0.9) -> Task:
    """Pairs of normals that correlate by +rho or by -rho, as an unseen fair coin for each pair decides.

    Correlations are 0 and margins normal, so nothing linear sees the dependence. The information is integrated on a
    grid, to more digits than any estimate has.

    Args:
        dim: pairs.
        correlation: rho, in (-1, 1).

    Returns:
        The task, with its `mi_nats`.

    >>> round(sign_mixture(1).mi_nats, 3)
    0.408
    """
    require_number("correlation", correlation, above=-1, below=1)

    def draw(n: int, rng: np.random.Generator) -> tuple[Array, Array]:
        x, noise = rng.standard_normal((2, n, dim))
        signs = rng.choice((-1.0, 1.0), size=(n, dim))
        return x, signs * correlation * x + math.sqrt(1 - correlation**2) * noise

    return Task(f"sign mixture {dim}", dim * _sign_mixture_nats(correlation), dim, dim, draw)


def _sign_mixture_nats(correlation: float) -> float:
    """E log(r_+ / 2 + r_- / 2), r the Gaussian density ratio of either sign: by symmetry under r_+ alone."""
    grid = np.linspace(-9, 9, 1201)
    x, noise = np.meshgrid(grid, grid)
    y = correlation * x + math.sqrt(1 - correlation**2) * noise
    rest = 1 - correlation**2
    log_ratios = [(2 * rho * x * y - rho**2 * (x**2 + y**2)) / (2 * rest) for rho in (correlation, -correlation)]
    mixed = np.logaddexp(*log_ratios) - math.log(2) - math.log(rest) / 2
    weights = np.exp(-(x**2 + noise**2) / 2)
    return float((weights * mixed).sum() / weights.sum())


def circular(dim: int, noise: float = 0.25) -> Task:
    """x uniform on the circle [0, 1), y = x + uniform on [-noise, noise] around it.

        I = -d ln(2 noise)

    Args:
        dim: d, circles.
        noise: half the width of the noise, in (0, 1/2).

    Returns:
        The task, with its exact `mi_nats`.

    >>> round(circular(3).mi_nats, 4)
    2.0794
    """
    require_number("noise", noise, above=0, below=0.5)

    def draw(n: int, rng: np.random.Generator) -> tuple[Array, Array]:
        x = rng.uniform(size=(n, dim))
        return x, (x + rng.uniform(-noise, noise, size=(n, dim))) % 1.0

    return Task(f"circular {dim}", -dim * math.log(2 * noise), dim, dim, draw)


def folded(dim: int, noise: float = 0.3) -> Task:
    """x uniform on [-1, 1], y = |x| + uniform on [-noise, noise]: y knows no signs.

    The information is that of `additive_uniform`, once per coordinate.

    Args:
        dim: coordinates of x, and of y.
        noise: half the width of the noise, > 0.

    Returns:
        The task, with its exact `mi_nats`.

    >>> round(folded(2).mi_nats - 2 * additive_uniform(0.3).mi_nats, 6)
    0.0
    """

    def draw(n: int, rng: np.random.Generator) -> tuple[Array, Array]:
        x = rng.uniform(-1, 1, size=(n, dim))
        return x, np.abs(x) + rng.uniform(-noise, noise, size=(n, dim))

    return Task(f"folded {dim}", dim * additive_uniform(noise).mi_nats, dim, dim, draw)
