"""Where a measurement was made, and how a table of measurements is kept."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).parent.parent / "results"


def environment() -> dict[str, Any]:
    """Hardware, versions and commit."""
    gpu = {"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}
    return {
        **gpu,
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "commit": _git("describe", "--always", "--dirty", "--abbrev=10"),
    }


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


def append(name: str, rows: list[dict[str, Any]], command: str, path: Path | None = None) -> Path:
    """Add one run to results/NAME.jsonl, or to the path given: a line with the environment and every row."""
    path = path or RESULTS / f"{name}.jsonl"
    path.parent.mkdir(exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps({"command": command, **environment(), "rows": rows}) + "\n")
    return path


def markdown(rows: list[dict[str, Any]]) -> str:
    """The rows as a Markdown table."""
    columns = list(rows[0])
    lines = ["| " + " | ".join(columns) + " |", "| " + " | ".join("---" for _ in columns) + " |"]
    lines += ["| " + " | ".join(str(row[c]) for c in columns) + " |" for row in rows]
    return "\n".join(lines)


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=RESULTS.parent, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"
