"""Methods against tasks: in parallel, resumable, with a table and a heat map."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from io import BytesIO
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from flatclr.checks import require_count, require_one_of
from flatclr.files import read_json_lines, replace_files
from flatclr.mi import tasks
from flatclr.mi.estimator import estimate
from flatclr.mi.fit import FAST, FitSettings
from flatclr.mi.methods import METHODS
from flatclr.runs import machine

TASK_SETS: dict[str, Callable[[], dict[str, tasks.Task]]] = {
    "benchmark": tasks.benchmark_tasks,
    "tuning": tasks.tuning_tasks,
    "unfamiliar": tasks.unfamiliar_tasks,
    "mixtures": tasks.mixture_tasks,
}
LINES, TABLE, PICTURE = "mi_benchmark.jsonl", "mi_benchmark.md", "mi_benchmark.png"


@dataclass(frozen=True)
class Cell:
    """One run: a method on a sample of a task."""

    task: str
    method: str
    rows: int
    seed: int
    task_set: str = "benchmark"
    fast: bool = False


def cells(
    methods: Sequence[str],
    *,
    task_set: str = "benchmark",
    rows: int = 10_000,
    seeds: int = 1,
    fast: bool = False,
    names: Sequence[str] = (),
) -> list[Cell]:
    """All runs asked for, tasks first, so that a table fills row by row."""
    require_one_of("task set", task_set, TASK_SETS)
    require_count("rows", rows, advice="10000 is the literature's.")
    require_count("seeds", seeds, advice="1 is the least.")
    known = TASK_SETS[task_set]()
    for method in methods:
        require_one_of("method", method, METHODS)
    for name in names:
        require_one_of("task", name, known)
    return [
        Cell(task, method, rows, seed, task_set, fast)
        for task in (names or known)
        for method in methods
        for seed in range(seeds)
    ]


def run_cell(cell: Cell) -> dict[str, Any]:
    """Sample, estimate, compare with the truth; one thread, so that as many cells as cores can run."""
    torch.set_num_threads(1)
    task = TASK_SETS[cell.task_set]()[cell.task]
    x, y = task.sample(cell.rows, cell.seed)
    settings = replace(FAST if cell.fast else FitSettings(), device="cpu")  # as many workers as cores share no GPU
    start, cpu_start = time.perf_counter(), time.process_time()
    result = estimate(x, y, cell.method, seed=cell.seed, settings=settings)
    return {
        **asdict(cell),
        "true_nats": round(task.mi_nats, 5),
        "nats": round(result.nats, 5),
        "standard_error": round(result.standard_error, 5),
        "kind": result.kind,
        "chosen": result.method,
        "seconds": round(time.perf_counter() - start, 2),
        "cpu_seconds": round(time.process_time() - cpu_start, 2),
    }


def run_benchmark(
    wanted: Sequence[Cell], out: Path, *, workers: int | None = None, on_done: Callable[[int, int], None] | None = None
) -> list[dict[str, Any]]:
    """Run the cells that `out` does not hold yet, a line each as it ends; then write the table and the picture."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / LINES
    done = {_cell_of(row): row for row in read_json_lines(path)}
    missing = [cell for cell in wanted if cell not in done]
    report = on_done or (lambda finished, total: None)
    report(len(wanted) - len(missing), len(wanted))
    # whole lines only: what follows a torn one would be lost with it
    replace_files({path: "".join(json.dumps(row) + "\n" for row in done.values()).encode()})
    where = {**machine(), "threads": 1}  # run_cell's
    with path.open("a") as file:
        for found in _results(missing, workers or os.cpu_count() or 1):
            row = {**found, "environment": where}
            file.write(json.dumps(row) + "\n")
            file.flush()
            done[_cell_of(row)] = row
            report(sum(cell in done for cell in wanted), len(wanted))
    rows = [done[cell] for cell in wanted]
    replace_files({out / TABLE: table(rows).encode(), out / PICTURE: heat_map(rows)})
    return rows


def _results(missing: Sequence[Cell], workers: int) -> Iterable[dict[str, Any]]:
    if workers == 1 or len(missing) < 2:
        yield from map(run_cell, missing)
        return
    # spawned, not forked: a fork of a process that has used torch's threads can hang
    with ProcessPoolExecutor(min(workers, len(missing)), mp_context=get_context("spawn")) as pool:
        for future in as_completed([pool.submit(run_cell, cell) for cell in missing]):
            yield future.result()


