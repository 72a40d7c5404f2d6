"""The default on few rows, in the published test settings of an estimator that was trained beforehand (MIST).

    python -m benchmarks.mi_few --seconds 900              go on for 15 minutes, then write results/mi_few/README.md

Normal, Student and additive-noise pairs in 2 to 32 columns of each variable through monotone maps, with parameters
drawn as there; rows on its grid of 20 numbers from 10 to 500. Of fewer than 50 the default gives no error.
"In" are the kinds that MIST was trained on, "out" the others. The draws are ours: the published rows are not at hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from benchmarks import mi_draws, record
from benchmarks.mi_calibration import NORMAL
from flatclr.mi import tasks

GRID, COLUMNS, REPEATS, BUDGET_SECONDS = np.linspace(10, 500, 20).astype(int), (2, 32), 3, 20.0
FOLDER = record.RESULTS / "mi_few"
BRACKETS = ((10, 100), (100, 300), (300, 501))
PUBLISHED = {  # mean squared error in nats^2, github.com/grgera/mist at 3fc7e62, docs/images/m_test_results.jpg
    "MIST": {"in": (3.1, 0.34, 0.28), "out": (8.0, 7.3, 8.8)},
    "MIST-QR": {"in": (3.1, 0.31, 0.12), "out": (9.5, 9.9, 10.0)},
}

Rng = np.random.Generator
Make = Callable[[int, Rng], tasks.Task]


def latent_covariance(dim: int, pairs: int, *, common: float, strength: float, own: float, rest: float) -> tasks.Array:
    """Unit noise, a variable common to all columns, one to each side, one to each pair, and more noise on the rest."""
    across = np.kron([[0.0, 1.0], [1.0, 0.0]], np.diag(np.arange(dim) < pairs) * strength**2)
    sides = np.kron(np.eye(2), np.full((dim, dim), own**2))
    noise = 1 + np.tile(np.where(np.arange(dim) < pairs, strength**2, rest**2), 2)
    covariance: tasks.Array = common**2 + sides + across + np.diag(noise)
    return covariance


def correlation_of(covariance: tasks.Array) -> tasks.Array:
    scale = np.sqrt(np.diag(covariance))
    correlation: tasks.Array = covariance / np.outer(scale, scale)
    return correlation


def dense(dim: int, rng: Rng) -> tasks.Array:
    off = rng.uniform(0, 0.5)
    return np.full((2 * dim, 2 * dim), off) + (1 - off) * np.eye(2 * dim)


def sparse(dim: int, rng: Rng) -> tasks.Array:
    strength = rng.uniform(0.1, 5)
    pairs = int(rng.integers(1, dim + 1))
    return correlation_of(latent_covariance(dim, pairs, common=0, strength=strength, own=0, rest=strength))


def latent(dim: int, rng: Rng) -> tasks.Array:
    common, strength, own, rest = (rng.uniform(*span) for span in ((0, 1), (0.1, 3), (0, 1.5), (0.1, 5)))
    pairs = int(rng.integers(1, dim + 1))
    return correlation_of(latent_covariance(dim, pairs, common=common, strength=strength, own=own, rest=rest))


def normal(shape: Callable[[int, Rng], tasks.Array], dim: int, rng: Rng) -> tasks.Task:
    return tasks.gaussian(shape(dim, rng), dim)


def student(shape: Callable[[int, Rng], tasks.Array], dim: int, rng: Rng) -> tasks.Task:
    return tasks.student(dim, dim, rng.uniform(1, 10), shape(dim, rng))


def additive(dim: int, rng: Rng) -> tasks.Task:
    """x uniform on [0, 1], y = x and uniform noise of another width in each column."""
    widths = rng.uniform(0.1, 2.0, size=dim)

    def draw(n: int, rng: Rng) -> tuple[tasks.Array, tasks.Array]:
        x = rng.uniform(size=(n, dim))
        return x, x + rng.uniform(-1, 1, size=(n, dim)) * widths

    return tasks.Task("additive", sum(tasks.additive_uniform(width).mi_nats for width in widths), dim, dim, draw)


def through(change: Callable[[tasks.Task], tasks.Task], make: Make, dim: int, rng: Rng) -> tasks.Task:
    return change(make(dim, rng))


KINDS: dict[str, dict[str, Make]] = {
    "in": {
        "normal dense": partial(normal, dense),
        "normal latent wiggly": partial(through, tasks.wiggly, partial(normal, latent)),
        "normal dense half-cube": partial(through, tasks.half_cube, partial(normal, dense)),
        "student dense": partial(student, dense),
        "student sparse": partial(student, sparse),
        "student sparse asinh": partial(through, tasks.asinh, partial(student, sparse)),
    },
    "out": {
        "normal dense wiggly": partial(through, tasks.wiggly, partial(normal, dense)),
        "normal sparse half-cube": partial(through, tasks.half_cube, partial(normal, sparse)),
        "normal sparse asinh": partial(through, tasks.asinh, partial(normal, sparse)),
        "student sparse wiggly": partial(through, tasks.wiggly, partial(student, sparse)),
        "student dense half-cube": partial(through, tasks.half_cube, partial(student, dense)),
        "additive": additive,
        "additive half-cube": partial(through, tasks.half_cube, additive),
    },
}


def draws() -> Iterator[mi_draws.Draw]:
    """One draw of every kind at every number of rows, then the second; rows in an order that fills brackets evenly."""
    for repeat in range(REPEATS):
        for rows in np.random.default_rng(repeat).permutation(GRID):
            named = [(side, kind, make) for side, kinds in KINDS.items() for kind, make in kinds.items()]
            for place, (side, kind, make) in enumerate(named):
                rng = np.random.default_rng([repeat, int(rows), place])
                dim = int(rng.integers(COLUMNS[0], COLUMNS[1] + 1))
                task = replace(make(dim, rng), name=f"{kind}, {dim} columns")
                yield mi_draws.Draw(f"{side}: {kind}, {rows} rows", task, int(rows), repeat, BUDGET_SECONDS)


def summary(rows: list[dict[str, Any]]) -> str:
    table = []
    for side in KINDS:
        for place, (low, high) in enumerate(BRACKETS):
            part = [row for row in rows if row["cell"].startswith(f"{side}:") and low <= row["rows"] < high]
            if not part:
                continue
            off = np.array([row["nats"] - row["true_nats"] for row in part])
            errors = np.array([row["standard_error"] or np.inf for row in part])
            sure = np.isfinite(errors)
            covered = np.abs(off[sure]) <= NORMAL * errors[sure]
            table.append(
                {
                    "kinds": side,
                    "rows": f"{low} to {high - high % 10}",
                    "draws": len(part),
                    "default": f"{np.mean(off**2):.2f}",
                    **{name: f"{values[side][place]:g}" for name, values in PUBLISHED.items()},
                    "median absolute error": f"{np.median(np.abs(off)):.2f}",
                    "with an error": f"{sure.mean():.0%}",
                    "of these, default": f"{np.mean(off[sure] ** 2):.2f}" if sure.any() else "-",
                    "of these, covered": f"{covered.mean():.0%}" if sure.any() else "-",
                    "CPU s": f"{np.mean([row['cpu_seconds'] for row in part]):.1f}",
                }
            )
    return (
        f"{__doc__}\nMean squared error in nats^2. MIST's columns are as published. An "
        "error is given where the default has a finite standard error; elsewhere it says that these rows do not "
        f"determine the value.\n\n{record.markdown(table)}\n\n"
        f"{mi_draws.measured_on(rows)}\n"
    )


def main() -> None:
    mi_draws.go_on(draws(), FOLDER, summary, mi_draws.parser(__doc__).parse_args())


if __name__ == "__main__":
    main()
