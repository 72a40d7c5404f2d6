"""The default on the second task list of the package bmi: mixtures, bent ones, and some of the first list.

    python -m benchmarks.mi_bmi --seconds 900                 go on for 15 minutes, then write results/mi_bmi/README.md
    python -m benchmarks.mi_bmi --method ksg                  another method beside it

The 26 tasks of workflows/benchmark/v2/config.py with its 5,000 rows (Czyż et al. 2025, "Bend and Mix Models"); the
information of mixtures is a mean over 400,000 rows of the known log ratio. Nothing of them is known to the estimator.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from benchmarks import mi_draws, record
from flatclr.files import read_json_lines
from flatclr.mi import arrays, tasks
from flatclr.mi.methods import METHODS

ROWS, SEEDS, TRUTH_ROWS = 5_000, 10, 400_000
FOLDER = record.RESULTS / "mi_bmi"


@dataclass(frozen=True)
class Mixture:
    """Normal components of (x, y), equally likely unless `weights` says otherwise."""

    means: tasks.Array  # [K, d_x + d_y]
    covariances: tasks.Array  # [K, d, d]
    dim_x: int
    weights: tasks.Array | None = None

    @property
    def shares(self) -> tasks.Array:
        return np.full(len(self.means), 1 / len(self.means)) if self.weights is None else self.weights

    def draw(self, n: int, rng: np.random.Generator) -> tuple[tasks.Array, tasks.Array]:
        component = rng.choice(len(self.means), size=n, p=self.shares)
        noise = rng.standard_normal((n, self.means.shape[1]))
        rows = np.empty_like(noise)
        for k, covariance in enumerate(self.covariances):
            chosen = component == k
            rows[chosen] = self.means[k] + noise[chosen] @ np.linalg.cholesky(covariance).T
        return rows[:, : self.dim_x], rows[:, self.dim_x :]

    def log_density(self, rows: tasks.Array, part: slice) -> tasks.Array:
        terms = []
        for share, mean, covariance in zip(self.shares, self.means, self.covariances, strict=True):
            root = np.linalg.cholesky(covariance[part, part])
            white = np.linalg.solve(root, (rows[:, part] - mean[part]).T)
            log_volume = np.log(np.diag(root)).sum() + len(root) / 2 * math.log(2 * math.pi)
            terms.append(math.log(share) - (white**2).sum(0) / 2 - log_volume)
        density: tasks.Array = np.logaddexp.reduce(terms)
        return density

    @property
    def mi_nats(self) -> float:
        rows = np.hstack(self.draw(TRUTH_ROWS, np.random.default_rng(0)))
        both, x, y = (
            self.log_density(rows, part) for part in (slice(None), slice(None, self.dim_x), slice(self.dim_x, None))
        )
        return float(np.mean(both - x - y))

    def task(self, name: str) -> tasks.Task:
        return tasks.Task(name, self.mi_nats, self.dim_x, self.means.shape[1] - self.dim_x, self.draw)


def letters() -> tasks.Task:
    """Six strokes that write AI."""
    lean = 0.95 * math.sqrt(0.04 * 0.2)
    strokes = (
        ((1.0, 0.0), ((0.01, 0), (0, 0.2))),
        ((1.0, 1.0), ((0.05, 0), (0, 0.001))),
        ((1.0, -1.0), ((0.05, 0), (0, 0.001))),
        ((-0.8, -0.2), ((0.03, 0), (0, 0.001))),
        ((-1.2, 0.0), ((0.04, lean), (lean, 0.2))),
        ((-0.4, 0.0), ((0.04, -lean), (-lean, 0.2))),
    )
    return Mixture(np.array([m for m, _ in strokes]), np.array([c for _, c in strokes]), 1).task("AI")


def waves() -> tasks.Task:
    """Twelve stripes of x, bent into waves; y tells which fourth."""
    place = np.arange(12.0)
    means = 1.5 * np.stack([place, np.zeros(12), place % 4], 1)
    task = Mixture(means, np.tile(np.diag([0.1, 1.0, 0.1]), (12, 1, 1)), 2).task("waves")

    def bend(v: tasks.Array) -> tasks.Array:
        return np.stack([0.1 * (v[:, 0] + 5 * np.sin(3 * v[:, 1])) - 0.8, 0.5 * v[:, 1]], 1)

    return replace(tasks.mapped(task, "bent", x=bend), name="waves")


def galaxy() -> tasks.Task:
    """Two balls that are wound up in x."""
    means = 1.5 * np.array([[-1.0] * 3, [1.0] * 3])
    task = Mixture(means, np.tile(np.eye(3), (2, 1, 1)), 2).task("galaxy")

    def wind(v: tasks.Array) -> tasks.Array:
        return arrays.turned(v, 0, 1, 0.5 * (v**2).sum(1))

    return replace(tasks.mapped(task, "wound", x=wind), name="galaxy")


def concentric(dim: int, rings: int) -> tasks.Task:
    """Normal balls around one centre; y tells which."""
    radius = np.arange(1.0, rings + 1)
    means = np.hstack([np.zeros((rings, dim)), radius[:, None]])
    covariances = np.array([np.diag([r**2] * dim + [1e-4]) for r in radius])
    return Mixture(means, covariances, dim).task(f"concentric {dim}, {rings} rings")


def inliers(dim: int, share: float) -> tasks.Task:
    """Two correlated pairs, but a share of rows whose y is that of another row."""
    covariance = np.eye(2 * dim)
    covariance[[0, 1, dim, dim + 1], [dim, dim + 1, 0, 1]] = 0.8
    covariances = np.stack([covariance, np.eye(2 * dim)])
    mixture = Mixture(np.zeros((2, 2 * dim)), covariances, dim, np.array([1 - share, share]))
    return mixture.task(f"2-pair {dim}, {share:.0%} inliers")


@cache
def all_tasks() -> dict[str, tasks.Task]:
    """The list, in its order."""
    found = [
        tasks.additive_uniform(0.75),
        tasks.asinh(tasks.student(1, 1, 1)),
        replace(tasks.sign_mixture(1), name="X"),
        letters(),
        tasks.swiss_roll(),
        waves(),
        galaxy(),
        concentric(3, 5),
        concentric(5, 5),
        concentric(3, 10),
        concentric(5, 10),
        concentric(25, 5),
        tasks.gaussian_dense(5),
        tasks.gaussian_dense(25),
        tasks.gaussian_dense(50),
        tasks.gaussian_pairs(5),
        tasks.gaussian_pairs(25),
        inliers(5, 0.2),
        inliers(25, 0.2),
        inliers(5, 0.5),
        inliers(25, 0.5),
        tasks.asinh(tasks.student(2, 2, 1)),
        tasks.asinh(tasks.student(3, 3, 2)),
        tasks.asinh(tasks.student(5, 5, 2)),
        tasks.spiral(tasks.gaussian_pairs(3)),
        tasks.spiral(tasks.gaussian_pairs(5)),
    ]
    return {task.name: task for task in found}


def draws(method: str) -> Iterator[mi_draws.Draw]:
    for seed in range(SEEDS):
        for name, task in all_tasks().items():
            yield mi_draws.Draw(f"{name}; {method}", task, ROWS, seed, 60.0, method)


def summary(rows: list[dict[str, Any]]) -> str:
    methods = list(dict.fromkeys(row["cell"].split("; ")[1] for row in rows))
    table, errors = [], {method: list[float]() for method in methods}
    for name, task in all_tasks().items():
        line = {"task": name, "columns": f"{task.dim_x} + {task.dim_y}", "true": f"{task.mi_nats:.3f}"}
        for method in methods:
            part = [row for row in rows if row["cell"] == f"{name}; {method}"]
            line[method] = _shown(part, with_error=method == "auto")
            if part:
                errors[method].append(float(np.mean([abs(row["nats"] - row["true_nats"]) for row in part])))
            if method == "auto":
                line["by"] = ", ".join(dict.fromkeys(row["method"] for row in part))
                line["draws"] = str(len(part))
        table.append(line)
    means = {method: f"{np.mean(errors[method]):.3f} ({len(errors[method])} tasks)" for method in methods}
    seconds = [row["cpu_seconds"] for row in rows if row["cell"].endswith("; auto")] or [0.0]
    commits = sorted({row["environment"]["commit"] for row in rows})
    return (
        f"{__doc__}\n{record.markdown(table)}\n\nMean absolute error in nats: "
        + ", ".join(f"{method} {mean}" for method, mean in means.items())
        + f". The default takes {np.mean(seconds):.1f} CPU s on average, {max(seconds):.1f} at most. "
        f"Measured on {record.where()}; commits {', '.join(commits)}.\n"
    )


def _shown(part: list[dict[str, Any]], *, with_error: bool) -> str:
    if not part:
        return "-"
    nats = np.mean([row["nats"] for row in part])
    error = np.median([math.inf if row["standard_error"] is None else row["standard_error"] for row in part])
    return f"{nats:.3f} +- {error:.3f}" if with_error else f"{nats:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=900.0, help="after which no estimate is begun")
    parser.add_argument("--method", choices=list(METHODS), default="auto")
    given = parser.parse_args()
    path = FOLDER / "draws.jsonl"
    for row in mi_draws.accumulate(draws(given.method), path, seconds=given.seconds):
        print(f"{row['cell']:40} {row['true_nats']:.3f} {row['nats']:.3f} +- {row['standard_error']}", flush=True)
    found = list(read_json_lines(path))
    if found:
        (FOLDER / "README.md").write_text(summary(found))


if __name__ == "__main__":
    main()
