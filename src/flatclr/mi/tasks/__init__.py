"""Joint distributions whose mutual information is known exactly, to test estimators on.

>>> task = gaussian_pairs(5, pairs=2, correlation=0.8)
>>> x, y = task.sample(100, seed=0)
>>> x.shape, y.shape, round(task.mi_nats, 4)
((100, 5), (100, 5), 1.0217)

A homeomorphism of x alone, or of y alone, leaves the information as it is: `maps` makes hard tasks of easy ones.
"""

from flatclr.mi.arrays import Array, turned
from flatclr.mi.student import student_excess_nats
from flatclr.mi.tasks.elliptical import gaussian, gaussian_dense, gaussian_pairs, gaussian_with_mi, staircase, student
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
from flatclr.mi.tasks.mixtures import concentric, galaxy, gaussian_mixture, inliers, letters, waves
from flatclr.mi.tasks.noise import (
    additive_uniform,
    circular,
    discrete_uniform,
    folded,
    sign_mixture,
    zero_inflated_poisson,
)
from flatclr.mi.tasks.sets import benchmark_tasks, mixture_tasks, tuning_tasks, unfamiliar_tasks
from flatclr.mi.tasks.task import Draw, Task, mapped

__all__ = [
    "Array",
    "Draw",
    "Task",
    "additive_uniform",
    "asinh",
    "benchmark_tasks",
    "bimodal",
    "circular",
    "concentric",
    "discrete_uniform",
    "folded",
    "galaxy",
    "gaussian",
    "gaussian_dense",
    "gaussian_mixture",
    "gaussian_pairs",
    "gaussian_with_mi",
    "half_cube",
    "inliers",
    "letters",
    "mapped",
    "mixture_tasks",
    "normal_cdf",
    "rotated",
    "sheared",
    "sign_mixture",
    "spiral",
    "staircase",
    "stirred",
    "student",
    "student_excess_nats",
    "swiss_roll",
    "tuning_tasks",
    "turned",
    "unfamiliar_tasks",
    "waves",
    "wiggly",
    "zero_inflated_poisson",
]
