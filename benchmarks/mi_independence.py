"""How often the default finds information where there is none: independent normal columns, 100 draws a cell.

python -m benchmarks.mi_independence --seconds 900    goes on where it stopped; results/mi_independence/README.md
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks import mi_draws, record
from benchmarks.mi_calibration import BUDGET_SECONDS, wilson
from flatclr.mi import tasks

CELLS, DRAWS = ((1, 200), (1, 2_000), (2, 500), (5, 200), (5, 2_000), (20, 200)), 100
FOLDER = record.RESULTS / "mi_independence"
_ROUNDING = 1e-6  # nats


def independent(dim: int) -> tasks.Task:
    def draw(n: int, rng: np.random.Generator) -> tuple[tasks.Array, tasks.Array]:
        x, y = rng.standard_normal((2, n, dim))
        return x, y

    return tasks.Task("independent", 0.0, dim, dim, draw)


def draws() -> Iterator[mi_draws.Draw]:
    """Cells of few columns first, in which nothing is learned and a draw takes less than a second."""
    few, more = ([cell for cell in CELLS if (cell[0] <= 2) is wanted] for wanted in (True, False))
    for seed, (dim, rows) in (*itertools.product(range(DRAWS), few), *itertools.product(range(DRAWS), more)):
        yield mi_draws.Draw(f"{dim} + {dim} columns, {rows} rows", independent(dim), rows, seed, BUDGET_SECONDS)


def above(row: dict[str, Any], errors: float) -> bool:
    """Whether the value is more than so many standard errors above 0."""
    return row["standard_error"] is not None and row["nats"] > errors * row["standard_error"]


def summary(rows: list[dict[str, Any]]) -> str:
    table = []
    for cell in ["all", *dict.fromkeys(row["cell"] for row in rows)]:
        part = [row for row in rows if cell in ("all", row["cell"])]
        centre, half = wilson(sum(above(row, 2) for row in part), len(part))
        table.append(
            {
                "cell": cell,
                "draws": len(part),
                "2 s.e. above 0": sum(above(row, 2) for row in part),
                "share (Wilson)": f"{centre:.3f} [{max(centre - half, 0):.3f}, {centre + half:.3f}]",
                "3 s.e. above 0": sum(above(row, 3) for row in part),
                "lower_nats above 0": sum(row["lower_nats"] > _ROUNDING for row in part),
                "largest nats": f"{max(row['nats'] for row in part):.3f}",
                "CPU s": f"{np.mean([row['cpu_seconds'] for row in part]):.1f}",
            }
        )
    return f"{__doc__}\n{record.markdown(table)}\n\n{mi_draws.measured_on(rows)}\n"


def main() -> None:
    mi_draws.go_on(draws(), FOLDER, summary, mi_draws.parser(__doc__).parse_args())


if __name__ == "__main__":
    main()
