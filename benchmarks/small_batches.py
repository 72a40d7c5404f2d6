"""Small batches on the embedded images: batch size x objective, kNN and linear accuracy, several seeds.

    python -m benchmarks.small_batches --workers 2

Each run has one thread. Finished runs are kept and interrupted ones resumed, so the command may be stopped and started
again. All see the same images: a batch of 8 makes 16 times the updates of a batch of 128.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shlex
import statistics
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track

import flatclr
from benchmarks import record

BATCHES = (8, 16, 32, 128)
OBJECTIVES: dict[str, dict[str, Any]] = {
    "InfoNCE": {"objective": "infonce", "temperature": 0.1},
    "FlatNCE": {"objective": "flatnce", "temperature": 0.1},
    "FlatNCE + ESS 0.25": {"objective": "flatnce", "ess_target": 0.25},
}


@dataclass(frozen=True)
class Cell:
    batch: int
    objective: str
    seed: int
    epochs: float

    def folder(self, runs: Path) -> Path:
        return runs / f"{self.batch}-{self.objective.replace(' + ', '-').replace(' ', '-')}-{self.seed}"

    def config(self, runs: Path) -> flatclr.TrainConfig:
        return flatclr.TrainConfig(
            batch_size=self.batch,
            epochs=self.epochs,
            seed=self.seed,
            # one rule for all objectives: 1e-3 at batch 32, growing with the square root of the batch
            learning_rate=1e-3 * (256 / 32) ** 0.5,
            lr_scaling="sqrt",
            log_every=max(1, 1600 // self.batch),
            eval_every=10**9,
            eval_start=False,
            device="cpu",
            out=str(self.folder(runs)),
            **OBJECTIVES[self.objective],
        )


def measure(cell: Cell, runs: Path) -> dict[str, Any]:
    """Train unless that is done, evaluate unless that is done, and read both."""
    torch.set_num_threads(1)
    folder = cell.folder(runs)
    if not (folder / "encoder.safetensors").exists():
        config = cell.config(runs)
        flatclr.train(config, resume=folder if (folder / "checkpoint").is_dir() else None)
    kept = folder / "small_batches.json"
    if not kept.exists():
        found = flatclr.evaluate(folder, protocol=["knn", "linear"], device="cpu")
        accuracies = {name: found[name].best.value for name in ("knn", "linear")}
        untrained = {name: found.random_beside(found[name]).best.value for name in ("knn", "linear")}  # type: ignore[union-attr]
        last = {name: value for row in flatclr.runs.RunDirectory.open(folder).metrics() for name, value in row.items()}
        gauges = {name: last[name] for name in ("ess", "saturation", "beta", "gradient_norm", "gradient_snr")}
        kept.write_text(json.dumps({**asdict(cell), **accuracies, **gauges, "untrained": untrained}))
    measured: dict[str, Any] = json.loads(kept.read_text())
    return measured


def table(measured: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Mean and standard deviation over seeds, a row for each batch size and objective."""

    def shown(rows: list[dict[str, Any]], name: str, scale: float = 1.0, digits: int = 2) -> str:
        values = [scale * row[name] for row in rows if row[name] is not None]
        spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
        return f"{statistics.mean(values):.{digits}f}{spread}" if values else ""

    lines = []
    for batch in sorted({row["batch"] for row in measured}):
        for objective in OBJECTIVES:
            rows = [row for row in measured if row["batch"] == batch and row["objective"] == objective]
            if rows:
                lines.append(
                    {
                        "batch": str(batch),
                        "objective": objective,
                        "kNN %": shown(rows, "knn", 100, 1),
                        "linear %": shown(rows, "linear", 100, 1),
                        "ESS": shown(rows, "ess"),
                        "bound / ceiling": shown(rows, "saturation"),
                        "beta": shown(rows, "beta", 1, 1),
                        "gradient norm": shown(rows, "gradient_norm"),
                        "gradient SNR": shown(rows, "gradient_snr"),
                        "seeds": str(len(rows)),
                    }
                )
    untrained = [row["untrained"] for row in measured if row["batch"] == measured[0]["batch"]]
    blank = dict.fromkeys(lines[0], "")
    own = {"objective": "untrained", "seeds": str(len({row["seed"] for row in measured}))}
    accuracies = {"kNN %": shown(untrained, "knn", 100, 1), "linear %": shown(untrained, "linear", 100, 1)}
    return [*lines, {**blank, **own, **accuracies}]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, nargs="+", default=list(BATCHES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=float, default=2.0)
    parser.add_argument("--workers", type=int, default=2, help="runs at a time (default: %(default)s)")
    parser.add_argument("--runs", type=Path, default=Path("runs/small-batches"), help="where the runs are kept")
    parser.add_argument("--no-save", action="store_true", help="print only, leave results/ alone")
    args = parser.parse_args()
    cells = [Cell(b, o, s, args.epochs) for b in args.batches for o in OBJECTIVES for s in range(args.seeds)]
    with ProcessPoolExecutor(args.workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        waiting = [pool.submit(measure, cell, args.runs) for cell in cells]
        for future in track(as_completed(waiting), "running", total=len(cells), console=Console(stderr=True)):
            future.result()
    measured = [future.result() for future in waiting]
    print(record.markdown(table(measured)))
    if not args.no_save:
        command = shlex.join(["python", "-m", "benchmarks.small_batches", *sys.argv[1:]])
        print(f"appended to {record.append('small_batches', measured, command).relative_to(record.RESULTS.parent)}")


if __name__ == "__main__":
    main()
