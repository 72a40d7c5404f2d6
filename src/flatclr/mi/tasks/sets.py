"""Sets of tasks: for development, for judgement, and for what nobody prepared for."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from flatclr.mi.tasks.elliptical import gaussian_dense, gaussian_pairs, student
from flatclr.mi.tasks.maps import (
    asinh,
    bimodal,
    half_cube,
    normal_cdf,
    rotated,
    sheared,
    spiral,
    stirred,
    swiss_roll,
    wiggly,
)
from flatclr.mi.tasks.mixtures import concentric, galaxy, inliers, letters, waves
from flatclr.mi.tasks.noise import (
    additive_uniform,
    circular,
    discrete_uniform,
    folded,
    sign_mixture,
    zero_inflated_poisson,
)
from flatclr.mi.tasks.task import Task


def unfamiliar_tasks() -> dict[str, Task]:
    """Tasks that no copula family of the default estimator was made for, in other dimensions than it was tuned on.

    Returns:
        Tasks by name: sheared, stirred and rotated Gaussians, hidden signs, circles and folds.

    >>> len(unfamiliar_tasks())
    18
    """
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
    """What the default estimator was developed on.

    Returns:
        Tasks by name, of the kinds of the literature's benchmarks.

    >>> len(tuning_tasks())
    22

    Reference: Czyż et al. 2023.
    """
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
    """What the default estimator is judged on: kinds of `tuning_tasks`, other dimensions, correlations and noise.

    Returns:
        Tasks by name.

    >>> round(benchmark_tasks()["student 2-2-2"].mi_nats, 4)
    0.1931
    """
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


def mixture_tasks() -> dict[str, Task]:
    """Mixtures and what stands beside them in the literature's second benchmark; nothing was tuned on them.

    Returns:
        Tasks by name; the literature draws 5,000 rows of each.

    >>> len(mixture_tasks())
    26

    Reference: Czyż et al. 2023, the second task list of the package bmi.
    """
    return dict(_mixtures())


@cache
def _mixtures() -> dict[str, Task]:
    """Made once: the information of each is a mean over many rows."""
    tasks = [
        additive_uniform(0.75),
        asinh(student(1, 1, 1)),
        sign_mixture(1),
        letters(),
        swiss_roll(),
        waves(),
        galaxy(),
        concentric(3, 5),
        concentric(5, 5),
        concentric(3, 10),
        concentric(5, 10),
        concentric(25, 5),
        gaussian_dense(5),
        gaussian_dense(25),
        gaussian_dense(50),
        gaussian_pairs(5),
        gaussian_pairs(25),
        inliers(5, 0.2),
        inliers(25, 0.2),
        inliers(5, 0.5),
        inliers(25, 0.5),
        asinh(student(2, 2, 1)),
        asinh(student(3, 3, 2)),
        asinh(student(5, 5, 2)),
        spiral(gaussian_pairs(3)),
        spiral(gaussian_pairs(5)),
    ]
    return {task.name: task for task in tasks}
