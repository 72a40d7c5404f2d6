"""Do the lower bounds of fewer than 50 rows hold, whatever the law?

python -m benchmarks.mi_certified        counts, and writes results/mi_certified.jsonl and .md
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from benchmarks import record
from benchmarks.mi_calibration import signs_beside_noise, wilson
from benchmarks.mi_independence import independent
from flatclr.mi import estimate, tasks

ROWS, DRAWS = (12, 20, 35, 49), 200
LAWS: dict[str, tasks.Task] = {
    "independent 1 + 1": independent(1),
    "independent 3 + 3": independent(3),
    "normal, correlation 0.3": tasks.gaussian_pairs(1, pairs=1, correlation=0.3),
    "normal, correlation 0.8": tasks.gaussian_pairs(1, pairs=1, correlation=0.8),
    "normal, correlation 0.99": tasks.gaussian_pairs(1, pairs=1, correlation=0.99),
    "two normal pairs, 2 + 2": tasks.gaussian_pairs(2),
    "normal dense, 3 + 3": tasks.gaussian_dense(3),
    "student, 1 degree": tasks.student(1, 1, 1),
    "student, 3 degrees, 3 + 3": tasks.student(3, 3, 3),
    "around a circle": tasks.circular(1),
    "on a folded line": tasks.folded(1),
    "signs": tasks.sign_mixture(1),
    "signs beside noise, 2 + 2": signs_beside_noise(2),
    "uniform noise added": tasks.additive_uniform(0.1),
    "sheared, 2 + 2": tasks.sheared(tasks.gaussian_pairs(2)),
    "sheared, 5 + 5": tasks.sheared(tasks.gaussian_pairs(5)),
    "letters": tasks.mixture_tasks()["letters"],
    "galaxy, 2 + 1": tasks.mixture_tasks()["galaxy 3"],
    "inliers, 5 + 5": tasks.mixture_tasks()["inliers 5-0.2"],
}


def count(law: str, rows: int, draws: int) -> dict[str, Any]:
    """How many of the bounds are above the truth, and how much of it they and the guesses reach."""
    task = LAWS[law]
    found = [estimate(*task.sample(rows, seed), seed=seed) for seed in range(draws)]
    return {
        "law": law,
        "rows": rows,
        "true_nats": task.mi_nats,
        "draws": draws,
        "too_high": sum(result.lower_nats > task.mi_nats for result in found),
        "mean_lower_nats": float(np.mean([result.lower_nats for result in found])),
        "mean_nats": float(np.mean([result.nats for result in found])),
    }


def markdown(found: list[dict[str, Any]]) -> str:
    """A line a law: bounds too high and their mean at each number of rows."""
    table = []
    for law, task in LAWS.items():
        line = {"law": law, "true": f"{task.mi_nats:.2f}"}
        for row in (row for row in found if row["law"] == law):
            line[f"{row['rows']} rows"] = f"{row['too_high'] / row['draws']:.1%}, {row['mean_lower_nats']:.2f}"
        pooled = [row for row in found if row["law"] == law]
        held = sum(row["draws"] - row["too_high"] for row in pooled)
        centre, half = wilson(held, sum(row["draws"] for row in pooled))
        line["held (Wilson)"] = f"{centre:.3f} [{centre - half:.3f}, {min(centre + half, 1):.3f}]"
        table.append(line)
    return record.markdown(table)


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    found = [count(law, rows, DRAWS) for law in LAWS for rows in ROWS]
    path = record.RESULTS / "mi_certified.jsonl"
    path.unlink(missing_ok=True)
    record.append("mi_certified", found, "python -m benchmarks.mi_certified")
    path.with_suffix(".md").write_text(
        f"{__doc__}\nShare of {DRAWS} bounds above the truth, and the mean bound in nats; none is certified of fewer "
        f"rows than the columns and ten.\n\n{markdown(found)}\n\nMeasured on {record.where()}.\n"
    )


if __name__ == "__main__":
    main()
