"""Estimates on known tasks that accumulate in a file, a line each, so that a long bench can stop and go on.

Several processes may share one bench and its file: `--shard 3/12` takes the third draw of every twelve, and a line is
one appending write.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from flatclr.files import read_json_lines
from flatclr.mi import FitSettings, estimate
from flatclr.mi.tasks import Task
from flatclr.runs import machine


@dataclass(frozen=True)
class Draw:
    """One estimate: a task's rows of one seed, within one budget."""

    cell: str
    task: Task
    rows: int
    seed: int
    budget_seconds: float
    method: str = "auto"  # another belongs into the cell's name
    device: str = "cpu"  # likewise

    @property
    def key(self) -> tuple[str, int, float]:
        return self.cell, self.seed, self.budget_seconds


def accumulate(draws: Iterable[Draw], path: Path, *, seconds: float) -> Iterator[dict[str, Any]]:
    """Run what the file does not hold yet until the time is up; one thread, so that times compare."""
    path.parent.mkdir(parents=True, exist_ok=True)
    done = {(row["cell"], row["seed"], row["budget_seconds"]) for row in read_json_lines(path)}
    torch.set_num_threads(1)
    where, end = machine(), time.monotonic() + seconds
    with path.open("a") as file:
        for draw in draws:
            if time.monotonic() > end:
                return
            if draw.key not in done:
                row = {**run(draw), "environment": where}
                file.write(json.dumps(row) + "\n")
                file.flush()
                yield row


def run(draw: Draw) -> dict[str, Any]:
    """The estimate beside the truth."""
    x, y = draw.task.sample(draw.rows, draw.seed)
    start, start_wall, settings = time.process_time(), time.monotonic(), FitSettings(device=draw.device)
    found = estimate(x, y, draw.method, seed=draw.seed, settings=settings, budget_seconds=draw.budget_seconds)
    result = found.to_dict()
    kept = ("nats", "standard_error", "lower_nats", "kind", "method", "runner_up", "steps", "more_time", "warnings")
    return {
        "cell": draw.cell,
        "task": draw.task.name,
        "rows": draw.rows,
        "seed": draw.seed,
        "budget_seconds": draw.budget_seconds,
        "true_nats": draw.task.mi_nats,
        **{name: result[name] for name in kept},
        "cpu_seconds": round(time.process_time() - start, 2),
        "wall_seconds": round(time.monotonic() - start_wall, 2),
    }


def parser(description: str | None, *, seconds: float = 900.0) -> argparse.ArgumentParser:
    """Of a bench whose draws accumulate."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--seconds", type=float, default=seconds, help="after which no estimate is begun")
    made.add_argument("--shard", type=shard, default=(1, 1), metavar="I/N", help="every Nth draw from the Ith, from 1")
    made.add_argument("--folder", type=Path, help="of draws.jsonl and README.md (default: the bench's in results/)")
    return made


def shard(text: str) -> tuple[int, int]:
    """Which part, and of how many.

    >>> shard("3/12")
    (3, 12)
    """
    part, _, parts = text.partition("/")
    if not (part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts)):
        raise argparse.ArgumentTypeError(f"expected I/N with 1 <= I <= N, got {text!r}; e.g. 3/12.")
    return int(part), int(parts)


def go_on(
    draws: Iterable[Draw], folder: Path, summary: Callable[[list[dict[str, Any]]], str], given: argparse.Namespace
) -> None:
    """Run what is missing until the time is up, a line each, then write the page of all there are."""
    folder, (part, parts) = given.folder or folder, given.shard
    path = folder / "draws.jsonl"
    for row in accumulate(islice(draws, part - 1, None, parts), path, seconds=given.seconds):
        told = f"{row['true_nats']:.3f} {row['nats']:.3f} +- {row['standard_error']} {row['method']}"
        print(f"{row['cell']:44} {told}", flush=True)
    found = read_json_lines(path)
    if found:
        (folder / "README.md").write_text(summary(found))


def measured_on(rows: list[dict[str, Any]]) -> str:
    """The machines of these rows in words, with the number of rows of each where they are several, and the commits."""
    words = (", ".join(f"{k} {v}" for k, v in row["environment"].items() if k != "commit") for row in rows)
    machines = Counter(words).most_common()
    listed = "; ".join(f"{name} ({count} rows)" if len(machines) > 1 else name for name, count in machines)
    commits = sorted({row["environment"]["commit"] for row in rows})
    return f"Measured on {listed}; commits {', '.join(commits)}."
