"""Runs of the CIFAR-10 benchmark without their GPU and its hours: what they would leave, and processes that start at once."""

from __future__ import annotations

import io
import json
import math
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import IO, Any

import yaml

from benchmarks.cifar10 import kept, runs
from benchmarks.cifar10.plan import FULL, STAGES, TINY, PlannedRun, planned
from flatclr.cli.main import app
from flatclr.evaluation.intervals import Score
from flatclr.evaluation.results import RANDOM, TRAINED, Evaluation, Row

ALL = planned(list(STAGES), FULL, FULL.starting_rates)
TINY_GRID = planned(["grid"], TINY, TINY.starting_rates)
HALF_WIDTH = 0.008  # of the synthetic intervals over test images
EVALUATION_SECONDS = 0.5


def names(items: list[PlannedRun]) -> list[str]:
    return [run.name for run in items]


def metric_rows(run: PlannedRun, knn: float) -> list[dict[str, Any]]:
    """Accuracy and pool MI grow together over eight evaluations; the batch's MI stays where it is."""
    steps, every = run.steps, max(1, math.ceil(run.steps / 8))
    rows: list[dict[str, Any]] = []
    for step in [*range(every, steps, every), steps]:
        common = {"step": step, "epoch": 20 * step / steps}
        gauges = {"ess": 0.2, "saturation": 0.9, "beta": 10.0, "gradient_snr": 0.5, "images_per_second": 1000.0}
        rows.append({**common, "kind": "log", "mi_nats": 3.0 + 0.01 * (step % 3), **gauges})
        grown = knn * (0.5 + 0.5 * step / steps)
        rows.append({**common, "kind": "evaluation", "knn": grown, "pool_mi_best_nats": 10 * grown})
    return rows


def scores_around(value: float) -> dict[str, Score]:
    shifted = {"top1": value, "top1_k10": value + 0.01}
    return {name: Score(at, at - HALF_WIDTH, at + HALF_WIDTH) for name, at in shifted.items()}


def leave_run(home: Path, run: PlannedRun, knn: float) -> None:
    """Keep a run directory as a run of this name would have left it."""
    folder = home.parent / "made" / run.name
    (folder / "evaluation").mkdir(parents=True)
    settings = run.config(out=str(folder), data="/somewhere/cifar10", data_dir="/somewhere/else")
    (folder / "config.yaml").write_text(yaml.safe_dump(settings.to_dict()))
    (folder / "environment.json").write_text(json.dumps({"torch": "2.11.0", "python": "3.12.3"}))
    rows = metric_rows(run, knn)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    began = {
        "kind": "process",
        "does": "train",
        "beside": 4,
        "gpu": "a GPU",
        "cpu": "a CPU",
        "cores": 16,
        "commit": "c0ffee",
    }
    lasts = {"log": 0.0, "evaluation": EVALUATION_SECONDS}
    clock = [{**began, "seconds": 0.0}] + [
        {"kind": row["kind"], "step": row["step"], "seconds": 10.0 + row["step"] + lasts[row["kind"]]} for row in rows
    ]
    (folder / "clock.jsonl").write_text("".join(json.dumps(row) + "\n" for row in clock))
    found = [
        Row(name, 1, "", "cifar10", "output", weights, "top1", scores_around(at))
        for name, shift in (("knn", 0.0), ("linear", 0.05))
        for weights, at in ((TRAINED, knn + shift), (RANDOM, 0.3 + shift))
        if name in run.protocols
    ]
    (folder / "evaluation" / "results.json").write_text(json.dumps(Evaluation(str(folder), "", tuple(found)).to_dict()))
    kept.keep(folder, home)


def leave_rates(home: Path, best: Mapping[int, float]) -> None:
    for run in planned(["lr"], FULL, {}):
        batch, rate = run.settings["batch_size"], run.settings["learning_rate"]
        leave_run(home, run, 0.5 - 0.05 * abs(math.log2(rate / best[batch])))


def accuracy_where_small_batches_hurt_info_nce(run: PlannedRun) -> float:
    loses = 0.1 if run.config().objective == "infonce" and run.batch < 256 else 0.0
    return float(0.7 - loses + 0.002 * run.settings["seed"] + 0.2 * (run.stage == "fast"))


def page(home: Path, name: str) -> str:
    return (home / f"{name}.md").read_text()


def table_row(text: str, *starts: str) -> list[str]:
    """The cells of the first row that begins so."""
    begins = "| " + " | ".join(starts) + " |"
    return next(line for line in text.splitlines() if line.startswith(begins)).strip("| ").split(" | ")


class Started:
    """Stands in for a process: says its lines, then ends, by itself or when it is told to."""

    def __init__(self, code: int, lines: list[str], told: bool = False) -> None:
        self.code, self.signalled = code, threading.Event()
        self.stdout = self._say(lines, told)

    def _say(self, lines: list[str], told: bool) -> Iterator[str]:
        yield from lines
        if told:
            assert self.signalled.wait(30)

    def wait(self, timeout: float | None = None) -> int:
        return self.code

    def send_signal(self, _: int) -> None:
        self.signalled.set()


def site(folder: Path) -> runs.Site:
    return runs.Site(TINY, folder / "runs", folder / "results")


def later() -> float:
    return time.monotonic() + 600


def launch_here(arguments: list[str], stderr: IO[str], environment: Mapping[str, str]) -> Started:
    """The same command within this process, which saves the start of another."""
    with redirect_stdout(io.StringIO()) as printed:
        app([*arguments, "--json"], standalone_mode=False)
    return Started(0, printed.getvalue().splitlines(keepends=True))
