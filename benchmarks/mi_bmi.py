"""The default on the second task list of the package bmi: mixtures, bent ones, and some of the first list.

    python -m benchmarks.mi_bmi --seconds 900                 go on for 15 minutes, then write results/mi_bmi/README.md
    python -m benchmarks.mi_bmi --method ksg                  another method beside it

The 26 tasks of workflows/benchmark/v2/config.py with its 5,000 rows (Czyż et al. 2025, "Bend and Mix Models"), here
`flatclr.mi.tasks.mixture_tasks()`. No family of the default was made for them, but the look at canonical columns was
made after a first run had read the inlier tasks wrongly.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks import mi_draws, record
from flatclr.mi import tasks
from flatclr.mi.methods import METHODS

ROWS, SEEDS = 5_000, 10
FOLDER = record.RESULTS / "mi_bmi"


def draws(method: str) -> Iterator[mi_draws.Draw]:
    for seed in range(SEEDS):
        for name, task in tasks.mixture_tasks().items():
            yield mi_draws.Draw(f"{name}; {method}", task, ROWS, seed, 60.0, method)


def summary(rows: list[dict[str, Any]]) -> str:
    methods = list(dict.fromkeys(row["cell"].split("; ")[1] for row in rows))
    table, errors = [], {method: list[float]() for method in methods}
    for name, task in tasks.mixture_tasks().items():
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
    parser = mi_draws.parser(__doc__)
    parser.add_argument("--method", choices=list(METHODS), default="auto")
    given = parser.parse_args()
    mi_draws.go_on(draws(given.method), FOLDER, summary, seconds=given.seconds)


if __name__ == "__main__":
    main()
