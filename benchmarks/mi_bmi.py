"""The default on both task lists of the package bmi.

    python -m benchmarks.mi_bmi --seconds 900                 go on for 15 minutes, then write results/mi_bmi/README.md
    python -m benchmarks.mi_bmi --method ksg                  another method beside it

The tasks of workflows/benchmark/v1/config.py and v2/config.py with their 5,000 rows. The first list (Czyż et al. 2023,
"Beyond Normal") has the kinds that the default's families are for, and many of its tasks were in view when it was made.
Of the second (Czyż et al. 2025, "Bend and Mix Models"; `flatclr.mi.tasks.mixture_tasks()`) no mixture was, but the look
at canonical columns was made after a first run had read the inlier tasks wrongly. bmi publishes its estimators' values
as heat maps and no table, so that beside the default stand methods of ours of the kinds it has: `gaussian` is its CCA.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks import mi_draws, record
from flatclr.mi import tasks
from flatclr.mi.methods import METHODS

ROWS, SEEDS = 5_000, 10
FOLDER = record.RESULTS / "mi_bmi"


def first_list() -> dict[str, tasks.Task]:
    """By name, those that both lists have by the same."""
    one = replace(tasks.gaussian_pairs(1, pairs=1, correlation=0.75), name="normal 1")
    pairs = [tasks.gaussian_pairs(dim) for dim in (3, 5, 25)]
    uniform = [tasks.normal_cdf(task) for task in pairs]
    found = [
        *(one, tasks.normal_cdf(one), tasks.additive_uniform(0.75), tasks.bimodal(), tasks.wiggly(one)),
        *(tasks.half_cube(one), tasks.student(1, 1, 1), tasks.asinh(tasks.student(1, 1, 1)), tasks.swiss_roll()),
        *(tasks.gaussian_dense(dim) for dim in (2, 3, 5, 25, 50)),
        *(tasks.gaussian_pairs(2), *pairs),
        *(tasks.student(dim, dim, df) for dim, df in ((2, 1), (2, 2), (3, 2), (3, 3), (5, 2), (5, 3))),
        *(*uniform, *map(tasks.half_cube, pairs), *map(tasks.spiral, pairs), *map(tasks.spiral, uniform)),
        *(tasks.asinh(tasks.student(dim, dim, df)) for dim, df in ((2, 1), (3, 2), (5, 2))),
    ]
    return {task.name: task for task in found}


LISTS: dict[str, Callable[[], dict[str, tasks.Task]]] = {"First list": first_list, "Second list": tasks.mixture_tasks}


def draws(method: str) -> Iterator[mi_draws.Draw]:
    every = {name: task for tasks_of in LISTS.values() for name, task in tasks_of().items()}
    for seed in range(SEEDS):
        for name, task in every.items():
            yield mi_draws.Draw(f"{name}; {method}", task, ROWS, seed, 60.0, method)


def summary(rows: list[dict[str, Any]]) -> str:
    methods = list(dict.fromkeys(row["cell"].split("; ")[1] for row in rows))
    seconds = [row["cpu_seconds"] for row in rows if row["cell"].endswith("; auto")] or [0.0]
    return "\n\n".join(
        [
            f"{__doc__}Mean over draws, the default's with its median standard error.",
            *(_section(title, list_of(), methods, rows) for title, list_of in LISTS.items()),
            f"The default takes {np.mean(seconds):.1f} CPU s on average, {max(seconds):.1f} at most. "
            f"{mi_draws.measured_on(rows)}\n",
        ]
    )


def _section(title: str, tasks_of: dict[str, tasks.Task], methods: list[str], rows: list[dict[str, Any]]) -> str:
    table, errors = [], {method: list[float]() for method in methods}
    for name, task in tasks_of.items():
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
    means = [f"{method} {np.mean(found):.3f} ({len(found)} tasks)" for method, found in errors.items() if found]
    return f"## {title}\n\n{record.markdown(table)}\n\nMean absolute error in nats: {', '.join(means)}."


def _shown(part: list[dict[str, Any]], *, with_error: bool) -> str:
    if not part:
        return "-"
    nats = np.mean([row["nats"] for row in part])
    error = np.median([math.inf if row["standard_error"] is None else row["standard_error"] for row in part])
    return f"{nats:.3f} +- {error:.3f}" if with_error else f"{nats:.3f}"


def main() -> None:
    parser = mi_draws.parser(__doc__)
    parser.add_argument("--method", choices=list(METHODS), default="auto")
    given = parser.parse_args()
    mi_draws.go_on(draws(given.method), FOLDER, summary, given)


if __name__ == "__main__":
    main()
