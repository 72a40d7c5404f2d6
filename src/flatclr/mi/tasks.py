"""Joint distributions whose mutual information is known exactly, to test estimators on.

>>> task = gaussian_pairs(5, pairs=2, correlation=0.8)
>>> x, y = task.sample(100, seed=0)
>>> x.shape, y.shape, round(task.mi_nats, 4)
((100, 5), (100, 5), 1.0217)

A homeomorphism of x alone, or of y alone, leaves the information as it is: the maps below make hard tasks of easy ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from flatclr.checks import require_count, require_number

Array = NDArray[np.float64]
Draw = Callable[[int, np.random.Generator], tuple[Array, Array]]


@dataclass(frozen=True)
class Task:
    """A distribution of (x, y) with its mutual information in nats."""

    name: str
    mi_nats: float
    dim_x: int
    dim_y: int
    draw: Draw

    def sample(self, n: int, seed: int) -> tuple[Array, Array]:
        """x [n, dim_x] and y [n, dim_y]; the same seed gives the same rows."""
        require_count("n", n, advice="ask for at least one row.")
        x, y = self.draw(n, np.random.default_rng(seed))
        return np.ascontiguousarray(x), np.ascontiguousarray(y)


def gaussian(covariance: Array, dim_x: int, name: str = "gaussian") -> Task:
    """Jointly Gaussian x (the first `dim_x` coordinates) and y: 1/2 ln(det S_x det S_y / det S)."""
    covariance = np.asarray(covariance, dtype=float)
    parts = (covariance[:dim_x, :dim_x], covariance[dim_x:, dim_x:], covariance)
    log_x, log_y, log_xy = (np.linalg.slogdet(part)[1] for part in parts)
    root = np.linalg.cholesky(covariance)

    def draw(n: int, rng: np.random.Generator) -> tuple[Array, Array]:
        rows = rng.standard_normal((n, len(covariance))) @ root.T
        return rows[:, :dim_x], rows[:, dim_x:]

    return Task(name, float(log_x + log_y - log_xy) / 2, dim_x, len(covariance) - dim_x, draw)


def gaussian_pairs(dim: int, *, pairs: int = 2, correlation: float = 0.8) -> Task:
    """Standard normal x and y of `dim` coordinates each, of which the first `pairs` correlate, x_i with y_i."""
    require_number("correlation", correlation, above=-1, below=1)
    require_count("pairs", pairs, at_most=dim, advice="a coordinate can be in one pair only.")
    return gaussian(_dispersion_pairs(dim, pairs, correlation), dim, f"{pairs}-pair {dim}")


def gaussian_dense(dim_x: int, dim_y: int | None = None, *, correlation: float = 0.5) -> Task:
    """Normal coordinates, every two of which, within and across x and y, correlate alike."""
    dim_y = dim_x if dim_y is None else dim_y
    total = dim_x + dim_y
    covariance = np.full((total, total), correlation) + (1 - correlation) * np.eye(total)
    return gaussian(covariance, dim_x, f"dense {dim_x}" if dim_x == dim_y else f"dense {dim_x}x{dim_y}")


def gaussian_with_mi(mi_nats: float, dim: int = 20) -> Task:
    """`dim` equally correlated pairs that share exactly `mi_nats`: rho^2 = 1 - exp(-2 I / d)."""
    require_number("mi_nats", mi_nats, above=0)
    task = gaussian_pairs(dim, pairs=dim, correlation=math.sqrt(-math.expm1(-2 * mi_nats / dim)))
    return replace(task, name=f"gaussian {dim} at {mi_nats:g} nats")


def staircase(dim: int = 20, *, cubic: bool = False) -> list[Task]:
    """Gaussian tasks of 2, 4, 6, 8 and 10 nats; `cubic` raises y to the third power, which changes no information."""
    steps = [gaussian_with_mi(float(mi), dim) for mi in (2, 4, 6, 8, 10)]
    return [mapped(task, "cubic", y=lambda y: y**3) for task in steps] if cubic else steps


def student(dim_x: int, dim_y: int, df: float, dispersion: Array | None = None) -> Task:
    """Multivariate Student t: I_gauss(dispersion) + h(d_x) + h(d_y) - h(d_x + d_y); uncorrelated is not independent."""
    require_number("df", df, above=0)
    shape = np.eye(dim_x + dim_y) if dispersion is None else dispersion
    base = gaussian(shape, dim_x)

    def draw(n: int, rng: np.random.Generator) -> tuple[Array, Array]:
        x, y = base.draw(n, rng)
        scale = np.sqrt(rng.chisquare(df, size=(n, 1)) / df)
        return x / scale, y / scale

    name = f"student {dim_x}-{dim_y}-{df:g}"
    return Task(name, base.mi_nats + student_excess_nats(dim_x, dim_y, df), dim_x, dim_y, draw)


def student_excess_nats(dim_x: int, dim_y: int, df: float) -> float:
    """What a common Student scale adds to the information of a Gaussian of the same dispersion."""
    return _student_entropy(dim_x, df) + _student_entropy(dim_y, df) - _student_entropy(dim_x + dim_y, df)


def _student_entropy(k: int, df: float) -> float:
    half = (df + k) / 2
    return (
        -math.lgamma(half)
        + math.lgamma(df / 2)
        + k / 2 * math.log(df * math.pi)
        + half * (_digamma(half) - _digamma(df / 2))
    )


def additive_uniform(noise: float) -> Task:
    """x uniform on [0, 1], y = x + uniform on [-noise, noise]: 1/(4 noise) if noise > 1/2, else noise - ln(2 noise)."""
    require_number("noise", noise, above=0)
    mi_nats = 1 / (4 * noise) if noise > 0.5 else noise - math.log(2 * noise)

    def draw(n: int, rng: np.random.Generator) -> tuple[Array, Array]:
        x = rng.uniform(size=(n, 1))
        return x, x + rng.uniform(-noise, noise, size=(n, 1))

    return Task(f"additive {noise:g}", mi_nats, 1, 1, draw)


def discrete_uniform(symbols: int = 5) -> Task:
    """x uniform on 0 .. m-1, y uniform on [x, x + 2]: ln m - (m - 1)/m ln 2 (Gao et al. 2017)."""
    require_count("symbols", symbols, advice="5 is the literature's.")
    mi_nats = math.log(symbols) - (symbols - 1) / symbols * math.log(2)

    def draw(n: int, rng: np.random.Generator) -> tuple[Array, Array]:
        x = rng.integers(symbols, size=(n, 1)).astype(float)
        return x, x + rng.uniform(0, 2, size=(n, 1))

    return Task(f"discrete uniform {symbols}", mi_nats, 1, 1, draw)


def zero_inflated_poisson(zeros: float = 0.15) -> Task:
    """x exponential, y Poisson(x) but 0 with probability `zeros`; the zeros of both kinds look the same."""
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
        mean_log_x = _digamma(k + 1) - math.log(2)
        log_likelihood = k * mean_log_x - (k + 1) / 2 - math.lgamma(k + 1)
        value += kept * 0.5 ** (k + 1) * (log_likelihood + (k + 1) * math.log(2))
    return value


def mapped(
    task: Task,
    name: str,
    *,
    x: Callable[[Array], Array] | None = None,
    y: Callable[[Array], Array] | None = None,
    dim_x: int | None = None,
) -> Task:
    """The task with homeomorphisms applied to x and y: other data, the same information."""

    def draw(n: int, rng: np.random.Generator) -> tuple[Array, Array]:
        base_x, base_y = task.draw(n, rng)
        return base_x if x is None else x(base_x), base_y if y is None else y(base_y)

    return replace(task, name=f"{name} {task.name}", draw=draw, dim_x=dim_x or task.dim_x)


def normal_cdf(task: Task) -> Task:
    """Uniform margins from standard normal ones."""
    return mapped(task, "normal-cdf", x=_normal_cdf, y=_normal_cdf)


def half_cube(task: Task) -> Task:
    """sign(x) |x|^1.5, which lengthens the tails."""
    lengthen = lambda v: np.sign(v) * np.abs(v) ** 1.5  # noqa: E731
    return mapped(task, "half-cube", x=lengthen, y=lengthen)


def asinh(task: Task) -> Task:
    """asinh, which shortens the tails."""
    return mapped(task, "asinh", x=np.arcsinh, y=np.arcsinh)


def wiggly(task: Task) -> Task:
    """Sums of a line and small sines, monotone but uneven."""
    return mapped(
        task,
        "wiggly",
        x=lambda v: v + 0.4 * np.sin(v) + 0.2 * np.sin(1.7 * v + 1) + 0.03 * np.sin(3.3 * v - 2.5),
        y=lambda v: v - 0.4 * np.sin(0.4 * v) + 0.17 * np.sin(1.3 * v + 3.5) + 0.02 * np.sin(4.3 * v - 2.5),
    )


def bimodal(correlation: float = 0.75) -> Task:
    """A correlated normal pair with margins turned into mixtures of two normals."""
    task = gaussian_pairs(1, pairs=1, correlation=correlation)
    return mapped(
        replace(task, name=f"{correlation:g}"),
        "bimodal",
        x=lambda v: _mixture_quantile(_normal_cdf(v), 0.3, 0.0, 5.0),
        y=lambda v: _mixture_quantile(_normal_cdf(v), 0.5, -1.0, 3.0),
    )


def swiss_roll(correlation: float = 0.75) -> Task:
    """A correlated normal pair whose x is rolled up in the plane."""

    def roll(v: Array) -> Array:
        turn = 1.5 * math.pi * (1 + 2 * _normal_cdf(v))
        return np.hstack([turn * np.cos(turn), turn * np.sin(turn)]) / 21

    task = gaussian_pairs(1, pairs=1, correlation=correlation)
    return mapped(replace(task, name=f"{correlation:g}"), "swiss-roll", x=roll, y=_normal_cdf, dim_x=2)


def spiral(task: Task, *, speed: float | None = None) -> Task:
    """Each vector turned in one plane by an angle of `speed` times its squared norm; default 1 / dimension.

    x turns in its first two coordinates, y in its second and third (in two dimensions, in both).
    """
    if min(task.dim_x, task.dim_y) < 2:
        raise ValueError(f"a spiral must have at least 2 coordinates, got {task.dim_x} and {task.dim_y}; add some.")
    speed_x, speed_y = (1 / dim if speed is None else speed for dim in (task.dim_x, task.dim_y))
    first_y = 1 if task.dim_y > 2 else 0
    return mapped(
        task,
        "spiral",
        x=lambda v: turned(v, 0, 1, speed_x * (v**2).sum(1)),
        y=lambda v: turned(v, first_y, first_y + 1, speed_y * (v**2).sum(1)),
    )


def turned(rows_Nd: Array, i: int, j: int, angle_N: Array) -> Array:
    """Each row turned by its own angle in the plane of coordinates i and j."""
    out = rows_Nd.copy()
    cos, sin = np.cos(angle_N), np.sin(angle_N)
    out[:, i] = cos * rows_Nd[:, i] - sin * rows_Nd[:, j]
    out[:, j] = sin * rows_Nd[:, i] + cos * rows_Nd[:, j]
    return out


def sheared(task: Task, strength: float = 1.0) -> Task:
    """Every second coordinate moved by a sine of the one before it: no map of single coordinates undoes that."""

    def shear(v: Array) -> Array:
        out = v.copy()
        moved = out[:, 1::2]
        moved += strength * np.sin(2 * v[:, 0::2][:, : moved.shape[1]])
        return out

    return mapped(task, "sheared", x=shear, y=shear)


def rotated(task: Task, seed: int = 0) -> Task:
    """x and y each turned by an orthogonal matrix drawn with this seed."""
    turn_x, turn_y = _random_rotations(task, seed)
    return mapped(task, "rotated", x=lambda v: v @ turn_x, y=lambda v: v @ turn_y)


def stirred(task: Task, seed: int = 0) -> Task:
    """Rotated, each coordinate stretched by sign(v) |v|^1.5, and rotated again."""
    stretched = half_cube(replace(rotated(task, seed), name=task.name))
    return replace(rotated(stretched, seed + 1), name=f"stirred {task.name}")


def sign_mixture(dim: int, correlation: float = 0.9) -> Task:
    """Pairs of normals that correlate by +rho or by -rho, as an unseen fair coin for each pair decides."""
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
    """x uniform on the circle [0, 1), y = x + uniform on [-noise, noise] around it: -ln(2 noise) a coordinate."""
    require_number("noise", noise, above=0, below=0.5)

    def draw(n: int, rng: np.random.Generator) -> tuple[Array, Array]:
        x = rng.uniform(size=(n, dim))
        return x, (x + rng.uniform(-noise, noise, size=(n, dim))) % 1.0

    return Task(f"circular {dim}", -dim * math.log(2 * noise), dim, dim, draw)


def folded(dim: int, noise: float = 0.3) -> Task:
    """x uniform on [-1, 1], y = |x| + uniform on [-noise, noise]: that of `additive_uniform`, y knowing no signs."""

    def draw(n: int, rng: np.random.Generator) -> tuple[Array, Array]:
        x = rng.uniform(-1, 1, size=(n, dim))
        return x, np.abs(x) + rng.uniform(-noise, noise, size=(n, dim))

    return Task(f"folded {dim}", dim * additive_uniform(noise).mi_nats, dim, dim, draw)


def unfamiliar_tasks() -> dict[str, Task]:
    """Tasks that no copula family of the default estimator was made for, in other dimensions than it was tuned on."""
    tasks = [
        sheared(gaussian_pairs(4)),
        sheared(gaussian_pairs(9)),
        sheared(gaussian_dense(6)),
        sheared(student(4, 4, 2)),
        stirred(gaussian_pairs(4)),
        stirred(gaussian_pairs(12)),
        stirred(gaussian_dense(6)),
        stirred(gaussian_pairs(30)),
        rotated(spiral(gaussian_pairs(5))),
        sign_mixture(1),
        sign_mixture(3),
        rotated(sign_mixture(4)),
        circular(1),
        circular(3),
        rotated(circular(2)),
        folded(1),
        folded(3),
        rotated(folded(2)),
    ]
    return {task.name: task for task in tasks}


def tuning_tasks() -> dict[str, Task]:
    """What the default estimator was developed on."""
    pair = replace(gaussian_pairs(1, pairs=1, correlation=0.75), name="normal 1")
    tasks = [
        pair,
        additive_uniform(0.1),
        additive_uniform(0.75),
        bimodal(),
        wiggly(pair),
        half_cube(pair),
        swiss_roll(),
        student(1, 1, 1),
        student(2, 2, 1),
        student(3, 3, 2),
        student(5, 5, 2),
        asinh(student(1, 1, 1)),
        gaussian_dense(2),
        gaussian_dense(5),
        gaussian_dense(25),
        gaussian_pairs(5),
        gaussian_pairs(25),
        normal_cdf(gaussian_pairs(5)),
        normal_cdf(gaussian_pairs(25)),
        half_cube(gaussian_pairs(25)),
        spiral(gaussian_pairs(3)),
        spiral(gaussian_pairs(25)),
    ]
    return {task.name: task for task in tasks}


def benchmark_tasks() -> dict[str, Task]:
    """The same kinds of task with other dimensions, correlations and noise: what the default estimator is judged on."""
    pair = replace(gaussian_pairs(1, pairs=1, correlation=0.6), name="normal 1")
    tasks = [
        pair,
        additive_uniform(0.2),
        additive_uniform(0.6),
        bimodal(0.85),
        wiggly(pair),
        half_cube(pair),
        swiss_roll(0.85),
        student(1, 1, 1.5),
        student(2, 2, 2),
        student(3, 3, 3),
        student(4, 4, 2),
        asinh(student(2, 2, 1)),
        gaussian_dense(3),
        gaussian_dense(8),
        gaussian_dense(50),
        gaussian_pairs(3),
        gaussian_pairs(20),
        normal_cdf(gaussian_pairs(3)),
        normal_cdf(gaussian_pairs(30)),
        half_cube(gaussian_pairs(10)),
        spiral(gaussian_pairs(4)),
        spiral(gaussian_pairs(15)),
        spiral(normal_cdf(gaussian_pairs(3))),
        discrete_uniform(5),
        zero_inflated_poisson(0.15),
    ]
    return {task.name: task for task in tasks}


def _random_rotations(task: Task, seed: int) -> list[Array]:
    rng = np.random.default_rng(seed)
    return [np.linalg.qr(rng.standard_normal((dim, dim)))[0] for dim in (task.dim_x, task.dim_y)]


def _dispersion_pairs(dim: int, pairs: int, correlation: float) -> Array:
    covariance = np.eye(2 * dim)
    linked = np.arange(pairs)
    covariance[linked, dim + linked] = covariance[dim + linked, linked] = correlation
    return covariance


def _digamma(v: float) -> float:
    return float(torch.digamma(torch.tensor(v, dtype=torch.float64)))


def _normal_cdf(v: Array) -> Array:
    below: Array = torch.special.ndtr(torch.from_numpy(v)).numpy()
    return below


def _mixture_quantile(u: Array, weight: float, first: float, second: float) -> Array:
    """Inverse of weight * cdf(v - first) + (1 - weight) * cdf(v - second), by bisection."""
    low, high = np.full_like(u, min(first, second) - 12), np.full_like(u, max(first, second) + 12)
    for _ in range(60):
        middle = (low + high) / 2
        below = weight * _normal_cdf(middle - first) + (1 - weight) * _normal_cdf(middle - second) < u
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return (low + high) / 2
