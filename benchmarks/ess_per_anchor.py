"""What a temperature for every anchor costs, and whether it helps, against one that all anchors share.

    python -m benchmarks.ess_per_anchor                    (the loss and a training step, a minute)
    python -m benchmarks.ess_per_anchor --accuracy         (both on the embedded images, minutes)

The loss is FlatNCE under `EssControl(0.25)`, forward + backward on the dense route, at random embeddings. The training
step is that of `flatclr train --recipe small`, and of the demo's eight small views. Times are medians of interleaved
calls in one process on one thread. They are of the processor, not of the clock on the wall, so that other work on the
machine does not count. Appends to results/ess_per_anchor.jsonl.
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

import flatclr
from benchmarks import record
from flatclr.runs import RunDirectory
from flatclr.training.recipes import RECIPES

TARGET, WIDTH = 0.25, 128
PAIRS = {32: 3, 256: 2, 1024: 1}  # and how many times the rounds of the largest
WARM = 2  # calls that are not counted
STEPS: dict[str, dict[str, Any]] = {
    "two views (recipe small)": {},
    "eight views of 16 pixels (the demo)": {"views_per_image": 8, "view_size": 16},
}
NUMBERS = {"knn": 100.0, "pool_mi_best_nats": 1.0}  # of the last evaluation, and what they are shown times


def loss_call(pairs: int, *, per_anchor: bool) -> Callable[[], object]:
    generator = torch.Generator().manual_seed(0)
    z_a, z_b = (torch.randn(pairs, WIDTH, generator=generator).requires_grad_() for _ in range(2))
    objective = flatclr.FlatNCE(temperature=flatclr.EssControl(TARGET, per_anchor=per_anchor), route="dense")
    return lambda: torch.autograd.grad(objective(z_a, z_b), (z_a, z_b))


def loss_row(pairs: int, rounds: int) -> dict[str, Any]:
    calls = {name: loss_call(pairs, per_anchor=name == "per anchor") for name in ("shared", "per anchor")}
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds + WARM):
        for name, call in calls.items():
            start = time.process_time()
            call()
            times[name].append(1e3 * (time.process_time() - start))
    counted = {name: values[WARM:] for name, values in times.items()}
    return {"what": "loss, forward + backward", "pairs": pairs, **_compared(counted)}


def step_row(recipe: str, settings: dict[str, Any], steps: int, rounds: int) -> dict[str, Any]:
    """Runs in turns; of each the steps between its logs, those up to the first left out."""
    times: dict[str, list[float]] = {"shared": [], "per anchor": []}
    schedule = {"steps": steps, "log_every": steps // 4, "eval_every": 10 * steps, "eval_start": False}
    schedule |= {"eval_samples": 100}  # there is one at the end in any case
    config = RECIPES["small"]().changed(**settings, **schedule, device="cpu")
    for _ in range(rounds):
        for name, milliseconds in times.items():
            logged: list[float] = []

            def note(event: flatclr.training.Event, logged: list[float] = logged) -> None:
                if isinstance(event, flatclr.training.Logged):
                    logged.append(time.process_time())

            with tempfile.TemporaryDirectory() as folder:
                changed = replace(config, ess_per_anchor=name == "per anchor", out=str(Path(folder) / "run"))
                flatclr.train(changed, progress=False, on_event=[note])
            milliseconds += [1e3 * (b - a) / config.log_every for a, b in pairwise(logged)]
    return {"what": f"training step, {recipe}", "pairs": config.batch_size, **_compared(times)}


def _compared(times: dict[str, list[float]]) -> dict[str, str]:
    found = {name: record.median_and_spread(values) for name, values in times.items()}
    shown = {f"{name} ms": f"{median:.3g} ± {spread:.2g}" for name, (median, spread) in found.items()}
    return {**shown, "ratio": f"{found['per anchor'][0] / found['shared'][0]:.2f}"}


def accuracy_rows(seeds: int, steps: int, eval_samples: int) -> list[dict[str, Any]]:
    """Per anchor less shared, seed by seed, at the end of runs on the embedded images."""
    config = replace(
        RECIPES["small"](),
        encoder="cnn",
        encoder_options={"width": 16},
        steps=steps,
        eval_every=10 * steps,
        eval_start=False,
        eval_samples=eval_samples,
        device="cpu",
    )
    ends = [
        {per: _end_of(replace(config, seed=seed, ess_per_anchor=per)) for per in (False, True)} for seed in range(seeds)
    ]
    rows = []
    for name, scale in NUMBERS.items():
        shared, own = ([scale * end[per][name] for end in ends] for per in (False, True))
        gains = [b - a for a, b in zip(shared, own, strict=True)]
        rows.append(
            {
                "what": f"{name} after {steps} steps, recipe small, width 16",
                "shared": f"{statistics.fmean(shared):.2f}",
                "per anchor": f"{statistics.fmean(own):.2f}",
                "per anchor less shared, by seed": ", ".join(f"{gain:+.2f}" for gain in gains),
                "standard error": f"{statistics.stdev(gains) / len(gains) ** 0.5:.2f}" if len(gains) > 1 else "",
            }
        )
    return rows


def _end_of(config: flatclr.TrainConfig) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        flatclr.train(replace(config, out=str(out)), progress=False)
        return [row for row in RunDirectory.open(out).metrics() if row["kind"] == "evaluation"][-1]


def main() -> None:
    parser = argparse.ArgumentParser(description="A temperature for every anchor: what it costs, whether it helps.")
    parser.add_argument("--accuracy", action="store_true", help="train both, instead of timing them")
    parser.add_argument("--seeds", type=int, default=3, help="of --accuracy (default: %(default)s)")
    parser.add_argument("--steps", type=int, help="of a run (default: 600 of --accuracy, 40 of the timed step)")
    parser.add_argument("--eval-samples", type=int, default=2000, help="of --accuracy (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=10, help="of the largest timed call (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="default: results/ess_per_anchor.jsonl")
    args = parser.parse_args()
    if args.accuracy:
        rows = accuracy_rows(args.seeds, args.steps or 600, args.eval_samples)
    else:
        torch.set_num_threads(1)
        rows = [loss_row(pairs, times * args.rounds) for pairs, times in PAIRS.items()]
        rows += [step_row(name, settings, args.steps or 40, rounds=3) for name, settings in STEPS.items()]
    Console().print(record.markdown(rows), markup=False, highlight=False)
    command = shlex.join(["python", "-m", "benchmarks.ess_per_anchor", *sys.argv[1:]])
    print(record.append("ess_per_anchor", rows, command, args.out))


if __name__ == "__main__":
    main()
