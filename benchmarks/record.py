"""Where a measurement was made, and how a table of measurements is kept."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flatclr.runs import machine

RESULTS = Path(__file__).parent.parent / "results"


def interleaved_ms(calls: dict[str, Callable[[], object]], *, rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each call, round-robin, so that a noisy neighbour slows all of them alike."""
    for call in calls.values():
        call()
        call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append(1e3 * (time.perf_counter() - start))
    return times


def median_and_spread(values: list[float]) -> tuple[float, float]:
    """Median and interquartile range."""
    low, _, high = statistics.quantiles(values, n=4)
    return statistics.median(values), high - low


def where() -> str:
    """The machine in words."""
    return ", ".join(f"{name} {value}" for name, value in machine().items())


def append(name: str, rows: list[dict[str, Any]], command: str, path: Path | None = None) -> Path:
    """Add one run to results/NAME.jsonl, or to the path given: a line with the environment and every row."""
    path = path or RESULTS / f"{name}.jsonl"
    path.parent.mkdir(exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps({"command": command, **machine(), "rows": rows}) + "\n")
    return path


def markdown(rows: list[dict[str, Any]]) -> str:
    """The rows as a Markdown table."""
    columns = list(rows[0])
    lines = ["| " + " | ".join(columns) + " |", "| " + " | ".join("---" for _ in columns) + " |"]
    lines += ["| " + " | ".join(str(row[c]) for c in columns) + " |" for row in rows]
    return "\n".join(lines)
