"""The default on the distributions of the public tables of mutinfo, beside the numbers of those tables.

    python -m benchmarks.mi_mutinfo --seconds 3600          go on for an hour, then write results/mi_mutinfo/README.md
    python -m benchmarks.mi_mutinfo --budget 600            with 600 s an estimate

Six distributions of 0 to 10 nats in 1 to 3 dimensions, 10,000 rows, one seed. The published errors are means over the
same dimensions (results/mi_mutinfo/published.json, with their source). Information is spread evenly over dimensions.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import digamma

from benchmarks import mi_draws, record
from flatclr.mi import tasks

ROWS, DIMENSIONS, NATS = 10_000, (1, 2, 3), (10, 5, 8, 2, 6, 4, 9, 3, 7, 1, 0)
FOLDER = record.RESULTS / "mi_mutinfo"


def independent(dim: int, draw_x: Callable[[np.random.Generator, tuple[int, int]], tasks.Array]) -> tasks.Task:
    def draw(n: int, rng: np.random.Generator) -> tuple[tasks.Array, tasks.Array]:
        return draw_x(rng, (n, dim)), draw_x(rng, (n, dim))

    return tasks.Task("independent", 0.0, dim, dim, draw)


def normal(nats: float, dim: int) -> tasks.Task:
    return tasks.gaussian_with_mi(nats, dim) if nats else independent(dim, lambda rng, size: rng.standard_normal(size))


def student(nats: float, dim: int, df: float = 2.0) -> tasks.Task | None:
    """None where the common scale alone shares more."""
    rest = nats - tasks.student_excess_nats(dim, dim, df)
    if rest <= 0:
        return None
    correlation = math.sqrt(-math.expm1(-2 * rest / dim))
    dispersion = np.eye(2 * dim)
    dispersion[range(dim), range(dim, 2 * dim)] = dispersion[range(dim, 2 * dim), range(dim)] = correlation
    return tasks.student(dim, dim, df, dispersion)


def uniform(nats: float, dim: int) -> tasks.Task:
    return tasks.normal_cdf(normal(nats, dim))


def log_gamma_exponential(nats: float, dim: int) -> tasks.Task:
    """x = ln g, y = ln(e / g), g of a Gamma law of shape a, e exponential; I = d (psi(a + 1) - ln a)."""
    if nats == 0:
        return independent(dim, lambda rng, size: np.log(rng.exponential(size=size)))
    each = nats / dim
    shape = math.exp(brentq(lambda s: digamma(math.exp(s) + 1) - s - each, -60, 30))

    def draw(n: int, rng: np.random.Generator) -> tuple[tasks.Array, tasks.Array]:
        # ln of a Gamma(a) variable is ln of a Gamma(a + 1) one plus ln(u) / a: small shapes do not underflow
        x = np.log(rng.gamma(shape + 1, size=(n, dim))) + np.log(rng.uniform(size=(n, dim))) / shape
        return x, np.log(rng.exponential(size=(n, dim))) - x

    return tasks.Task("log-gamma-exponential", nats, dim, dim, draw)


def smoothed_uniform(nats: float, dim: int) -> tasks.Task:
    if nats == 0:
        return independent(dim, lambda rng, size: rng.uniform(size=size))
    each = nats / dim
    noise = (
        1 / (4 * each) if each < 0.5 else math.exp(brentq(lambda s: math.exp(s) - s - math.log(2) - each, -60, -0.693))
    )

    def draw(n: int, rng: np.random.Generator) -> tuple[tasks.Array, tasks.Array]:
        x = rng.uniform(size=(n, dim))
        return x, x + rng.uniform(-noise, noise, size=(n, dim))

    return tasks.Task("smoothed uniform", nats, dim, dim, draw)


def quantized(nats: float, dim: int) -> tasks.Task:
    """y = the level of x, all levels but one equally likely; I = d H(y_1)."""
    if nats == 0:
        return independent(dim, lambda rng, size: rng.standard_normal(size))
    each = nats / dim
    others = math.ceil(math.exp(each)) - 1

    def entropy(last: float) -> float:
        return -last * math.log(last) - (1 - last) * math.log((1 - last) / others)

    last = (
        brentq(lambda q: entropy(q) - each, 1e-12, 1 / (others + 1))
        if entropy(1 / (others + 1)) > each
        else 1 / (others + 1)
    )

    def draw(n: int, rng: np.random.Generator) -> tuple[tasks.Array, tasks.Array]:
        u = rng.uniform(size=(n, dim))
        return u, np.minimum(np.floor(u * others / (1 - last)), others)

    return tasks.Task("quantized", nats, dim, dim, draw)


DISTRIBUTIONS: dict[str, Callable[[float, int], tasks.Task | None]] = {
    "smoothed uniform": smoothed_uniform,
    "log-gamma-exponential": log_gamma_exponential,
    "normal": normal,
    "student": student,
    "uniform": uniform,
    "quantized": quantized,
}


def draws(budget_seconds: float) -> Iterator[mi_draws.Draw]:
    for nats in NATS:
        for dim in DIMENSIONS:
            for name, make in DISTRIBUTIONS.items():
                task = make(float(nats), dim)
                if task is not None:
                    named = replace(task, name=f"{name}, {nats} nats, {dim} columns")
                    yield mi_draws.Draw(named.name, named, ROWS, 0, budget_seconds)


def brackets(errors: dict[int, float]) -> str:
    """Means over 1 to 5 and 6 to 10 nats, and the error at 10."""
    parts = [[errors[n] for n in wanted if n in errors] for wanted in (range(1, 6), range(6, 11), (10,))]
    return " / ".join(f"{np.mean(part):.2f}" if part else "-" for part in parts)


def summary(rows: list[dict[str, Any]]) -> str:
    published = json.loads((FOLDER / "published.json").read_text())
    table = []
    for name in DISTRIBUTIONS:
        errors: dict[int, list[float]] = {}
        for row in rows:
            law, nats, _ = row["cell"].split(", ")
            if law == name:
                errors.setdefault(int(nats.split()[0]), []).append(abs(row["nats"] - row["true_nats"]))
        ours = {nats: float(np.mean(found)) for nats, found in errors.items()}
        theirs = published["mean_absolute_error"][name]
        shown = {
            f"{them}": brackets({n: v for n, v in enumerate(values) if v is not None})
            for them, values in theirs.items()
        }
        table.append(
            {"distribution": name, "cells": sum(map(len, errors.values())), "default": brackets(ours), **shown}
        )
    seconds = np.array([row["cpu_seconds"] for row in rows])
    budgets = ", ".join(f"{budget:g}" for budget in sorted({row["budget_seconds"] for row in rows}))
    return (
        f"{__doc__}\nMean absolute error in nats at 1-5 / 6-10 nats / at 10.\n\n{record.markdown(table)}\n\n"
        f"Budget {budgets} s an estimate, {seconds.mean():.1f} CPU s on average, {seconds.max():.1f} at most. "
        f"Published: {published['source']}, commit {published['commit'][:10]}. "
        f"{mi_draws.measured_on(rows)}\n"
    )


def main() -> None:
    parser = mi_draws.parser(__doc__, seconds=3600.0)
    parser.add_argument("--budget", type=float, default=60.0, help="seconds an estimate")
    given = parser.parse_args()
    mi_draws.go_on(draws(given.budget), FOLDER, summary, given)


if __name__ == "__main__":
    main()
