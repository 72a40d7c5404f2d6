"""A task, and the same task seen through maps of x and of y."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from flatclr.checks import require_count
from flatclr.mi.arrays import Array

Draw = Callable[[int, np.random.Generator], tuple[Array, Array]]
"""A function of (rows, generator) that returns the rows of x and of y."""


@dataclass(frozen=True)
class Task:
    """A distribution of (x, y) with its mutual information in nats.

    Args:
        name: what tables and `flatclr mi --tasks` call it.
        mi_nats: the true mutual information.
        dim_x, dim_y: columns of x and of y.
        draw: (n, generator) -> x [n, dim_x], y [n, dim_y].

    >>> def draw(n, rng):
    ...     coin = rng.integers(2, size=(n, 1)).astype(float)
    ...     return coin, coin
    >>> task = Task("coin", mi_nats=0.6931, dim_x=1, dim_y=1, draw=draw)
    >>> x, y = task.sample(4, seed=0)
    >>> x.shape, bool((x == y).all())
    ((4, 1), True)
    """

    name: str
    mi_nats: float
    dim_x: int
    dim_y: int
    draw: Draw

    def sample(self, n: int, seed: int) -> tuple[Array, Array]:
        """Independent rows of the distribution.

        Args:
            n: how many rows, at least 1.
            seed: the same seed gives the same rows.

        Returns:
            x [n, dim_x] and y [n, dim_y] in float64; row i of both belong together.
        """
        require_count("n", n, advice="ask for at least one row.")
        x, y = self.draw(n, np.random.default_rng(seed))
        return np.ascontiguousarray(x), np.ascontiguousarray(y)


def mapped(
    task: Task,
    name: str,
    *,
    x: Callable[[Array], Array] | None = None,
    y: Callable[[Array], Array] | None = None,
    dim_x: int | None = None,
) -> Task:
    """The task with homeomorphisms applied to x and to y: other data, the same information.

    Args:
        task: the task whose rows are mapped.
        name: goes before the name of `task`.
        x, y: maps of [n, d] rows that are continuous and can be undone; None leaves a variable as it is.
        dim_x: columns of x after its map, where the map changes their number.

    Returns:
        A task with the `mi_nats` of `task`.

    >>> task = mapped(flatclr.mi.tasks.gaussian_pairs(1, pairs=1), "cubic", y=lambda y: y**3)
    >>> task.name, round(task.mi_nats, 4)
    ('cubic 1-pair 1', 0.5108)
    """

    def draw(n: int, rng: np.random.Generator) -> tuple[Array, Array]:
        base_x, base_y = task.draw(n, rng)
        return base_x if x is None else x(base_x), base_y if y is None else y(base_y)

    return replace(task, name=f"{name} {task.name}", draw=draw, dim_x=dim_x or task.dim_x)