def _cell_of(row: dict[str, Any]) -> Cell:
    missing = [name for name in Cell.__dataclass_fields__ if name not in row]
    if missing:
        raise ValueError(f"lines of {LINES} must be results of a benchmark, got one without {missing[0]!r}; move it.")
    return Cell(*(row[name] for name in Cell.__dataclass_fields__))


def measured_before(rows: Sequence[dict[str, Any]]) -> dict[str, int]:
    """How many results are of which other commit than the present one."""
    commits = [row.get("environment", {}).get("commit", "unknown") for row in rows]
    here = machine()["commit"]
    return {commit: commits.count(commit) for commit in dict.fromkeys(commits) if commit != here}


def mean_by(rows: Sequence[dict[str, Any]], value: Callable[[dict[str, Any]], float]) -> dict[tuple[str, str], float]:
    """Mean over seeds of a value of each (task, method)."""
    collected: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        collected.setdefault((row["task"], row["method"]), []).append(value(row))
    return {key: sum(values) / len(values) for key, values in collected.items()}


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown: estimates per task and method, the true value beside them; below, errors, times and where measured."""
    names, methods = _unique(rows, "task"), _unique(rows, "method")
    truth = {row["task"]: row["true_nats"] for row in rows}
    nats, errors = mean_by(rows, lambda r: r["nats"]), mean_by(rows, lambda r: abs(r["nats"] - r["true_nats"]))
    seconds = mean_by(rows, lambda r: r["cpu_seconds"])
    lines = ["| task | true | " + " | ".join(methods) + " |", "| --- " * (len(methods) + 2) + "|"]
    for name in names:
        shown = (_number(nats.get((name, method)), 3) for method in methods)
        lines.append(f"| {name} | {truth[name]:.3f} | " + " | ".join(shown) + " |")
    for title, values, digits in (("mean absolute error", errors, 4), ("mean CPU seconds", seconds, 1)):
        means = (_mean([values[n, m] for n in names if (n, m) in values]) for m in methods)
        lines.append(f"| **{title}** | | " + " | ".join(_number(mean, digits) for mean in means) + " |")
    return "\n".join([*lines, "", *provenance(rows)]) + "\n"


def provenance(rows: Sequence[dict[str, Any]]) -> list[str]:
    """One line on what was run, and one on each machine and commit that ran it."""
    (task_set, *_), seeds = _unique(rows, "task_set"), sorted(set(_unique(rows, "seed")))
    networks = "small networks (--fast)" if all(row["fast"] for row in rows) else "full training"
    counts = ", ".join(f"{count:,}" for count in sorted(set(_unique(rows, "rows"))))
    what = f"Task set {task_set!r}, {counts} rows a task, seeds {', '.join(map(str, seeds))}, {networks}."
    wheres = {tuple(row.get("environment", {}).items()): None for row in rows}
    return [what, *("Measured with " + ", ".join(f"{k} {v}" for k, v in where) + "." for where in wheres if where)]


def heat_map(rows: Sequence[dict[str, Any]]) -> bytes:
    """A PNG of estimate minus truth, blue where too low and red where too high."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names, methods = _unique(rows, "task"), _unique(rows, "method")
    errors = mean_by(rows, lambda r: r["nats"] - r["true_nats"])
    grid = [[errors.get((name, method), math.nan) for method in methods] for name in names]
    figure = Figure(figsize=(2.5 + 0.62 * len(methods), 1.5 + 0.3 * len(names)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    image = axes.imshow(grid, cmap="RdBu_r", vmin=-0.5, vmax=0.5, aspect="auto")
    axes.set_xticks(range(len(methods)), methods, rotation=45, ha="right")
    axes.set_yticks(range(len(names)), names)
    for i, line in enumerate(grid):
        for j, error in enumerate(line):
            if math.isfinite(error):
                color = "white" if abs(error) > 0.35 else "black"
                axes.text(j, i, f"{error:+.2f}", ha="center", va="center", fontsize=7, color=color)
    # beside the bar, as a title would be wider than the picture of one method
    figure.colorbar(image, ax=axes, shrink=0.6, label="estimate minus true mutual information (nats)")
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()


def _unique(rows: Sequence[dict[str, Any]], key: str) -> list[Any]:
    return list(dict.fromkeys(row[key] for row in rows))


def _number(value: float | None, digits: int) -> str:
    return "" if value is None or math.isnan(value) else f"{value:.{digits}f}"


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan
