"""Maps that make other tasks of a task without changing its information."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from flatclr.mi import arrays
from flatclr.mi.arrays import Array, turned
from flatclr.mi.tasks.elliptical import gaussian_pairs
from flatclr.mi.tasks.task import Task, mapped


def normal_cdf(task: Task) -> Task:
    """Every coordinate through the normal distribution function, which makes normal margins uniform.

    Args:
        task: of standard normal margins.

    Returns:
        A task with the `mi_nats` of `task`.

    >>> x, _ = normal_cdf(gaussian_pairs(3)).sample(100, seed=0)
    >>> bool(((x > 0) & (x < 1)).all())
    True
    """
    return mapped(task, "normal-cdf", x=arrays.normal_cdf, y=arrays.normal_cdf)


def half_cube(task: Task) -> Task:
    """Every coordinate v through sign(v) |v|^1.5, which lengthens the tails.

    Args:
        task: any.

    Returns:
        A task with the `mi_nats` of `task`.

    >>> half_cube(gaussian_pairs(3)).name
    'half-cube 2-pair 3'
    """

    def lengthen(v: Array) -> Array:
        longer: Array = np.sign(v) * np.abs(v) ** 1.5
        return longer

    return mapped(task, "half-cube", x=lengthen, y=lengthen)


def asinh(task: Task) -> Task:
    """Every coordinate v through asinh(v), which shortens the tails.

    Args:
        task: any.

    Returns:
        A task with the `mi_nats` of `task`.

    >>> asinh(gaussian_pairs(3)).name
    'asinh 2-pair 3'
    """
    return mapped(task, "asinh", x=np.arcsinh, y=np.arcsinh)


def wiggly(task: Task) -> Task:
    """Every coordinate through the sum of a line and small sines, which is monotone but uneven.

    Args:
        task: any.

    Returns:
        A task with the `mi_nats` of `task`.

    >>> wiggly(gaussian_pairs(3)).name
    'wiggly 2-pair 3'
    """
    return mapped(
        task,
        "wiggly",
        x=lambda v: v + 0.4 * np.sin(v) + 0.2 * np.sin(1.7 * v + 1) + 0.03 * np.sin(3.3 * v - 2.5),
        y=lambda v: v - 0.4 * np.sin(0.4 * v) + 0.17 * np.sin(1.3 * v + 3.5) + 0.02 * np.sin(4.3 * v - 2.5),
    )


def bimodal(correlation: float = 0.75) -> Task:
    """A correlated normal pair whose margins are turned into mixtures of two normals.

    Args:
        correlation: of the pair, in (-1, 1).

    Returns:
        The task, with the `mi_nats` of the pair.

    >>> round(bimodal(0.75).mi_nats, 4)
    0.4133
    """
    task = gaussian_pairs(1, pairs=1, correlation=correlation)
    return mapped(
        replace(task, name=f"{correlation:g}"),
        "bimodal",
        x=lambda v: _mixture_quantile(arrays.normal_cdf(v), 0.3, 0.0, 5.0),
        y=lambda v: _mixture_quantile(arrays.normal_cdf(v), 0.5, -1.0, 3.0),
    )


def _mixture_quantile(u: Array, weight: float, first: float, second: float) -> Array:
    """Inverse of weight * cdf(v - first) + (1 - weight) * cdf(v - second), by bisection."""
    low, high = np.full_like(u, min(first, second) - 12), np.full_like(u, max(first, second) + 12)
    for _ in range(60):
        middle = (low + high) / 2
        below = weight * arrays.normal_cdf(middle - first) + (1 - weight) * arrays.normal_cdf(middle - second) < u
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return (low + high) / 2


def swiss_roll(correlation: float = 0.75) -> Task:
    """A correlated normal pair whose x is rolled up in the plane; x then has two columns.

    Args:
        correlation: of the pair, in (-1, 1).

    Returns:
        The task, with the `mi_nats` of the pair.

    >>> swiss_roll().dim_x, round(swiss_roll().mi_nats, 4)
    (2, 0.4133)
    """

    def roll(v: Array) -> Array:
        turn = 1.5 * math.pi * (1 + 2 * arrays.normal_cdf(v))
        return np.hstack([turn * np.cos(turn), turn * np.sin(turn)]) / 21

    task = gaussian_pairs(1, pairs=1, correlation=correlation)
    return mapped(replace(task, name=f"{correlation:g}"), "swiss-roll", x=roll, y=arrays.normal_cdf, dim_x=2)


def spiral(task: Task, *, speed: float | None = None) -> Task:
    """Each vector turned in one plane by an angle of `speed` times its squared norm.

    x turns in its first two coordinates, y in its second and third (in two dimensions, in both).

    Args:
        task: of at least two columns each.
        speed: radians per unit of the squared norm; 1 / dimension if left out.

    Returns:
        A task with the `mi_nats` of `task`.

    >>> spiral(gaussian_pairs(3)).name
    'spiral 2-pair 3'

    Reference: Czyż et al. 2023.
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


def sheared(task: Task, strength: float = 1.0) -> Task:
    """Every second coordinate moved by a sine of the one before it: no map of single coordinates undoes that.

    Args:
        task: any; of a single column, nothing moves.
        strength: amplitude of the sine.

    Returns:
        A task with the `mi_nats` of `task`.

    >>> sheared(gaussian_pairs(4)).name
    'sheared 2-pair 4'
    """

    def shear(v: Array) -> Array:
        out = v.copy()
        moved = out[:, 1::2]
        moved += strength * np.sin(2 * v[:, 0::2][:, : moved.shape[1]])
        return out

    return mapped(task, "sheared", x=shear, y=shear)


def rotated(task: Task, seed: int = 0) -> Task:
    """x and y each turned by an orthogonal matrix.

    Args:
        task: any.
        seed: of the two matrices.

    Returns:
        A task with the `mi_nats` of `task`.

    >>> rotated(gaussian_pairs(4)).name
    'rotated 2-pair 4'
    """
    rng = np.random.default_rng(seed)
    turn_x, turn_y = (np.linalg.qr(rng.standard_normal((dim, dim)))[0] for dim in (task.dim_x, task.dim_y))
    return mapped(task, "rotated", x=lambda v: v @ turn_x, y=lambda v: v @ turn_y)


def stirred(task: Task, seed: int = 0) -> Task:
    """Rotated, each coordinate v stretched by sign(v) |v|^1.5, and rotated again.

    Args:
        task: any.
        seed: of the rotations.

    Returns:
        A task with the `mi_nats` of `task`.

    >>> stirred(gaussian_pairs(4)).name
    'stirred 2-pair 4'
    """
    stretched = half_cube(replace(rotated(task, seed), name=task.name))
    return replace(rotated(stretched, seed + 1), name=f"stirred {task.name}")
