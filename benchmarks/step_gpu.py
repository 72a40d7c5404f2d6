"""Milliseconds of a whole training step on a CUDA device, captured in a graph and eager.

    python -m benchmarks.step_gpu --help

ResNet-18 with CIFAR stem on random images of that size, bf16, FlatNCE under ESS control, SGD: indexing, augmentation,
encoder, loss, backward, optimizer and controller. Time is that of the wall over many steps, host work included.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import torch

import flatclr
from benchmarks import record
from flatclr.data.sources import Dataset, ResidentImages
from flatclr.training.trainer import Trainer


def measure(batch: int, graph: bool, steps: int) -> dict[str, Any]:
    images = torch.randint(256, (50_000, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    config = flatclr.TrainConfig(
        encoder="resnet18", batch_size=batch, precision="bf16", optimizer="sgd", learning_rate=0.03, graph=graph
    )
    trainer = Trainer(config, None, data=Dataset("random", ResidentImages(images), None))
    take_step = trainer._stepper()
    for step in range(20):
        take_step(step)
    times = []
    for block in range(5):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for step in range(steps):
            trainer._prepare(step)
            take_step(20 + block * steps + step)
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - start) / steps)
    middle, spread = record.median_and_spread(times)
    peak = torch.cuda.max_memory_allocated() / 2**20
    return {
        "batch": batch,
        "step": "graph" if graph else "eager",
        "ms": f"{middle:.2f} ± {spread:.2f}",
        "images/s": round(1e3 * batch / middle),
        "peak MiB": round(peak),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, nargs="+", default=[32, 64, 128, 256, 512])
    parser.add_argument("--steps", type=int, default=100, help="in each of five blocks (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="append here instead of to results/step_gpu.jsonl")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("expected a CUDA device, got none; run this where there is one.")
    rows = [measure(batch, graph, args.steps) for batch in args.batches for graph in (True, False)]
    print(record.markdown(rows))
    print("\n" + ", ".join(f"{k} {v}" for k, v in record.machine().items()))
    command = shlex.join(["python", "-m", "benchmarks.step_gpu", *sys.argv[1:]])
    record.append("step_gpu", rows, command, args.out)


if __name__ == "__main__":
    main()
